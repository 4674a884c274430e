//! The counters file: what the processes of one container use, in slots that never move.
//!
//! Layout of the first [`USED`] bytes of a file of [`SIZE`]; all words are atomic:
//!
//! | offset | size | what |
//! |---|---|---|
//! | 0 | 8 | magic `ALQCOUNT` |
//! | 8 | 4 | layout version, 1 |
//! | 16 | 8 | slots that were ever used: those from this number on are empty |
//! | 4,096 + 256 d | 256 | device d, in the order of the limits page |
//! | + 0 | 8 | total: bytes in use by all processes (48 bits), number of audits (16 bits) |
//! | + 8 | 8 | the most that was in use |
//! | + 16 | 8 | requests that were refused |
//! | + 64 | 8 | compute: until when the bucket is in debt, nanoseconds of the monotonic clock |
//! | + 72 | 8 | compute: until when all that was launched is thought to run, the same clock |
//! | + 80 | 8 | compute: nanoseconds of GPU time used |
//! | + 88 | 8 | compute: last launch, nanoseconds of the monotonic clock |
//! | + 96 | 8 | compute: launches |
//! | + 104 | 8 | compute: nanoseconds that launches waited |
//! | 16,384 + 1,024 s | 1,024 | slot s; the last, 512, is shared by all processes beyond 512 |
//! | + 0 | 8 | process id in its own namespace; 0: free; all ones: the shared slot is in use |
//! | + 8 | 8 | operations ended (48 bits), under way (16 bits) |
//! | + 64 + 16 d | 8 | bytes used on device d |
//! | + 72 + 16 d | 8 | of these, contexts |
//!
//! Who holds a slot holds the lock of its first byte ([`crate::seat`]); its forked children hold that
//! of the second, as they may hold its memory of the card.
//!
//! Fed by: every GPU process of the container; made by the device plugin.
//! Must not: be mapped by the host, who reads it with `pread` and believes it as far as the driver
//! agrees.

use core::sync::atomic::AtomicU64;
use std::io;

use thiserror::Error;

use crate::limits::MAX_DEVICES;
use crate::map::Map;

/// Size of the file in bytes.
pub const SIZE: u64 = 1 << 20;
/// Processes that have a slot of their own.
pub const SLOTS: usize = 512;
/// The slot that all others share.
pub const SHARED: usize = SLOTS;
/// Bytes that are mapped.
pub const USED: usize = FIRST_SLOT + (SLOTS + 1) * SLOT;
/// The layout that is written and read.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"ALQCOUNT";
const HIGH: usize = 16;
const FIRST_DEVICE: usize = 4096;
/// Bytes of a device.
pub(crate) const DEVICE: usize = 256;
/// Where a device's words of its compute are, in the order of the table.
pub(crate) const COMPUTE: [usize; 6] = [64, 72, 80, 88, 96, 104];
const FIRST_SLOT: usize = 16_384;
const SLOT: usize = 1024;
const SHARES: usize = 64;
const SHARE: usize = 16;

const _: () = {
    assert!(FIRST_DEVICE + MAX_DEVICES * DEVICE <= FIRST_SLOT);
    assert!(SHARES + MAX_DEVICES * SHARE <= SLOT);
    assert!(USED as u64 <= SIZE);
};

/// What a new file begins with; the rest is zero.
pub fn header() -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Why a process gets no slot.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The file cannot be opened, mapped or locked.
    #[error("the counters file cannot be {step}: {source}")]
    File {
        /// What was tried.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It is not one, or of another layout.
    #[error("the counters file has another layout than version {VERSION}")]
    Layout,
    /// The shared slot is being emptied, again and again.
    #[error("the counters file has no slot to give")]
    NoSlot,
}

/// The words of one device beside its total.
#[derive(Clone, Copy, Debug)]
pub struct Compute<'a> {
    /// The bucket, in one word.
    pub bucket: &'a AtomicU64,
    /// Until when all that was launched is thought to run.
    pub until: &'a AtomicU64,
    /// Nanoseconds of GPU time used.
    pub busy: &'a AtomicU64,
    /// Last launch.
    pub last: &'a AtomicU64,
    /// Launches.
    pub launches: &'a AtomicU64,
    /// Nanoseconds that launches waited.
    pub waited: &'a AtomicU64,
}

/// A mapped counters file.
#[derive(Debug)]
pub(crate) struct Counters(pub(crate) Map);

impl Counters {
    pub(crate) fn is_known(&self) -> bool {
        let load = core::sync::atomic::Ordering::Relaxed;
        self.0.u64(0).load(load) == u64::from_le_bytes(MAGIC) && self.0.u32(8).load(load) == VERSION
    }

    pub(crate) fn high(&self) -> &AtomicU64 {
        self.0.u64(HIGH)
    }

    pub(crate) fn total(&self, device: usize) -> &AtomicU64 {
        self.device(device, 0)
    }

    pub(crate) fn peak(&self, device: usize) -> &AtomicU64 {
        self.device(device, 8)
    }

    pub(crate) fn refused(&self, device: usize) -> &AtomicU64 {
        self.device(device, 16)
    }

    pub(crate) fn compute(&self, device: usize) -> Compute<'_> {
        let [bucket, until, busy, last, launches, waited] =
            COMPUTE.map(|at| self.device(device, at));
        Compute {
            bucket,
            until,
            busy,
            last,
            launches,
            waited,
        }
    }

    pub(crate) fn holder(&self, slot: usize) -> &AtomicU64 {
        self.0.u64(start(slot))
    }

    pub(crate) fn busy(&self, slot: usize) -> &AtomicU64 {
        self.0.u64(start(slot) + 8)
    }

    pub(crate) fn used(&self, slot: usize, device: usize) -> &AtomicU64 {
        self.share(slot, device, 0)
    }

    pub(crate) fn contexts(&self, slot: usize, device: usize) -> &AtomicU64 {
        self.share(slot, device, 8)
    }

    fn device(&self, device: usize, at: usize) -> &AtomicU64 {
        self.0.u64(of_device(device, at))
    }

    fn share(&self, slot: usize, device: usize, at: usize) -> &AtomicU64 {
        self.0.u64(of_slot(slot, device) + at)
    }
}

/// Whether bytes begin as a counters file of this layout.
pub(crate) fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&header())
}

/// Where a word of a device is.
pub(crate) fn of_device(device: usize, at: usize) -> usize {
    assert!(device < MAX_DEVICES);
    FIRST_DEVICE + device * DEVICE + at
}

/// Where a slot's words of a device are.
pub(crate) fn of_slot(slot: usize, device: usize) -> usize {
    assert!(device < MAX_DEVICES);
    start(slot) + SHARES + device * SHARE
}

/// The slot that a byte of the file belongs to, or would belong to.
pub(crate) fn slot_at(at: usize) -> usize {
    at.saturating_sub(FIRST_SLOT) / SLOT
}

/// Where a slot ends.
pub(crate) fn end(slot: usize) -> usize {
    start(slot) + SLOT
}

/// Where a slot begins, and the byte whose lock its holder has.
pub(crate) fn start(slot: usize) -> usize {
    assert!(slot <= SHARED);
    FIRST_SLOT + slot * SLOT
}

/// The byte whose lock its holder has, and all that were forked from it.
pub(crate) fn children(slot: usize) -> usize {
    start(slot) + 1
}
