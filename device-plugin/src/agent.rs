//! The agent's parts, wired: driver, watches, socket, rounds, admin routes.
//!
//! Fed by: the settings, an opened driver, a Kubernetes client.
//! Must not: decide; wait for the API server before it serves the kubelet
//! (containers accepted before must start without it).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aliquot_core::{Mib, PodUid};
use aliquot_k8s::client::ClientError;
use aliquot_k8s::event::{self, Notes};
use aliquot_k8s::publisher::publish;
use aliquot_nvml::{self as nvml, Driver, NvmlError};
use aliquot_serve::{Readiness, admin, http};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1 as api;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accepted::{Store, StoreError};
use crate::environment::NodeRules;
use crate::figures::Units;
use crate::files::{self, FileError};
use crate::follow::{Beginning, Follower, State};
use crate::guard::Guard;
use crate::health::Watch;
use crate::inventory::Published;
use crate::kept::Kept;
use crate::metrics::Metrics;
use crate::modes::Modes;
use crate::modes::mig::names::Named;
use crate::node::Seen;
use crate::objects::{tell, watch_objects};
use crate::pod::Pod;
use crate::pods::Pods;
use crate::prestart::{Lookup, PreStart};
use crate::runtime::keep::Look;
use crate::settings::{Paths, Settings};
use crate::spare::Spares;
use crate::standing::{Standing, StandingError};
use crate::way_in::{self, Installed};
use crate::{housekeeping, leave, mps, plugins, selinux};

/// Readiness: the kubelet knows us.
pub const REGISTERED: &str = "registered";
/// Readiness: the node's annotation says what it should.
pub const INVENTORY: &str = "inventory";
/// Readiness: the driver answers.
const DRIVER: &str = "driver";
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
    /// The modes of the cards cannot be read back or stored.
    #[error(transparent)]
    Standing(#[from] StandingError),
    /// No client of the API server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// The admin address is taken.
    #[error(transparent)]
    Listen(#[from] http::BindError),
    /// A part of the agent ended before the agent did.
    #[error("the agent's part {0:?} ended; its log says why")]
    Ended(&'static str),
    /// A task of ours ended badly.
    #[error("a blocking task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Opens the driver and the client, and runs the agent until a signal ends it.
pub async fn start(settings: Settings) -> Result<(), AgentError> {
    let readiness = Readiness::new([REGISTERED, INVENTORY, PODS]);
    // Nobody sends us requests through a service: no linger.
    let stop = aliquot_serve::stop::on_signals(readiness.clone(), Duration::ZERO);
    let stop = stop.map_err(AgentError::Signals)?;
    let root = settings.driver_root.as_deref();
    let options = nvml::Options {
        library: nvml::root::library(&settings.nvml_library, root)?,
        ignored_xids: settings.xid_actions.ignored(),
    };
    let driver = spawn_blocking(move || nvml::Nvml::open(options)).await??;
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    let work = stop.child_token();
    run(settings.clone(), Arc::new(driver), client, readiness, work).await?;
    if stop.is_cancelled() {
        return Ok(());
    }
    leave::idle(&settings, stop).await
}

/// Runs the agent until `stop`, or until it left the node.
pub async fn run(
    settings: Settings,
    driver: Arc<dyn Driver>,
    client: Client,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let (metrics, mut registry) = Metrics::registered();
    // MIG instances keep their names over a reboot.
    let driver: Arc<dyn Driver> = Arc::new(Named::new(driver, settings.state_dir.join("mig")));
    let (facts, _) = readings(&driver).await?;
    log_notes(&facts);
    let paths = settings.paths();
    files::directory(&paths.seats, 0o700)?;
    files::directory(&paths.cdi, 0o755)?;
    let limiter = limiter(&settings, &paths)?;
    let spares = Arc::new(Spares::new(paths.spare.clone(), limiter.clone())?);
    selinux::settle(&settings.selinux_label, &paths);
    let store = Store::open(paths.accepted.clone())?;
    let modes = Modes::new(&driver, &settings.state_dir);
    let state = begin(&settings, &facts, &modes, &store, &paths)?;
    // Modes may have been made, and cards cut, since.
    let (facts, health) = readings(&driver).await?;
    let arrangement = state.arrangement(&settings.resource_name);
    let published = Published::new(facts.clone(), health.clone(), arrangement);
    published.host_reserve(settings.host_memory_reserve.map(Mib));
    registry.register_collector(Box::new(Units(published.clone())));
    let pods = Pods::default();
    let prestart = Arc::new(PreStart {
        kept: Kept::default(),
        node: settings.node_name.as_str().into(),
        usual: settings.resource_name.clone(),
        rules: NodeRules::new(!settings.disable_core_limit),
        tenant_may: Some(settings.tenant_may.clone()),
        modes,
        store: Mutex::new(store),
        spares: Arc::clone(&spares),
        paths: paths.clone(),
        device_list: settings.device_list,
        limiter,
        context: Mib(settings.context_memory),
        pods: pods.clone(),
        published: published.clone(),
        lookup: lookup(client.clone(), &settings.node_name),
    });
    refresh(&prestart).await?;

    let listener = http::bind(settings.listen).await?;
    let (lost_tx, lost_rx) = watch::channel(None::<BTreeSet<PodUid>>);
    let tasks = TaskTracker::new();
    let router = admin::router(readiness.clone(), Arc::new(registry));
    let admin = http::serve(http::plain(listener), router, stop.clone(), http::DRAIN);
    tasks.spawn(admin.map(drop));
    let notes = notes(&tasks, &client, &stop);
    let care = settings.care();
    let (watched, counted) = (Arc::clone(&prestart), metrics.clone());
    let daemons = mps::watch::Watch::new(&settings.state_dir, &driver, &prestart, &notes, &metrics);
    let guard = Guard::new(&tasks, &stop);
    guard.spawn("daemons", daemons.run(stop.clone()));
    let (read, told) = ((facts, health), notes.clone());
    let cards = spawn_blocking(move || Watch::new(driver, watched, care, told, counted, read));
    let cards = cards.await?;
    guard.spawn("spares", spares.keep(stop.clone()));
    let looks = Arc::clone(&cards).cards(tell(&readiness, DRIVER), stop.clone());
    guard.spawn("cards", looks);
    guard.spawn("pods", Arc::clone(&cards).pods(stop.clone()));
    let seen = watch::Sender::new(None::<Seen>);
    let left = leave::on_request(&tasks, &seen, &published, &stop);
    let follower = Follower {
        source: settings.profiles_config.clone(),
        defaults: settings.defaults(),
        path: paths.cards.clone(),
        prestart: Arc::clone(&prestart),
        cards: Arc::clone(&cards),
        node: settings.node_name.clone(),
        notes: notes.clone(),
        metrics: metrics.clone(),
    };
    let following = follower.run(state, seen.subscribe(), stop.clone());
    guard.spawn("follower", following);
    let runtime = Look::new(&settings, client.clone(), &published, &notes);
    guard.spawn("runtime", runtime.keep(seen.subscribe(), stop.clone()));
    let shown = seen.subscribe();
    watch_objects(
        &settings, &client, &pods, &published, &cards, seen, lost_rx, &readiness, &metrics, &tasks,
        &stop,
    );
    let plugins = plugins::keep_all(
        paths.plugins,
        Arc::clone(&prestart),
        metrics.clone(),
        shown,
        tell(&readiness, REGISTERED),
        stop.clone(),
    );
    guard.spawn("plugins", plugins);
    rounds(
        &settings, &guard, &prestart, lost_tx, &notes, &metrics, &stop,
    );
    tasks.close();
    tasks.wait().await;
    if left.load(Ordering::Relaxed) {
        leave::leave(&prestart, &client, &settings).await;
        return Ok(());
    }
    guard
        .ended()
        .map_or(Ok(()), |name| Err(AgentError::Ended(name)))
}

/// Where events are sent from.
fn notes(tasks: &TaskTracker, client: &Client, stop: &CancellationToken) -> Notes {
    let (notes, queue) = event::queue();
    let (client, stop) = (client.clone(), stop.clone());
    tasks.spawn(publish(client, "aliquot-device-plugin", queue, stop));
    notes
}

/// Housekeeping, and the audits.
fn rounds(
    settings: &Settings,
    guard: &Guard,
    prestart: &Arc<PreStart>,
    lost: watch::Sender<Option<BTreeSet<PodUid>>>,
    notes: &Notes,
    metrics: &Metrics,
    stop: &CancellationToken,
) {
    let rounds = housekeeping::rounds(
        Arc::clone(prestart),
        PathBuf::from("/proc"),
        Duration::from_secs(settings.housekeeping_seconds),
        lost,
        notes.clone(),
        metrics.clone(),
        stop.clone(),
    );
    guard.spawn("housekeeping", rounds);
    let audits = housekeeping::audits(
        Arc::clone(prestart),
        Duration::from_secs(settings.audit_seconds),
        notes.clone(),
        metrics.clone(),
        stop.clone(),
    );
    guard.spawn("audits", audits);
}

/// The cards as they were stored, or as a node begins. Blocks for as long as modes are made.
fn begin(
    settings: &Settings,
    facts: &nvml::Inventory,
    modes: &Modes,
    store: &Store,
    paths: &Paths,
) -> Result<State, StandingError> {
    let beginning = Beginning {
        configured: settings.profiles_config.is_some(),
        facts,
        defaults: &settings.defaults(),
        modes,
        shares: &store.all().cloned().collect::<Vec<_>>(),
        path: &paths.cards,
    };
    let standing = Standing::load(&paths.cards)?;
    tokio::task::block_in_place(|| State::begin(standing, &beginning))
}

/// Facts and health of all cards.
async fn readings(
    driver: &Arc<dyn Driver>,
) -> Result<(nvml::Inventory, Vec<nvml::CardHealth>), AgentError> {
    let driver = Arc::clone(driver);
    let read = move || Ok::<_, NvmlError>((driver.inventory()?, driver.health()?));
    Ok(spawn_blocking(read).await??)
}

fn log_notes(facts: &nvml::Inventory) {
    for note in &facts.notes {
        tracing::warn!(card = ?note.card, call = note.call, problem = note.problem, "the driver did not answer");
    }
}

/// What holds the limits in containers, put into its place.
fn limiter(settings: &Settings, paths: &Paths) -> Result<Option<Installed>, FileError> {
    let limiter = settings.limiter_library.as_deref();
    let limiter = limiter.map(|source| way_in::install(source, &paths.limiter));
    if limiter.is_none() {
        tracing::warn!("no --limiter-library: memory limits are shown and not held");
    }
    limiter.transpose()
}

/// NVIDIA's own spec may have changed while we were away.
async fn refresh(prestart: &Arc<PreStart>) -> Result<(), tokio::task::JoinError> {
    let refreshing = Arc::clone(prestart);
    match spawn_blocking(move || refreshing.refresh()).await? {
        Ok(entries) => tracing::info!(entries, "accepted shares brought up to date"),
        Err(error) => tracing::warn!(%error, "accepted shares not brought up to date"),
    }
    Ok(())
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
