//! The limits page: one file of 4,096 bytes that the host writes in place and the container maps
//! read-only. It governs what the container may use.
//!
//! Layout, little-endian, unused bytes zero:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic `ALQLIMIT` |
//! | 8 | 4 | layout version, 1 |
//! | 12 | 4 | number of device records |
//! | 16 | 8 | sequence: odd while being written, even when complete |
//! | 24 | 8 | heartbeat of the host, nanoseconds since the epoch; 0: none yet. Throttle flag, rate correction, tenants and others are valid while it is fresh |
//! | 32 | 4 | priority: 0 high, 1 low |
//! | 36 | 4 | utilization policy: 0 default, 1 force, 2 disable |
//! | 40 | 4 | flags: 1 oversubscribe, 2 OOM killer, 4 uncontrolled, 8 yields |
//! | 56 | 8 | identity of the counters file ([`crate::counters::identity`]); 0: not known |
//! | 64 + 120 i | 40 | UUID of visible device i, zero-padded |
//! | + 40 | 8 | memory limit in bytes |
//! | + 48 | 4 | compute limit in percent, 0 and 100: none |
//! | + 52 | 4 | throttle flag, written by the host's arbiter; 0: run, 1: wait, 2: no compute limit |
//! | + 56 | 4 | rate correction in millionths; 0: none |
//! | + 60 | 4 | tenants that are active on the device; 0: unknown |
//! | + 64 | 8 | memory that the host measured beyond what the slots say, in bytes |
//! | + 72 | 8 | memory of one context in bytes; 0: [`CONTEXT`] |
//! | + 80 | 8 | the container's part of the device's physical memory in bytes; 0: all of its limit |
//! | + 88 | 8 | the sum of others (+ 116) over time, in nanoseconds of one process |
//! | + 96 | 8 | of the memory limit, what the container requested in bytes; the rest is lent. 0: all of it |
//! | + 104 | 4 | lent memory is called back: 1 while nothing beyond the request may be allocated |
//! | + 108 | 4 | milliseconds for which a call within the request may wait for lent memory; 0: not known yet |
//! | + 112 | 4 | most compute that may be lent, in percent; 0: no maximum. Read by the host |
//! | + 116 | 4 | processes of other containers with work on the device, lately on average, in parts of 256 |
//!
//! Fields never move once a container has the page, and the page never shrinks; a new field takes
//! bytes that were zero.

use core::mem::{offset_of, size_of};
use core::ops::Range;

use thiserror::Error;

pub const SIZE: usize = 4096;
pub const MAX_DEVICES: usize = (SIZE - size_of::<PageHeader>()) / size_of::<DeviceRecord>();
pub const UUID: usize = 40;
pub const VERSION: u32 = 1;
pub const SEQUENCE: Range<usize> = 16..24;
/// Size of a context on a page that has none; the node agent always writes one.
pub const CONTEXT: u64 = 512 << 20;
/// The maximum wait on a device of which nothing is lent, in milliseconds.
pub const NOTHING_LENT: u32 = 1;
/// Flag: more memory may be granted than the device has.
pub const OVERSUBSCRIBE: u32 = 1;
/// Flag: the host kills a process when a container exceeds its memory.
pub const OOM_KILLER: u32 = 2;
/// Flag: no limit applies.
pub const UNCONTROLLED: u32 = 4;
/// Flag: the container frees lent memory when it is asked to.
pub const YIELDS: u32 = 8;

const MAGIC: [u8; 8] = *b"ALQLIMIT";

#[repr(C)]
struct PageHeader {
    magic: [u8; 8],
    version: u32,
    devices: u32,
    sequence: u64,
    heartbeat: u64,
    priority: u32,
    policy: u32,
    flags: u32,
    unused: [u32; 3],
    counters: u64,
}

#[repr(C)]
struct DeviceRecord {
    uuid: [u8; UUID],
    memory: u64,
    cores: u32,
    throttle_flag: u32,
    rate_correction: u32,
    tenants: u32,
    overhead: u64,
    context: u64,
    physical: u64,
    others_time: u64,
    request: u64,
    called_back: u32,
    max_wait_ms: u32,
    cores_limit: u32,
    others: u32,
}

macro_rules! assert_offsets {
    ($record:ident: $($field:ident $offset:literal),*) => {
        $(assert!(offset_of!($record, $field) == $offset);)*
    };
}

const _: () = {
    assert!(size_of::<PageHeader>() == 64 && size_of::<DeviceRecord>() == 120 && MAX_DEVICES == 33);
    assert_offsets!(PageHeader: version 8, devices 12, sequence 16, heartbeat 24, priority 32,
        policy 36, flags 40, counters 56);
    assert_offsets!(DeviceRecord: memory 40, cores 48, throttle_flag 52, rate_correction 56,
        tenants 60, overhead 64, context 72, physical 80, others_time 88, request 96,
        called_back 104, max_wait_ms 108, cores_limit 112, others 116);
    assert!(SEQUENCE.start == 16);
};

/// The fields that only the host changes after the page was created: start and length.
const HOST_FIELDS: [(usize, usize); 5] = [
    (offset_of!(DeviceRecord, throttle_flag), 12),
    (offset_of!(DeviceRecord, overhead), 8),
    (offset_of!(DeviceRecord, others_time), 8),
    (offset_of!(DeviceRecord, called_back), 8),
    (offset_of!(DeviceRecord, others), 4),
];

/// Fields of the table above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerLimits {
    pub priority: u32,
    pub policy: u32,
    pub flags: u32,
}

/// Fields of the table above, for one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits<'a> {
    /// At most [`UUID`] bytes.
    pub uuid: &'a str,
    pub memory: u64,
    pub cores: u32,
    pub context: u64,
    pub physical: u64,
    pub request: u64,
    pub cores_limit: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PageError {
    #[error("{0} devices; expected: at most {MAX_DEVICES}")]
    TooMany(usize),
    #[error("UUID {0} is too long; expected: at most {UUID} bytes")]
    Uuid(String),
}

/// The page of a container, without measurements.
pub fn page(container: ContainerLimits, devices: &[DeviceLimits]) -> Result<[u8; SIZE], PageError> {
    let count = u32::try_from(devices.len())
        .ok()
        .filter(|_| devices.len() <= MAX_DEVICES)
        .ok_or(PageError::TooMany(devices.len()))?;
    let mut page = [0; SIZE];
    page[..8].copy_from_slice(&MAGIC);
    for (at, word) in [
        (offset_of!(PageHeader, version), VERSION),
        (offset_of!(PageHeader, devices), count),
        (offset_of!(PageHeader, priority), container.priority),
        (offset_of!(PageHeader, policy), container.policy),
        (offset_of!(PageHeader, flags), container.flags),
    ] {
        put(&mut page, at, &word.to_le_bytes());
    }
    for (i, device) in devices.iter().enumerate() {
        let uuid = device.uuid.as_bytes();
        if uuid.len() > UUID {
            return Err(PageError::Uuid(device.uuid.to_owned()));
        }
        put(&mut page, record(i), uuid);
        for (at, bytes) in [
            (offset_of!(DeviceRecord, memory), device.memory),
            (offset_of!(DeviceRecord, context), device.context),
            (offset_of!(DeviceRecord, physical), device.physical),
            (offset_of!(DeviceRecord, request), device.request),
        ] {
            put(&mut page, record(i) + at, &bytes.to_le_bytes());
        }
        for (at, percent) in [
            (offset_of!(DeviceRecord, cores), device.cores),
            (offset_of!(DeviceRecord, cores_limit), device.cores_limit),
        ] {
            put(&mut page, record(i) + at, &percent.to_le_bytes());
        }
    }
    Ok(page)
}

/// Writes the identity of the counters file to a page.
pub fn set_counters(page: &mut [u8; SIZE], identity: u64) {
    let at = offset_of!(PageHeader, counters);
    put(page, at, &identity.to_le_bytes());
}

/// Whether two pages have the same limits, whatever the host measured since.
pub fn same_limits(one: &[u8; SIZE], other: &[u8; SIZE]) -> bool {
    let mut with_measurements = *other;
    copy_measurements(one, &mut with_measurements);
    with_measurements[SEQUENCE].copy_from_slice(&one[SEQUENCE]);
    *one == with_measurements
}

/// Copies the host's measurements on `page` to `next`: heartbeat, throttle flags, rate corrections,
/// overheads, others with work.
pub fn copy_measurements(page: &[u8; SIZE], next: &mut [u8; SIZE]) {
    let heartbeat = offset_of!(PageHeader, heartbeat);
    let fields = (0..MAX_DEVICES)
        .flat_map(|i| HOST_FIELDS.map(|(at, length)| (record(i) + at, length)))
        .chain([(heartbeat, 8)]);
    for (at, length) in fields {
        next[at..at + length].copy_from_slice(&page[at..at + length]);
    }
}

fn record(i: usize) -> usize {
    size_of::<PageHeader>() + i * size_of::<DeviceRecord>()
}

fn put(page: &mut [u8; SIZE], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

mod reader;
mod writer;
pub use reader::{LimitsError, LimitsPage};
pub use writer::HostLimitsPage;

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
