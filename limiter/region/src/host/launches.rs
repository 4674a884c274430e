//! What a container's processes say of their launches, looked at many times a second: the file
//! stays open, and only the words of its devices are read.
//!
//! Fed by: the file of a seat. Must not: map it, or believe a figure: that is for who decides.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::{Unreadable, failed, open, pread, word};
use crate::counters;
use crate::limits::MAX_DEVICES;

/// What was said of launches on one device; times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// Until when the bucket is in debt.
    pub debt: u64,
    /// Until when all that was launched is thought to run; told only while there is a limit.
    pub until: u64,
    /// Nanoseconds of GPU time used; told only while there is a limit.
    pub busy: u64,
    /// When a launch was last told of.
    pub last: u64,
    /// Launches that were told of.
    pub launches: u64,
    /// Nanoseconds that launches waited.
    pub waited: u64,
}

/// An open counters file.
#[derive(Debug)]
pub struct Watch {
    file: OwnedFd,
    length: usize,
}

impl Watch {
    /// Opens the file at `path` for its first `devices` devices.
    pub fn open(path: &Path, devices: usize) -> Result<Self, Unreadable> {
        let file = open(path)?;
        let header = pread(&file, 0, counters::header().len()).map_err(failed("read"))?;
        if !counters::begins(&header) {
            return Err(Unreadable::Layout);
        }
        let length = devices.min(MAX_DEVICES) * counters::DEVICE;
        Ok(Self { file, length })
    }

    /// What is said now, device by device. An error means that the file was cut.
    pub fn look(&self) -> Result<Vec<Launches>, Unreadable> {
        let from = counters::of_device(0, 0);
        let bytes = pread(&self.file, from, self.length).map_err(failed("read"))?;
        let records = bytes.chunks_exact(counters::DEVICE);
        let read = |record| {
            let [debt, until, busy, last, launches, waited] =
                counters::COMPUTE.map(|at| word(record, at));
            Launches {
                debt,
                until,
                busy,
                last,
                launches,
                waited,
            }
        };
        Ok(records.map(read).collect())
    }
}
