//! The conditions that the agent writes to its Node.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_core::{Excerpt, PodUid};
use aliquot_nvml::GpuFacts;
use serde_json::{Value, json};

use crate::gpus::device_failures::{DeviceFailure, Recovery};
use crate::gpus::inventory::PublishedNode;
use crate::kubelet::resource_owner::{self, RESOURCE_TAKEN};
use crate::layout::profile_status::PROFILE;
use crate::node_view::{NodeCondition, NodeView};
use crate::pods::pod::{Phase, Pod};
use crate::runtime;

/// The condition: running accepted pods that the kubelet's checkpoint does not list.
pub const CHECKPOINT_LOST: &str = "AliquotCheckpointLost";

/// The condition: GPUs that are out of service.
pub const GPU_SICK: &str = "AliquotGpuSick";

/// The condition: the container runtime lacks a feature that containers with a share need.
pub const RUNTIME: &str = "AliquotRuntimeIncomplete";

/// The condition: pods whose allocation cannot be read.
pub const ALLOCATION_UNREADABLE: &str = "AliquotAllocationUnreadable";

/// The condition: the driver cannot be opened, and the agent waits for it.
pub const DRIVER_MISSING: &str = "AliquotDriverMissing";

/// The condition: the driver reports no utilization of processes on some GPUs, so that the rates of
/// compute shares are not corrected there.
pub const UNCORRECTED: &str = "AliquotComputeUncorrected";

/// The condition: what housekeeping cannot do on the node.
pub const HOUSEKEEPING: &str = "AliquotHousekeepingFailed";

/// The most problems that a message names.
const MAX_PROBLEMS: usize = 8;

pub const ALL: [&str; 9] = [
    CHECKPOINT_LOST,
    GPU_SICK,
    PROFILE,
    RUNTIME,
    RESOURCE_TAKEN,
    ALLOCATION_UNREADABLE,
    DRIVER_MISSING,
    UNCORRECTED,
    HOUSEKEEPING,
];

/// The conditions that must be written, of an agent that has opened the driver. `lost`: the running
/// accepted pods that the kubelet's checkpoint does not list. What is not known yet is left alone.
pub fn outdated(
    node: &PublishedNode,
    pods: &[Arc<Pod>],
    lost: Option<&BTreeSet<PodUid>>,
    view: &NodeView,
) -> Vec<(&'static str, NodeCondition)> {
    let runtime = node.runtime.as_ref();
    let gpus = &node.readings.facts.gpus;
    let uncorrected = node.monitor.uncorrected.as_ref();
    let desired = [
        (CHECKPOINT_LOST, lost.map(checkpoint_lost)),
        (GPU_SICK, Some(sick(&node.unhealthy_devices()))),
        (PROFILE, node.layout.profile.clone()),
        (
            RUNTIME,
            runtime.map(|runtime| runtime::condition(&runtime.problems)),
        ),
        (
            RESOURCE_TAKEN,
            node.taken_resources
                .as_deref()
                .map(resource_owner::condition),
        ),
        (
            ALLOCATION_UNREADABLE,
            Some(allocation_unreadable(pods, node)),
        ),
        (DRIVER_MISSING, Some(driver(None))),
        (
            UNCORRECTED,
            uncorrected.map(|uncorrected| compute_uncorrected(uncorrected, gpus)),
        ),
        (
            HOUSEKEEPING,
            Some(housekeeping(&node.housekeeping_problems)),
        ),
    ];
    let known = desired
        .into_iter()
        .filter_map(|(kind, condition)| Some((kind, condition?)));
    known
        .filter(|(kind, condition)| is_outdated(kind, condition, view))
        .collect()
}

/// Whether the node shows another condition, or none where it needs one: a problem that it never had
/// is not mentioned.
fn is_outdated(kind: &str, condition: &NodeCondition, view: &NodeView) -> bool {
    match view.conditions.get(kind) {
        Some((status, message)) => status != condition.status() || *message != condition.message,
        None => condition.holds || kind == PROFILE,
    }
}

/// The patch of a node's status that writes a condition.
pub(crate) fn patch(kind: &str, condition: &NodeCondition) -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    json!({"status": {"conditions": [{
        "type": kind,
        "status": condition.status(),
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }]}})
}

fn checkpoint_lost(lost: &BTreeSet<PodUid>) -> NodeCondition {
    if lost.is_empty() {
        let message =
            "the kubelet's device checkpoint lists every running pod that has an allocation";
        return NodeCondition::new(false, "CheckpointComplete", message);
    }
    let pods: Vec<&str> = lost.iter().take(8).map(PodUid::as_str).collect();
    let message = format!(
        "the kubelet's device checkpoint does not list {} running pod(s) that have an allocation; their devices stay allocated; delete these pods or drain the node: {}",
        lost.len(),
        pods.join(", ")
    );
    NodeCondition::new(true, "CheckpointLost", message)
}

fn sick(failures: &[DeviceFailure]) -> NodeCondition {
    let Some(worst) = failures.iter().map(|failure| failure.recovery).max() else {
        return NodeCondition::new(false, "GpusWell", "all GPUs are healthy");
    };
    let reason = match worst {
        Recovery::DrainNode => "DrainNeeded",
        Recovery::ResetGpu => "ResetNeeded",
        Recovery::RestartApplication => "DaemonDown",
        Recovery::FabricRegistration => "FabricNotReady",
        Recovery::OtherDriver => "GpuUnreadable",
    };
    let each = failures.iter().map(|failure| {
        format!(
            "{}: {}; needs {}",
            failure.gpu, failure.cause, failure.recovery
        )
    });
    let message: Vec<String> = each.collect();
    NodeCondition::new(true, reason, message.join(". "))
}

/// [`ALLOCATION_UNREADABLE`]. A pod that requests none of the node's resources gets no device ids, so
/// its annotation counts nowhere.
fn allocation_unreadable(pods: &[Arc<Pod>], node: &PublishedNode) -> NodeCondition {
    let resources = node.resources();
    let unreadable: Vec<String> = pods
        .iter()
        .filter(|pod| pod.phase != Phase::Ended && pod.requests_any(&resources))
        .filter(|pod| pod.has_unreadable_allocation())
        .map(|pod| pod.full_name())
        .collect();
    if unreadable.is_empty() {
        let message = "the allocations of all pods on this node can be read";
        return NodeCondition::new(false, "AllocationsReadable", message);
    }
    let some: Vec<&str> = unreadable.iter().take(8).map(String::as_str).collect();
    let message = format!(
        "the allocation annotations of {} pod(s) cannot be read, so no other pod gets a GPU of this node; delete: {}",
        unreadable.len(),
        some.join(", ")
    );
    NodeCondition::new(true, "AllocationUnreadable", message)
}

/// [`DRIVER_MISSING`]: why the driver cannot be opened; `None`: it was opened.
pub(crate) fn driver(error: Option<&str>) -> NodeCondition {
    let Some(error) = error else {
        return NodeCondition::new(false, "DriverAnswers", "the NVIDIA driver answers");
    };
    let message = format!(
        "{error}; the agent waits for the NVIDIA driver, and no container with a share starts until then"
    );
    NodeCondition::new(true, "DriverMissing", message)
}

/// [`UNCORRECTED`]; a GPU that the driver no longer lists is left out.
fn compute_uncorrected(uncorrected: &BTreeSet<String>, gpus: &[GpuFacts]) -> NodeCondition {
    let found = gpus.iter().filter(|gpu| uncorrected.contains(&gpu.uuid));
    let (mut names, mut reason) = (Vec::new(), "PartitionedGpus");
    for gpu in found {
        let mig = if gpu.mig.enabled { ", in MIG mode" } else { "" };
        if !gpu.mig.enabled {
            reason = "UtilizationNotReported";
        }
        names.push(format!("{} (index {}{mig})", gpu.uuid, gpu.index));
    }
    if names.is_empty() {
        let message = "the driver reports the utilization of processes on every GPU: the rates of compute shares are corrected";
        return NodeCondition::new(false, "UtilizationReported", message);
    }
    let message = format!(
        "compute shares are not corrected on {}: the driver reports no utilization of processes there; each launch is charged what the limiter measured",
        names.join(", ")
    );
    NodeCondition::new(true, reason, message)
}

fn housekeeping(problems: &BTreeSet<String>) -> NodeCondition {
    if problems.is_empty() {
        let message = "the files of all containers are up to date";
        return NodeCondition::new(false, "HousekeepingDone", message);
    }
    let named = problems.iter().take(MAX_PROBLEMS);
    let mut named: Vec<String> = named
        .map(|problem| Excerpt::from(problem.as_str()).to_string())
        .collect();
    if problems.len() > MAX_PROBLEMS {
        named.push(format!("and {} more", problems.len() - MAX_PROBLEMS));
    }
    NodeCondition::new(true, "HousekeepingFailed", named.join("; "))
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
