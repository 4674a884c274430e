//! The driver's own memory limits for a cgroup on a GPU, as in driver r615. An allocation beyond the
//! hard limit fails, whatever library the process uses. While the GPU is full, a process that stays
//! within the soft limit of its cgroup gets what others have beyond theirs, which moves to the host.
//! A limit applies to the processes of exactly its cgroup, which the kernel reports: a process cannot
//! name its own.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::groups::group_of;
use crate::member::{GpuOutOfMemory, Member};
use crate::shared::{GpuRecord, Slot};

/// Where cgroups are found, by the names that are given to the driver.
pub const ROOT: &str = "/sys/fs/cgroup";
/// No limit.
pub const UNLIMITED: u64 = u64::MAX;
/// The most limits on one GPU.
pub(crate) const MAX_MEMORY_LIMITS: usize = 256;
/// Marks a folder's number, so that it never equals a name's.
const FOLDER: u64 = 1 << 63;

#[repr(C)]
pub(crate) struct MemoryLimitRecord {
    /// The number of the cgroup's path; 0: none.
    name: AtomicU64,
    /// The number of its folder, where the host has one.
    folder: AtomicU64,
    soft: AtomicU64,
    hard: AtomicU64,
}

/// The memory limit of a cgroup on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupMemoryLimit {
    /// Bytes that are never evicted.
    pub soft: u64,
    /// The most bytes that may be used.
    pub hard: u64,
    /// Bytes in use.
    pub used: u64,
}

/// Every limit record of a GPU is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFreeRecord;

/// The number of a cgroup, by its path below [`ROOT`].
fn number(path: &str) -> u64 {
    group_of(path.trim_end_matches('/')) & !FOLDER
}

/// The number of its folder as the host sees it.
fn folder(path: &str) -> u64 {
    let found = fs::metadata(format!("{ROOT}{path}"));
    found.map_or(0, |found| found.ino() | FOLDER)
}

/// This process's cgroup: the longest path that the kernel reports, or, within a namespace of
/// cgroups, the folder that is its root.
pub(crate) fn own() -> u64 {
    let listing = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let paths = listing
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2));
    match paths.max_by_key(|path| path.len()) {
        Some(path) if path != "/" => number(path),
        _ => folder(""),
    }
}

/// The limit records of a GPU, free ones included.
fn entries(record: &GpuRecord) -> impl Iterator<Item = &MemoryLimitRecord> {
    let most =
        usize::try_from(record.memory_limit_count.load(Relaxed)).unwrap_or(MAX_MEMORY_LIMITS);
    record.memory_limits[..most.min(MAX_MEMORY_LIMITS)].iter()
}

impl MemoryLimitRecord {
    fn is_of(&self, cgroup: u64) -> bool {
        let own = [self.name.load(Relaxed), self.folder.load(Relaxed)];
        cgroup != 0 && own.contains(&cgroup)
    }
}

impl Member {
    /// Limits a cgroup, by its path below [`ROOT`], on a GPU.
    pub fn set_memory_limit(
        &self,
        gpu_index: usize,
        path: &str,
        (soft, hard): (u64, u64),
    ) -> Result<(), NoFreeRecord> {
        let (name, folder) = (number(path), folder(path));
        self.locked(gpu_index, |record| {
            let of = |number: u64| {
                let mut all = record.memory_limits.iter().enumerate();
                all.find(|(_, entry)| entry.name.load(Relaxed) == number)
            };
            let known = of(name);
            if (soft, hard) == (0, UNLIMITED) {
                if let Some((_, known)) = known {
                    known.name.store(0, Relaxed);
                    known.folder.store(0, Relaxed);
                }
                return Ok(());
            }
            let (index, entry) = known.or_else(|| of(0)).ok_or(NoFreeRecord)?;
            record
                .memory_limit_count
                .fetch_max(index as u64 + 1, Relaxed);
            entry.folder.store(folder, Relaxed);
            entry.soft.store(soft, Relaxed);
            entry.hard.store(hard, Relaxed);
            entry.name.store(name, Relaxed);
            Ok(())
        })
    }

    /// The memory limit of a cgroup, by its path below [`ROOT`].
    #[must_use]
    pub fn memory_limit(&self, gpu_index: usize, path: &str) -> Option<CgroupMemoryLimit> {
        let name = number(path);
        self.locked(gpu_index, |record| {
            let entry = entries(record).find(|entry| entry.name.load(Relaxed) == name)?;
            self.reap(gpu_index, record);
            Some(self.limit(gpu_index, entry))
        })
    }

    /// The memory limit that applies to this process.
    #[must_use]
    pub fn own_memory_limit(&self, gpu_index: usize) -> Option<CgroupMemoryLimit> {
        self.locked(gpu_index, |record| {
            self.locked_own_limit(gpu_index, record)?;
            self.reap(gpu_index, record);
            self.locked_own_limit(gpu_index, record)
        })
    }

    /// The same under the GPU's lock; dead processes of the cgroup still count.
    pub(crate) fn locked_own_limit(
        &self,
        gpu_index: usize,
        record: &GpuRecord,
    ) -> Option<CgroupMemoryLimit> {
        let own = self.shared().slots[self.slot()].cgroup.load(Relaxed);
        let entry = entries(record).find(|entry| entry.is_of(own))?;
        Some(self.limit(gpu_index, entry))
    }

    /// Moves `needed` bytes of other cgroups to the host, for `bytes` with which this process stays
    /// within the soft limit of its own. Needs the GPU's lock.
    pub(crate) fn evict_above_soft_limits(
        &self,
        gpu_index: usize,
        record: &GpuRecord,
        (mut needed, bytes): (u64, u64),
    ) -> Result<(), GpuOutOfMemory> {
        let own = self.shared().slots[self.slot()].cgroup.load(Relaxed);
        let is_guaranteed =
            |limit: CgroupMemoryLimit| limit.used.saturating_add(bytes) <= limit.soft;
        if !self
            .locked_own_limit(gpu_index, record)
            .is_some_and(is_guaranteed)
        {
            return Err(GpuOutOfMemory);
        }
        let in_use =
            |entry: &&MemoryLimitRecord| entry.name.load(Relaxed) != 0 && !entry.is_of(own);
        let others: Vec<&MemoryLimitRecord> = entries(record).filter(in_use).collect();
        let above_soft = |entry: &&MemoryLimitRecord| {
            let limit = self.limit(gpu_index, entry);
            limit.used.saturating_sub(limit.soft)
        };
        let excess: Vec<u64> = others.iter().map(above_soft).collect();
        if excess.iter().sum::<u64>() < needed {
            return Err(GpuOutOfMemory);
        }
        for (entry, excess) in others.into_iter().zip(excess) {
            let mut left = excess.min(needed);
            needed -= left;
            for (_, slot) in self.shared().claimed() {
                if !entry.is_of(slot.cgroup.load(Relaxed)) {
                    continue;
                }
                let counters = &slot.counters[gpu_index];
                let managed = counters.managed.load(Relaxed);
                let gone = counters
                    .used
                    .load(Relaxed)
                    .saturating_sub(managed)
                    .min(left);
                left -= gone;
                counters.used.fetch_sub(gone, Relaxed);
                counters.host.fetch_add(gone, Relaxed);
                record.used.fetch_sub(gone, Relaxed);
            }
        }
        self.record_host_peak(gpu_index, record);
        Ok(())
    }

    fn limit(&self, gpu_index: usize, entry: &MemoryLimitRecord) -> CgroupMemoryLimit {
        let used = |slot: &Slot| {
            let counters = &slot.counters[gpu_index];
            // Managed memory, which may move to the host, does not count.
            let managed = counters.managed.load(Relaxed);
            counters.used.load(Relaxed).saturating_sub(managed)
        };
        let all = self.shared().claimed().map(|(_, slot)| slot);
        let own = all.filter(|slot| entry.is_of(slot.cgroup.load(Relaxed)));
        CgroupMemoryLimit {
            soft: entry.soft.load(Relaxed),
            hard: entry.hard.load(Relaxed),
            used: own.map(used).sum(),
        }
    }
}

#[cfg(test)]
#[path = "memory_limits_tests.rs"]
mod tests;
