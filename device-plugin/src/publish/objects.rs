//! What the agent's watches of its Node and pods fill.

use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::watch::{Freshness, Index};
use k8s_openapi::api::core::v1 as api;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::gpus::HealthMonitor;
use crate::node_view::NodeView;
use crate::pods::Pods;
use crate::pods::pod::Pod;
use crate::publish::node::ClearErrors;

/// How often readiness checks the pod watch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Clears the errors of GPUs that the administrator declared healthy.
pub(crate) fn clear_errors(health: Arc<HealthMonitor>) -> ClearErrors {
    Box::new(move |uuids| {
        let health = Arc::clone(&health);
        let clear = tokio::task::spawn_blocking(move || health.clear(&uuids));
        Box::pin(async move {
            let done = clear.await.map_err(|error| error.to_string())?;
            done.map_err(|error| error.to_string())
        })
    })
}

/// Calls `state` with the reason while the watch of pods is not current.
pub(crate) async fn report_pod_freshness(
    freshness: Freshness,
    state: impl Fn(Option<String>),
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        state(freshness.error(Instant::now()).map(str::to_owned));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

/// What the watch of our node's pods fills.
pub(crate) struct PodIndex(pub(crate) Pods);

impl Index<api::Pod> for PodIndex {
    type Entry = Option<Pod>;

    fn entry(&self, object: api::Pod) -> Option<Pod> {
        Pod::read(&object)
    }

    fn apply(&self, object: api::Pod) {
        if let Some(pod) = Pod::read(&object) {
            self.0.apply(pod);
        }
    }

    fn delete(&self, object: api::Pod) {
        if let Some(pod) = Pod::read(&object) {
            self.0.delete(&pod.uid);
        }
    }

    fn replace(&self, listed: Vec<Option<Pod>>) {
        self.0.reset(listed.into_iter().flatten().collect());
    }
}

/// What the watch of our Node fills.
pub(crate) struct NodeIndex(pub(crate) watch::Sender<Option<NodeView>>);

impl Index<api::Node> for NodeIndex {
    type Entry = NodeView;

    fn entry(&self, object: api::Node) -> NodeView {
        NodeView::read(&object)
    }

    fn apply(&self, object: api::Node) {
        self.0.send_replace(Some(NodeView::read(&object)));
    }

    fn delete(&self, _: api::Node) {
        self.0.send_replace(None);
    }

    fn replace(&self, listed: Vec<NodeView>) {
        self.0.send_replace(listed.into_iter().next());
    }
}
