//! Exports the last sample as the declared metrics, at scrape time: samples are many and scrapes few.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::actions::ActionCounts;
use crate::devices::{GpuSample, InstanceSample};
use crate::enforce::EnforcedBy;
use crate::evaluation::{ContainerUse, Evaluation};
use crate::managed_containers::ManagedContainer;
use crate::metrics::{self as all, Declared, Family, Samples, Value};
use crate::node_sample::NodeSample;
use crate::pods::Pod;

#[derive(Clone, Debug, Default)]
pub struct LatestSnapshot(Arc<Mutex<Latest>>);

#[derive(Clone, Debug, Default)]
enum Latest {
    #[default]
    Nothing,
    /// The first sample of this node began then and does not complete.
    Overdue(String, SystemTime),
    Taken(Arc<Snapshot>),
}

impl LatestSnapshot {
    pub fn set(&self, snapshot: Snapshot) {
        *self.0.lock() = Latest::Taken(Arc::new(snapshot));
    }

    /// A sample of this node that began then does not complete.
    pub fn set_overdue(&self, node: &str, begun: SystemTime) {
        let mut latest = self.0.lock();
        if matches!(*latest, Latest::Nothing) {
            *latest = Latest::Overdue(node.to_owned(), begun);
        }
    }
}

#[derive(Debug)]
pub struct Exporter {
    pub shown: LatestSnapshot,
    /// Also under the names of HAMi's monitor.
    pub hami: bool,
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let latest = self.shown.0.lock().clone();
        let samples = match latest {
            Latest::Nothing => Samples::default(),
            Latest::Overdue(node, begun) => {
                let mut samples = Samples::default();
                add_last_sample(&mut samples, &[node], begun);
                samples
            }
            Latest::Taken(snapshot) => samples(&snapshot),
        };
        samples.encode(&mut encoder, self.hami)
    }
}

#[derive(Debug)]
pub struct Snapshot {
    pub node: String,
    pub sample: NodeSample,
    pub gpus: Vec<GpuSample>,
    pub evaluation: Evaluation,
    pub enforced_by: EnforcedBy,
    /// Whether the driver supports cgroup memory limits, by GPU.
    pub driver_limits: BTreeMap<String, bool>,
    /// Whether all pods are known.
    pub listed: bool,
    pub action_counts: ActionCounts,
    pub failures: BTreeMap<&'static str, u64>,
    pub dropped: u64,
    pub took: Duration,
    /// The monotonic clock in nanoseconds.
    pub now: u64,
    /// The time of day when it completed.
    pub completed_at: SystemTime,
}

pub fn samples(snapshot: &Snapshot) -> Samples {
    let mut samples = Samples::default();
    for gpu in &snapshot.gpus {
        add_gpu(&mut samples, snapshot, gpu);
    }
    for share in snapshot.sample.shares() {
        add_share(&mut samples, snapshot, share);
    }
    add_unmanaged(&mut samples, snapshot);
    add_monitor(&mut samples, snapshot);
    samples
}

fn add_gpu(samples: &mut Samples, snapshot: &Snapshot, gpu: &GpuSample) {
    let labels = [
        snapshot.node.clone(),
        gpu.index.to_string(),
        gpu.uuid.clone(),
        gpu.model.clone(),
    ];
    let kind = format!("NVIDIA-{}", gpu.model);
    let [node, index, uuid, _] = labels.clone();
    let hami = [node, index, uuid, kind];
    let mut put = |metric: &Declared, value: Option<Value>| {
        if let Some(value) = value {
            let labels: &[String] = match metric.family {
                Family::Own => &labels,
                Family::Hami => &hami,
            };
            samples.add(metric, labels, value);
        }
    };
    let whole = |value: Option<u32>| value.map(|value| Value::Whole(value.into()));
    let ratio = |value: Option<u32>| value.map(|value| Value::Part(f64::from(value) / 100.0));
    let flag = |is: bool| Value::Whole(is.into());
    let (sample, bytes, load) = (&snapshot.sample, gpu.bytes, gpu.load);
    let by_driver = snapshot.driver_limits.get(&gpu.uuid);
    put(&all::GPU_LIMITS, by_driver.map(|has| flag(*has)));
    let is_sampled = !sample.blind.contains(&gpu.uuid);
    let is_known = is_sampled && !sample.unsampled.contains(&gpu.uuid);
    let is_corrected = !sample.uncorrected.contains(&gpu.uuid);
    put(&all::GPU_CORRECTED, is_known.then(|| flag(is_corrected)));
    let used = bytes.map(|of| Value::Whole(of.used));
    put(&all::GPU_TOTAL, bytes.map(|of| Value::Whole(of.total)));
    put(&all::GPU_USED, used);
    put(
        &all::GPU_RESERVED,
        bytes.map(|of| Value::Whole(of.reserved)),
    );
    put(&all::GPU_BUSY, ratio(load.busy));
    put(&all::GPU_MEMORY_BUSY, ratio(load.memory_busy));
    put(&all::GPU_TEMPERATURE, whole(load.temperature));
    let watts = load
        .power
        .map(|milliwatts| Value::Part(f64::from(milliwatts) / 1000.0));
    put(&all::GPU_POWER, watts);
    let shares = sample.shares();
    let own = shares.filter(|(at, device)| sample.gpu(*at, *device) == gpu.uuid);
    put(&all::GPU_SHARES, Some(number(own.count())));
    if is_sampled {
        let processes = || sample.processes_on(&gpu.uuid);
        put(&all::GPU_PROCESSES, Some(number(processes().count())));
        let unmeasured = processes().filter(|one| one.bytes.is_none());
        put(&all::GPU_UNAVAILABLE, Some(number(unmeasured.count())));
    }
    put(&all::HAMI_USED, used);
    put(&all::HAMI_BUSY, whole(load.busy));
    for one in &gpu.instances {
        add_instance(samples, &snapshot.node, gpu, one);
    }
}

fn add_instance(samples: &mut Samples, node: &str, gpu: &GpuSample, one: &InstanceSample) {
    let (instance, compute_instance) = one.numbers;
    let labels = [
        node.to_owned(),
        gpu.index.to_string(),
        one.uuid.clone(),
        one.profile.clone(),
        instance.to_string(),
        compute_instance.to_string(),
    ];
    if let Some(bytes) = one.bytes {
        samples.add(&all::INSTANCE_TOTAL, &labels, Value::Whole(bytes.total));
        samples.add(&all::INSTANCE_USED, &labels, Value::Whole(bytes.used));
    }
}

fn add_share(samples: &mut Samples, snapshot: &Snapshot, (at, index): (usize, usize)) {
    let container = &snapshot.sample.containers.all[at];
    let found = snapshot.evaluation.share(at, index);
    let work = found.work;
    let uuid = snapshot.sample.device_uuid(at, index).to_owned();
    let hami = [
        container.namespace.clone(),
        container.pod_name.clone(),
        container.name.clone(),
        index.to_string(),
        uuid,
    ];
    let labels = share_labels(snapshot, (at, index));
    let mut put = |metric: &Declared, value: Value| {
        let labels: &[String] = match metric.family {
            Family::Own => &labels,
            Family::Hami => &hami,
        };
        samples.add(metric, labels, value);
    };
    let seconds = |nanoseconds: u64| Value::Part(Duration::from_nanos(nanoseconds).as_secs_f64());
    let core_limit = match container.devices[index].cores.0 {
        0 => 1.0,
        percent => f64::from(percent) / 100.0,
    };
    let (limit, request) = (found.limit, snapshot.sample.page(at, index).request);
    let uncontrolled = container.effective.uncontrolled;
    put(&all::SHARE_UNCONTROLLED, Value::Whole(uncontrolled.into()));
    if !uncontrolled {
        put(&all::SHARE_LIMIT, Value::Whole(limit));
        put(&all::SHARE_REQUEST, Value::Whole(request));
        put(&all::SHARE_CORE_LIMIT, Value::Part(core_limit));
        put(&all::HAMI_SHARE_LIMIT, Value::Whole(limit));
    }
    let gpu = snapshot.sample.gpu(at, index);
    let is_reported = snapshot.sample.is_utilization_known(gpu);
    if found.is_measured() {
        let measured = Value::Whole(found.measured);
        put(&all::SHARE_USED, measured);
        if !uncontrolled && request > 0 {
            let borrowed = found.measured.saturating_sub(request);
            let lent = if request < limit { borrowed } else { 0 };
            put(&all::SHARE_LENT, Value::Whole(lent));
        }
        put(&all::HAMI_SHARE_USED, measured);
        put(&all::HAMI_CONTAINER_BYTES, measured);
    }
    if !found.blind {
        put(&all::SHARE_CLIENTS, Value::Whole(found.processes));
        if is_reported {
            let ratio = f64::from(found.busy) / 100.0;
            put(&all::SHARE_CORE_USED, Value::Part(ratio));
            put(&all::HAMI_CONTAINER_BUSY, Value::Whole(found.busy.into()));
        }
    }
    put(&all::SHARE_PEAK, Value::Whole(found.peak));
    put(&all::SHARE_OVERHEAD, Value::Whole(found.overhead));
    // A counter that fell to 0 would count from its beginning once more.
    if !found.unread {
        put(&all::SHARE_TRACKED, Value::Whole(found.tracked));
        put(&all::SHARE_STALE, Value::Whole(found.stale));
        put(&all::SHARE_BUSY, seconds(work.busy));
        put(&all::SHARE_THROTTLED, seconds(work.waited));
        put(&all::SHARE_LAUNCHES, Value::Whole(work.launches));
        put(&all::SHARE_DENIED, Value::Whole(found.refused));
        put(&all::HAMI_CONTEXTS, Value::Whole(found.contexts));
        let rest = found.tracked.saturating_sub(found.contexts);
        put(&all::HAMI_BUFFERS, Value::Whole(rest));
    }
    if work.last > 0 {
        let since = seconds(snapshot.now.saturating_sub(work.last));
        put(&all::SHARE_LAST, since);
        put(&all::HAMI_LAST, since);
    }
    let is_corrupt = snapshot.evaluation.corrupt_counters.contains_key(&at);
    put(&all::SHARE_CORRUPT, Value::Whole(is_corrupt.into()));
    let enforced_by = snapshot.enforced_by.get(at);
    let own = enforced_by.and_then(|container| container.get(index));
    for by in own.into_iter().flatten() {
        let labels: Vec<String> = labels.iter().cloned().chain([(*by).to_owned()]).collect();
        samples.add(&all::SHARE_ENFORCED, &labels, Value::Whole(1));
    }
}

fn add_unmanaged(samples: &mut Samples, snapshot: &Snapshot) {
    let pods = &snapshot.sample.context.pods;
    let mut sums: BTreeMap<[String; 6], (u64, Option<u64>)> = BTreeMap::new();
    for process in &snapshot.evaluation.unmanaged {
        let pod = process.pod.as_ref().and_then(|uid| pods.get(uid));
        let reference =
            |of: fn(&Pod) -> &String| pod.map_or_else(String::new, |pod| of(pod).clone());
        let gpu = snapshot.gpus.iter().find(|gpu| gpu.uuid == process.gpu);
        let labels = [
            snapshot.node.clone(),
            gpu.map_or_else(String::new, |gpu| gpu.index.to_string()),
            process.gpu.clone(),
            process.reason.name().to_owned(),
            reference(|pod| &pod.reference.namespace),
            reference(|pod| &pod.reference.name),
        ];
        let (number, bytes) = sums.entry(labels).or_insert((0, Some(0)));
        *number += 1;
        *bytes = bytes
            .zip(process.bytes)
            .map(|(one, more)| one.saturating_add(more));
    }
    for (labels, (number, bytes)) in sums {
        samples.add(&all::UNMANAGED_PROCESSES, &labels, Value::Whole(number));
        if let Some(bytes) = bytes {
            samples.add(&all::UNMANAGED_BYTES, &labels, Value::Whole(bytes));
        }
    }
}

fn add_monitor(samples: &mut Samples, snapshot: &Snapshot) {
    let node = [snapshot.node.clone()];
    let mut put = |metric: &Declared, value: Value| samples.add(metric, &node, value);
    let containers = &snapshot.sample.containers;
    put(&all::CONTAINERS, number(containers.all.len()));
    let is_orphaned = |(container, uses): &(&ManagedContainer, &Vec<ContainerUse>)| {
        let lives = uses.iter().any(|one| one.processes > 0);
        let pod = snapshot.sample.context.pods.get(&container.pod);
        lives && snapshot.listed && pod.is_none_or(|pod| pod.ended)
    };
    let uses = &snapshot.evaluation.uses;
    let orphaned = containers.all.iter().zip(uses).filter(is_orphaned);
    put(&all::ORPHANED, number(orphaned.count()));
    put(&all::UNREADABLE, number(containers.unreadable.len()));
    put(&all::UNKNOWN, Value::Whole(snapshot.evaluation.unknown));
    let counts = &snapshot.action_counts;
    put(&all::NOT_KILLED, Value::Whole(counts.not_killed));
    put(&all::ABOVE, Value::Whole(counts.above));
    put(&all::CALL_BACKS, Value::Whole(counts.call_backs));
    put(&all::EVENTS_DROPPED, Value::Whole(snapshot.dropped));
    let took = snapshot.took.as_secs_f64();
    put(&all::SAMPLE_SECONDS, Value::Part(took));
    add_last_sample(samples, &node, snapshot.completed_at);
    // Exported from 0 on, so that the first failure is an increase.
    let reads = [
        "counters",
        "inventory",
        "limits",
        "names",
        "processes",
        "utilization",
    ];
    for what in reads {
        let labels = [snapshot.node.clone(), what.to_owned()];
        let times = snapshot.failures.get(what).copied().unwrap_or(0);
        samples.add(&all::FAILURES, &labels, Value::Whole(times));
    }
    for reason in ["oom", "call-back"] {
        let labels = [snapshot.node.clone(), reason.to_owned()];
        let times = counts.killed.get(reason).copied().unwrap_or(0);
        samples.add(&all::KILLED, &labels, Value::Whole(times));
    }
}

fn add_last_sample(samples: &mut Samples, node: &[String], at: SystemTime) {
    let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = Value::Part(since_epoch.as_secs_f64());
    samples.add(&all::LAST_SAMPLE, node, seconds);
}

fn share_labels(snapshot: &Snapshot, (at, index): (usize, usize)) -> [String; 9] {
    let container = &snapshot.sample.containers.all[at];
    let device = &container.devices[index];
    let uuid = snapshot.sample.device_uuid(at, index);
    let parent = snapshot.sample.gpu(at, index);
    let gpu = snapshot.gpus.iter().find(|gpu| gpu.uuid == parent);
    let index = gpu.map_or_else(String::new, |gpu| gpu.index.to_string());
    let mut instances = gpu.into_iter().flat_map(|gpu| &gpu.instances);
    let own = instances
        .find(|one| one.uuid == uuid)
        .map(|one| one.profile.clone());
    [
        snapshot.node.clone(),
        index,
        uuid.to_owned(),
        device.mode.name().to_owned(),
        device.profile.clone().or(own).unwrap_or_default(),
        container.namespace.clone(),
        container.pod_name.clone(),
        container.name.clone(),
        container.pod.to_string(),
    ]
}

fn number(of: usize) -> Value {
    Value::Whole(u64::try_from(of).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[path = "exporter_tests.rs"]
pub(crate) mod tests;
