//! Reconciles our own Node object: its inventory annotation, labels, capacity and conditions,
//! whoever changed them. Writes nothing while the watched values are right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::{ForeignAllocation, INVENTORY};
use aliquot_core::ledger::AllocatedUse;
use aliquot_core::{Allocation, PodUid};
use aliquot_nvml::GpuFacts;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1 as api;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::capacity;
use crate::device_failures::{self, DeviceFailure};
use crate::drain;
use crate::driver_wait::{self, DRIVER_MISSING};
use crate::hami;
use crate::inventory::{self, NodePublisher};
use crate::labels::{self, ownership};
use crate::leave::LEAVE_UNTIL;
use crate::metrics::{Metrics, count};
use crate::pod::{Phase, Pod};
use crate::pods::Pods;
use crate::profile_status::PROFILE;
use crate::removed_resources::{self, RemovalSchedule};
use crate::resource_owner::{self, RESOURCE_TAKEN, TakenResource};
use crate::runtime;
use crate::uncorrected::{self, UNCORRECTED};

/// The condition: running accepted pods that the kubelet's checkpoint does not list.
pub const CHECKPOINT_LOST: &str = "AliquotCheckpointLost";

/// The condition: GPUs that are out of service.
pub const GPU_SICK: &str = "AliquotGpuSick";

/// The condition: the container runtime lacks a feature that containers with a share need.
pub const RUNTIME: &str = "AliquotRuntimeIncomplete";

/// The condition: pods whose allocation cannot be read.
pub const ALLOCATION_UNREADABLE: &str = "AliquotAllocationUnreadable";

const DEADLINE: Duration = Duration::from_secs(5);
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Our node as the API server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// The inventory annotation's text.
    pub inventory: Option<String>,
    /// Status ("True", "False") and message of the condition [`CHECKPOINT_LOST`].
    pub lost: Option<(String, String)>,
    /// The same of [`GPU_SICK`].
    pub sick: Option<(String, String)>,
    /// The same of [`PROFILE`].
    pub profile: Option<(String, String)>,
    /// The same of [`RUNTIME`].
    pub lacks: Option<(String, String)>,
    /// The same of [`RESOURCE_TAKEN`].
    pub taken: Option<(String, String)>,
    /// The same of [`ALLOCATION_UNREADABLE`].
    pub unreadable: Option<(String, String)>,
    /// The same of [`DRIVER_MISSING`].
    pub driver: Option<(String, String)>,
    /// The same of [`UNCORRECTED`].
    pub uncorrected: Option<(String, String)>,
    /// Its container runtime, such as `containerd://2.4.2`.
    pub runtime: Option<String>,
    /// Its feature labels.
    pub labels: ownership::NodeLabels,
    /// Its capacity.
    pub capacity: capacity::NodeCapacity,
    /// Its taints, and the GPUs that its administrator declared healthy.
    pub drain: drain::DrainState,
    /// All its labels.
    pub all_labels: BTreeMap<String, String>,
    /// Capacity and allocatable of each extended resource.
    pub resources: BTreeMap<String, (String, String)>,
    /// Until when its agent is asked to leave.
    pub leave: Option<String>,
}

impl NodeView {
    /// Reads the node.
    pub fn read(node: &api::Node) -> Self {
        let annotations = node.metadata.annotations.as_ref();
        let conditions = || {
            let status = node.status.iter();
            status.flat_map(|s| s.conditions.iter().flatten())
        };
        let condition = |kind: &str| {
            let found = conditions().find(|c| c.type_ == kind)?;
            let message = found.message.clone().unwrap_or_default();
            Some((found.status.clone(), message))
        };
        Self {
            inventory: annotations.and_then(|all| all.get(INVENTORY)).cloned(),
            lost: condition(CHECKPOINT_LOST),
            sick: condition(GPU_SICK),
            profile: condition(PROFILE),
            lacks: condition(RUNTIME),
            taken: condition(RESOURCE_TAKEN),
            unreadable: condition(ALLOCATION_UNREADABLE),
            driver: condition(DRIVER_MISSING),
            uncorrected: condition(UNCORRECTED),
            runtime: node
                .status
                .as_ref()
                .and_then(|status| status.node_info.as_ref())
                .map(|info| info.container_runtime_version.clone()),
            labels: ownership::NodeLabels::read(node),
            capacity: capacity::NodeCapacity::read(node),
            drain: drain::DrainState::read(node),
            all_labels: node.metadata.labels.clone().unwrap_or_default(),
            resources: removed_resources::node_resources(node),
            leave: annotations.and_then(|all| all.get(LEAVE_UNTIL)).cloned(),
        }
    }
}

/// What [`CHECKPOINT_LOST`] should be: status, reason, message. `None`: it is so already, or the
/// node never had the condition and needs none.
pub fn checkpoint_condition(lost: &BTreeSet<PodUid>, view: &NodeView) -> Option<[String; 3]> {
    let desired = if lost.is_empty() {
        view.lost.as_ref()?;
        let message =
            "the kubelet's device checkpoint lists every running pod that has an allocation";
        ["False", "CheckpointComplete", message].map(str::to_owned)
    } else {
        let pods: Vec<&str> = lost.iter().take(8).map(PodUid::as_str).collect();
        let message = format!(
            "the kubelet's device checkpoint does not list {} running pod(s) that have an allocation; their devices stay allocated; delete these pods or drain the node: {}",
            lost.len(),
            pods.join(", ")
        );
        ["True".to_owned(), "CheckpointLost".to_owned(), message]
    };
    unless_current(desired, view.lost.as_ref())
}

/// The same for [`GPU_SICK`].
pub fn sick_condition(failures: &[DeviceFailure], view: &NodeView) -> Option<[String; 3]> {
    if failures.is_empty() {
        view.sick.as_ref()?;
    }
    unless_current(device_failures::condition(failures), view.sick.as_ref())
}

/// The same for [`PROFILE`].
pub fn profile_condition(profile: Option<&[String; 3]>, view: &NodeView) -> Option<[String; 3]> {
    unless_current(profile?.clone(), view.profile.as_ref())
}

/// The same for [`RUNTIME`].
pub fn runtime_condition(
    lacks: Option<&[runtime::RuntimeProblem]>,
    view: &NodeView,
) -> Option<[String; 3]> {
    let lacks = lacks?;
    if lacks.is_empty() {
        view.lacks.as_ref()?;
    }
    unless_current(runtime::condition(lacks), view.lacks.as_ref())
}

/// The same for [`RESOURCE_TAKEN`].
pub fn taken_condition(taken: Option<&[TakenResource]>, view: &NodeView) -> Option<[String; 3]> {
    let taken = taken?;
    if taken.is_empty() {
        view.taken.as_ref()?;
    }
    unless_current(resource_owner::condition(taken), view.taken.as_ref())
}

/// The same for [`ALLOCATION_UNREADABLE`]. HAMi's annotation is read of pods that have devices of
/// another plugin (`foreign`).
pub fn allocation_condition(
    pods: &[Arc<Pod>],
    foreign: &[ForeignAllocation],
    view: &NodeView,
) -> Option<[String; 3]> {
    let is_unreadable = |pod: &&Arc<Pod>| {
        let by_hami = foreign.iter().any(|f| f.hami.as_ref() == Some(&pod.uid));
        let ours = pod.allocation.as_deref().map(Allocation::decode);
        pod.phase != Phase::Ended
            && match ours {
                Some(allocation) => allocation.map_or(true, |found| found.node != pod.node),
                None => by_hami && hami::uses(pod) == Some(AllocatedUse::Unreadable),
            }
    };
    let unreadable: Vec<String> = pods
        .iter()
        .filter(is_unreadable)
        .map(|pod| pod.full_name())
        .collect();
    let desired = if unreadable.is_empty() {
        view.unreadable.as_ref()?;
        let message = "the allocations of all pods on this node can be read";
        ["False", "AllocationsReadable", message].map(str::to_owned)
    } else {
        let some: Vec<&str> = unreadable.iter().take(8).map(String::as_str).collect();
        let message = format!(
            "the allocation annotations of {} pod(s) cannot be read, so no other pod gets a GPU of this node; delete: {}",
            unreadable.len(),
            some.join(", ")
        );
        [
            "True".to_owned(),
            "AllocationUnreadable".to_owned(),
            message,
        ]
    };
    unless_current(desired, view.unreadable.as_ref())
}

/// The same for [`DRIVER_MISSING`], of an agent that has opened the driver.
pub fn driver_condition(view: &NodeView) -> Option<[String; 3]> {
    let current = view.driver.as_ref()?;
    unless_current(driver_wait::condition(None), Some(current))
}

/// What [`UNCORRECTED`] should be.
pub fn uncorrected_condition(
    uncorrected: Option<&BTreeSet<String>>,
    gpus: &[GpuFacts],
    view: &NodeView,
) -> Option<[String; 3]> {
    let desired = uncorrected::condition(uncorrected?, gpus);
    if desired[0] == "False" {
        view.uncorrected.as_ref()?;
    }
    unless_current(desired, view.uncorrected.as_ref())
}

/// The patch of a node's status that writes a condition.
pub(crate) fn condition_patch(kind: &str, [status, reason, message]: &[String; 3]) -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    json!({"status": {"conditions": [condition]}})
}

fn unless_current(desired: [String; 3], current: Option<&(String, String)>) -> Option<[String; 3]> {
    let right =
        current.is_some_and(|(status, message)| *status == desired[0] && *message == desired[2]);
    (!right).then_some(desired)
}

/// Clears the errors of these GPUs.
pub type ClearErrors =
    Box<dyn Fn(Vec<String>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Writes our Node object.
pub struct NodeWriter {
    /// The API.
    pub nodes: Api<api::Node>,
    /// Our node's name.
    pub name: String,
    /// What the annotation should contain.
    pub published: NodePublisher,
    /// The resource of whole GPUs.
    pub resource: String,
    /// Who writes the feature labels.
    pub feature_labels: ownership::LabelPolicy,
    /// The names of the capacity, where it is published.
    pub capacity: Option<capacity::CapacityResources>,
    /// The node's pods.
    pub pods: Pods,
    /// The watched node; `None` while it is not known.
    pub view: watch::Sender<Option<NodeView>>,
    /// Counts writes.
    pub metrics: Metrics,
    /// Clears the errors of GPUs that the administrator declared healthy.
    pub clear: ClearErrors,
    /// Resources that were removed from the node.
    pub taken: Mutex<RemovalSchedule>,
}

/// Reconciles the node until `stop`. Calls `state` with `None` when the node is up to date, and
/// with the reason when it is not.
pub async fn reconcile(
    writer: NodeWriter,
    mut lost: watch::Receiver<Option<BTreeSet<PodUid>>>,
    state: impl Fn(Option<String>),
    stop: CancellationToken,
) {
    let mut inventory = writer.published.subscribe();
    let mut view_rx = writer.view.subscribe();
    let mut pods = writer.pods.subscribe();
    let mut pause = RETRY.0;
    loop {
        let node = Arc::clone(&inventory.borrow_and_update());
        let desired = node.inventory.encode();
        let lost_now = lost.borrow_and_update().clone();
        let current = view_rx.borrow_and_update().clone();
        let result = match (desired, current) {
            (_, None) => Err("the Node object has not been read yet".to_owned()),
            (Err(error), _) => Err(error.to_string()),
            (Ok(desired), Some(current)) => {
                let write = writer.write(&desired, &node, lost_now.as_ref(), current);
                write.await
            }
        };
        let mut wait = Duration::from_mins(1);
        match result {
            Ok(()) => {
                pause = RETRY.0;
                state(None);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot write the Node object; retrying");
                state(Some(error));
                wait = pause;
                pause = (pause * 2).min(RETRY.1);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            _ = inventory.changed() => {}
            _ = lost.changed() => {}
            _ = view_rx.changed() => {}
            _ = pods.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl NodeWriter {
    /// `current` becomes the answer of each write: a list is written over the version that was
    /// read.
    async fn write(
        &self,
        inventory: &str,
        node: &inventory::PublishedNode,
        lost: Option<&BTreeSet<PodUid>>,
        mut current: NodeView,
    ) -> Result<(), String> {
        if current.inventory.as_deref() != Some(inventory) {
            let patch = json!({"metadata": {"annotations": {INVENTORY: inventory}}});
            current = self.put(&Patch::Merge(patch), false).await?;
            tracing::info!(bytes = inventory.len(), "wrote the inventory annotation");
        }
        let labels = labels::node_labels(&node.inventory, &node.features, &self.resource);
        if let Some(patch) = ownership::patch(&labels, &current.labels, self.feature_labels) {
            tracing::info!(%patch, "wrote feature labels");
            current = self.put(&Patch::Merge(patch), false).await?;
        }
        if let Some(gpus) = current.drain.cleared() {
            (self.clear)(gpus).await?;
            current = self
                .put(&Patch::Merge(drain::cleared_patch()), false)
                .await?;
        }
        if let Some(patch) = current
            .drain
            .taint_patch(node.failures.drain_reason.is_some())
        {
            tracing::warn!(%patch, "wrote the taint of a drained node");
            current = self.put(&Patch::Merge(patch), false).await?;
        }
        let pods = self.pods.in_order();
        let capacity = capacity::desired(&node.inventory, &pods, self.capacity.as_ref());
        if let Some(patch) = capacity::patch(&capacity, &current.capacity, self.pods.synced()) {
            tracing::info!(%patch, "wrote capacity");
            current = self.put(&Patch::Merge(patch), true).await?;
        }
        let vanished =
            self.taken
                .lock()
                .due(&node.removed_resources, &current.resources, Instant::now());
        if let Some(patch) = removed_resources::patch(&vanished) {
            current = self.put(&Patch::Merge(patch), true).await?;
            tracing::info!(?vanished, "removed resources from the node");
        }
        let lost = lost.and_then(|lost| checkpoint_condition(lost, &current));
        let lacks = node.runtime.as_ref().map(|runtime| &*runtime.problems);
        let taken = node.taken_resources.as_deref();
        let foreign = &node.inventory.foreign;
        let conditions = [
            (CHECKPOINT_LOST, lost),
            (
                GPU_SICK,
                sick_condition(&node.unhealthy_devices(), &current),
            ),
            (PROFILE, profile_condition(node.profile.as_ref(), &current)),
            (RUNTIME, runtime_condition(lacks, &current)),
            (RESOURCE_TAKEN, taken_condition(taken, &current)),
            (
                ALLOCATION_UNREADABLE,
                allocation_condition(&pods, foreign, &current),
            ),
            (DRIVER_MISSING, driver_condition(&current)),
            (
                UNCORRECTED,
                uncorrected_condition(node.uncorrected.as_ref(), &node.facts.gpus, &current),
            ),
        ];
        for (kind, condition) in conditions {
            let Some(condition) = condition else {
                continue;
            };
            let patch = condition_patch(kind, &condition);
            self.put(&Patch::Strategic(patch), true).await?;
            let [status, _, message] = condition;
            tracing::warn!(kind, status, message, "wrote condition");
        }
        Ok(())
    }

    /// Writes, and takes over the answer ahead of the watch.
    async fn put(&self, patch: &Patch<Value>, status: bool) -> Result<NodeView, String> {
        let now = NodeView::read(&self.patch(patch, status).await?);
        self.view.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&now);
            *current = Some(now.clone());
            changed
        });
        Ok(now)
    }

    async fn patch(&self, patch: &Patch<Value>, status: bool) -> Result<api::Node, String> {
        let params = PatchParams {
            field_manager: Some("aliquot-device-plugin".to_owned()),
            ..PatchParams::default()
        };
        let written = tokio::time::timeout(DEADLINE, async {
            if status {
                self.nodes.patch_status(&self.name, &params, patch).await
            } else {
                self.nodes.patch(&self.name, &params, patch).await
            }
        })
        .await;
        let written = match written {
            Ok(Ok(node)) => Ok(node),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the API server did not answer within 5 s".to_owned()),
        };
        let outcome = if written.is_ok() { "done" } else { "failed" };
        count(&self.metrics.node_writes, outcome);
        written
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
