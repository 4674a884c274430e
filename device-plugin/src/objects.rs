//! The objects of the API server that the agent watches, and the Node that it keeps written.
//!
//! Fed by: a client. Must not: decide.

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

use crate::agent::{INVENTORY, PODS};
use crate::health::Watch;
use crate::inventory::Published;
use crate::metrics::Metrics;
use crate::node::{self, Clear, Seen};
use crate::pod::Pod;
use crate::pods::Pods;
use crate::settings::Settings;
use crate::topology;

/// How often readiness looks at the pod watch.
const LOOK: Duration = Duration::from_secs(1);

/// Watches our node and its pods, and keeps the node written.
#[allow(clippy::too_many_arguments, reason = "wiring, called once")]
pub(crate) fn watch_objects(
    settings: &Settings,
    client: &Client,
    pods: &Pods,
    published: &Published,
    cards: &Arc<Watch>,
    seen: watch::Sender<Option<Seen>>,
    lost: watch::Receiver<Option<BTreeSet<PodUid>>>,
    readiness: &Readiness,
    metrics: &Metrics,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let (policy, kubelet) = (settings.topology_policy, settings.kubelet_config());
    // Before anything is shown to the kubelet.
    topology::look(policy, &kubelet, published, &mut String::new());
    let keeping = topology::keep(policy, kubelet, published.clone(), stop.clone());
    tasks.spawn(keeping);
    let name = &settings.node_name;
    let nodes: Api<api::Node> = Api::all(client.clone());
    tasks.spawn(drive(
        nodes.clone(),
        watcher::Config::default().fields(&format!("metadata.name={name}")),
        Arc::new(NodeIndex(seen.clone())),
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
    tasks.spawn(look_at_pods(freshness, tell(readiness, PODS), stop.clone()));
    tasks.spawn(node::keep_written(
        node::Writer {
            nodes,
            name: name.clone(),
            published: published.clone(),
            resource: settings.resource_name.clone(),
            feature_labels: settings.feature_labels,
            capacity: settings.capacity(),
            pods: pods.clone(),
            seen,
            metrics: metrics.clone(),
            clear: clearing(Arc::clone(cards)),
            taken: Mutex::default(),
        },
        lost,
        tell(readiness, INVENTORY),
        stop.clone(),
    ));
}

/// Follows the owner's word on a blocking thread.
fn clearing(cards: Arc<Watch>) -> Clear {
    Box::new(move |uuids| {
        let cards = Arc::clone(&cards);
        let clear = tokio::task::spawn_blocking(move || cards.clear(&uuids));
        Box::pin(async move {
            let done = clear.await.map_err(|error| error.to_string())?;
            done.map_err(|error| error.to_string())
        })
    })
}

/// Tells a readiness condition: `None` holds.
pub(crate) fn tell(
    readiness: &Readiness,
    condition: &'static str,
) -> impl Fn(Option<String>) + Send + Sync + use<> {
    let readiness = readiness.clone();
    move |fault| match fault {
        None => readiness.holds(condition),
        Some(reason) => readiness.fails(condition, reason),
    }
}

async fn look_at_pods(
    freshness: Freshness,
    state: impl Fn(Option<String>),
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        state(freshness.fault(Instant::now()).map(str::to_owned));
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK) => {}
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
            self.0.delete(&pod.kubelet_uid);
        }
    }

    fn replace(&self, listed: Vec<Option<Pod>>) {
        self.0.reset(listed.into_iter().flatten().collect());
    }
}

struct NodeIndex(watch::Sender<Option<Seen>>);

impl Index<api::Node> for NodeIndex {
    type Entry = Seen;

    fn entry(&self, object: api::Node) -> Seen {
        Seen::read(&object)
    }

    fn apply(&self, object: api::Node) {
        self.0.send_replace(Some(Seen::read(&object)));
    }

    fn delete(&self, _: api::Node) {
        self.0.send_replace(None);
    }

    fn replace(&self, listed: Vec<Seen>) {
        self.0.send_replace(listed.into_iter().next());
    }
}
