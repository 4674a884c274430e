//! The limits page as a container's process reads it: mapped read-only, changed by the host at any
//! time. The table in [`super`] says what each field means.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fs::File;
use std::io;
use std::path::Path;

use thiserror::Error;

use super::{CONTEXT, DeviceRecord, MAGIC, MAX_DEVICES, PageHeader, SIZE, UUID, VERSION, record};
use crate::map::{self, Map};

const MIN_RATE_CORRECTION: u32 = 20_000;
/// Highest valid rate correction: a share of one percent to which the whole device is lent,
/// corrected by a factor of four.
const MAX_RATE_CORRECTION: u32 = 400_000_000;
/// Reads of a page that is being written, before its content is taken as it is.
const MAX_READS: u32 = 1_000;

#[derive(Debug, Error)]
pub enum LimitsError {
    #[error("the limits page cannot be mapped: {0}")]
    Map(#[from] io::Error),
    #[error("the limits page does not begin with its magic bytes")]
    Magic,
    #[error("the limits page has layout version {0}; expected: {VERSION}")]
    Version(u32),
}

#[derive(Debug)]
pub struct LimitsPage(pub(super) Map);

impl LimitsPage {
    pub fn open(path: &Path) -> Result<Self, LimitsError> {
        let file = map::open(path, libc::O_RDONLY)?;
        Self::map(&file, libc::PROT_READ)
    }

    /// A page with no device, for a container whose own cannot be read.
    pub fn empty() -> Self {
        static WORDS: [AtomicU64; SIZE / 8] = [const { AtomicU64::new(0) }; SIZE / 8];
        Self(Map::of_static(&WORDS))
    }

    pub(super) fn map(file: &File, protection: i32) -> Result<Self, LimitsError> {
        let limits = Self(Map::new(file, SIZE, protection)?);
        if limits.u64(0) != u64::from_le_bytes(MAGIC) {
            return Err(LimitsError::Magic);
        }
        match limits.u32(offset_of!(PageHeader, version)) {
            VERSION => Ok(limits),
            other => Err(LimitsError::Version(other)),
        }
    }

    pub fn devices(&self) -> usize {
        let count = self.stable(|| self.u32(offset_of!(PageHeader, devices)));
        usize::try_from(count)
            .unwrap_or(MAX_DEVICES)
            .min(MAX_DEVICES)
    }

    pub fn counters(&self) -> Option<u64> {
        let identity = self.stable(|| self.u64(offset_of!(PageHeader, counters)));
        (identity != 0).then_some(identity)
    }

    /// The UUID of device `i` and its length without padding; it never changes.
    pub fn uuid(&self, i: usize) -> ([u8; UUID], usize) {
        let mut uuid = [0; UUID];
        for (word, bytes) in uuid.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.u64(record(i) + word * 8).to_le_bytes());
        }
        let length = uuid.iter().position(|byte| *byte == 0).unwrap_or(UUID);
        (uuid, length)
    }

    pub fn memory(&self, i: usize) -> u64 {
        self.stable(|| self.u64(record(i) + offset_of!(DeviceRecord, memory)))
    }

    pub fn physical(&self, i: usize) -> u64 {
        self.memory_unless(i, offset_of!(DeviceRecord, physical))
    }

    pub fn request(&self, i: usize) -> u64 {
        self.memory_unless(i, offset_of!(DeviceRecord, request))
    }

    /// What of the memory limit the driver must not evict, in bytes: what was requested, as far as
    /// it is memory of the device itself. The rest is lent.
    pub fn guaranteed(&self, i: usize) -> u64 {
        self.physical(i).min(self.request(i))
    }

    /// The memory limit, unless this field says another number of bytes.
    fn memory_unless(&self, i: usize, field: usize) -> u64 {
        self.stable(|| match self.u64(record(i) + field) {
            0 => self.u64(record(i) + offset_of!(DeviceRecord, memory)),
            bytes => bytes,
        })
    }

    /// The most memory in bytes that may be allocated now: the limit, or the request while lent
    /// memory is called back.
    pub fn growth_limit(&self, i: usize) -> u64 {
        match self.u32(record(i) + offset_of!(DeviceRecord, called_back)) {
            0 => self.memory(i),
            _ => self.request(i).min(self.memory(i)),
        }
    }

    pub fn max_wait_ms(&self, i: usize) -> u32 {
        self.u32(record(i) + offset_of!(DeviceRecord, max_wait_ms))
    }

    pub fn overhead(&self, i: usize) -> u64 {
        self.u64(record(i) + offset_of!(DeviceRecord, overhead))
    }

    pub fn context(&self, i: usize) -> u64 {
        match self.u64(record(i) + offset_of!(DeviceRecord, context)) {
            0 => CONTEXT,
            size => size,
        }
    }

    /// 100 where there is no limit.
    #[inline]
    pub fn cores(&self, i: usize) -> u32 {
        match self.u32(record(i) + offset_of!(DeviceRecord, cores)) {
            0 => 100,
            percent => percent.min(100),
        }
    }

    pub fn cores_limit(&self, i: usize) -> u32 {
        self.u32(record(i) + offset_of!(DeviceRecord, cores_limit))
    }

    /// The throttle flag, to read or to wait on.
    #[inline]
    pub fn throttle_flag(&self, i: usize) -> &AtomicU32 {
        self.0
            .u32(record(i) + offset_of!(DeviceRecord, throttle_flag))
    }

    #[inline]
    pub fn rate_correction(&self, i: usize) -> u32 {
        match self.u32(record(i) + offset_of!(DeviceRecord, rate_correction)) {
            0 => 1_000_000,
            rate_correction => rate_correction.clamp(MIN_RATE_CORRECTION, MAX_RATE_CORRECTION),
        }
    }

    #[inline]
    pub fn tenants(&self, i: usize) -> u32 {
        self.u32(record(i) + offset_of!(DeviceRecord, tenants))
    }

    pub fn others(&self, i: usize) -> u32 {
        self.u32(record(i) + offset_of!(DeviceRecord, others))
    }

    pub fn others_time(&self, i: usize) -> u64 {
        self.u64(record(i) + offset_of!(DeviceRecord, others_time))
    }

    #[inline]
    pub fn heartbeat(&self) -> u64 {
        self.u64(offset_of!(PageHeader, heartbeat))
    }

    pub fn priority(&self) -> u32 {
        self.u32(offset_of!(PageHeader, priority))
    }

    #[inline]
    pub fn policy(&self) -> u32 {
        self.u32(offset_of!(PageHeader, policy))
    }

    #[inline]
    pub fn flags(&self) -> u32 {
        self.u32(offset_of!(PageHeader, flags))
    }

    /// The result of `read` while no write is under way. A writer that died in the middle is not
    /// waited for.
    fn stable<T>(&self, read: impl Fn() -> T) -> T {
        let sequence = self.sequence();
        for _ in 0..MAX_READS {
            let before = sequence.load(Ordering::Acquire);
            let value = read();
            core::sync::atomic::fence(Ordering::Acquire);
            if before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before {
                return value;
            }
            core::hint::spin_loop();
        }
        read()
    }

    fn sequence(&self) -> &AtomicU64 {
        self.0.u64(offset_of!(PageHeader, sequence))
    }

    #[inline]
    fn u32(&self, at: usize) -> u32 {
        self.0.u32(at).load(Ordering::Relaxed)
    }

    #[inline]
    fn u64(&self, at: usize) -> u64 {
        self.0.u64(at).load(Ordering::Relaxed)
    }
}
