//! Evaluates one sample of all GPUs, processes and counters files: what each container uses, what to
//! charge, which actions to take. A corrupt file of one tenant changes no value of another.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;
use aliquot_node_state::cgroup::ProcessLocation;
use aliquot_node_state::container_directory::ListedProcess;
use aliquot_node_state::processes::ProcessIdentity;
use aliquot_region::host::CountersSnapshot;

use crate::attribution::{self, Owner, UnmanagedReason};
use crate::counted_memory::{MeasuredProcess, counted_memory};
use crate::node_sample::{NodeSample, ProcessSample};
use crate::oom::{self, OomRule, OomWatch, ProcessMemory};
use crate::overhead::{MemorySample, Overhead, Recent};

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Bytes that each process may use beyond what the limiter counts for it.
    pub tolerance: u64,
    /// The watch of this node's pods is up to date.
    pub fresh: bool,
}

/// What one container uses on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUse {
    /// Its limit in bytes; 0: unknown.
    pub limit: u64,
    /// Bytes that its processes use, by the driver.
    pub measured: u64,
    /// Bytes that the limiter counts.
    pub tracked: u64,
    /// Of these, contexts.
    pub contexts: u64,
    /// The maximum measured, or counted within the limit.
    pub peak: u64,
    /// Bytes that the host charges in addition.
    pub overhead: u64,
    /// Bytes still counted for processes that ended.
    pub stale: u64,
    /// Its processes on the device.
    pub processes: u64,
    /// Of these, processes whose memory the driver does not report, so that the measured bytes are
    /// too low.
    pub unavailable: u64,
    /// Percent of the GPU that they used.
    pub busy: u32,
    /// Of one of them, the driver has no sample as new as of others.
    pub is_late: bool,
    pub work: aliquot_region::host::ComputeUsage,
    /// Requests that the limiter refused.
    pub refused: u64,
    /// Not all of its processes are known, so the measured values are too low.
    pub blind: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmanagedProcess {
    pub gpu: String,
    pub pod: Option<PodUid>,
    pub reason: UnmanagedReason,
    /// Bytes that it uses; `None` where the driver does not report them.
    pub bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Report an unmanaged process and its pid.
    ReportUnmanaged(UnmanagedProcess, u32),
    /// Report a container above its limit: its index, its device, bytes used.
    ReportAboveLimit(usize, usize, u64),
    /// Kill a process of a container above its limit: the container's index, device, bytes used.
    KillOverLimit(ProcessIdentity, ProcessLocation, usize, usize, u64),
}

#[derive(Debug, Default)]
pub struct Evaluation {
    /// What each container uses on each of its devices.
    pub uses: Vec<Vec<ContainerUse>>,
    /// Bytes to charge on each limits page; `None`: unchanged.
    pub charges: Vec<Vec<Option<u64>>>,
    /// The share that each process of the sample uses: index of its container, and of the device in it.
    pub shares: Vec<Option<(usize, usize)>>,
    /// The processes of each container; `None`: not all known.
    pub process_lists: Vec<Option<Vec<ListedProcess>>>,
    /// Unmanaged processes that were there in the sample before too.
    pub unmanaged: Vec<UnmanagedProcess>,
    /// Number of processes whose owner is not known yet.
    pub unknown: u64,
    /// Counters files that their tenants corrupted: index of the container, what is wrong.
    pub corrupt_counters: Vec<(usize, String)>,
    pub actions: Vec<Action>,
}

/// Samples for which a process may be in a container that the API server has not reported: it
/// reports a new one after a second or two.
const MAX_UNKNOWN_SAMPLES: u32 = 20;

#[derive(Debug, Default)]
pub struct Evaluator {
    shares: BTreeMap<(String, usize), ShareState>,
    reported_twice: BTreeMap<String, ReportedTwice>,
    /// What was counted on each GPU in the last sample.
    counted: BTreeMap<String, MovableMemory>,
    /// The unmanaged processes of the last sample, by GPU: why, and whether they are reported.
    unmanaged: BTreeMap<(String, ProcessIdentity), (UnmanagedReason, bool)>,
    /// Number of samples in which a process was in no reported container.
    unnamed: BTreeMap<ProcessIdentity, u32>,
}

/// Bytes by which the sizes of all processes on a GPU exceed what is in use of it, in the last
/// samples: what they imported from one another is in the sizes of both.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedTwice {
    /// With the managed memory that the sizes lack.
    known: Recent,
    /// With all managed memory, which the sizes may lack.
    possible: Recent,
    /// What the limiters count as imported.
    counted: u64,
}

impl ReportedTwice {
    /// Bytes that the limiters do not count, such as that of an earlier release.
    fn uncounted(&self) -> u64 {
        let known = self.known.least().unwrap_or(0);
        known.saturating_sub(self.counted)
    }
}

/// What the limiters count on a GPU and the sizes of processes may lack.
#[derive(Clone, Copy, Debug, Default)]
struct MovableMemory {
    /// Bytes of managed memory.
    managed: u64,
    /// Of these, bytes that the sizes do lack.
    managed_left_out: u64,
    /// Bytes that processes imported from others.
    imported: u64,
}

#[derive(Debug, Default)]
struct ShareState {
    overhead: Overhead,
    oom: OomWatch,
    peak: u64,
}

/// The processes of a container on a device, each with whether it bypasses the limiter.
#[derive(Clone, Copy)]
struct OwnProcesses<'a> {
    all: &'a [(&'a ProcessSample, bool)],
    /// There may be more of them.
    is_uncertain: bool,
}

impl Evaluator {
    pub fn evaluate(&mut self, sample: &NodeSample, rules: &Rules) -> Evaluation {
        let containers = &sample.containers.all;
        let owners: Vec<Owner> = sample
            .processes
            .iter()
            .map(|one| {
                limiter_checked(
                    one,
                    attribution::owner(one, containers, &sample.context),
                    sample,
                )
            })
            .collect();
        let is_uncertain =
            |owner: &Owner| matches!(owner, Owner::Unknown | Owner::UnknownContainer);
        let share = |owner: &Owner| match owner {
            Owner::Share(at, device) | Owner::WithoutLimiter(at, device) => Some((*at, *device)),
            _ => None,
        };
        let mut evaluation = Evaluation {
            unknown: count(&owners, is_uncertain),
            shares: owners.iter().map(share).collect(),
            ..Evaluation::default()
        };
        // Pods with a process on a GPU that may belong to any of their containers.
        let uncertain = sample.processes.iter().zip(&owners);
        let uncertain = uncertain.filter(|(_, owner)| is_uncertain(owner));
        let uncertain: BTreeSet<(&str, &PodUid)> = uncertain
            .filter_map(|(one, _)| Some((one.gpu.as_str(), one.process.location.pod.as_ref()?)))
            .collect();
        let names: BTreeSet<&str> = containers
            .iter()
            .map(|container| container.id.as_str())
            .collect();
        self.shares
            .retain(|(name, _), _| names.contains(name.as_str()));
        self.note_reported_twice(sample);
        for (at, container) in containers.iter().enumerate() {
            let mut list = Vec::new();
            let (mut uses, mut charges) = (Vec::new(), Vec::new());
            for device in 0..container.devices.len() {
                let own = processes_of(&sample.processes, &owners, (at, device));
                list.extend(
                    own.iter().filter_map(|(one, _)| {
                        Some((one.process.container_pid?, device, one.bytes))
                    }),
                );
                let is_uncertain = uncertain.contains(&(sample.gpu(at, device), &container.pod));
                let own = OwnProcesses {
                    all: &own,
                    is_uncertain,
                };
                let (found, charge) =
                    self.evaluate_share(sample, rules, (at, device), own, &mut evaluation);
                uses.push(found);
                charges.push(charge);
            }
            list.sort_unstable();
            let is_whole = !uses.iter().any(|found| found.blind);
            evaluation.uses.push(uses);
            evaluation.charges.push(charges);
            evaluation.process_lists.push(is_whole.then_some(list));
            if let Some(Some(Err(error))) = sample.counters.get(at)
                && error.is_caused_by_tenant()
            {
                evaluation.corrupt_counters.push((at, error.to_string()));
            }
        }
        self.evaluate_unmanaged(sample, rules, &owners, &mut evaluation);
        evaluation
    }

    fn note_reported_twice(&mut self, sample: &NodeSample) {
        let in_use = &sample.in_use;
        self.reported_twice
            .retain(|gpu, _| in_use.contains_key(gpu) || sample.blind.contains(gpu));
        let counted = std::mem::take(&mut self.counted);
        for (gpu, in_use) in in_use {
            let own = sample.processes.iter().filter(|one| one.gpu == *gpu);
            let sizes = own.filter_map(|one| one.bytes);
            let sum = sizes.fold(0_u64, u64::saturating_add);
            let beyond = |more: u64| sum.saturating_add(more).saturating_sub(*in_use);
            let counted = counted.get(gpu).copied().unwrap_or_default();
            let twice = self.reported_twice.entry(gpu.clone()).or_default();
            twice.known.add(beyond(counted.managed_left_out));
            twice.possible.add(beyond(counted.managed));
            twice.counted = counted.imported;
        }
    }

    fn evaluate_share(
        &mut self,
        sample: &NodeSample,
        rules: &Rules,
        (at, device): (usize, usize),
        own: OwnProcesses<'_>,
        evaluation: &mut Evaluation,
    ) -> (ContainerUse, Option<u64>) {
        let (own, is_uncertain) = (own.all, own.is_uncertain);
        let container = &sample.containers.all[at];
        let state = self
            .shares
            .entry((container.id.clone(), device))
            .or_default();
        let (reports, is_unread) = match sample.counters.get(at) {
            Some(Some(Ok(reports))) => (Some(reports), false),
            // What the limiter counts is not known.
            Some(Some(Err(error))) => (None, !error.is_caused_by_tenant()),
            _ => (None, false),
        };
        let limit = value(sample.limits.get(at), device);
        let mut found = reported_use(reports.map(|(_, after)| after), device);
        found.limit = limit;
        let gpu = sample.gpu(at, device);
        let twice = self.reported_twice.get(gpu).copied().unwrap_or_default();
        let processes = memory_of(own, reports, device, rules.tolerance);
        let seen = memory_sample(&processes, reports, device, twice.uncounted());
        let counted = self.counted.entry(gpu.to_owned()).or_default();
        let add = |to: &mut u64, bytes| *to = to.saturating_add(bytes);
        add(&mut counted.managed, seen.managed);
        add(&mut counted.managed_left_out, seen.managed_left_out());
        add(&mut counted.imported, seen.imported);
        found.measured = seen.measured();
        found.processes = count(own, |_| true);
        found.unavailable = count(own, |(one, _)| one.bytes.is_none());
        for (one, _) in own {
            let key = (one.gpu.clone(), one.process.identity.pid);
            if let Some(busy) = sample.busy.get(&key) {
                found.busy = found.busy.saturating_add(busy.percent);
                found.is_late |= busy.is_late;
            }
        }
        state.peak = state.peak.max(seen.measured());
        found.peak = state
            .peak
            .max(if limit == 0 { 0 } else { found.peak.min(limit) });
        let is_blind = sample.blind.contains(gpu);
        found.blind = is_blind || is_uncertain;
        let charged = value(sample.charged.get(at), device);
        found.overhead = charged;
        if !container.limited || is_blind {
            return (found, None);
        }
        let is_known = !is_uncertain && !is_unread;
        let charge = is_known.then(|| state.overhead.update(seen, charged));
        found.overhead = charge.unwrap_or(charged);
        if is_unread {
            return (found, charge);
        }
        // What several processes hold is counted for each. Where the driver has sizes, they must
        // show it.
        let twice = twice.possible.most();
        let most = if found.unavailable > 0 {
            u64::MAX
        } else {
            twice
        };
        let duplicates = duplicates(reports, device).min(most);
        let rule = OomRule {
            limit: if limit == 0 {
                0
            } else {
                limit.saturating_add(duplicates)
            },
            tolerance: rules.tolerance,
            imported: twice.saturating_sub(duplicates),
            kill: container.effective.oom_killer,
        };
        match state.oom.update(&processes, rule, sample.taken_at) {
            oom::OomVerdict::Within => {}
            oom::OomVerdict::Report { used } => evaluation
                .actions
                .push(Action::ReportAboveLimit(at, device, used)),
            oom::OomVerdict::Kill { used, identity } => {
                let victim = own.iter().find(|(one, _)| one.process.identity == identity);
                let location = victim.map(|(one, _)| one.process.location.clone());
                let action = location
                    .map(|location| Action::KillOverLimit(identity, location, at, device, used));
                evaluation.actions.extend(action);
            }
        }
        (found, charge)
    }

    /// Processes of known pods that are in none of their containers, for so long that the container
    /// cannot be a new one.
    fn in_no_container(
        &mut self,
        sample: &NodeSample,
        rules: &Rules,
        owners: &[Owner],
    ) -> BTreeSet<ProcessIdentity> {
        let all = sample.processes.iter().zip(owners);
        let unnamed = all.filter(|(one, owner)| {
            let pod = one.process.location.pod.as_ref();
            let is_known = pod.is_some_and(|pod| sample.context.pods.contains_key(pod));
            **owner == Owner::UnknownContainer && is_known && rules.fresh
        });
        let mut next = BTreeMap::new();
        let mut found = BTreeSet::new();
        for (one, _) in unnamed {
            let identity = one.process.identity;
            let samples = self
                .unnamed
                .get(&identity)
                .copied()
                .unwrap_or(0)
                .saturating_add(1);
            next.insert(identity, samples);
            // The cgroup of the pod itself belongs to no container.
            if samples >= MAX_UNKNOWN_SAMPLES || one.process.location.container.is_none() {
                found.insert(identity);
            }
        }
        self.unnamed = next;
        found
    }

    fn evaluate_unmanaged(
        &mut self,
        sample: &NodeSample,
        rules: &Rules,
        owners: &[Owner],
        evaluation: &mut Evaluation,
    ) {
        let unnamed = self.in_no_container(sample, rules, owners);
        let mut unmanaged = BTreeMap::new();
        for (one, owner) in sample.processes.iter().zip(owners) {
            let reason = match owner {
                // In cgroup v1 the kernel no longer reports where an exiting process was.
                Owner::Unmanaged(UnmanagedReason::Host) if one.process.exiting => continue,
                Owner::Unmanaged(reason) => *reason,
                Owner::WithoutLimiter(..) => UnmanagedReason::NoLimiter,
                Owner::UnknownContainer if unnamed.contains(&one.process.identity) => {
                    UnmanagedReason::NoContainer
                }
                _ => continue,
            };
            let key = (one.gpu.clone(), one.process.identity);
            if unmanaged.contains_key(&key) {
                continue;
            }
            // Not after a single sample: a process that starts has its GPU open a moment before it
            // has its process slot.
            let before = self.unmanaged.get(&key).filter(|(then, _)| *then == reason);
            if let Some((_, is_reported)) = before {
                let process = UnmanagedProcess {
                    gpu: one.gpu.clone(),
                    pod: one.process.location.pod.clone(),
                    reason,
                    bytes: one.bytes,
                };
                if !is_reported {
                    let report = Action::ReportUnmanaged(process.clone(), key.1.pid);
                    evaluation.actions.push(report);
                }
                evaluation.unmanaged.push(process);
            }
            unmanaged.insert(key, (reason, before.is_some()));
        }
        self.unmanaged = unmanaged;
    }
}

/// Marks a process that bypasses the limiter: one without a process slot, or whose container's
/// counters file is corrupt. An exiting process has released its slot already.
fn limiter_checked(one: &ProcessSample, owner: Owner, sample: &NodeSample) -> Owner {
    let Owner::Share(at, device) = owner else {
        return owner;
    };
    let has_slot = match sample.counters.get(at) {
        Some(Some(Ok((before, after)))) => {
            let mut with_slots = before.processes.iter().chain(&after.processes);
            let container_pid = one.process.container_pid;
            // Under an earlier release, processes beyond 512 share the last slot.
            container_pid.is_none()
                || with_slots.any(|process| process.pid.is_none() || process.pid == container_pid)
        }
        // An error of the host's says nothing about a tenant.
        Some(Some(Err(error))) => !error.is_caused_by_tenant(),
        Some(None) | None => true,
    };
    if has_slot || one.process.exiting {
        owner
    } else {
        Owner::WithoutLimiter(at, device)
    }
}

/// What a counters file reports for a device.
fn reported_use(report: Option<&CountersSnapshot>, device: usize) -> ContainerUse {
    let Some(report) = report else {
        return ContainerUse::default();
    };
    let tracked = report.held(device);
    let contexts = report.processes.iter();
    let contexts = contexts.filter_map(|process| process.contexts.get(device));
    ContainerUse {
        tracked,
        contexts: contexts.fold(0, |sum, bytes| sum.saturating_add(*bytes)),
        peak: value(Some(&report.peaks), device),
        stale: value(Some(&report.totals), device).saturating_sub(tracked),
        refused: value(Some(&report.refused), device),
        work: report.compute.get(device).copied().unwrap_or_default(),
        ..ContainerUse::default()
    }
}

/// The processes of a container on a device, each with whether it bypasses the limiter: those count
/// as its own, so that they are charged.
fn processes_of<'a>(
    processes: &'a [ProcessSample],
    owners: &[Owner],
    share: (usize, usize),
) -> Vec<(&'a ProcessSample, bool)> {
    let all = processes.iter().zip(owners);
    all.filter_map(|(one, owner)| match owner {
        Owner::Share(at, device) => ((*at, *device) == share).then_some((one, false)),
        Owner::WithoutLimiter(at, device) => ((*at, *device) == share).then_some((one, true)),
        _ => None,
    })
    .collect()
}

/// The memory of a container's processes on a device, and what the limiter counts of it.
fn memory_of(
    own: &[(&ProcessSample, bool)],
    reports: Option<&(CountersSnapshot, CountersSnapshot)>,
    device: usize,
    tolerance: u64,
) -> Vec<ProcessMemory> {
    let with_slot = own.iter().filter(|(_, is_bypassing)| !is_bypassing);
    let measured = with_slot.map(|(one, _)| MeasuredProcess {
        container_pid: one.process.container_pid,
        bytes: one.bytes,
    });
    let measured: Vec<MeasuredProcess> = measured.collect();
    let counted = reports
        .map(|(before, after)| counted_memory(&measured, (before, after), device, tolerance));
    let mut counted = counted.into_iter().flatten();
    let memory = own.iter().map(|(one, is_bypassing)| ProcessMemory {
        identity: one.process.identity,
        bytes: one.bytes,
        counted: if *is_bypassing { None } else { counted.next() },
        exiting: one.process.exiting,
    });
    memory.collect()
}

/// What is compared for the charge. A process whose size is not known takes no part.
fn memory_sample(
    processes: &[ProcessMemory],
    reports: Option<&(CountersSnapshot, CountersSnapshot)>,
    device: usize,
    reported_twice: u64,
) -> MemorySample {
    let sum = |of: fn(&ProcessMemory) -> u64| {
        let all = processes.iter().map(of);
        all.fold(0_u64, u64::saturating_add)
    };
    let unknown = sum(|one| match (one.bytes, one.counted) {
        (None, Some(counted)) => counted.bytes,
        _ => 0,
    });
    let counted = |report: &CountersSnapshot| report.used(device).saturating_sub(unknown);
    MemorySample {
        with_slot: sum(|one| one.counted.and(one.bytes).unwrap_or(0)),
        without_slot: sum(|one| match one.counted {
            Some(_) => 0,
            None => one.bytes.unwrap_or(0),
        }),
        counted_before: reports.map_or(0, |(before, _)| counted(before)),
        counted_after: reports.map_or(0, |(_, after)| counted(after)),
        managed: sum(|one| match (one.bytes, one.counted) {
            (Some(_), Some(counted)) => counted.managed,
            _ => 0,
        }),
        imported: sum(|one| match (one.bytes, one.counted) {
            (Some(_), Some(counted)) => counted.imported,
            _ => 0,
        }),
        reported_twice,
    }
}

/// Bytes of a device that are counted for more than one process.
fn duplicates(reports: Option<&(CountersSnapshot, CountersSnapshot)>, device: usize) -> u64 {
    let overlap = reports.and_then(|(_, after)| after.overlaps.get(device));
    overlap.map_or(0, |overlap| overlap.duplicates)
}

fn count<T>(all: &[T], which: impl Fn(&T) -> bool) -> u64 {
    let number = all.iter().filter(|one| which(one)).count();
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn value(row: Option<&Vec<u64>>, device: usize) -> u64 {
    row.and_then(|row| row.get(device)).copied().unwrap_or(0)
}

#[cfg(test)]
#[path = "evaluation_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "evaluation_unknown_tests.rs"]
mod unknown_tests;
