//! Reconciles our own Node object: its inventory annotation, labels, capacity and conditions,
//! whoever changed them. Writes nothing while the watched values are right.

use std::collections::BTreeSet;
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

use crate::gpus::inventory::{NodePublisher, PublishedNode};
use crate::metrics::{Metrics, count};
use crate::node_view::NodeView;
use crate::pods::Pods;
use crate::publish::capacity;
use crate::publish::conditions;
use crate::publish::drain;
use crate::publish::labels;
use crate::publish::removed_resources::{self, RemovalSchedule};

const DEADLINE: Duration = Duration::from_secs(5);
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

pub type ClearErrors =
    Box<dyn Fn(Vec<String>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

pub struct NodeWriter {
    pub nodes: Api<api::Node>,
    pub name: String,
    /// What the annotation should contain.
    pub published: NodePublisher,
    /// The resource of whole GPUs.
    pub resource: String,
    /// The names of the capacity, where it is published.
    pub capacity: Option<capacity::CapacityResources>,
    pub pods: Pods,
    /// The watched node; `None` while it is not known.
    pub view: watch::Sender<Option<NodeView>>,
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
    /// `current` becomes the answer of each write: the next write of a list is based on that
    /// version.
    async fn write(
        &self,
        inventory: &str,
        node: &PublishedNode,
        lost: Option<&BTreeSet<PodUid>>,
        mut current: NodeView,
    ) -> Result<(), String> {
        if current.annotation(INVENTORY) != Some(inventory) {
            let patch = json!({"metadata": {"annotations": {INVENTORY: inventory}}});
            current = self.put(&Patch::Merge(patch), false).await?;
            tracing::info!(bytes = inventory.len(), "wrote the inventory annotation");
        }
        let labels = labels::node_labels(&node.inventory, &node.readings.facts, &self.resource);
        if let Some(patch) = labels::patch(&labels, &current) {
            tracing::info!(%patch, "wrote feature labels");
            current = self.put(&Patch::Merge(patch), false).await?;
        }
        if let Some(gpus) = drain::cleared(&current) {
            (self.clear)(gpus).await?;
            let patch = drain::cleared_patch(&current);
            current = self.put(&Patch::Merge(patch), false).await?;
        }
        let drained = node.readings.failures.drain_reason.is_some();
        if let Some(patch) = drain::taint_patch(&current, drained) {
            tracing::warn!(%patch, "wrote the taint of a drained node");
            current = self.put(&Patch::Merge(patch), false).await?;
        }
        let pods = self.pods.in_order();
        let capacity = capacity::desired(&node.inventory, &pods, self.capacity.as_ref());
        if let Some(patch) = capacity::patch(&capacity, &current, self.pods.synced()) {
            tracing::info!(%patch, "wrote capacity");
            current = self.put(&Patch::Merge(patch), true).await?;
        }
        let vanished =
            self.taken
                .lock()
                .due(&node.layout.removed_resources, &current, Instant::now());
        if let Some(patch) = removed_resources::patch(&vanished) {
            current = self.put(&Patch::Merge(patch), true).await?;
            tracing::info!(?vanished, "removed resources from the node");
        }
        for (kind, condition) in conditions::outdated(node, &pods, lost, &current) {
            let patch = conditions::patch(kind, &condition);
            self.put(&Patch::Strategic(patch), true).await?;
            let (status, message) = (condition.status(), condition.message);
            tracing::warn!(kind, status, message, "wrote condition");
        }
        Ok(())
    }

    /// Writes, and takes over the answer ahead of the watch, unless the watch has shown another
    /// version meanwhile, which may be a later one.
    async fn put(&self, patch: &Patch<Value>, status: bool) -> Result<NodeView, String> {
        let version = |view: Option<&NodeView>| view.and_then(|view| view.resource_version.clone());
        let before = version(self.view.borrow().as_ref());
        let now = NodeView::read(&self.patch(patch, status).await?);
        self.view.send_if_modified(|current| {
            if version(current.as_ref()) != before {
                return false;
            }
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
