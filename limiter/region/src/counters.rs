//! The counters file: what the processes of one container use, in slots that never move.
//!
//! Layout of a file of [`SIZE`]; all words are atomic:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `ALQCOUNT` |
//! | 8 | 4 | layout version, 1 |
//! | 16 | 8 | slots that were ever used: all from this number on are empty |
//! | 24 | 8 | entries of shared memory that were ever used |
//! | 4,096 + 256 d | 256 | device d, in the order of the limits page |
//! | + 0 | 8 | total: bytes in use by all processes (48 bits), number of audits (16 bits) |
//! | + 8 | 8 | the highest total so far |
//! | + 16 | 8 | refused requests |
//! | + 24 | 8 | bytes within the request that a call waits for because the device is full; 0: none |
//! | + 32 | 8 | when that was last written, nanoseconds of the monotonic clock |
//! | + 64 | 8 | compute: until when the bucket is in debt, nanoseconds of the monotonic clock |
//! | + 72 | 8 | compute: until when all launched work is expected to run, same clock |
//! | + 80 | 8 | compute: nanoseconds of GPU time used |
//! | + 88 | 8 | compute: last launch, nanoseconds of the monotonic clock |
//! | + 96 | 8 | compute: launches |
//! | + 104 | 8 | compute: nanoseconds that launches waited |
//! | + 136 | 8 | compute: nanoseconds that launches waited on the device for other tenants |
//! | + 144 | 8 | compute: processes with measured work on the device |
//! | 16,384 + 1,024 s | 1,024 | slot s of 1,024 |
//! | + 0 | 8 | process id in its own namespace; 0: free |
//! | + 8 | 8 | completed operations (48 bits), operations under way (16 bits) |
//! | + 16 | 8 | bit d: the process counts as one with work on device d |
//! | + 24 | 8 | 1: the process is suspended, so its bytes are not on the devices |
//! | + 64 + 16 d | 8 | bytes used on device d |
//! | + 72 + 16 d | 8 | of these, contexts |
//! | + 592 + 8 d | 4 | of the bytes used on device d, managed memory, in blocks of 2 MiB |
//! | + 596 + 8 d | 4 | refused requests of the process on device d |
//! | 1,064,960 + 32 e | 32 | entry e of shared memory ([`crate::shared`]) |
//! | + 0 | 8 | key of the block |
//! | + 8 | 8 | who holds it: slot + 1, or 65,535 for an orphan (16 bits), device (8), 1 if it was imported (8), the lower half of the key; 0: the entry is free |
//! | + 16 | 8 | bytes |
//! | + 24 | 8 | inode of the descriptors that stand for it; 0: none |
//!
//! The owner of a slot locks its first byte ([`crate::slot`]); its forked children lock the second
//! byte, because they may keep its device memory alive.
//!
//! The host never maps the file. It reads it with `pread` and believes it only as far as the driver
//! agrees.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io;

use thiserror::Error;

use crate::limits::MAX_DEVICES;
use crate::map::Map;
use crate::shared::Entry;

pub const SIZE: u64 = 2 << 20;
pub const SLOTS: usize = 1024;
pub const ENTRIES: usize = 8192;
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"ALQCOUNT";
const HIGH: usize = 16;
pub(crate) const HIGHEST_ENTRY: usize = 24;
const FIRST_DEVICE: usize = 4096;
pub(crate) const DEVICE: usize = 256;
const FIRST_SLOT: usize = 16_384;
const SLOT: usize = 1024;
pub(crate) const SUSPENSION: usize = 24;
const SLOT_DEVICES: usize = 64;
const SLOT_DEVICE: usize = 16;
const SLOT_DETAILS: usize = SLOT_DEVICES + MAX_DEVICES * SLOT_DEVICE;
const SLOT_DETAIL: usize = 8;
const FIRST_ENTRY: usize = FIRST_SLOT + SLOTS * SLOT;
pub(crate) const ENTRY: usize = 32;
pub(crate) const END: usize = FIRST_ENTRY + ENTRIES * ENTRY;
/// Bytes of a block, in which managed memory is counted.
pub const BLOCK: u64 = 2 << 20;

const _: () = {
    assert!(FIRST_DEVICE + MAX_DEVICES * DEVICE <= FIRST_SLOT);
    assert!(SLOT_DETAILS == 592 && MAX_DEVICES <= 64);
    assert!(SLOT_DETAILS + MAX_DEVICES * SLOT_DETAIL <= SLOT);
    assert!(FIRST_ENTRY == 1_064_960);
    assert!(END as u64 <= SIZE);
};

pub(crate) const HEADER: usize = 12;

pub fn header() -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// That of an open counters file tells it from each copy of it.
pub use crate::map::identity;

#[derive(Debug, Error)]
pub enum AttachError {
    #[error("the counters file cannot be {step}: {source}")]
    File {
        step: &'static str,
        source: io::Error,
    },
    /// Not a counters file, or one with another layout.
    #[error("the counters file does not have layout version {VERSION}")]
    Layout,
    #[error(
        "the counters file is a copy, which would be a second share; expected: /.aliquot itself in this root, as with: mount --rbind /.aliquot ROOT/.aliquot"
    )]
    Copy,
    #[error("{SLOTS} processes of the container have memory of a GPU; expected: no more than that")]
    NoSlot,
}

/// What the processes of a container record of their launches on one device: the words of the table
/// above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComputeRecord<T> {
    pub debt: T,
    /// Written, as `busy`, only for a container with a limit, also while it does not apply.
    pub until: T,
    pub busy: T,
    /// When a launch was last reported; 0: never.
    pub last: T,
    pub launches: T,
    pub waited: T,
    pub contended: T,
    pub running: T,
}

impl<T> ComputeRecord<T> {
    /// Of the words at these offsets of a device.
    pub(crate) fn new(word: impl Fn(usize) -> T) -> Self {
        Self {
            debt: word(64),
            until: word(72),
            busy: word(80),
            last: word(88),
            launches: word(96),
            waited: word(104),
            contended: word(136),
            running: word(144),
        }
    }
}

/// The words of one device beside its total.
pub type ComputeWords<'a> = ComputeRecord<&'a AtomicU64>;

#[derive(Debug)]
pub(crate) struct MappedCounters {
    pub(crate) map: Map,
}

impl MappedCounters {
    pub(crate) fn high(&self) -> &AtomicU64 {
        self.map.u64(HIGH)
    }

    pub(crate) fn total(&self, device: usize) -> &AtomicU64 {
        self.device_word(device, 0)
    }

    pub(crate) fn peak(&self, device: usize) -> &AtomicU64 {
        self.device_word(device, 8)
    }

    pub(crate) fn refused(&self, device: usize) -> &AtomicU64 {
        self.device_word(device, 16)
    }

    /// Bytes that a call waits for, and when that was written.
    pub(crate) fn lacking(&self, device: usize) -> [&AtomicU64; 2] {
        [24, 32].map(|at| self.device_word(device, at))
    }

    pub(crate) fn compute(&self, device: usize) -> ComputeWords<'_> {
        ComputeRecord::new(|at| self.device_word(device, at))
    }

    pub(crate) fn owner(&self, slot: usize) -> &AtomicU64 {
        self.map.u64(start(slot))
    }

    pub(crate) fn busy(&self, slot: usize) -> &AtomicU64 {
        self.map.u64(start(slot) + 8)
    }

    /// The devices on which the slot's process counts as one with work, as bits.
    pub(crate) fn running(&self, slot: usize) -> &AtomicU64 {
        self.map.u64(start(slot) + 16)
    }

    pub(crate) fn suspended(&self, slot: usize) -> &AtomicU64 {
        self.map.u64(start(slot) + SUSPENSION)
    }

    pub(crate) fn used(&self, slot: usize, device: usize) -> &AtomicU64 {
        self.slot_word(slot, device, 0)
    }

    pub(crate) fn contexts(&self, slot: usize, device: usize) -> &AtomicU64 {
        self.slot_word(slot, device, 8)
    }

    pub(crate) fn managed_blocks(&self, slot: usize, device: usize) -> &AtomicU32 {
        self.map.u32(slot_detail_offset(slot, device))
    }

    pub(crate) fn refused_in_slot(&self, slot: usize, device: usize) -> &AtomicU32 {
        self.map.u32(slot_detail_offset(slot, device) + 4)
    }

    pub(crate) fn highest_entry(&self) -> &AtomicU64 {
        self.map.u64(HIGHEST_ENTRY)
    }

    /// All entries that were ever used.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_, AtomicU64>> {
        let word = self.highest_entry().load(SeqCst);
        let highest = usize::try_from(word).unwrap_or(ENTRIES).min(ENTRIES);
        (0..highest).map(|entry| self.entry(entry))
    }

    pub(crate) fn entry(&self, entry: usize) -> Entry<'_, AtomicU64> {
        let word = |at: usize| self.map.u64(entry_offset(entry) + at);
        Entry {
            key: word(0),
            holder: word(8),
            bytes: word(16),
            inode: word(24),
        }
    }

    fn device_word(&self, device: usize, at: usize) -> &AtomicU64 {
        self.map.u64(device_offset(device, at))
    }

    fn slot_word(&self, slot: usize, device: usize, at: usize) -> &AtomicU64 {
        self.map.u64(slot_device_offset(slot, device) + at)
    }
}

pub(crate) fn entry_offset(entry: usize) -> usize {
    assert!(entry <= ENTRIES);
    FIRST_ENTRY + entry * ENTRY
}

pub(crate) fn device_offset(device: usize, at: usize) -> usize {
    assert!(device < MAX_DEVICES);
    FIRST_DEVICE + device * DEVICE + at
}

pub(crate) fn slot_device_offset(slot: usize, device: usize) -> usize {
    assert!(device < MAX_DEVICES);
    start(slot) + SLOT_DEVICES + device * SLOT_DEVICE
}

/// Offset of a slot's managed memory and refusals on a device.
pub(crate) fn slot_detail_offset(slot: usize, device: usize) -> usize {
    assert!(device < MAX_DEVICES);
    start(slot) + SLOT_DETAILS + device * SLOT_DETAIL
}

/// The slot to which a byte of the file belongs or would belong.
pub(crate) fn slot_at(at: usize) -> usize {
    at.saturating_sub(FIRST_SLOT) / SLOT
}

pub(crate) fn end(slot: usize) -> usize {
    start(slot) + SLOT
}

/// Start of a slot, and the byte that its owner locks.
pub(crate) fn start(slot: usize) -> usize {
    assert!(slot <= SLOTS);
    FIRST_SLOT + slot * SLOT
}

/// The byte that the owner and all its forked children lock.
pub(crate) fn children_lock(slot: usize) -> usize {
    start(slot) + 1
}
