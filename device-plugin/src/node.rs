//! Our own Node object: keeps its inventory annotation, its labels, its capacity and its
//! conditions at what they should be, whoever changed them.
//!
//! Fed by: a watch of this one node, the published inventory, housekeeping.
//! Must not: write when the watched value is right; write anything else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::inventory::INVENTORY;
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
use crate::drain;
use crate::inventory::{self, Published};
use crate::labels::{self, owned};
use crate::leave::ASKED;
use crate::metrics::{Metrics, count};
use crate::pods::Pods;
use crate::profile_status::PROFILE;
use crate::runtime;
use crate::sick::{self, Sick};
use crate::vanished::{self, Taken};

/// The condition: running shares that the kubelet's checkpoint does not know.
pub const CHECKPOINT_LOST: &str = "AliquotCheckpointLost";

/// The condition: cards that are out of service.
pub const GPU_SICK: &str = "AliquotGpuSick";

/// The condition: the container runtime lacks something that containers with a share need.
pub const RUNTIME: &str = "AliquotRuntimeIncomplete";

const DEADLINE: Duration = Duration::from_secs(5);
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// What the API server shows of our node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
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
    /// Its container runtime, such as `containerd://2.4.2`.
    pub runtime: Option<String>,
    /// Its feature labels.
    pub labels: owned::Seen,
    /// Its capacity.
    pub capacity: capacity::Seen,
    /// Its taints, and what its owner says of cards.
    pub drain: drain::Seen,
    /// All its labels.
    pub all_labels: BTreeMap<String, String>,
    /// What it offers of each extended resource, capacity and allocatable.
    pub resources: BTreeMap<String, (String, String)>,
    /// Until when we are asked to leave it.
    pub leave: Option<String>,
}

impl Seen {
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
            runtime: node
                .status
                .as_ref()
                .and_then(|status| status.node_info.as_ref())
                .map(|info| info.container_runtime_version.clone()),
            labels: owned::Seen::read(node),
            capacity: capacity::Seen::read(node),
            drain: drain::Seen::read(node),
            all_labels: node.metadata.labels.clone().unwrap_or_default(),
            resources: vanished::shown(node),
            leave: annotations.and_then(|all| all.get(ASKED)).cloned(),
        }
    }
}

/// What [`CHECKPOINT_LOST`] should say: status, reason, message. `None`: it says so,
/// or the node never had it and needs none.
pub fn wanted_condition(lost: &BTreeSet<PodUid>, seen: &Seen) -> Option<[String; 3]> {
    let wanted = if lost.is_empty() {
        seen.lost.as_ref()?;
        let message = "the kubelet's device checkpoint knows every running share";
        ["False", "CheckpointComplete", message].map(str::to_owned)
    } else {
        let pods: Vec<&str> = lost.iter().take(8).map(PodUid::as_str).collect();
        let message = format!(
            "{} running pod(s) hold shares that the kubelet's device checkpoint does not know; their shares stay booked; drain or restart them: {}",
            lost.len(),
            pods.join(", ")
        );
        ["True".to_owned(), "CheckpointLost".to_owned(), message]
    };
    unless_said(wanted, seen.lost.as_ref())
}

/// The same for [`GPU_SICK`].
pub fn wanted_sick(cards: &[Sick], seen: &Seen) -> Option<[String; 3]> {
    if cards.is_empty() {
        seen.sick.as_ref()?;
    }
    unless_said(sick::condition(cards), seen.sick.as_ref())
}

/// The same for [`PROFILE`].
pub fn wanted_profile(profile: Option<&[String; 3]>, seen: &Seen) -> Option<[String; 3]> {
    unless_said(profile?.clone(), seen.profile.as_ref())
}

/// The same for [`RUNTIME`].
pub fn wanted_runtime(lacks: Option<&[runtime::Fault]>, seen: &Seen) -> Option<[String; 3]> {
    let lacks = lacks?;
    if lacks.is_empty() {
        seen.lacks.as_ref()?;
    }
    unless_said(runtime::condition(lacks), seen.lacks.as_ref())
}

fn unless_said(wanted: [String; 3], said: Option<&(String, String)>) -> Option<[String; 3]> {
    let right = said.is_some_and(|(status, message)| *status == wanted[0] && *message == wanted[2]);
    (!right).then_some(wanted)
}

/// Forgets the errors of these cards.
pub type Clear = Box<dyn Fn(Vec<String>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// What writing our node needs.
pub struct Writer {
    /// The API.
    pub nodes: Api<api::Node>,
    /// Our node's name.
    pub name: String,
    /// What the annotation should say.
    pub published: Published,
    /// The resource of whole cards.
    pub resource: String,
    /// Who writes the feature labels.
    pub feature_labels: owned::Policy,
    /// The names of the capacity, where it is published.
    pub capacity: Option<capacity::Names>,
    /// The node's pods.
    pub pods: Pods,
    /// What the watch shows; `None` while the node is not known.
    pub seen: watch::Sender<Option<Seen>>,
    /// Counts writes.
    pub metrics: Metrics,
    /// Follows the owner's word that cards are well.
    pub clear: Clear,
    /// What was taken from the node.
    pub taken: Mutex<Taken>,
}

/// Keeps the node right until `stop`. `state` is told `None` when it is, and why
/// when it is not.
pub async fn keep_written(
    writer: Writer,
    mut lost: watch::Receiver<Option<BTreeSet<PodUid>>>,
    state: impl Fn(Option<String>),
    stop: CancellationToken,
) {
    let mut inventory = writer.published.subscribe();
    let mut seen_rx = writer.seen.subscribe();
    let mut pods = writer.pods.subscribe();
    let mut pause = RETRY.0;
    loop {
        let node = Arc::clone(&inventory.borrow_and_update());
        let wanted = node.inventory.encode();
        let lost_now = lost.borrow_and_update().clone();
        let current = seen_rx.borrow_and_update().clone();
        let result = match (wanted, current) {
            (_, None) => Err("the Node object is not known yet".to_owned()),
            (Err(error), _) => Err(error.to_string()),
            (Ok(wanted), Some(current)) => {
                let write = writer.write(&wanted, &node, lost_now.as_ref(), current);
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
                tracing::warn!(%error, "the node's inventory is not written");
                state(Some(error));
                wait = pause;
                pause = (pause * 2).min(RETRY.1);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            _ = inventory.changed() => {}
            _ = lost.changed() => {}
            _ = seen_rx.changed() => {}
            _ = pods.changed(), if writer.capacity.is_some() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Writer {
    /// `current` becomes what each write answers: a list is written over the version that was read.
    async fn write(
        &self,
        wanted: &str,
        node: &inventory::Node,
        lost: Option<&BTreeSet<PodUid>>,
        mut current: Seen,
    ) -> Result<(), String> {
        if current.inventory.as_deref() != Some(wanted) {
            let patch = json!({"metadata": {"annotations": {INVENTORY: wanted}}});
            current = self.put(&Patch::Merge(patch), false).await?;
            tracing::info!(bytes = wanted.len(), "inventory written");
        }
        let labels = labels::labels(&node.inventory, &node.features, &self.resource);
        if let Some(patch) = owned::patch(&labels, &current.labels, self.feature_labels) {
            tracing::info!(%patch, "feature labels written");
            current = self.put(&Patch::Merge(patch), false).await?;
        }
        if let Some(cards) = current.drain.cleared() {
            (self.clear)(cards).await?;
            current = self.put(&Patch::Merge(drain::heard()), false).await?;
        }
        if let Some(patch) = current.drain.taint(node.sickness.drained.is_some()) {
            tracing::warn!(%patch, "taint of a drained node written");
            current = self.put(&Patch::Merge(patch), false).await?;
        }
        let pods = self.pods.in_order();
        let capacity = capacity::wanted(&node.inventory, &pods, self.capacity.as_ref());
        if let Some(patch) = capacity::patch(&capacity, &current.capacity, self.pods.synced()) {
            tracing::info!(%patch, "capacity written");
            current = self.put(&Patch::Merge(patch), true).await?;
        }
        let vanished = self
            .taken
            .lock()
            .due(&node.vanished, &current.resources, Instant::now());
        if let Some(patch) = vanished::patch(&vanished) {
            current = self.put(&Patch::Merge(patch), true).await?;
            tracing::info!(?vanished, "resources taken from the node");
        }
        let lost = lost.and_then(|lost| wanted_condition(lost, &current));
        let lacks = node.runtime.as_ref().map(|looked| &*looked.lacks);
        let wanted = [
            (CHECKPOINT_LOST, lost),
            (GPU_SICK, wanted_sick(&node.out_of_service(), &current)),
            (PROFILE, wanted_profile(node.profile.as_ref(), &current)),
            (RUNTIME, wanted_runtime(lacks, &current)),
        ];
        for (kind, condition) in wanted {
            let Some([status, reason, message]) = condition else {
                continue;
            };
            let now = k8s_openapi::jiff::Timestamp::now().to_string();
            let condition = json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            });
            let patch = json!({"status": {"conditions": [condition]}});
            self.put(&Patch::Strategic(patch), true).await?;
            tracing::warn!(kind, status, message, "condition written");
        }
        Ok(())
    }

    /// Writes, and takes the answer as seen, ahead of the watch.
    async fn put(&self, patch: &Patch<Value>, status: bool) -> Result<Seen, String> {
        let now = Seen::read(&self.patch(patch, status).await?);
        self.seen.send_if_modified(|current| {
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
