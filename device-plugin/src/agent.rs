//! The agent's parts, wired: driver, watches, socket, rounds, admin routes.
//!
//! Fed by: the settings, an opened driver, a Kubernetes client.
//! Must not: decide; wait for the API server before it serves the kubelet
//! (containers accepted before must start without it).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_k8s::event;
use aliquot_k8s::publisher::publish;
use aliquot_k8s::watch::{Freshness, Index, drive};
use aliquot_nvml::{Driver, NvmlError};
use aliquot_profiles::Defaults;
use aliquot_serve::{Readiness, admin, http};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1 as api;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accepted::{Store, StoreError};
use crate::environment::NodeRules;
use crate::files::{self, FileError};
use crate::health::Watch;
use crate::inventory::Published;
use crate::metrics::Metrics;
use crate::modes::Modes;
use crate::modes::mig::names::Named;
use crate::node::{self, Seen};
use crate::pod::Pod;
use crate::pods::Pods;
use crate::prestart::{Lookup, PreStart};
use crate::settings::Settings;
use crate::units::Arrangement;
use crate::{housekeeping, mps, plugins, topology, way_in};

/// How often readiness looks at the pod watch.
const LOOK: Duration = Duration::from_secs(1);

/// Readiness: the kubelet knows us.
pub const REGISTERED: &str = "registered";
/// Readiness: the node's annotation says what it should.
pub const INVENTORY: &str = "inventory";
/// Readiness: the node's pods are known and their watch stands.
pub const PODS: &str = "pods";

/// Why the agent cannot run.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The driver does not tell its cards.
    #[error("cannot read the GPUs: {0}")]
    Driver(#[from] NvmlError),
    /// A directory cannot be made.
    #[error(transparent)]
    Directory(#[from] FileError),
    /// The accepted shares cannot be read back.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The admin address is taken.
    #[error(transparent)]
    Listen(#[from] http::BindError),
    /// A task of ours ended badly.
    #[error("a blocking task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Runs the agent until `stop`.
pub async fn run(
    settings: Settings,
    driver: Arc<dyn Driver>,
    client: Client,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let (metrics, registry) = Metrics::registered();
    let defaults = Defaults {
        split: settings.device_split_count,
        memory_scaling: settings.device_memory_scaling,
    };
    // MIG instances keep their names over a reboot.
    let names = settings.state_dir.join("mig");
    let driver: Arc<dyn Driver> = Arc::new(Named::new(driver, names));
    let reader = Arc::clone(&driver);
    let (facts, health) =
        spawn_blocking(move || Ok::<_, NvmlError>((reader.inventory()?, reader.health()?)))
            .await??;
    for note in &facts.notes {
        tracing::warn!(card = ?note.card, call = note.call, problem = note.problem, "the driver did not answer");
    }
    let paths = settings.paths();
    files::directory(&paths.seats, 0o700)?;
    files::directory(&paths.cdi, 0o755)?;
    let limiter = settings.limiter_library.as_deref();
    let limiter = limiter.map(|source| way_in::install(source, &paths.limiter));
    let limiter = limiter.transpose()?;
    if limiter.is_none() {
        tracing::warn!("no --limiter-library: memory limits are shown and not held");
    }
    let arrangement = Arrangement::built_in(&facts, &settings.resource_name, &defaults);
    let published = Published::new(facts.clone(), health.clone(), arrangement);
    let pods = Pods::default();
    let prestart = Arc::new(PreStart {
        node: settings.node_name.as_str().into(),
        usual: settings.resource_name.clone(),
        rules: NodeRules {
            core_limit: !settings.disable_core_limit,
        },
        modes: Modes::new(&driver, &settings.state_dir),
        store: Mutex::new(Store::open(paths.accepted.clone())?),
        paths: paths.clone(),
        limiter,
        pods: pods.clone(),
        published: published.clone(),
        lookup: lookup(client.clone(), &settings.node_name),
    });
    // NVIDIA's own spec may have changed while we were away.
    let refreshing = Arc::clone(&prestart);
    match spawn_blocking(move || refreshing.refresh()).await? {
        Ok(entries) => tracing::info!(entries, "accepted shares brought up to date"),
        Err(error) => tracing::warn!(%error, "accepted shares not brought up to date"),
    }

    let listener = http::bind(settings.listen).await?;
    let (lost_tx, lost_rx) = watch::channel(None::<BTreeSet<PodUid>>);
    let tasks = TaskTracker::new();
    let router = admin::router(readiness.clone(), Arc::new(registry));
    let admin = http::serve(http::plain(listener), router, stop.clone(), http::DRAIN);
    tasks.spawn(admin.map(drop));
    let (notes, note_rx) = event::queue();
    tasks.spawn(publish(
        client.clone(),
        "aliquot-device-plugin",
        note_rx,
        stop.clone(),
    ));
    let care = settings.care();
    let (watched, counted) = (Arc::clone(&prestart), metrics.clone());
    let daemons = mps::watch::Watch::new(&settings.state_dir, &driver, &prestart, &notes, &metrics);
    tasks.spawn(daemons.run(stop.clone()));
    let read = (facts, health);
    let cards = spawn_blocking(move || Watch::new(driver, watched, care, notes, counted, read));
    let cards = cards.await?;
    tasks.spawn(Arc::clone(&cards).cards(stop.clone()));
    tasks.spawn(cards.pods(stop.clone()));
    watch_objects(
        &settings, &client, &pods, &published, lost_rx, &readiness, &metrics, &tasks, &stop,
    );
    tasks.spawn(plugins::keep_all(
        paths.plugins,
        Arc::clone(&prestart),
        metrics.clone(),
        tell(&readiness, REGISTERED),
        stop.clone(),
    ));
    tasks.spawn(housekeeping::rounds(
        Arc::clone(&prestart),
        PathBuf::from("/proc"),
        Duration::from_secs(settings.housekeeping_seconds),
        lost_tx,
        metrics.clone(),
        stop.clone(),
    ));
    let interval = Duration::from_secs(settings.audit_seconds);
    tasks.spawn(housekeeping::audits(
        prestart,
        interval,
        metrics,
        stop.clone(),
    ));
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// Watches our node and its pods, and keeps the node written.
#[allow(clippy::too_many_arguments, reason = "wiring, called once")]
fn watch_objects(
    settings: &Settings,
    client: &Client,
    pods: &Pods,
    published: &Published,
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
    let seen = watch::Sender::new(None::<Seen>);
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
        },
        lost,
        tell(readiness, INVENTORY),
        stop.clone(),
    ));
}

/// Tells a readiness condition: `None` holds.
fn tell(
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

/// One list of this node's pods, for a pod that the watch does not show yet.
fn lookup(client: Client, node: &str) -> Lookup {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    Arc::new(move |uid| {
        let pods: Api<api::Pod> = Api::all(client.clone());
        let params = params.clone();
        Box::pin(async move {
            let list = pods.list(&params).await?;
            let mut found = list.items.iter().filter_map(Pod::read);
            Ok(found.find(|pod| pod.kubelet_uid == uid))
        })
    })
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
