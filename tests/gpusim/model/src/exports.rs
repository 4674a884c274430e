//! Memory that processes share, by descriptors and by IPC handles. It exists until its creator has
//! freed it and no descriptor, import or mapping of another process is left, whoever died meanwhile.
//!
//! Each descriptor is an open file of the one `<state>.cuda`, as each of a real driver's is of
//! `nvidiactl`: neither device nor inode tells two of them apart. Whoever may still use memory has a
//! read lock on the byte of its number in such a file, which ends with the last descriptor of it.

use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::Relaxed;

use crate::locks;
use crate::member::Member;
use crate::shared::{self, ExportRecord, GpuRecord};

/// Numbers of memory begin here, behind the bytes of slots; other programs lock far above.
pub(crate) const FIRST_NUMBER: u64 = 1 << 20;
const AFTER_LAST_NUMBER: u64 = 1 << 40;

/// Shared memory, as any process finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Its number.
    pub number: u64,
    /// The GPU that has it.
    pub gpu_index: usize,
    /// Bytes.
    pub bytes: u64,
    /// Kind of the location, and the device as its creator numbers it.
    pub place: (u32, u32),
}

impl Member {
    /// Lets others share memory that this process has; its number.
    pub fn share(&self, gpu_index: usize, bytes: u64, place: (u32, u32)) -> io::Result<u64> {
        let number = self.shared().next_export.fetch_add(1, Relaxed) + FIRST_NUMBER;
        self.locked(gpu_index, |record| {
            let unused = || record.exports.iter().find(|one| one.number() == 0);
            let place_for_it = unused().or_else(|| {
                self.reap(gpu_index, record);
                unused()
            });
            let one = place_for_it.ok_or(io::ErrorKind::StorageFull)?;
            one.bytes.store(bytes, Relaxed);
            one.owner.store(self.token(), Relaxed);
            let place = u64::from(place.0) << 32 | u64::from(place.1);
            one.place.store(place, Relaxed);
            one.number.store(number, Relaxed);
            Ok(number)
        })
    }

    /// A new descriptor that stands for shared memory.
    pub fn descriptor(&self, number: u64) -> io::Result<File> {
        let file = shared::open(self.path(), true)?;
        locks::share(&file, number)?;
        Ok(file)
    }

    /// The shared memory of a number, if it exists.
    #[must_use]
    pub fn shared_memory(&self, number: u64) -> Option<SharedMemory> {
        let gpus = self.shared().gpus.iter().enumerate();
        let mut all =
            gpus.flat_map(|(gpu, record)| record.exports.iter().map(move |one| (gpu, one)));
        let (gpu_index, one) = all.find(|(_, one)| number != 0 && one.number() == number)?;
        let place = one.place.load(Relaxed);
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
        Some(SharedMemory {
            number,
            gpu_index,
            bytes: one.bytes.load(Relaxed),
            place: (half(place >> 32), half(place)),
        })
    }

    /// Releases shared memory of this process's: it stays on the GPU for as long as others may use
    /// it.
    pub fn release_shared(&self, gpu_index: usize, number: u64, bytes: u64) {
        let file = shared::open(self.path(), false);
        self.locked(gpu_index, |record| {
            let is_used = file.map_or(true, |file| locks::is_locked(&file, number));
            let counters = self.counters(gpu_index);
            let used = counters.used.load(Relaxed).saturating_sub(bytes);
            counters.used.store(used, Relaxed);
            if let Some(one) = record.exports.iter().find(|one| one.number() == number) {
                one.leave(record, bytes, is_used);
            }
        });
    }

    /// Ends the sharing of a part of memory that this process keeps.
    pub fn unshare(&self, gpu_index: usize, number: u64) {
        self.locked(gpu_index, |record| {
            if let Some(one) = record.exports.iter().find(|one| one.number() == number) {
                one.leave(record, 0, false);
            }
        });
    }

    /// Frees what only dead processes had shared. Needs the GPU's lock.
    pub(crate) fn reap_exports(record: &GpuRecord, file: &File) {
        for one in record.orphans() {
            if !locks::is_locked(file, one.number()) {
                one.leave(record, one.bytes.load(Relaxed), false);
            }
        }
    }
}

/// The number of the memory for which a descriptor of this process stands.
#[must_use]
pub fn number_of(descriptor: RawFd) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    let locks = text.lines().filter_map(|line| line.strip_prefix("lock:"));
    let mut numbers = locks.filter_map(|lock| lock.split_whitespace().nth(6)?.parse().ok());
    numbers.find(|number| (FIRST_NUMBER..AFTER_LAST_NUMBER).contains(number))
}

impl ExportRecord {
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// Its creator no longer has it; `is_used`: others may. Needs the GPU's lock.
    pub(crate) fn leave(&self, record: &GpuRecord, bytes: u64, is_used: bool) {
        self.owner.store(0, Relaxed);
        if !is_used {
            self.number.store(0, Relaxed);
            let left = record.used.load(Relaxed).saturating_sub(bytes);
            record.used.store(left, Relaxed);
        }
    }
}

impl GpuRecord {
    /// Shared memory that no creator has any more.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = &ExportRecord> {
        let all = self.exports.iter();
        all.filter(|one| one.number() != 0 && one.owner.load(Relaxed) == 0)
    }

    /// Bytes of it.
    pub(crate) fn orphaned(&self) -> u64 {
        self.orphans().map(|one| one.bytes.load(Relaxed)).sum()
    }
}
