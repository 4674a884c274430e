//! Suspended processes (`cuCheckpointProcess*`): one that is locked makes no calls, and one that is
//! checkpointed has neither memory nor contexts on any GPU until it is restored. Any process may do
//! that to one that it sees.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::locks;
use crate::member::Member;
use crate::model::MAX_GPUS;
use crate::pids;
use crate::shared::{self, Slot, UsageCounters};

/// `CUprocessState`.
pub const RUNNING: u64 = 0;
/// Its calls wait.
pub const LOCKED: u64 = 1;
/// Its memory is on the host.
pub const CHECKPOINTED: u64 = 2;
/// Between two of these: another process is at it.
const CHANGING: u64 = 3;

/// Why a process cannot be suspended or restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspensionError {
    /// No such process uses this driver.
    NoProcess,
    /// It is in another state than the call asks for.
    State,
    /// It has memory that cannot move: managed, or shared with others.
    Unmovable,
    /// A GPU has no room for it.
    Full,
}

impl Member {
    /// Whether this process is locked or checkpointed.
    #[inline]
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.shared().slots[self.slot()].suspension.load(Acquire) != RUNNING
    }

    /// The state of a process.
    pub fn process_state(&self, pid: u32) -> Result<u64, SuspensionError> {
        let state = self.process(pid)?.1.suspension.load(Acquire);
        Ok(if state == CHANGING { LOCKED } else { state })
    }

    /// Locks a process, or unlocks it.
    pub fn change_process(&self, pid: u32, from: u64, to: u64) -> Result<(), SuspensionError> {
        let (_, process) = self.process(pid)?;
        let changed = process
            .suspension
            .compare_exchange(from, to, AcqRel, Acquire);
        changed.map(|_| ()).map_err(|_| SuspensionError::State)
    }

    /// Moves the memory of a locked process to the host.
    pub fn checkpoint_process(&self, pid: u32) -> Result<(), SuspensionError> {
        let (slot, process) = self.process(pid)?;
        self.change_process(pid, LOCKED, CHANGING)?;
        let token = process.generation.load(Relaxed) << 16 | (slot as u64 + 1);
        let is_unmovable = (0..MAX_GPUS).any(|gpu_index| {
            let counters = &process.counters[gpu_index];
            let kinds = [&counters.managed, &counters.host, &counters.imported];
            let mut exports = self.shared().gpus[gpu_index].exports.iter();
            let is_own = |owner: u64| owner == token;
            kinds.iter().any(|bytes| bytes.load(Relaxed) > 0)
                || exports.any(|one| one.number() != 0 && is_own(one.owner.load(Relaxed)))
        });
        if is_unmovable {
            process.suspension.store(LOCKED, Release);
            return Err(SuspensionError::Unmovable);
        }
        for (gpu_index, counters) in process.counters.iter().enumerate() {
            self.move_away(gpu_index, counters);
        }
        process.suspension.store(CHECKPOINTED, Release);
        Ok(())
    }

    /// Moves the memory of a checkpointed process back to its GPUs, of which each has a capacity in
    /// bytes. It is locked then.
    pub fn restore_process(
        &self,
        pid: u32,
        capacity: impl Fn(usize) -> u64,
    ) -> Result<(), SuspensionError> {
        let (_, process) = self.process(pid)?;
        self.change_process(pid, CHECKPOINTED, CHANGING)?;
        let counters = |gpu_index: usize| &process.counters[gpu_index];
        let fits = |gpu_index| self.move_back(gpu_index, counters(gpu_index), capacity(gpu_index));
        if let Some(full) = (0..MAX_GPUS).find(|gpu_index| !fits(*gpu_index)) {
            for gpu_index in 0..full {
                self.move_away(gpu_index, counters(gpu_index));
            }
            process.suspension.store(CHECKPOINTED, Release);
            return Err(SuspensionError::Full);
        }
        process.suspension.store(LOCKED, Release);
        Ok(())
    }

    fn move_away(&self, gpu_index: usize, counters: &UsageCounters) {
        if counters.used.load(Relaxed) == 0 && counters.contexts.load(Relaxed) == 0 {
            return;
        }
        self.locked(gpu_index, |record| {
            let bytes = counters.used.swap(0, Relaxed);
            counters.suspended.store(bytes, Relaxed);
            let contexts = counters.contexts.swap(0, Relaxed);
            counters.suspended_contexts.store(contexts, Relaxed);
            let left = record.used.load(Relaxed).saturating_sub(bytes);
            record.used.store(left, Relaxed);
        });
    }

    /// False if the GPU has no room.
    fn move_back(&self, gpu_index: usize, counters: &UsageCounters, capacity: u64) -> bool {
        let bytes = counters.suspended.load(Relaxed);
        if bytes == 0 && counters.suspended_contexts.load(Relaxed) == 0 {
            return true;
        }
        self.locked(gpu_index, |record| {
            self.reap(gpu_index, record);
            let used = record.used.load(Relaxed) + bytes;
            if used > capacity {
                return false;
            }
            counters.used.fetch_add(bytes, Relaxed);
            record.used.store(used, Relaxed);
            counters.suspended.store(0, Relaxed);
            let contexts = counters.suspended_contexts.swap(0, Relaxed);
            counters.contexts.fetch_add(contexts, Relaxed);
            true
        })
    }

    /// The living process of an id that this process sees.
    fn process(&self, pid: u32) -> Result<(usize, &Slot), SuspensionError> {
        let file = shared::open(self.path(), false).map_err(|_| SuspensionError::NoProcess)?;
        let is_it = |slot: &Slot| {
            let own = u32::try_from(slot.pid.load(Relaxed)).ok();
            let namespace = slot.namespace.load(Relaxed);
            own.and_then(|own| pids::as_seen_here(own, namespace)) == Some(pid)
        };
        let is_alive = |slot| slot == self.slot() || locks::is_locked(&file, slot as u64);
        let mut all = self.shared().claimed();
        let found = all.find(|(slot, process)| is_it(process) && is_alive(*slot));
        found.ok_or(SuspensionError::NoProcess)
    }
}
