//! What the host reads of a counters file, which a tenant may have turned into anything: by
//! `pread` into memory of its own, never by a mapping, whose pages the tenant could take away.
//!
//! Fed by: the file of a seat, and what the driver says of the container's processes.
//! Must not: follow a link, wait for a writer, read beyond a fixed size, or take a figure of the
//! file for true that the driver contradicts: that is a [`Doubt`].

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use thiserror::Error;

use crate::account::MOST;
use crate::counters::{self, SHARED, SIZE, start};
use crate::limits::MAX_DEVICES;
use crate::{lock, map};

/// Why a counters file says nothing.
#[derive(Debug, Error)]
pub enum Unreadable {
    /// It is not there, or a link, or may not be opened.
    #[error("the counters file cannot be {step}: {source}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A FIFO, a device, a directory.
    #[error("the counters file is not a regular file")]
    Kind,
    /// Cut, or blown up.
    #[error("the counters file has {0} bytes instead of {SIZE}")]
    Size(u64),
    /// Written over.
    #[error("the counters file does not begin as one")]
    Layout,
}

impl Unreadable {
    /// The tenant made it so; else the host could not read it, which says nothing of the tenant: no
    /// descriptor or memory is left, the disk is broken, the file is gone or not there yet.
    pub fn is_by_tenant(&self) -> bool {
        match self {
            Self::Kind | Self::Size(_) | Self::Layout => true,
            Self::Step { source, .. } => {
                // Cut while it was read; a lease of the tenant's; a link.
                let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::WouldBlock];
                kinds.contains(&source.kind()) || source.raw_os_error() == Some(libc::ELOOP)
            }
        }
    }
}

/// One process of a container, as its slot says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its place in the file.
    pub slot: usize,
    /// Its id in its own namespace; `None` for those of the shared slot.
    pub pid: Option<u32>,
    /// Bytes used of each device, in the order of the limits page.
    pub used: Vec<u64>,
    /// Of these, contexts.
    pub contexts: Vec<u64>,
}

/// What a counters file says, its figures not believed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Living processes: those whose slot is locked.
    pub holders: Vec<Holder>,
    /// Bytes in use of each device, those of the dead included until somebody counts anew.
    pub totals: Vec<u64>,
    /// The most that ever was in use of each device.
    pub peaks: Vec<u64>,
    /// Requests refused on each device.
    pub refused: Vec<u64>,
    /// Compute of each device.
    pub work: Vec<Work>,
}

/// What all processes of a container did on one device, as they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Nanoseconds of GPU time used.
    pub busy: u64,
    /// Last launch, nanoseconds of the monotonic clock; 0: none.
    pub last: u64,
    /// Launches.
    pub launches: u64,
    /// Nanoseconds that launches waited.
    pub waited: u64,
}

/// What the host knows of one device and one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The container's limit in bytes.
    pub limit: u64,
    /// What the driver says that the container's processes use, in bytes.
    pub measured: u64,
    /// What the driver may use for itself without our knowing, in bytes.
    pub slack: u64,
}

/// Something that does not fit together. A single look proves nothing, for the file changes while
/// it is read; what the next look finds again does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The driver gave more than the slots say: a process without our library, or a file that was
    /// written by hand.
    Uncounted {
        /// The device, as the limits page counts them.
        device: usize,
        /// Bytes beyond what the slots say.
        bytes: u64,
    },
    /// The container has more than its limit.
    AboveLimit {
        /// The device.
        device: usize,
        /// Bytes beyond the limit.
        bytes: u64,
    },
    /// The total is less than its parts, which our library never leaves behind.
    TotalTooLow {
        /// The device.
        device: usize,
    },
}

impl Report {
    /// Bytes of a device that living processes say they use.
    pub fn used(&self, device: usize) -> u64 {
        let words = self.holders.iter().filter_map(|one| one.used.get(device));
        words.fold(0, |sum, used| sum.saturating_add(*used))
    }

    /// What does not fit to what is known of each device.
    pub fn doubts(&self, known: &[Known]) -> Vec<Doubt> {
        let mut found = Vec::new();
        for (device, known) in known.iter().enumerate() {
            let said = self.used(device);
            let total = self.totals.get(device).copied().unwrap_or(0);
            let allowed = said.saturating_add(known.slack);
            if let Some(bytes) = beyond(known.measured, allowed) {
                found.push(Doubt::Uncounted { device, bytes });
            }
            let most = known.limit.saturating_add(known.slack);
            if let Some(bytes) = beyond(known.measured.max(said), most) {
                found.push(Doubt::AboveLimit { device, bytes });
            }
            if total < said {
                found.push(Doubt::TotalTooLow { device });
            }
        }
        found
    }
}

fn beyond(found: u64, allowed: u64) -> Option<u64> {
    found.checked_sub(allowed).filter(|more| *more > 0)
}

/// Reads the file at `path` for the first `devices` devices.
pub fn read(path: &Path, devices: usize) -> Result<Report, Unreadable> {
    let devices = devices.min(MAX_DEVICES);
    let file = open(path)?;
    let length = counters::of_device(0, 0) + devices * counters::DEVICE;
    let bytes = pread(&file, 0, length).map_err(failed("read"))?;
    if !counters::begins(&bytes) {
        return Err(Unreadable::Layout);
    }
    let of_devices = |at: usize| {
        let places = (0..devices).map(|device| counters::of_device(device, at));
        places
            .map(|place| word(&bytes, place))
            .collect::<Vec<u64>>()
    };
    let mut holders = Vec::new();
    for slot in held(&file).map_err(failed("asked for its locks"))? {
        let (first, length) = (start(slot), counters::end(slot) - start(slot));
        let bytes = pread(&file, first, length).map_err(failed("read"))?;
        let of_slot = |at: usize| {
            let places = (0..devices).map(|device| counters::of_slot(slot, device) + at - first);
            places.map(|place| word(&bytes, place)).collect()
        };
        holders.push(Holder {
            slot,
            pid: u32::try_from(word(&bytes, 0)).ok(),
            used: of_slot(0),
            contexts: of_slot(8),
        });
    }
    let [busy, last, launches, waited] = [80, 88, 96, 104].map(of_devices);
    let work = (0..devices).map(|device| Work {
        busy: busy[device],
        last: last[device],
        launches: launches[device],
        waited: waited[device],
    });
    Ok(Report {
        holders,
        totals: of_devices(0).into_iter().map(|word| word & MOST).collect(),
        peaks: of_devices(8),
        refused: of_devices(16),
        work: work.collect(),
    })
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> Unreadable {
    move |source| Unreadable::Step { step, source }
}

/// Opens a file of the right kind and size.
fn open(path: &Path) -> Result<OwnedFd, Unreadable> {
    let path = map::c_path(path).map_err(failed("named"))?;
    // A FIFO without a writer would keep us waiting.
    let file = map::open(&path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)
        .map_err(failed("opened"))?;
    let (is_file, size) = map::inspect(&file).map_err(failed("inspected"))?;
    if !is_file {
        return Err(Unreadable::Kind);
    }
    if size != SIZE {
        return Err(Unreadable::Size(size));
    }
    Ok(file)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// A part of the file. One that was cut meanwhile is an error.
fn pread(file: &OwnedFd, at: usize, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; length];
    fill(file, at, &mut bytes)?;
    Ok(bytes)
}

/// The same, into a buffer that is kept.
fn fill(file: &OwnedFd, at: usize, bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let left = &mut bytes[done..];
        let at = libc::off_t::try_from(at + done).map_err(io::Error::other)?;
        // SAFETY: the buffer is ours and as long as is said.
        let got =
            unsafe { libc::pread(file.as_raw_fd(), left.as_mut_ptr().cast(), left.len(), at) };
        match usize::try_from(got) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => done += got,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// The slots whose first byte is locked. However many locks a tenant holds, this asks at most
/// twice for each slot.
fn held(file: &OwnedFd) -> io::Result<Vec<usize>> {
    let mut found = Vec::new();
    let mut ranges = vec![(0, SHARED + 1)];
    while let Some((first, end)) = ranges.pop() {
        if first >= end {
            continue;
        }
        let to = counters::end(end - 1);
        let Some((from, upto)) = lock::held(file, start(first), to)? else {
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

mod launches;
pub use launches::{Launches, Watch};

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
