//! This process as one of those that share the GPUs: its slot, and the memory it charges and
//! releases. Only `locks` decides whether a process is dead.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use crate::groups;
use crate::locks;
use crate::memory_limits;
use crate::model::MAX_GPUS;
use crate::pids;
use crate::shared::{self, GpuRecord, MAX_SLOTS, Mapping, SharedUsage, UsageCounters};

/// The GPU does not have that many free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOutOfMemory;

/// Attempts at a lock before yielding, and before checking whether its owner is dead.
const SPINS: u32 = 50;
const PATIENCE: u32 = 100;

/// A claimed slot. It is freed by the exit of the process, never by code.
pub struct Member {
    path: PathBuf,
    map: Mapping,
    slot: usize,
    generation: u64,
    /// The memory limit of this process on each GPU, in bytes.
    caps: [u64; MAX_GPUS],
}

impl Member {
    /// Claims a slot of the machine of a state file. Fails when all are taken by living processes.
    pub fn join(state: &Path) -> io::Result<Self> {
        let path = shared::path_of(state);
        let file = shared::open(&path, true)?;
        // A lock lives with this mapping; the file is closed at the end of this function.
        let map = Mapping::new(&path, &file, true)?;
        let shared = map.get();
        let taken = (0..MAX_SLOTS).find(|slot| locks::take(&file, *slot));
        let full = || io::Error::other("every slot is taken by a living process");
        let slot = taken.ok_or_else(full)?;
        let record = &shared.slots[slot];
        let generation = record.generation.load(Acquire) + 1;
        record.generation.store(generation, Release);
        shared.top.fetch_max(slot as u64 + 1, AcqRel);
        let member = Self {
            path,
            map,
            slot,
            generation,
            caps: [u64::MAX; MAX_GPUS],
        };
        record.mps.store(0, Relaxed);
        record.instance.store(0, Relaxed);
        record.percent.store(0, Relaxed);
        record.suspension.store(0, Relaxed);
        for (index, counters) in record.counters.iter().enumerate() {
            member.locked(index, |record| settle(record, (slot, counters), &file));
        }
        record.pid.store(u64::from(std::process::id()), Relaxed);
        record.namespace.store(pids::own_namespace(), Relaxed);
        record.group.store(groups::own(), Relaxed);
        record.cgroup.store(memory_limits::own(), Relaxed);
        record.settled.store(generation, Release);
        Ok(member)
    }

    /// The number of this process's slot.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// This process's counters on a GPU.
    #[must_use]
    pub fn counters(&self, gpu_index: usize) -> &UsageCounters {
        &self.shared().slots[self.slot].counters[gpu_index]
    }

    /// Charges bytes to a GPU of `capacity` bytes. Managed memory of any process is evicted if
    /// necessary.
    pub fn charge(
        &self,
        gpu_index: usize,
        bytes: u64,
        capacity: u64,
    ) -> Result<(), GpuOutOfMemory> {
        self.take(gpu_index, bytes, capacity, false)
    }

    /// As `charge`, for memory that may be moved to the host later.
    pub fn charge_managed(
        &self,
        gpu_index: usize,
        bytes: u64,
        capacity: u64,
    ) -> Result<(), GpuOutOfMemory> {
        self.take(gpu_index, bytes, capacity, true)
    }

    fn take(
        &self,
        gpu_index: usize,
        bytes: u64,
        capacity: u64,
        managed: bool,
    ) -> Result<(), GpuOutOfMemory> {
        self.locked(gpu_index, |record| {
            let within =
                |used: u64, most: u64| used.checked_add(bytes).is_some_and(|sum| sum <= most);
            if !within(
                self.counters(gpu_index).used.load(Relaxed),
                self.caps[gpu_index],
            ) {
                return Err(GpuOutOfMemory);
            }
            let passes = || {
                let limit = self
                    .locked_own_limit(gpu_index, record)
                    .filter(|_| !managed);
                limit.is_some_and(|limit| !within(limit.used, limit.hard))
            };
            if passes() {
                self.reap(gpu_index, record);
                if passes() {
                    return Err(GpuOutOfMemory);
                }
            }
            let fits = |used: u64| within(used, capacity);
            if !fits(record.used.load(Relaxed)) {
                self.reap(gpu_index, record);
                let needed = record.used.load(Relaxed).saturating_add(bytes);
                let needed = needed.saturating_sub(capacity);
                self.evict(gpu_index, record, needed).or_else(|_| {
                    self.evict_above_soft_limits(gpu_index, record, (needed, bytes))
                })?;
            }
            let counters = self.counters(gpu_index);
            // The process's own counter changes first: if the process dies in between, the next
            // owner of the lock recomputes the sum.
            let used = counters.used.load(Relaxed) + bytes;
            counters.used.store(used, Relaxed);
            record
                .used
                .store(record.used.load(Relaxed) + bytes, Relaxed);
            counters.peak.fetch_max(used, Relaxed);
            self.record_group_peak(gpu_index, record);
            if managed {
                counters.managed.fetch_add(bytes, Relaxed);
            }
            Ok(())
        })
    }

    /// Releases bytes of a GPU, and of the host what was evicted there.
    pub fn release(&self, gpu_index: usize, bytes: u64) {
        self.locked(gpu_index, |record| {
            let counters = self.counters(gpu_index);
            let used = counters.used.load(Relaxed);
            let here = bytes.min(used);
            counters.used.store(used - here, Relaxed);
            let sum = record.used.load(Relaxed).saturating_sub(here);
            record.used.store(sum, Relaxed);
            let host = counters.host.load(Relaxed).saturating_sub(bytes - here);
            counters.host.store(host, Relaxed);
        });
    }

    /// Releases managed bytes that were not evicted meanwhile, and returns how many were evicted.
    pub fn release_managed(&self, gpu_index: usize, bytes: u64) -> u64 {
        self.locked(gpu_index, |record| {
            let counters = self.counters(gpu_index);
            let left = bytes.min(counters.managed.load(Relaxed));
            counters.managed.fetch_sub(left, Relaxed);
            let used = counters.used.load(Relaxed).saturating_sub(left);
            counters.used.store(used, Relaxed);
            let sum = record.used.load(Relaxed).saturating_sub(left);
            record.used.store(sum, Relaxed);
            counters.evicted.swap(0, Relaxed)
        })
    }

    /// Moves managed bytes of any process to the host. Needs the GPU's lock.
    fn evict(
        &self,
        gpu_index: usize,
        record: &GpuRecord,
        bytes: u64,
    ) -> Result<(), GpuOutOfMemory> {
        let slots = || {
            self.shared()
                .claimed()
                .map(|(_, slot)| &slot.counters[gpu_index])
        };
        let all: u64 = slots().map(|one| one.managed.load(Relaxed)).sum();
        if all < bytes {
            return Err(GpuOutOfMemory);
        }
        let mut needed = bytes;
        for counters in slots() {
            let gone = counters.managed.load(Relaxed).min(needed);
            if gone == 0 {
                continue;
            }
            needed -= gone;
            counters.managed.fetch_sub(gone, Relaxed);
            counters.evicted.fetch_add(gone, Relaxed);
            counters.host.fetch_add(gone, Relaxed);
            counters.used.fetch_sub(gone, Relaxed);
            record.used.fetch_sub(gone, Relaxed);
        }
        self.record_host_peak(gpu_index, record);
        Ok(())
    }

    /// Counts managed bytes used by the GPU that stay on the host, or were moved there.
    pub fn add_host_bytes(&self, gpu_index: usize, bytes: u64) {
        self.locked(gpu_index, |record| {
            self.counters(gpu_index).host.fetch_add(bytes, Relaxed);
            self.record_host_peak(gpu_index, record);
        });
    }

    /// Counts managed bytes that left the host.
    pub fn remove_host_bytes(&self, gpu_index: usize, bytes: u64) {
        self.locked(gpu_index, |_| {
            let host = &self.counters(gpu_index).host;
            host.store(host.load(Relaxed).saturating_sub(bytes), Relaxed);
        });
    }

    /// Records the managed bytes on the host, if it is a new peak. Needs the GPU's lock.
    pub(crate) fn record_host_peak(&self, gpu_index: usize, record: &GpuRecord) {
        let sum = || -> u64 {
            let slots = self.shared().claimed().map(|(_, slot)| slot);
            slots
                .map(|one| one.counters[gpu_index].host.load(Relaxed))
                .sum()
        };
        if sum() > record.host_peak.load(Relaxed) {
            // Dead processes may still be counted.
            self.reap(gpu_index, record);
            record.host_peak.fetch_max(sum(), Relaxed);
        }
    }

    /// Bytes that living processes use on a GPU.
    #[must_use]
    pub fn used(&self, gpu_index: usize) -> u64 {
        self.locked(gpu_index, |record| {
            self.reap(gpu_index, record);
            record.used.load(Relaxed)
        })
    }

    /// Whether another living process has a context on a GPU. A client of MPS has it through its
    /// server, which counts for it.
    #[must_use]
    pub fn others_have_contexts(&self, gpu_index: usize) -> bool {
        let file = shared::open(&self.path, false).ok();
        let alive = |slot| {
            file.as_ref()
                .is_none_or(|file| locks::is_locked(file, slot as u64))
        };
        let own = self.shared().slots[self.slot].mps.load(Relaxed);
        self.shared().claimed().any(|(slot, process)| {
            let contexts = process.counters[gpu_index].contexts.load(Relaxed);
            let server = process.mps.load(Relaxed);
            let client = server != 0 && server & 0xffff != slot as u64 + 1;
            let together = own != 0 && server == own;
            contexts > 0 && slot != self.slot && !client && !together && alive(slot)
        })
    }

    /// This process for others: its slot and the number of claims of the slot.
    #[must_use]
    pub fn token(&self) -> u64 {
        (self.generation << 16) | (self.slot as u64 + 1)
    }

    /// From now on this process uses the GPUs through the MPS server of a token (its own: it is
    /// that server), and fills at most so many percent of them.
    pub fn join_server(&self, token: u64, percent: u32) {
        let record = &self.shared().slots[self.slot];
        record.percent.store(u64::from(percent), Relaxed);
        record.mps.store(token, Relaxed);
    }

    /// From now on this process uses an instance, by its numbers (GPU and compute instance).
    pub fn join_instance(&self, (outer, inner): (u32, u32)) {
        let numbers = (u64::from(outer) << 32 | u64::from(inner)) + 1;
        let record = &self.shared().slots[self.slot];
        record.instance.store(numbers, Relaxed);
    }

    /// Limits this process to so many bytes of a GPU.
    pub fn cap(&mut self, gpu_index: usize, bytes: u64) {
        self.caps[gpu_index] = bytes;
    }

    /// The limit set by `cap`, in bytes, if any.
    #[must_use]
    pub fn capped(&self, gpu_index: usize) -> Option<u64> {
        Some(self.caps[gpu_index]).filter(|cap| *cap != u64::MAX)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shared(&self) -> &'static SharedUsage {
        self.map.get()
    }

    /// Releases what dead processes used on a GPU. Needs the GPU's lock.
    pub(crate) fn reap(&self, gpu_index: usize, record: &GpuRecord) {
        let Ok(file) = shared::open(&self.path, false) else {
            return;
        };
        for (slot, process) in self.shared().claimed() {
            let counters = &process.counters[gpu_index];
            let works = counters.done.load(Relaxed) < counters.pushed.load(Relaxed);
            let bytes = counters.used.load(Relaxed) + counters.host.load(Relaxed);
            let holds = bytes > 0 || works;
            if holds && slot != self.slot && !locks::is_locked(&file, slot as u64) {
                settle(record, (slot, counters), &file);
            }
        }
        Self::reap_exports(record, &file);
    }

    /// Runs `body` with the lock of a GPU.
    pub(crate) fn locked<T>(&self, gpu_index: usize, body: impl FnOnce(&GpuRecord) -> T) -> T {
        let record = &self.shared().gpus[gpu_index];
        let own = self.token();
        let mut tries = 0_u32;
        loop {
            match record.lock.compare_exchange(0, own, Acquire, Relaxed) {
                Ok(_) => break,
                Err(owner) if tries > PATIENCE && self.is_dead(owner) => {
                    let stolen = record.lock.compare_exchange(owner, own, Acquire, Relaxed);
                    if stolen.is_ok() {
                        self.recompute_used(gpu_index, record);
                        break;
                    }
                }
                Err(_) if tries < SPINS => std::hint::spin_loop(),
                Err(_) => std::thread::yield_now(),
            }
            tries = if tries > PATIENCE { SPINS } else { tries + 1 };
        }
        let changing = record.sequence.load(Relaxed) | 1;
        record.sequence.store(changing, Relaxed);
        fence(Release);
        let unlock = UnlockOnDrop(record, changing + 1);
        let answer = body(record);
        drop(unlock);
        answer
    }

    /// Whether the process of a token is dead.
    #[must_use]
    pub fn is_dead(&self, owner: u64) -> bool {
        let number = usize::try_from(owner & 0xffff).unwrap_or(0);
        let Some(slot) = number.checked_sub(1).filter(|slot| *slot < MAX_SLOTS) else {
            return false;
        };
        if slot == self.slot {
            return owner >> 16 != self.generation;
        }
        let newer = self.shared().slots[slot].generation.load(Acquire) != owner >> 16;
        newer
            || shared::open(&self.path, false)
                .is_ok_and(|file| !locks::is_locked(&file, slot as u64))
    }

    fn recompute_used(&self, gpu_index: usize, record: &GpuRecord) {
        let slots = self.shared().claimed();
        let sum = slots.map(|(_, slot)| slot.counters[gpu_index].used.load(Relaxed));
        let sum: u64 = sum.sum();
        record.used.store(sum + record.orphaned(), Relaxed);
    }
}

struct UnlockOnDrop<'a>(&'a GpuRecord, u64);

impl Drop for UnlockOnDrop<'_> {
    fn drop(&mut self) {
        self.0.sequence.store(self.1, Release);
        self.0.lock.store(0, Release);
    }
}

/// Clears the counters of a process that is gone. What others may still use of its memory stays.
fn settle(record: &GpuRecord, (slot, counters): (usize, &UsageCounters), file: &File) {
    let mut used = counters.used.swap(0, Relaxed);
    for one in record.exports.iter().filter(|one| one.number() != 0) {
        if one.owner.load(Relaxed) & 0xffff == slot as u64 + 1 {
            let bytes = one.bytes.load(Relaxed);
            used = used.saturating_sub(bytes);
            one.leave(record, bytes, locks::is_locked(file, one.number()));
        }
    }
    let left = record.used.load(Relaxed).saturating_sub(used);
    record.used.store(left, Relaxed);
    let others = [
        &counters.peak,
        &counters.contexts,
        &counters.managed,
        &counters.evicted,
        &counters.host,
        &counters.imported,
        &counters.suspended,
        &counters.suspended_contexts,
    ];
    for counter in others {
        counter.store(0, Relaxed);
    }
    // Its queued work does not run any more.
    let pushed = counters.pushed.load(Relaxed);
    counters.done.store(pushed, Relaxed);
}
