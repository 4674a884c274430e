//! Watches the agent's Node and pods in the API server, and starts reconciling the Node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_k8s::watch::{Freshness, Index, drive};
use aliquot_serve::Readiness;
use k8s_openapi::api::core::v1 as api;
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{INVENTORY, PODS, condition_reporter};
use crate::gpus::inventory::NodePublisher;
use crate::health::gpus::HealthMonitor;
use crate::kubelet::topology;
use crate::metrics::Metrics;
use crate::node_view::NodeView;
use crate::pods::Pods;
use crate::pods::pod::Pod;
use crate::publish::capacity::CapacityResources;
use crate::publish::node::{self, ClearErrors};
use crate::settings::Settings;

/// How often readiness checks the pod watch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Watches our node and its pods, and starts reconciling the node.
#[allow(clippy::too_many_arguments, reason = "wiring, called once")]
pub(crate) fn watch_objects(
    settings: &Settings,
    client: &Client,
    pods: &Pods,
    published: &NodePublisher,
    health: &Arc<HealthMonitor>,
    view: watch::Sender<Option<NodeView>>,
    lost: watch::Receiver<Option<BTreeSet<PodUid>>>,
    readiness: &Readiness,
    metrics: &Metrics,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let (policy, kubelet) = (settings.topology_policy, settings.kubelet_config());
    // Before anything is advertised to the kubelet.
    topology::refresh(policy, &kubelet, published);
    let policy_watch = topology::run(policy, kubelet, published.clone(), stop.clone());
    tasks.spawn(policy_watch);
    let name = &settings.node_name;
    let nodes: Api<api::Node> = Api::all(client.clone());
    tasks.spawn(drive(
        nodes.clone(),
        watcher::Config::default().fields(&format!("metadata.name={name}")),
        Arc::new(NodeIndex(view.clone())),
        Freshness::default(),
        stop.clone(),
    ));
    let freshness = Freshness::default();
    tasks.spawn(drive(
        Api::<api::Pod>::all(client.clone()),
        watcher::Config::default().fields(&format!("spec.nodeName={name}")),
        Arc::new(PodIndex(pods.clone())),
        freshness.clone(),
        stop.clone(),
    ));
    tasks.spawn(report_pod_freshness(
        freshness,
        condition_reporter(readiness, PODS),
        stop.clone(),
    ));
    tasks.spawn(node::reconcile(
        node::NodeWriter {
            nodes,
            name: name.clone(),
            published: published.clone(),
            resource: settings.resource_name.clone(),
            capacity: CapacityResources::of(settings),
            pods: pods.clone(),
            view,
            metrics: metrics.clone(),
            clear: clear_errors(Arc::clone(health)),
            taken: Mutex::default(),
        },
        lost,
        condition_reporter(readiness, INVENTORY),
        stop.clone(),
    ));
}

fn clear_errors(health: Arc<HealthMonitor>) -> ClearErrors {
    Box::new(move |uuids| {
        let health = Arc::clone(&health);
        let clear = tokio::task::spawn_blocking(move || health.clear(&uuids));
        Box::pin(async move {
            let done = clear.await.map_err(|error| error.to_string())?;
            done.map_err(|error| error.to_string())
        })
    })
}

async fn report_pod_freshness(
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

struct PodIndex(Pods);

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

struct NodeIndex(watch::Sender<Option<NodeView>>);

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
