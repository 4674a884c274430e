//! Measures what CUDA contexts take on this node, for the agent, which has new containers charged
//! for that ([`aliquot_node_state::context_sizes`]): the driver's size of a process whose only memory of an
//! estimated size is one context, less what the limiter counts for its allocations.
//!
//! Of each container the first size counts that lasts after a launch: contexts grow at the first
//! launches, and code that is loaded later is not part of every context.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aliquot_core::inventory::Mode;
use aliquot_node_state::context_sizes::{ContextKind, ContextSizes};
use aliquot_node_state::monitor_reports;
use aliquot_node_state::state::StateDirectory;
use aliquot_region::host::{CountersSnapshot, ProcessUsage};

use crate::devices::GpuSample;
use crate::evaluation::Evaluation;
use crate::managed_containers::ManagedContainer;
use crate::node_sample::NodeSample;

/// Consecutive samples with the same size: five seconds.
const SETTLED: u32 = 10;

/// What the driver and the limiter report about the memory of one process on one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    /// By the driver.
    pub measured: u64,
    /// Counted by the limiter.
    pub counted: u64,
    /// Of these, contexts and what is charged with them.
    pub contexts: u64,
    /// Of the counted bytes, managed memory.
    pub managed: u64,
    /// What the limiter charges for one context.
    pub charge: u64,
}

impl ProcessFigures {
    /// What the context of the process takes. `None` unless it has exactly one and nothing else of
    /// which the limiter knows no exact size.
    pub fn context(self) -> Option<u64> {
        if self.contexts != self.charge || self.managed != 0 {
            return None;
        }
        let allocations = self.counted.checked_sub(self.contexts)?;
        self.measured.checked_sub(allocations)
    }
}

/// A process, and the size that its context seems to have.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    bytes: u64,
    /// Consecutive samples with this size.
    samples: u32,
}

/// Whether the sizes of the processes on a GPU exceed what is in use of it: what one imported from
/// another is in the sizes of both.
fn is_reported_twice(sample: &NodeSample, gpu: &str) -> bool {
    let own = sample.processes.iter().filter(|one| one.gpu == gpu);
    let sizes = own.filter_map(|one| one.bytes);
    let sum = sizes.fold(0, u64::saturating_add);
    sample.in_use.get(gpu).is_some_and(|in_use| sum > *in_use)
}

/// The sizes of contexts, and the file that the agent reads.
#[derive(Debug)]
pub struct ContextMeter {
    file: PathBuf,
    sizes: ContextSizes,
    written: bool,
    /// Containers and their devices of which a context was measured.
    measured: BTreeSet<(String, usize)>,
    /// Processes of the others, by container, device and pid in the container.
    candidates: BTreeMap<(String, usize, u32), Candidate>,
}

impl ContextMeter {
    /// Continues with what is in the agent's state directory.
    pub fn new(state: &Path) -> Self {
        let file = StateDirectory(state).context_sizes();
        let text = std::fs::read(&file).ok();
        let sizes = text.and_then(|text| serde_json::from_slice(&text).ok());
        Self {
            file,
            sizes: sizes.unwrap_or_default(),
            written: true,
            measured: BTreeSet::new(),
            candidates: BTreeMap::new(),
        }
    }

    /// Adds one sample, and writes the file if a size changed. `charge` is what a context of a device
    /// of a container is charged, in bytes. Blocks.
    pub fn update(
        &mut self,
        sample: &NodeSample,
        evaluation: &Evaluation,
        gpus: &[GpuSample],
        mut charge: impl FnMut(&ManagedContainer, usize) -> Option<u64>,
    ) {
        let containers = &sample.containers.all;
        let exists = |id: &String| containers.iter().any(|container| container.id == *id);
        self.measured.retain(|(id, _)| exists(id));
        let before = std::mem::take(&mut self.candidates);
        for (at, container) in containers.iter().enumerate() {
            let is_limited = container.limited && !container.effective.uncontrolled;
            let counters = sample.counters.get(at).and_then(Option::as_ref);
            let processes = evaluation.process_lists.get(at).and_then(Option::as_ref);
            let (Some(Ok(counters)), Some(processes)) = (counters, processes) else {
                continue;
            };
            // Spilled memory is on the host or on the device.
            if !is_limited || container.effective.oversubscribe {
                continue;
            }
            for (pid, device, measured) in processes {
                let (pid, device) = (*pid, *device);
                let launches = counters
                    .1
                    .compute
                    .get(device)
                    .map(|compute| compute.launches);
                if self.measured.contains(&(container.id.clone(), device))
                    || launches.unwrap_or(0) == 0
                    || is_reported_twice(sample, sample.gpu(at, device))
                {
                    continue;
                }
                let mut same = processes
                    .iter()
                    .filter(|one| (one.0, one.1) == (pid, device));
                let is_only = same.nth(1).is_none();
                let slot = steady_slot(counters, pid, device).filter(|_| is_only);
                let charge = charge(container, device);
                let (Some(measured), Some(slot), Some(charge)) = (*measured, slot, charge) else {
                    continue;
                };
                let word = |words: &[u64]| words.get(device).copied().unwrap_or(0);
                let figures = ProcessFigures {
                    measured,
                    counted: word(&slot.used),
                    contexts: word(&slot.contexts),
                    managed: word(&slot.managed),
                    charge,
                };
                let Some(bytes) = figures.context() else {
                    continue;
                };
                let key = (container.id.clone(), device, pid);
                let known = before.get(&key).filter(|known| known.bytes == bytes);
                let samples = known.map_or(1, |known| known.samples + 1);
                if samples < SETTLED {
                    self.candidates.insert(key, Candidate { bytes, samples });
                } else if let Some(kind) = kind(sample, gpus, at, device) {
                    self.record(&kind, &container.id, bytes);
                    self.measured.insert((container.id.clone(), device));
                }
            }
        }
        self.write();
    }

    /// Records a context, unless one of the container was recorded by an earlier monitor.
    fn record(&mut self, kind: &ContextKind, container: &str, bytes: u64) {
        if !self.sizes.has(kind, container) && self.sizes.record(kind, container, bytes) {
            self.written = false;
            tracing::info!(
                model = kind.model,
                driver = kind.driver,
                profile = kind.profile,
                mps = kind.mps,
                mib = bytes >> 20,
                "measured a context"
            );
        }
    }

    /// Writes the file if it is outdated.
    fn write(&mut self) {
        if self.written {
            return;
        }
        match monitor_reports::write(&self.file, &self.sizes) {
            Ok(()) => self.written = true,
            Err(error) => {
                tracing::warn!(%error, "cannot write the sizes of contexts; retrying at the next sample");
            }
        }
    }
}

/// The only slot with this pid, unless its figures changed while the driver was read.
fn steady_slot(
    (before, after): &(CountersSnapshot, CountersSnapshot),
    pid: u32,
    device: usize,
) -> Option<&ProcessUsage> {
    let of_pid = |snapshot: &CountersSnapshot| {
        let mut slots = snapshot.processes.iter();
        slots.position(|slot| slot.pid == Some(pid))
    };
    let slot = &after.processes[of_pid(after)?];
    let earlier = &before.processes[of_pid(before)?];
    let same_pid = after.processes.iter().filter(|one| one.pid == Some(pid));
    let is_steady = earlier.used.get(device) == slot.used.get(device)
        && earlier.contexts.get(device) == slot.contexts.get(device);
    (same_pid.count() == 1 && is_steady).then_some(slot)
}

/// What the size of a context on a container's device depends on.
fn kind(sample: &NodeSample, gpus: &[GpuSample], at: usize, device: usize) -> Option<ContextKind> {
    let gpu = sample.gpu(at, device);
    let gpu = gpus.iter().find(|one| one.uuid == gpu)?;
    let uuid = sample.device_uuid(at, device);
    let instance = gpu.instances.iter().find(|one| one.uuid == uuid);
    let is_mps = sample.containers.all[at].devices[device].mode == Mode::Mps;
    Some(ContextKind::new(
        &gpu.model,
        &gpu.driver_version,
        instance.map(|instance| instance.profile.as_str()),
        is_mps,
    ))
}

#[cfg(test)]
#[path = "context_size_tests.rs"]
mod tests;
