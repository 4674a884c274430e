//! What a container's processes say of their launches, looked at many times a second: the file
//! stays open, and only the words of its devices are read.
//!
//! Fed by: the file of a seat. Must not: map it, or believe a figure: that is for who decides.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::{Unreadable, failed, fill, open, pread, word};
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
    /// Where what is read goes, many times a second.
    bytes: Vec<u8>,
    said: Vec<Launches>,
}

impl Watch {
    /// Opens the file at `path` for its first `devices` devices.
    pub fn open(path: &Path, devices: usize) -> Result<Self, Unreadable> {
        let file = open(path)?;
        let header = pread(&file, 0, counters::header().len()).map_err(failed("read"))?;
        if !counters::begins(&header) {
            return Err(Unreadable::Layout);
        }
        let devices = devices.min(MAX_DEVICES);
        Ok(Self {
            file,
            bytes: vec![0; devices * counters::DEVICE],
            said: vec![Launches::default(); devices],
        })
    }

    /// What is said now, device by device. An error means that the file was cut.
    pub fn look(&mut self) -> Result<&[Launches], Unreadable> {
        let from = counters::of_device(0, 0);
        fill(&self.file, from, &mut self.bytes).map_err(failed("read"))?;
        let records = self.bytes.chunks_exact(counters::DEVICE);
        for (said, record) in self.said.iter_mut().zip(records) {
            let [debt, until, busy, last, launches, waited] =
                counters::COMPUTE.map(|at| word(record, at));
            *said = Launches {
                debt,
                until,
                busy,
                last,
                launches,
                waited,
            };
        }
        Ok(&self.said)
    }
}
