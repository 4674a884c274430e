//! What processes use on the GPUs, for NVML and for tests: a read-only view of `<state>.cuda`, dead
//! processes left out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use crate::clock;
use crate::engine::busy_between;
use crate::locks;
use crate::pids;
use crate::shared::{self, BUCKET, Mapping, Slot};

/// Nanoseconds for which reading a GPU that changes meanwhile is retried: the writer may
/// be waiting for a processor.
const PATIENCE: u64 = 2_000_000_000;

/// What a living process uses on one GPU, by the simulator's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Its pid, as seen in its own pid namespace.
    pub pid: u32,
    /// Inode of that namespace, 0 = not known.
    pub namespace: u64,
    /// Bytes of the GPU, contexts and unused parts of blocks included.
    pub used: u64,
    /// The most that `used` ever was.
    pub peak: u64,
    /// Bytes of `used` that are managed memory.
    pub managed: u64,
    /// Bytes that it imported from other processes.
    pub imported: u64,
    /// Bytes of managed memory that the GPU used and that are on the host now.
    pub host: u64,
    /// Its contexts.
    pub contexts: u64,
    /// Nanoseconds that its work ran on the GPU, as far as was computed.
    pub busy: u64,
    /// Percent of the last sample period in which its work ran.
    pub utilisation: u32,
    /// It uses the GPU through an MPS server.
    pub mps: bool,
    /// The instance that it uses (GPU and compute instance).
    pub instance: Option<(u32, u32)>,
}

impl ProcessUsage {
    /// Its id as the reader sees it; `None` when the reader cannot see it.
    #[must_use]
    pub fn pid_here(&self) -> Option<u32> {
        pids::as_seen_here(self.pid, self.namespace)
    }
}

/// Reads the usage counters.
pub struct UsageReader {
    path: PathBuf,
    map: Mapping,
}

impl UsageReader {
    /// Opens the usage counters that belong to a state file.
    pub fn open(state: &Path) -> io::Result<Self> {
        let path = shared::path_of(state);
        let map = Mapping::new(&path, &shared::open(&path, false)?, false)?;
        Ok(Self { path, map })
    }

    /// The living processes that have a context or memory on a GPU, with their utilisation over the
    /// `period` nanoseconds before `end`.
    #[must_use]
    pub fn process_usage(&self, gpu_index: usize, (end, period): (u64, u64)) -> Vec<ProcessUsage> {
        let mut found = self.snapshot(gpu_index);
        let file = shared::open(&self.path, false).ok();
        found.retain(|(slot, _)| {
            let is_alive = |file| locks::is_locked(file, *slot as u64);
            file.as_ref().is_none_or(is_alive)
        });
        for (slot, usage) in &mut found {
            let counters = &self.map.get().slots[*slot].counters[gpu_index];
            let busy = busy_between(counters, end.saturating_sub(period), end);
            let whole = (period / BUCKET * BUCKET).max(1);
            usage.utilisation = u32::try_from(busy * 100 / whole).unwrap_or(100).min(100);
        }
        found.into_iter().map(|(_, usage)| usage).collect()
    }

    /// Peak of the bytes of a GPU that the processes of a group used together at one moment;
    /// `None`: more groups were on the GPU than are recorded, and this may be one of them.
    #[must_use]
    pub fn group_peak(&self, gpu_index: usize, group: u64) -> Option<u64> {
        let record = &self.map.get().gpus[gpu_index];
        let mut groups = record.groups.iter();
        let found = groups.find(|one| one.name.load(Relaxed) == group);
        let unknown = (record.groups_overflowed.load(Relaxed) == 0).then_some(0);
        found.map_or(unknown, |one| Some(one.peak.load(Relaxed)))
    }

    /// Peak of the managed bytes on the host for lack of memory on a GPU.
    #[must_use]
    pub fn host_peak(&self, gpu_index: usize) -> u64 {
        self.map.get().gpus[gpu_index].host_peak.load(Relaxed)
    }

    /// Bytes of a GPU that processes share and that no living process has created.
    #[must_use]
    pub fn orphaned(&self, gpu_index: usize) -> u64 {
        let record = &self.map.get().gpus[gpu_index];
        let file = shared::open(&self.path, false).ok();
        let all = record.orphans().filter(|one| {
            let is_used = |file| locks::is_locked(file, one.number());
            file.as_ref().is_none_or(is_used)
        });
        all.map(|one| one.bytes.load(Relaxed)).sum()
    }

    /// What all processes used at one moment: no byte is counted twice.
    fn snapshot(&self, gpu_index: usize) -> Vec<(usize, ProcessUsage)> {
        let shared = self.map.get();
        let sequence = &shared.gpus[gpu_index].sequence;
        let end = clock().saturating_add(PATIENCE);
        loop {
            let before = sequence.load(Acquire);
            let found = shared
                .claimed()
                .map(|(number, slot)| (number, read((number, slot), gpu_index)));
            let holds = |usage: &ProcessUsage| usage.contexts > 0 || usage.used > 0;
            let found: Vec<_> = found.filter(|(_, usage)| holds(usage)).collect();
            fence(Acquire);
            let is_whole = before.is_multiple_of(2) && sequence.load(Relaxed) == before;
            // Where the last writer died half-way, the record no longer changes.
            if is_whole || clock() >= end {
                return found;
            }
            std::thread::yield_now();
        }
    }
}

fn read((number, slot): (usize, &Slot), gpu_index: usize) -> ProcessUsage {
    let server = slot.mps.load(Relaxed) & 0xffff;
    let counters = &slot.counters[gpu_index];
    let numbers = slot.instance.load(Relaxed).checked_sub(1);
    let part = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    ProcessUsage {
        pid: u32::try_from(slot.pid.load(Relaxed)).unwrap_or(u32::MAX),
        namespace: slot.namespace.load(Relaxed),
        used: counters.used.load(Relaxed),
        peak: counters.peak.load(Relaxed),
        managed: counters.managed.load(Relaxed),
        imported: counters.imported.load(Relaxed),
        host: counters.host.load(Relaxed),
        contexts: counters.contexts.load(Relaxed),
        busy: counters.busy.load(Relaxed),
        utilisation: 0,
        mps: server != 0 && server != number as u64 + 1,
        instance: numbers.map(|both| (part(both >> 32), part(both))),
    }
}
