//! The limits page as a tenant's process sees it: mapped read-only, changing under its eyes.
//!
//! Fed by: the file in the seat's directory. Must not: wait for a writer that died.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use thiserror::Error;

use super::{CONTEXT, Header, MAGIC, MAX_DEVICES, Record, SIZE, UUID, VERSION, record};
use crate::map::{self, Map};

/// The least trim that counts, in millionths.
const SLOWEST: u32 = 500_000;
/// The greatest: a share of one percent to which the whole card is lent, corrected by two.
const FASTEST: u32 = 200_000_000;
/// Looks at a page that is being written, before it is taken as it is.
const LOOKS: u32 = 1_000;

/// Why there is no limits page.
#[derive(Debug, Error)]
pub enum LimitsError {
    /// It cannot be opened or mapped.
    #[error("the limits page cannot be mapped: {0}")]
    Map(#[from] io::Error),
    /// It is not one.
    #[error("the limits page does not begin as one")]
    Magic,
    /// Its layout is another.
    #[error("the limits page has layout version {0}; this library reads {VERSION}")]
    Version(u32),
}

/// A mapped limits page.
#[derive(Debug)]
pub struct Limits(pub(super) Map);

impl Limits {
    /// Maps the page at `path`.
    pub fn open(path: &CStr) -> Result<Self, LimitsError> {
        let file = map::open(path, libc::O_RDONLY)?;
        Self::map(&file, libc::PROT_READ)
    }

    pub(super) fn map(file: &OwnedFd, protection: i32) -> Result<Self, LimitsError> {
        let limits = Self(Map::new(file, SIZE, protection)?);
        if limits.u64(0) != u64::from_le_bytes(MAGIC) {
            return Err(LimitsError::Magic);
        }
        match limits.u32(offset_of!(Header, version)) {
            VERSION => Ok(limits),
            other => Err(LimitsError::Version(other)),
        }
    }

    /// How many devices are visible.
    pub fn devices(&self) -> usize {
        let count = self.stable(|| self.u32(offset_of!(Header, devices)));
        usize::try_from(count)
            .unwrap_or(MAX_DEVICES)
            .min(MAX_DEVICES)
    }

    /// The uuid of device `i`, without its padding; it never changes.
    pub fn uuid(&self, i: usize) -> ([u8; UUID], usize) {
        let mut uuid = [0; UUID];
        for (word, bytes) in uuid.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&self.u64(record(i) + word * 8).to_le_bytes());
        }
        let length = uuid.iter().position(|byte| *byte == 0).unwrap_or(UUID);
        (uuid, length)
    }

    /// Memory limit in bytes.
    pub fn memory(&self, i: usize) -> u64 {
        self.stable(|| self.u64(record(i) + offset_of!(Record, memory)))
    }

    /// Part of the card's real memory in bytes.
    pub fn physical(&self, i: usize) -> u64 {
        self.stable(
            || match self.u64(record(i) + offset_of!(Record, physical)) {
                0 => self.u64(record(i) + offset_of!(Record, memory)),
                physical => physical,
            },
        )
    }

    /// Memory that the host measured beyond what the slots say, in bytes.
    pub fn overhead(&self, i: usize) -> u64 {
        self.u64(record(i) + offset_of!(Record, overhead))
    }

    /// Memory of one context in bytes.
    pub fn context(&self, i: usize) -> u64 {
        match self.u64(record(i) + offset_of!(Record, context)) {
            0 => CONTEXT,
            size => size,
        }
    }

    /// Compute limit in percent, 100 where there is none.
    #[inline]
    pub fn cores(&self, i: usize) -> u32 {
        match self.u32(record(i) + offset_of!(Record, cores)) {
            0 => 100,
            percent => percent.min(100),
        }
    }

    /// The gate word, to read or to wait on.
    #[inline]
    pub fn gate(&self, i: usize) -> &AtomicU32 {
        self.0.u32(record(i) + offset_of!(Record, gate))
    }

    /// Trim of the compute rate in millionths.
    #[inline]
    pub fn trim(&self, i: usize) -> u32 {
        match self.u32(record(i) + offset_of!(Record, trim)) {
            0 => 1_000_000,
            trim => trim.clamp(SLOWEST, FASTEST),
        }
    }

    /// Tenants that are active on the card; 0: unknown.
    #[inline]
    pub fn tenants(&self, i: usize) -> u32 {
        self.u32(record(i) + offset_of!(Record, tenants))
    }

    /// The host's last sign of life, nanoseconds since the epoch; 0: none yet.
    #[inline]
    pub fn heartbeat(&self) -> u64 {
        self.u64(offset_of!(Header, heartbeat))
    }

    /// 0 high, 1 low.
    pub fn priority(&self) -> u32 {
        self.u32(offset_of!(Header, priority))
    }

    /// 0 default, 1 force, 2 disable.
    #[inline]
    pub fn policy(&self) -> u32 {
        self.u32(offset_of!(Header, policy))
    }

    /// The flags of the container.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.u32(offset_of!(Header, flags))
    }

    /// What `read` gives while no write is under way; a writer that died in the middle is not
    /// waited for.
    fn stable<T>(&self, read: impl Fn() -> T) -> T {
        let sequence = self.sequence();
        for _ in 0..LOOKS {
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
        self.0.u64(offset_of!(Header, sequence))
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
