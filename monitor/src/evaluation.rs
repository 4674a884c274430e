//! Evaluates one sample of all GPUs, processes and counters files: what each container uses, what to
//! charge, which actions to take. A corrupt file of one tenant changes no value of another.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;
use aliquot_node_state::container_directory::ListedProcess;
use aliquot_node_state::processes::{ProcessIdentity, ProcessStatus};
use aliquot_region::host::{CountersSnapshot, LaunchCounters};

use crate::attribution::{self, Owner, UnmanagedReason};
use crate::counted_memory::counted_memory;
use crate::node_sample::{NodeSample, ProcessSample};
use crate::oom::{OomRule, OomWatch, ProcessMemory};
use crate::overhead::{MemorySample, Overhead, Recent};

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Bytes that each process may use beyond what the limiter counts for it.
    pub tolerance: u64,
    /// The watch of this node's pods is up to date.
    pub fresh: bool,
}

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
    pub processes: u64,
    /// Of these, processes whose memory the driver does not report, so that the measured bytes are
    /// too low.
    pub unavailable: u64,
    /// Percent of the GPU that they used.
    pub busy: u32,
    /// The maximum of that.
    pub busy_peak: u32,
    /// The driver's sample of one of them is older than those of others.
    pub is_late: bool,
    pub work: LaunchCounters,
    pub refused: u64,
    /// Its counters file could not be read: what the limiter counts is not known.
    pub unread: bool,
    /// Not all of its processes are known, so the measured values are too low.
    pub blind: bool,
}

impl ContainerUse {
    /// Whether the measured bytes are all that it uses: no value is better than one that is too low.
    pub fn is_measured(&self) -> bool {
        !self.blind && self.unavailable == 0
    }
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
    /// A container uses so many bytes of a device, more than its limit.
    AboveLimit {
        at: usize,
        device: usize,
        used: u64,
        /// Kill this process; `None`: only report it.
        kill: Option<ProcessStatus>,
    },
}

#[derive(Debug, Default)]
pub struct Evaluation {
    pub uses: Vec<Vec<ContainerUse>>,
    /// Bytes to charge on each limits page; `None`: unchanged.
    pub charges: Vec<Vec<Option<u64>>>,
    /// The share that each process of the sample uses: index of its container, and of the device in it.
    pub shares: Vec<Option<(usize, usize)>>,
    /// The processes of each container; `None`: not all known.
    pub process_lists: Vec<Option<Vec<ListedProcess>>>,
    /// Unmanaged processes that were there in the sample before too.
    pub unmanaged: Vec<UnmanagedProcess>,
    pub unknown: u64,
    /// What is wrong with counters files that their tenants corrupted, by index of the container.
    pub corrupt_counters: BTreeMap<usize, String>,
    pub actions: Vec<Action>,
}

impl Evaluation {
    /// What a container uses of a device; nothing if it was not evaluated.
    pub fn share(&self, at: usize, device: usize) -> ContainerUse {
        let uses = self.uses.get(at);
        let found = uses.and_then(|uses| uses.get(device));
        found.copied().unwrap_or_default()
    }

    /// Bytes that processes outside every share hold of each GPU.
    pub fn unmanaged_memory(&self) -> BTreeMap<&str, u64> {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        let outside = |process: &&UnmanagedProcess| process.reason.is_outside_every_share();
        for process in self.unmanaged.iter().filter(outside) {
            let sum = held.entry(process.gpu.as_str()).or_default();
            *sum = sum.saturating_add(process.bytes.unwrap_or(0));
        }
        held
    }
}

/// The sample in which an unmanaged process is reported. Not the first: a process that starts has its
/// GPU open a moment before it has its process slot.
const REPORTED_SAMPLE: u32 = 2;
/// The same for one that may be in a container that the API server has not reported: it reports a new
/// one after a second or two.
const REPORTED_UNKNOWN_SAMPLE: u32 = 21;

#[derive(Debug, Default)]
pub struct Evaluator {
    shares: BTreeMap<(String, usize), ShareState>,
    /// Bytes by which the sizes of all processes on a GPU exceed what is in use of it, in the last
    /// samples: what they imported from one another is in the sizes of both. All managed memory is
    /// added to the sizes, which may lack it.
    reported_twice: BTreeMap<String, Recent>,
    /// The managed memory that the limiters counted on each GPU in the last sample.
    managed: BTreeMap<String, u64>,
    /// The unmanaged processes of the last sample in which their GPU was read, by GPU: why, and for how
    /// many samples.
    unmanaged: BTreeMap<(String, ProcessIdentity), (UnmanagedReason, u32)>,
}

#[derive(Debug, Default)]
struct ShareState {
    overhead: Overhead,
    oom: OomWatch,
    peak: u64,
    busy_peak: u32,
}

impl Evaluator {
    pub fn evaluate(&mut self, sample: &NodeSample, rules: &Rules) -> Evaluation {
        let containers = &sample.containers.all;
        let processes = sample.processes.iter();
        let owners: Vec<Owner> = processes.map(|one| owner(one, sample)).collect();
        let is_uncertain =
            |owner: &Owner| matches!(owner, Owner::Unknown | Owner::UnknownContainer);
        let mut evaluation = Evaluation {
            unknown: count(&owners, is_uncertain),
            shares: owners.iter().copied().map(Owner::share).collect(),
            ..Evaluation::default()
        };
        // Pods with a process on a GPU that may belong to any of their containers.
        let uncertain: BTreeSet<(&str, &PodUid)> = sample
            .processes
            .iter()
            .zip(&owners)
            .filter(|(_, owner)| is_uncertain(owner))
            .filter_map(|(one, _)| Some((one.gpu.as_str(), one.process.location.pod.as_ref()?)))
            .collect();
        let ids = sample.containers.ids();
        self.shares.retain(|(id, _), _| ids.contains(id.as_str()));
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
                let (found, charge) = self.evaluate_share(
                    sample,
                    rules,
                    (at, device),
                    &own,
                    is_uncertain,
                    &mut evaluation.actions,
                );
                uses.push(found);
                charges.push(charge);
            }
            list.sort_unstable();
            let is_whole = !uses.iter().any(|found| found.blind);
            evaluation.uses.push(uses);
            evaluation.charges.push(charges);
            evaluation.process_lists.push(is_whole.then_some(list));
            if let Some(Err(error)) = sample.counters_of(at)
                && error.is_caused_by_tenant()
            {
                evaluation.corrupt_counters.insert(at, error.to_string());
            }
        }
        self.evaluate_unmanaged(sample, rules, &owners, &mut evaluation);
        evaluation
    }

    fn note_reported_twice(&mut self, sample: &NodeSample) {
        let in_use = &sample.in_use;
        self.reported_twice
            .retain(|gpu, _| in_use.contains_key(gpu) || sample.blind.contains(gpu));
        let last = std::mem::take(&mut self.managed);
        for (gpu, in_use) in in_use {
            let managed = last.get(gpu).copied().unwrap_or(0);
            let sizes = sample.processes_on(gpu).filter_map(|one| one.bytes);
            let sum = sizes.fold(managed, u64::saturating_add);
            let twice = self.reported_twice.entry(gpu.clone()).or_default();
            twice.add(sum.saturating_sub(*in_use));
        }
    }

    /// Evaluates one device of a container with these processes, each with whether it bypasses the
    /// limiter. `is_uncertain`: there may be more of them.
    fn evaluate_share(
        &mut self,
        sample: &NodeSample,
        rules: &Rules,
        (at, device): (usize, usize),
        own: &[(&ProcessSample, bool)],
        is_uncertain: bool,
        actions: &mut Vec<Action>,
    ) -> (ContainerUse, Option<u64>) {
        let container = &sample.containers.all[at];
        let state = self
            .shares
            .entry((container.id.clone(), device))
            .or_default();
        let counters = sample.counters_of(at);
        let reports = counters.and_then(|read| read.as_ref().ok());
        let error = counters.and_then(|read| read.as_ref().err());
        // What the limiter counts is not known.
        let is_unread = error.is_some_and(|error| !error.is_caused_by_tenant());
        let page = sample.page(at, device);
        let limit = page.limit;
        let mut found = reported_use(reports.map(|(_, after)| after), device);
        found.unread = error.is_some();
        found.limit = limit;
        let gpu = sample.gpu(at, device);
        let twice = self.reported_twice.get(gpu).map_or(0, Recent::most);
        let processes = memory_of(own, reports, device, rules.tolerance);
        let seen = memory_sample(&processes, reports, device);
        // What a tenant claims to have hides no more of its own memory or of a neighbour's.
        let most_managed = if limit == 0 { u64::MAX } else { limit };
        let managed = self.managed.entry(gpu.to_owned()).or_default();
        *managed = managed.saturating_add(seen.managed.min(most_managed));
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
        state.busy_peak = state.busy_peak.max(found.busy);
        found.busy_peak = state.busy_peak;
        let counted_peak = if limit == 0 { 0 } else { found.peak.min(limit) };
        state.peak = state.peak.max(seen.measured()).max(counted_peak);
        found.peak = state.peak;
        let is_blind = sample.blind.contains(gpu);
        found.blind = is_blind || is_uncertain;
        found.overhead = page.overhead;
        if !container.limited || is_blind {
            return (found, None);
        }
        let is_known = !is_uncertain && !is_unread;
        let charge = is_known.then(|| state.overhead.update(seen, page.overhead));
        found.overhead = charge.unwrap_or(page.overhead);
        if is_unread {
            return (found, charge);
        }
        // What several processes hold is counted for each. Where the driver has sizes, they must
        // show it.
        let most = if found.unavailable > 0 {
            u64::MAX
        } else {
            twice
        };
        let counted = reports.map_or(0, |(_, after)| after.device(device).overlap.duplicates);
        let duplicates = counted.min(most);
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
        if let Some(verdict) = state.oom.update(&processes, rule, sample.taken_at) {
            let mut own = own.iter().map(|(one, _)| &one.process);
            let victim = own.find(|process| Some(process.identity) == verdict.kill);
            actions.push(Action::AboveLimit {
                at,
                device,
                used: verdict.used,
                kill: victim.cloned(),
            });
        }
        (found, charge)
    }

    fn evaluate_unmanaged(
        &mut self,
        sample: &NodeSample,
        rules: &Rules,
        owners: &[Owner],
        evaluation: &mut Evaluation,
    ) {
        let mut unmanaged = BTreeMap::new();
        for (one, owner) in sample.processes.iter().zip(owners) {
            let location = &one.process.location;
            let is_known = |pod| sample.context.pods.contains_key(pod);
            let (reason, reported_in) = match owner {
                // In cgroup v1 the kernel no longer reports where an exiting process was.
                Owner::Unmanaged(UnmanagedReason::Host) if one.process.exiting => continue,
                Owner::Unmanaged(reason) => (*reason, REPORTED_SAMPLE),
                Owner::WithoutLimiter(..) => (UnmanagedReason::NoLimiter, REPORTED_SAMPLE),
                Owner::UnknownContainer
                    if rules.fresh && location.pod.as_ref().is_some_and(is_known) =>
                {
                    // The cgroup of the pod itself belongs to no container.
                    let reported_in = match location.container {
                        Some(_) => REPORTED_UNKNOWN_SAMPLE,
                        None => REPORTED_SAMPLE,
                    };
                    (UnmanagedReason::NoContainer, reported_in)
                }
                _ => continue,
            };
            let key = (one.gpu.clone(), one.process.identity);
            if unmanaged.contains_key(&key) {
                continue;
            }
            let before = self.unmanaged.get(&key).filter(|(then, _)| *then == reason);
            let samples = before.map_or(1, |(_, samples)| samples.saturating_add(1));
            if samples >= reported_in {
                let process = UnmanagedProcess {
                    gpu: one.gpu.clone(),
                    pod: location.pod.clone(),
                    reason,
                    bytes: one.bytes,
                };
                if samples == reported_in {
                    let report = Action::ReportUnmanaged(process.clone(), key.1.pid);
                    evaluation.actions.push(report);
                }
                evaluation.unmanaged.push(process);
            }
            unmanaged.insert(key, (reason, samples));
        }
        for (key, known) in std::mem::take(&mut self.unmanaged) {
            if sample.blind.contains(&key.0) {
                unmanaged.entry(key).or_insert(known);
            }
        }
        self.unmanaged = unmanaged;
    }
}

/// The owner of a process. It bypasses the limiter without a process slot, or if the counters file of
/// its container is corrupt. An exiting process has released its slot already.
fn owner(one: &ProcessSample, sample: &NodeSample) -> Owner {
    let owner = attribution::owner(one, &sample.containers, &sample.context);
    let Owner::Share(at, device) = owner else {
        return owner;
    };
    let has_slot = match sample.counters_of(at) {
        Some(Ok((before, after))) => {
            let mut with_slots = before.processes.iter().chain(&after.processes);
            let container_pid = one.process.container_pid;
            container_pid.is_none() || with_slots.any(|process| process.pid == container_pid)
        }
        // An error of the host's says nothing about a tenant.
        Some(Err(error)) => !error.is_caused_by_tenant(),
        None => true,
    };
    if has_slot || one.process.exiting {
        owner
    } else {
        Owner::WithoutLimiter(at, device)
    }
}

fn reported_use(report: Option<&CountersSnapshot>, device: usize) -> ContainerUse {
    let Some(report) = report else {
        return ContainerUse::default();
    };
    let (tracked, counters) = (report.held(device), report.device(device));
    let processes = report.processes.iter();
    let contexts = processes.map(|process| process.device(device).contexts);
    ContainerUse {
        tracked,
        contexts: contexts.fold(0, u64::saturating_add),
        peak: counters.peak,
        stale: counters.total.saturating_sub(tracked),
        refused: counters.refused,
        work: counters.compute,
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
    let own = all.filter(|(_, owner)| owner.share() == Some(share));
    own.map(|(one, owner)| (one, matches!(owner, Owner::WithoutLimiter(..))))
        .collect()
}

/// The memory of a container's processes on a device, and what the limiter counts of it.
fn memory_of(
    own: &[(&ProcessSample, bool)],
    reports: Option<&(CountersSnapshot, CountersSnapshot)>,
    device: usize,
    tolerance: u64,
) -> Vec<ProcessMemory> {
    let limited = own.iter().filter(|(_, is_bypassing)| !is_bypassing);
    let with_slot: Vec<&ProcessSample> = limited.map(|(one, _)| *one).collect();
    let of_slots = reports
        .map(|(before, after)| counted_memory(&with_slot, (before, after), device, tolerance));
    let mut counted = of_slots.into_iter().flatten();
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
) -> MemorySample {
    let sum = |of: fn(&ProcessMemory) -> u64| {
        let all = processes.iter().map(of);
        all.fold(0_u64, u64::saturating_add)
    };
    let unknown = sum(|one| match one.bytes {
        Some(_) => 0,
        None => one.counted.unwrap_or_default().used,
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
        managed: sum(|one| {
            let counted = one.bytes.and(one.counted).unwrap_or_default();
            counted.managed.min(counted.used)
        }),
        imported: sum(|one| one.bytes.and(one.counted).unwrap_or_default().imported),
    }
}

fn count<T>(all: &[T], which: impl Fn(&T) -> bool) -> u64 {
    let number = all.iter().filter(|one| which(one)).count();
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "evaluation_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "evaluation_unknown_tests.rs"]
mod unknown_tests;
