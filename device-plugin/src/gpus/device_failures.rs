//! What follows from failed devices: which replicas the kubelet keeps counting, which pods are
//! notified or evicted, and what the node condition says. Pure functions on values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::{Gpu, RefusedPod};
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{GpuUuid, PodUid};
use aliquot_k8s::event::{EventNote, PodRef};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::checkpoint::CheckpointEntry;
use aliquot_nvml::{self as nvml, XidAction, XidActions};
use clap::ValueEnum;
use tokio::time::Instant;

use crate::gpus::allocatable::{AllocatedIds, parent_gpu};
use crate::pods::pod::{Phase, Pod};

/// A GPU that the driver does not list for this long has failed. When the agent starts, a call may
/// fail once, and after a boot a GPU may be a second late.
const ABSENCE: Duration = Duration::from_secs(10);

/// What happens to the pods on a device that is out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FailurePodPolicy {
    /// They stay.
    #[default]
    Keep,
    /// They are evicted, within their disruption budgets.
    Evict,
    /// They are evicted; where a failure requires the node to be drained, so are the pods on its
    /// other devices, and the node accepts no new pods.
    Drain,
}

/// What brings a device back into service; the most severe is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recovery {
    /// A driver that reports the GPU's memory.
    OtherDriver,
    /// The GPU's registration with its NVLink fabric. The pods on the GPU stay: the driver may
    /// repeat the registration while they run.
    FabricRegistration,
    /// A new start of the applications on the device, as after a failure of its MPS daemon.
    RestartApplication,
    ResetGpu,
    /// A drain and restart of the node.
    DrainNode,
}

impl From<XidAction> for Recovery {
    fn from(action: XidAction) -> Self {
        match action {
            XidAction::Ignore | XidAction::RestartApplication => Self::RestartApplication,
            XidAction::ResetGpu => Self::ResetGpu,
            XidAction::DrainNode => Self::DrainNode,
        }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherDriver => "another driver",
            Self::FabricRegistration => "fabric-registration",
            Self::RestartApplication => XidAction::RestartApplication.name(),
            Self::ResetGpu => XidAction::ResetGpu.name(),
            Self::DrainNode => XidAction::DrainNode.name(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFailure {
    pub gpu: GpuUuid,
    /// The cause, for people: `XID 79`.
    pub cause: String,
    pub recovery: Recovery,
}

/// The failed devices of the node, and what follows from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFailures {
    pub devices: Vec<DeviceFailure>,
    pub evict: Vec<RefusedPod>,
    pub drain_reason: Option<String>,
}

/// The failure because of which the whole node must be drained.
pub fn drain_trigger(
    failures: &[DeviceFailure],
    policy: FailurePodPolicy,
) -> Option<&DeviceFailure> {
    let mut failures = failures
        .iter()
        .filter(|_| policy == FailurePodPolicy::Drain);
    failures.find(|failure| failure.recovery == Recovery::DrainNode)
}

/// The failed devices, with the instances of failed GPUs, and with all devices of a node that must
/// be drained: also those that only wait for their fabric.
pub fn affected_devices(
    failures: &[DeviceFailure],
    devices: &[Gpu],
    policy: FailurePodPolicy,
) -> Vec<DeviceFailure> {
    let drained = drain_trigger(failures, policy);
    let failures: Vec<DeviceFailure> = failures
        .iter()
        .filter(|failure| drained.is_none() || failure.recovery != Recovery::FabricRegistration)
        .cloned()
        .collect();
    let mut all = failures.clone();
    for device in devices {
        let physical = parent_gpu(device);
        if all.iter().any(|failure| failure.gpu == device.uuid) {
            continue;
        }
        let gpu = device.uuid.clone();
        if let Some(failure) = failures.iter().find(|failure| failure.gpu == *physical) {
            all.push(DeviceFailure {
                gpu,
                ..failure.clone()
            });
        } else if let Some(failure) = drained {
            all.push(DeviceFailure {
                gpu,
                cause: format!(
                    "its node is being drained because of {}: {}",
                    failure.gpu, failure.cause
                ),
                recovery: failure.recovery,
            });
        }
    }
    all
}

/// Why this device is out of service and what it needs; `None` if it is healthy. A lost GPU needs
/// what XID 79 needs.
pub fn diagnose(device: &nvml::DeviceHealth, actions: &XidActions) -> Option<DeviceFailure> {
    let (why, recovery) = match &device.health {
        nvml::DriverHealth::Ok => return None,
        nvml::DriverHealth::Lost(words) => (format!("lost: {words}"), Recovery::DrainNode),
        nvml::DriverHealth::RecoveryRequested(2) => {
            let why = "the driver requests a restart of the node";
            (why.to_owned(), Recovery::DrainNode)
        }
        nvml::DriverHealth::RecoveryRequested(_) => {
            let why = "the driver requests a reset of the GPU";
            (why.to_owned(), Recovery::ResetGpu)
        }
        nvml::DriverHealth::Xid(code) => (format!("XID {code}"), actions.of(*code).into()),
        nvml::DriverHealth::FabricNotReady(registration) => {
            let why = format!("NVLink fabric not ready: registration {registration}");
            (why, Recovery::FabricRegistration)
        }
    };
    Some(DeviceFailure {
        gpu: device.uuid.as_str().into(),
        cause: why,
        recovery,
    })
}

/// Devices that are out of service because the driver does not list their GPU: it refuses what every
/// share needs to know, or the GPU has vanished while living pods have shares of it or of its
/// instances.
pub fn unlisted(
    facts: &nvml::DriverInventory,
    shares: &[AcceptedAllocation],
    pods: &[Arc<Pod>],
    gpu_of_instance: impl Fn(&GpuUuid) -> Option<GpuUuid>,
) -> Vec<DeviceFailure> {
    let is_listed = |name: &str| {
        let mut gpus = facts.gpus.iter();
        gpus.any(|gpu| gpu.uuid == name || format!("index {}", gpu.index) == name)
    };
    let mut found: BTreeMap<GpuUuid, DeviceFailure> = BTreeMap::new();
    let mut add = |gpu: &str, cause: String, recovery| {
        let gpu = GpuUuid::from(gpu);
        found.entry(gpu.clone()).or_insert(DeviceFailure {
            gpu,
            cause,
            recovery,
        });
    };
    for note in &facts.notes {
        if !is_listed(&note.gpu) {
            let cause = format!("cannot be shared: {}: {}", note.call, note.problem);
            let recovery = match note.call {
                "nvmlDeviceGetMemoryInfo" => Recovery::OtherDriver,
                _ => Recovery::ResetGpu,
            };
            add(&note.gpu, cause, recovery);
        }
    }
    for device in shares.iter().flat_map(|share| share.uses().keys()) {
        let (id, _) = MigPlacement::split_device_key(device);
        let parent = gpu_of_instance(device);
        let gpu = parent.as_ref().map_or(id, GpuUuid::as_str);
        let is_known = gpu.starts_with("GPU-");
        if is_known && !is_listed(gpu) && !pods_on(&id.into(), shares, pods).is_empty() {
            let cause = match &parent {
                Some(gpu) => format!("the driver no longer lists its GPU, {gpu}"),
                None => "the driver no longer lists it".to_owned(),
            };
            add(id, cause, Recovery::DrainNode);
        }
    }
    found.into_values().collect()
}

/// Since when the driver does not list GPUs.
#[derive(Debug, Default)]
pub struct UnlistedGpus(BTreeMap<GpuUuid, Instant>);

impl UnlistedGpus {
    /// Those of the [`unlisted`] that have failed by now.
    pub fn failed(&mut self, mut unlisted: Vec<DeviceFailure>, now: Instant) -> Vec<DeviceFailure> {
        let since = unlisted.iter().map(|failure| {
            let since = self.0.get(&failure.gpu).copied();
            (failure.gpu.clone(), since.unwrap_or(now))
        });
        self.0 = since.collect();
        unlisted.retain(|failure| now - self.0[&failure.gpu] >= ABSENCE);
        unlisted
    }

    /// Whether one of them has not failed yet.
    pub fn is_pending(&self, now: Instant) -> bool {
        self.0.values().any(|since| now - *since < ABSENCE)
    }
}

/// The device ids of pods that live here. They are never shown as unhealthy or removed, whatever
/// happened to their device, so that the kubelet's count of free replicas stays right. The device
/// that a pod really uses may be another. Until the pods are known, all ids in the checkpoint
/// count.
pub fn allocated_ids(entries: &[CheckpointEntry], pods: &[Arc<Pod>], synced: bool) -> AllocatedIds {
    let alive: BTreeSet<&PodUid> = living(pods).map(|pod| &pod.kubelet_uid).collect();
    let mut allocated = AllocatedIds::new();
    for entry in entries.iter().filter(|e| !synced || alive.contains(&e.pod)) {
        let ids = allocated.entry(entry.resource.clone()).or_default();
        ids.extend(entry.ids.iter().cloned());
    }
    allocated
}

fn living(pods: &[Arc<Pod>]) -> impl Iterator<Item = &Arc<Pod>> {
    pods.iter().filter(|pod| pod.phase != Phase::Ended)
}

/// The ledger's id of a failed instance under dynamic MIG: its placement.
pub fn dynamic_mig_id(uuid: &GpuUuid, facts: &nvml::DriverInventory) -> Option<GpuUuid> {
    facts.gpus.iter().find_map(|physical| {
        let mut all = physical.layout.instances.iter();
        let found = all.find(|one| one.device().is_some_and(|d| d.uuid == uuid.as_str()))?;
        let place = MigPlacement {
            profile: found.profile.clone(),
            start: found.start,
        };
        Some(place.device_key(&physical.uuid.as_str().into()))
    })
}

/// The living pods with an accepted allocation on this device, or on an instance created on it.
pub fn pods_on(gpu: &GpuUuid, shares: &[AcceptedAllocation], pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let of_it = |device: &GpuUuid| {
        MigPlacement::parse_device_key(device).is_some_and(|(physical, _)| physical == gpu.as_str())
    };
    let here = |device: &GpuUuid| device == gpu || of_it(device);
    let there: BTreeSet<&PodUid> = shares
        .iter()
        .filter(|share| share.uses().keys().any(here))
        .map(|share| &share.pod)
        .collect();
    let found = living(pods).filter(|pod| there.contains(&pod.kubelet_uid));
    found.cloned().collect()
}

/// Each pod with each failed device that it uses.
pub fn affected_pods(
    failures: &[DeviceFailure],
    shares: &[AcceptedAllocation],
    pods: &[Arc<Pod>],
) -> Vec<(Arc<Pod>, DeviceFailure)> {
    let each = |failure: &DeviceFailure| {
        let pods = pods_on(&failure.gpu, shares, pods);
        let failure = failure.clone();
        pods.into_iter().map(move |pod| (pod, failure.clone()))
    };
    failures.iter().flat_map(each).collect()
}

/// Whether the failure may end the pod. Static pods cannot be evicted.
fn is_evictable(pod: &Pod, failure: &DeviceFailure) -> bool {
    !pod.mirror && failure.recovery != Recovery::FabricRegistration
}

/// The pods to evict, each once, by UID.
pub fn evictions(affected: &[(Arc<Pod>, DeviceFailure)]) -> Vec<RefusedPod> {
    let mut found: BTreeMap<&PodUid, RefusedPod> = BTreeMap::new();
    let leaving = affected
        .iter()
        .filter(|(pod, failure)| is_evictable(pod, failure));
    for (pod, failure) in leaving {
        let reason = || format!("{}: {}", failure.gpu, failure.cause);
        found
            .entry(&pod.uid)
            .or_insert_with(|| pod.refused(reason()));
    }
    found.into_values().collect()
}

/// The failures that were reported to pods, so that each is reported once.
#[derive(Debug, Default)]
pub struct ReportedFailures(BTreeMap<(PodUid, GpuUuid), String>);

impl ReportedFailures {
    /// The events to send now: for devices that failed, or failed for another reason, and for
    /// devices that recovered.
    pub fn new_events(
        &mut self,
        affected: &[(Arc<Pod>, DeviceFailure)],
        pods: &[Arc<Pod>],
        policy: FailurePodPolicy,
    ) -> Vec<EventNote> {
        let mut notes = Vec::new();
        let mut now = BTreeMap::new();
        for (pod, failure) in affected {
            let key = (pod.uid.clone(), failure.gpu.clone());
            if self.0.get(&key) != Some(&failure.cause) {
                notes.push(failure_event(pod, failure, policy));
            }
            now.insert(key, failure.cause.clone());
        }
        for ((uid, gpu), why) in &self.0 {
            let found = living(pods).find(|pod| pod.uid == *uid);
            let well = !affected.iter().any(|(_, failure)| failure.gpu == *gpu);
            if let Some(pod) = found.filter(|_| well) {
                let text = format!("{gpu} is back in service after {why}");
                notes.push(pod_event(pod, false, "GpuRecovered", text));
            }
        }
        self.0 = now;
        notes
    }
}

fn failure_event(pod: &Pod, failure: &DeviceFailure, policy: FailurePodPolicy) -> EventNote {
    let fate = match policy {
        FailurePodPolicy::Evict | FailurePodPolicy::Drain if is_evictable(pod, failure) => {
            "this pod is evicted"
        }
        _ => "this pod keeps running",
    };
    let text = format!(
        "{} failed: {}; it needs {} and accepts no new pods until the driver reports it healthy; {fate}",
        failure.gpu, failure.cause, failure.recovery
    );
    pod_event(pod, true, "GpuSick", text)
}

/// The event of an error that leaves the device in service. `shared`: MPS spreads it to all its
/// users.
pub fn application_error(pod: &Pod, gpu: &GpuUuid, code: u64, shared: bool) -> EventNote {
    let whose = if shared {
        "MPS shares errors, so every application on this GPU, including this pod's, must restart"
    } else {
        "an application on this GPU must restart"
    };
    let text = format!("{gpu}: XID {code}; {whose}; the GPU stays in service");
    pod_event(pod, true, "GpuError", text)
}

pub(crate) fn pod_event(pod: &Pod, warning: bool, reason: &'static str, text: String) -> EventNote {
    EventNote {
        pod: PodRef {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
        },
        warning,
        reason,
        action: "Watching",
        text,
    }
}

#[cfg(test)]
#[path = "device_failures_tests.rs"]
mod tests;
