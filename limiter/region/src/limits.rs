//! The limits page: one file of 4,096 bytes that the host writes in place and the container maps
//! read-only. It is what governs.
//!
//! Layout, little-endian, unused bytes zero:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `ALQLIMIT` |
//! | 8 | 4 | layout version, 1 |
//! | 12 | 4 | number of device records |
//! | 16 | 8 | sequence: odd while being written, even when whole |
//! | 24 | 8 | heartbeat of the host, nanoseconds since the epoch; 0: none yet; gate, trim and tenants count while it is fresh |
//! | 32 | 4 | priority: 0 high, 1 low |
//! | 36 | 4 | utilization policy: 0 default, 1 force, 2 disable |
//! | 40 | 4 | flags: 1 oversubscribe, 2 OOM killer, 4 uncontrolled |
//! | 64 + 120 i | 40 | uuid of visible device i, zero-padded |
//! | + 40 | 8 | memory limit in bytes |
//! | + 48 | 4 | compute limit in percent, 0 and 100: none |
//! | + 52 | 4 | gate word, written by the host's arbiter; 0: open, 1: wait, 2: no compute limit |
//! | + 56 | 4 | trim of the compute rate in millionths; 0: none |
//! | + 60 | 4 | tenants that are active on the card; 0: unknown |
//! | + 64 | 8 | memory that the host measured beyond what the slots say, in bytes |
//! | + 72 | 8 | memory of one context in bytes; 0: [`CONTEXT`] |
//! | + 80 | 8 | this tenant's part of the card's real memory in bytes; 0: all of its limit |
//!
//! Fed by: the device plugin (content), the host's arbiter (what it measures).
//! Must not: move or shrink once a container has it; a new field takes bytes that were zero.

use core::mem::{offset_of, size_of};
use core::ops::Range;

use thiserror::Error;

/// Size of the page in bytes.
pub const SIZE: usize = 4096;
/// Most device records that fit.
pub const MAX_DEVICES: usize = (SIZE - size_of::<Header>()) / size_of::<Record>();
/// The longest uuid of a device.
pub const UUID: usize = 40;
/// The layout that is written and read.
pub const VERSION: u32 = 1;
/// Where the sequence is.
pub const SEQUENCE: Range<usize> = 16..24;
/// What a context is taken to cost where nobody measured it: a little above CUDA 12's on Hopper.
pub const CONTEXT: u64 = 512 << 20;
/// Flag: more memory than the card has may be promised.
pub const OVERSUBSCRIBE: u32 = 1;
/// Flag: the host kills the newest grower when a container passes its memory.
pub const OOM_KILLER: u32 = 2;
/// Flag: no limit applies.
pub const UNCONTROLLED: u32 = 4;

const MAGIC: [u8; 8] = *b"ALQLIMIT";

/// The first 64 bytes.
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    devices: u32,
    sequence: u64,
    heartbeat: u64,
    priority: u32,
    policy: u32,
    flags: u32,
    unused: [u32; 5],
}

/// One visible device.
#[repr(C)]
struct Record {
    uuid: [u8; UUID],
    memory: u64,
    cores: u32,
    gate: u32,
    trim: u32,
    tenants: u32,
    overhead: u64,
    context: u64,
    physical: u64,
    unused: [u64; 4],
}

const _: () = {
    assert!(size_of::<Header>() == 64 && size_of::<Record>() == 120);
    assert!(offset_of!(Header, version) == 8 && offset_of!(Header, devices) == 12);
    assert!(offset_of!(Header, sequence) == SEQUENCE.start);
    assert!(offset_of!(Header, heartbeat) == 24 && offset_of!(Header, priority) == 32);
    assert!(offset_of!(Header, policy) == 36 && offset_of!(Header, flags) == 40);
    assert!(offset_of!(Record, memory) == 40 && offset_of!(Record, cores) == 48);
    assert!(offset_of!(Record, gate) == 52 && offset_of!(Record, trim) == 56);
    assert!(offset_of!(Record, tenants) == 60 && offset_of!(Record, overhead) == 64);
    assert!(offset_of!(Record, context) == 72 && offset_of!(Record, physical) == 80);
    assert!(MAX_DEVICES == 33);
};

/// What the host alone changes after the page was made: one after another, start and length.
const MEASURED: [(usize, usize); 2] = [
    (offset_of!(Record, gate), 12),
    (offset_of!(Record, overhead), 8),
];

/// What holds for a whole container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// 0 high, 1 low.
    pub priority: u32,
    /// 0 default, 1 force, 2 disable.
    pub policy: u32,
    /// [`OVERSUBSCRIBE`], [`OOM_KILLER`], [`UNCONTROLLED`].
    pub flags: u32,
}

/// What holds on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device<'a> {
    /// Its uuid, at most [`UUID`] bytes.
    pub uuid: &'a str,
    /// Memory limit in bytes.
    pub memory: u64,
    /// Compute limit in percent; 0 and 100: none.
    pub cores: u32,
    /// Memory of one context in bytes; 0: [`CONTEXT`].
    pub context: u64,
    /// Part of the card's real memory in bytes; 0: all of `memory`.
    pub physical: u64,
}

/// Why a page cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PageError {
    /// Too many devices.
    #[error("{0} devices; a limits page holds {MAX_DEVICES}")]
    TooMany(usize),
    /// A uuid does not fit.
    #[error("the uuid {0} has more than {UUID} bytes")]
    Uuid(String),
}

/// The page of a container, with nothing measured yet.
pub fn page(container: Container, devices: &[Device]) -> Result<[u8; SIZE], PageError> {
    let count = u32::try_from(devices.len())
        .ok()
        .filter(|_| devices.len() <= MAX_DEVICES)
        .ok_or(PageError::TooMany(devices.len()))?;
    let mut page = [0; SIZE];
    page[..8].copy_from_slice(&MAGIC);
    put(
        &mut page,
        offset_of!(Header, version),
        &VERSION.to_le_bytes(),
    );
    put(&mut page, offset_of!(Header, devices), &count.to_le_bytes());
    put(
        &mut page,
        offset_of!(Header, priority),
        &container.priority.to_le_bytes(),
    );
    put(
        &mut page,
        offset_of!(Header, policy),
        &container.policy.to_le_bytes(),
    );
    put(
        &mut page,
        offset_of!(Header, flags),
        &container.flags.to_le_bytes(),
    );
    for (i, device) in devices.iter().enumerate() {
        let at = record(i);
        let uuid = device.uuid.as_bytes();
        if uuid.len() > UUID {
            return Err(PageError::Uuid(device.uuid.to_owned()));
        }
        put(&mut page, at, uuid);
        put(
            &mut page,
            at + offset_of!(Record, memory),
            &device.memory.to_le_bytes(),
        );
        put(
            &mut page,
            at + offset_of!(Record, cores),
            &device.cores.to_le_bytes(),
        );
        put(
            &mut page,
            at + offset_of!(Record, context),
            &device.context.to_le_bytes(),
        );
        put(
            &mut page,
            at + offset_of!(Record, physical),
            &device.physical.to_le_bytes(),
        );
    }
    Ok(page)
}

/// Whether two pages say the same, whatever the host measured since.
pub fn same(one: &[u8; SIZE], other: &[u8; SIZE]) -> bool {
    let mut moved = *other;
    keep_measured(one, &mut moved);
    moved[SEQUENCE].copy_from_slice(&one[SEQUENCE]);
    *one == moved
}

/// Puts into `next` what the host measured on `page`: heartbeat, gates, trims, overheads.
pub fn keep_measured(page: &[u8; SIZE], next: &mut [u8; SIZE]) {
    let heartbeat = offset_of!(Header, heartbeat);
    let fields = (0..MAX_DEVICES)
        .flat_map(|i| MEASURED.map(|(at, length)| (record(i) + at, length)))
        .chain([(heartbeat, 8)]);
    for (at, length) in fields {
        next[at..at + length].copy_from_slice(&page[at..at + length]);
    }
}

fn record(i: usize) -> usize {
    size_of::<Header>() + i * size_of::<Record>()
}

fn put(page: &mut [u8; SIZE], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

mod reader;
mod writer;
pub use reader::{Limits, LimitsError};
pub use writer::Measured;

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
