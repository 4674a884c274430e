//! What the host reads of a counters file, which a tenant may have replaced by anything. It uses
//! `pread` into its own memory, never a mapping, whose pages the tenant could take away.
//!
//! The reader follows no link, never waits for a writer and reads at most a fixed size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::account::{MAX_BYTES, SUSPENDED};
use crate::counters::{self, ComputeRecord, ENTRIES, ENTRY, SIZE, SLOTS, start};
use crate::limits::MAX_DEVICES;
use crate::shared::{Held, Overlap, decode};
use crate::{lock, map};

/// The processor time that the queries for locks may take. The kernel goes through all locks of the
/// file at each, and a tenant may have hundreds of thousands.
const LONGEST_QUERIES: Duration = Duration::from_millis(200);

#[derive(Debug, Error)]
pub enum CountersReadError {
    /// It is missing or a link, or may not be opened.
    #[error("the counters file cannot be {step}: {source}")]
    Io {
        step: &'static str,
        source: io::Error,
    },
    /// A FIFO, a device, a directory.
    #[error("the counters file is not a regular file")]
    NotAFile,
    /// Truncated or extended.
    #[error("the counters file has {0} bytes; expected: {SIZE}")]
    Size(u64),
    /// Overwritten.
    #[error("the counters file does not begin with its header")]
    Layout,
    #[error("the counters file has more locks than can be checked")]
    Locks,
}

impl CountersReadError {
    /// Whether the tenant caused it. Otherwise the host could not read the file, which says nothing
    /// about the tenant: no descriptor or memory is left, the disk is broken, the file is missing.
    pub fn is_caused_by_tenant(&self) -> bool {
        match self {
            Self::NotAFile | Self::Size(..) | Self::Layout | Self::Locks => true,
            Self::Io { source, .. } => {
                // Truncated while it was read; a lease of the tenant's; a link.
                let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::WouldBlock];
                kinds.contains(&source.kind()) || source.raw_os_error() == Some(libc::ELOOP)
            }
        }
    }
}

/// What one process uses of one device, according to its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotUsage {
    pub used: u64,
    /// Of the used bytes, contexts.
    pub contexts: u64,
    /// Of these, managed memory, which the driver may leave out of what it reports.
    pub managed: u64,
    /// Of these, memory of other processes, which the driver may report of those only.
    pub imported: u64,
    /// Requests that were refused; the number may wrap.
    pub refused: u32,
}

/// One process of a container according to its slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    pub slot: usize,
    /// Its id in its own namespace; `None`: the word is none.
    pub pid: Option<u32>,
    /// In the order of the limits page.
    pub devices: Vec<SlotUsage>,
}

impl ProcessUsage {
    pub fn device(&self, device: usize) -> SlotUsage {
        self.devices.get(device).copied().unwrap_or_default()
    }
}

/// What all processes of a container use of one device, according to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes in use, including those of dead processes until somebody corrects the total.
    pub total: u64,
    /// Bytes for which more than one living process is charged, and orphans.
    pub overlap: Overlap,
    pub peak: u64,
    pub refused: u64,
    pub compute: LaunchCounters,
    /// Bytes that a call within the request waits for, and when that was written, in nanoseconds of
    /// the monotonic clock.
    pub lacking: (u64, u64),
}

/// The content of a counters file. Its figures are not trusted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Living processes: those whose slots are locked.
    pub processes: Vec<ProcessUsage>,
    /// In the order of the limits page.
    pub devices: Vec<DeviceCounters>,
}

impl CountersSnapshot {
    pub fn device(&self, device: usize) -> DeviceCounters {
        self.devices.get(device).copied().unwrap_or_default()
    }

    /// Bytes of a device that living processes use according to their slots; what several of them
    /// hold counts for each.
    pub fn used(&self, device: usize) -> u64 {
        let used = self.processes.iter().map(|one| one.device(device).used);
        used.fold(0, u64::saturating_add)
    }

    /// The same; what several of them hold counts once.
    pub fn held(&self, device: usize) -> u64 {
        self.device(device).overlap.of_sum(self.used(device))
    }
}

/// Reads the file at `path` for the first `devices` devices.
pub fn read(path: &Path, devices: usize) -> Result<CountersSnapshot, CountersReadError> {
    let devices = devices.min(MAX_DEVICES);
    let file = open(path)?;
    let length = counters::device_offset(0, 0) + devices * counters::DEVICE;
    let bytes = pread(&file, 0, length).map_err(failed("read"))?;
    let mut held = shared_memory(&file, &bytes)?;
    // Once for all: a tenant may lock every slot and fill every entry.
    let imported = imported(&held);
    let mut processes = Vec::new();
    for slot in locked_slots(&file, LONGEST_QUERIES)? {
        let used = process_usage(&file, slot, devices, &mut held, &imported);
        processes.push(used.map_err(failed("read"))?);
    }
    // The driver frees what dead processes held.
    let living: BTreeSet<usize> = processes.iter().map(|one| one.slot).collect();
    held.retain(|held| held.slot.is_none_or(|slot| living.contains(&slot)));
    let devices = (0..devices).map(|device| {
        let word = |at| word(&bytes, counters::device_offset(device, at));
        let held = held.iter().filter(|held| held.block.device == device);
        DeviceCounters {
            total: word(0) & MAX_BYTES,
            overlap: Overlap::new(held.copied()),
            peak: word(8),
            refused: word(16),
            compute: ComputeRecord::new(word),
            lacking: (word(24), word(32)),
        }
    });
    Ok(CountersSnapshot {
        processes,
        devices: devices.collect(),
    })
}

fn process_usage(
    file: &File,
    slot: usize,
    devices: usize,
    held: &mut Vec<Held>,
    imported: &BTreeMap<(usize, usize), u64>,
) -> io::Result<ProcessUsage> {
    let (first, length) = (start(slot), counters::end(slot) - start(slot));
    let bytes = pread(file, first, length)?;
    let is_suspended = word(&bytes, counters::SUSPENSION) == SUSPENDED;
    if is_suspended {
        held.retain(|held| held.slot != Some(slot));
    }
    let devices = (0..devices).map(|device| {
        let words = counters::slot_device_offset(slot, device) - first;
        let details = counters::slot_detail_offset(slot, device) - first;
        let refused = half_word(&bytes, details + 4);
        if is_suspended {
            // Its memory is not on the device.
            return SlotUsage {
                refused,
                ..SlotUsage::default()
            };
        }
        SlotUsage {
            used: word(&bytes, words),
            contexts: word(&bytes, words + 8),
            managed: u64::from(half_word(&bytes, details)) * counters::BLOCK,
            imported: imported.get(&(slot, device)).copied().unwrap_or(0),
            refused,
        }
    });
    Ok(ProcessUsage {
        slot,
        pid: u32::try_from(word(&bytes, 0)).ok(),
        devices: devices.collect(),
    })
}

/// The entries of shared memory; `header` is the beginning of the file.
fn shared_memory(file: &File, header: &[u8]) -> Result<Vec<Held>, CountersReadError> {
    let highest = word(header, counters::HIGHEST_ENTRY);
    let number = usize::try_from(highest).unwrap_or(ENTRIES).min(ENTRIES);
    let bytes = pread(file, counters::entry_offset(0), number * ENTRY).map_err(failed("read"))?;
    let entries = bytes.chunks_exact(ENTRY);
    let held = entries.filter_map(|entry| decode(word(entry, 0), word(entry, 8), word(entry, 16)));
    Ok(held.collect())
}

/// Bytes that the process of each slot has from others, by slot and device.
fn imported(held: &[Held]) -> BTreeMap<(usize, usize), u64> {
    let mut imported: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for held in held.iter().filter(|held| held.block.imported) {
        if let Some(slot) = held.slot {
            let sum = imported.entry((slot, held.block.device)).or_default();
            *sum = sum.saturating_add(held.block.bytes);
        }
    }
    imported
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> CountersReadError {
    move |source| CountersReadError::Io { step, source }
}

fn open(path: &Path) -> Result<File, CountersReadError> {
    // Without O_NONBLOCK, opening a FIFO that has no writer would block.
    let file = map::open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)
        .map_err(failed("opened"))?;
    let found = file.metadata().map_err(failed("inspected"))?;
    if !found.is_file() {
        return Err(CountersReadError::NotAFile);
    }
    if found.len() != SIZE {
        return Err(CountersReadError::Size(found.len()));
    }
    let mut header = [0; counters::HEADER];
    file.read_exact_at(&mut header, 0).map_err(failed("read"))?;
    if header != counters::header() {
        return Err(CountersReadError::Layout);
    }
    Ok(file)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half_word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// A part of the file. A file that was truncated meanwhile is an error.
fn pread(file: &File, at: usize, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; length];
    file.read_exact_at(&mut bytes, at as u64)?;
    Ok(bytes)
}

/// The slots whose first byte is locked. However many locks a tenant has, this makes at most two
/// queries for each slot, and gives up when they took this processor time.
fn locked_slots(file: &File, longest: Duration) -> Result<Vec<usize>, CountersReadError> {
    let begun = processor_time();
    let mut found = Vec::new();
    let mut ranges = vec![(0, SLOTS)];
    while let Some((first, end)) = ranges.pop() {
        if first >= end {
            continue;
        }
        let to = counters::end(end - 1);
        let locked = lock::locked_range(file, start(first), to);
        if processor_time().saturating_sub(begun) > longest {
            return Err(CountersReadError::Locks);
        }
        let Some((from, upto)) = locked.map_err(failed("checked for locks"))? else {
            continue;
        };
        let lowest = counters::slot_at(from).clamp(first, end - 1);
        let highest = counters::slot_at(upto.saturating_sub(1)).clamp(lowest, end - 1);
        found.extend(lowest..=highest);
        ranges.push((first, lowest));
        ranges.push((highest + 1, end));
    }
    found.sort_unstable();
    Ok(found)
}

fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a known clock, and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The launch counters of one device, as the tenant's processes write them.
pub type LaunchCounters = ComputeRecord<u64>;

/// A counters file that stays open, to read its launch counters many times a second.
#[derive(Debug)]
pub struct LaunchReader {
    file: File,
    bytes: Vec<u8>,
    counters: Vec<LaunchCounters>,
}

impl LaunchReader {
    /// Opens the file at `path` for its first `devices` devices.
    pub fn open(path: &Path, devices: usize) -> Result<Self, CountersReadError> {
        let file = open(path)?;
        let devices = devices.min(MAX_DEVICES);
        Ok(Self {
            file,
            bytes: vec![0; devices * counters::DEVICE],
            counters: vec![LaunchCounters::default(); devices],
        })
    }

    /// The current counters, device by device. An error means that the file was truncated.
    pub fn read(&mut self) -> Result<&[LaunchCounters], CountersReadError> {
        let from = counters::device_offset(0, 0) as u64;
        let read = self.file.read_exact_at(&mut self.bytes, from);
        read.map_err(failed("read"))?;
        let records = self.bytes.chunks_exact(counters::DEVICE);
        for (counters, record) in self.counters.iter_mut().zip(records) {
            *counters = ComputeRecord::new(|at| word(record, at));
        }
        Ok(&self.counters)
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
