//! Wires the agent's parts: driver, watches, plugins, housekeeping, admin routes. It serves the
//! kubelet before the API server answers: containers accepted earlier must start without it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aliquot_core::{Mib, PodUid};
use aliquot_k8s::client::ClientError;
use aliquot_k8s::event::{self, EventSender};
use aliquot_k8s::publisher::publish;
use aliquot_nvml::{self as nvml, Driver, DriverAccess, NvmlError};
use aliquot_serve::Readiness;
use k8s_openapi::api::core::v1 as api;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{self, AdminError, DRIVER, INVENTORY, PODS, REGISTERED, condition_reporter};
use crate::allocation::accepted::{Store, StoreError};
use crate::allocation::housekeeping;
use crate::allocation::instance_check;
use crate::allocation::node_allocations::{CheckpointCache, NodeAllocations};
use crate::allocation::prepare::Preparer;
use crate::allocation::resize;
use crate::allocation::start::{ContainerStarter, Lookup};
use crate::allocation::validation::Validator;
use crate::container_edits::driver_spec::SpecGenerator;
use crate::container_edits::injection::{self, InstalledLimiter};
use crate::driver_wait::{self, DriverWaitError};
use crate::files::{self, FileError};
use crate::gpus::inventory::NodePublisher;
use crate::health::errors::ErrorRecord;
use crate::health::gpus::HealthMonitor;
use crate::health::mps::MpsMonitor;
use crate::kubelet::plugin::CallHandlers;
use crate::kubelet::plugins;
use crate::kubelet::resource_owner::{AdvertisedLists, ResourceOwnerMonitor};
use crate::layout::reconciler::{LayoutReconciler, ReconcilerState, StartInputs};
use crate::layout::stored_layout::{StoredLayout, StoredLayoutError};
use crate::metrics::Metrics;
use crate::modes::SharingModes;
use crate::node_view::NodeView;
use crate::paths::Paths;
use crate::pods::Pods;
use crate::pods::pod::Pod;
use crate::publish::cleanup;
use crate::publish::device_metrics::DeviceCollector;
use crate::publish::objects::watch_objects;
use crate::runtime::monitor::RuntimeMonitor;
use crate::selinux;
use crate::settings::Settings;
use crate::task_supervisor::TaskSupervisor;

#[derive(Debug, Error)]
pub enum AgentError {
    #[error("cannot read the GPUs: {0}")]
    Driver(#[from] NvmlError),
    #[error(transparent)]
    Directory(#[from] FileError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    StoredLayout(#[from] StoredLayoutError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    DriverWait(#[from] DriverWaitError),
    #[error("the agent's task {0:?} ended unexpectedly; see the log above")]
    Ended(&'static str),
    #[error("a blocking task panicked: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Waits for the driver, and runs the agent until a signal ends it.
pub async fn start(settings: Settings) -> Result<(), AgentError> {
    let readiness = Readiness::new([REGISTERED, INVENTORY, PODS]);
    // No Service sends requests here: nothing to wait for before stopping.
    let stop = aliquot_serve::stop::on_signals(readiness.clone(), Duration::ZERO);
    let stop = stop.map_err(AgentError::Signals)?;
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    let (library, root) = (settings.nvml_library.clone(), settings.driver_root.clone());
    let xids = settings.xid_actions.clone();
    let open = move || {
        nvml::Nvml::open(nvml::Options {
            library: nvml::root::library(&library, root.as_deref())?,
            xids: xids.clone(),
        })
    };
    let driver = driver_wait::open(&settings, &client, &readiness, open, &stop).await?;
    let Some(driver) = driver else { return Ok(()) };
    let work = stop.child_token();
    run(settings.clone(), Arc::new(driver), client, readiness, work).await?;
    if stop.is_cancelled() {
        return Ok(());
    }
    Ok(admin::serve_after_cleanup(&settings, stop).await?)
}

#[allow(
    clippy::too_many_lines,
    reason = "the parts in the order of their start"
)]
pub async fn run(
    settings: Settings,
    driver: Arc<dyn Driver>,
    client: Client,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let (metrics, mut registry) = Metrics::registered();
    let collected = Arc::<OnceLock<NodePublisher>>::default();
    registry.register_collector(Box::new(DeviceCollector(Arc::clone(&collected))));
    // The kubelet restarts an agent that does not answer, and GPUs may be partitioned below.
    let admin = admin::serve(&settings, &client, &readiness, registry, stop.clone()).await?;
    let tasks = TaskTracker::new();
    tasks.spawn(admin);
    let (facts, _) = readings(&driver).await?;
    log_driver_problems(&facts);
    let paths = settings.paths();
    files::directory(&paths.container_directories, 0o700)?;
    files::directory(&paths.cdi, 0o755)?;
    create_driver_access(&settings);
    let limiter = install_limiter(&settings, &paths)?;
    selinux::label_state(
        &settings.selinux_label,
        &paths.container_directories,
        &paths.limiter,
        &paths.mps,
    );
    let store = Store::open(paths.accepted.clone())?;
    let modes = SharingModes::new(&driver, &settings.state_dir);
    let errors = ErrorRecord::of_this_boot(settings.state_dir.join("health.json"));
    driver.restore_errors(errors.load());
    let state = initial_state(&settings, &facts, &modes, &store, &paths)?;
    // Applying the layout may have changed modes and MIG instances.
    let (facts, health) = readings(&driver).await?;
    let layout = state.node_layout(&settings.resource_name);
    let published = NodePublisher::new(facts.clone(), health.clone(), layout);
    published.set_host_reserve(settings.host_memory_reserve.map(Mib));
    collected.get_or_init(|| published.clone());
    let pods = Pods::default();
    let allocations = Arc::new(NodeAllocations {
        default_resource: settings.resource_name.clone(),
        paths: paths.clone(),
        modes,
        pods: pods.clone(),
        published: published.clone(),
        store: Mutex::new(store),
        checkpoint: CheckpointCache::default(),
    });
    let handlers = call_handlers(&settings, &allocations, limiter, &client, &metrics);
    let preparer = &handlers.starter.preparer;
    let generator = Arc::new(SpecGenerator::new(&paths, settings.toolkit.clone()));
    generator.start(&facts).await;
    refresh(preparer).await?;

    let (lost_tx, lost_rx) = watch::channel(None::<BTreeSet<PodUid>>);
    let notes = event_queue(&tasks, &client, &stop);
    let policy = settings.health_policy();
    let (watched, counted) = (Arc::clone(&allocations), metrics.clone());
    let daemons = MpsMonitor::new(&settings.state_dir, &driver, &allocations, &notes, &metrics);
    let supervisor = TaskSupervisor::new(&tasks, &stop);
    supervisor.spawn("mps", daemons.run(stop.clone()));
    let (read, events) = ((facts, health), notes.clone());
    let health_monitor = spawn_blocking(move || {
        HealthMonitor::new(driver, errors, watched, policy, events, counted, read)
    });
    let health_monitor = health_monitor.await?;
    let driver_watch = Arc::clone(&health_monitor)
        .watch_driver(condition_reporter(&readiness, DRIVER), stop.clone());
    supervisor.spawn("health", driver_watch);
    supervisor.spawn("pods", Arc::clone(&health_monitor).watch_pods(stop.clone()));
    let node_view = watch::Sender::new(None::<NodeView>);
    let withdrawn = cleanup::on_request(&tasks, &node_view, &published, &stop);
    let reconciler = LayoutReconciler {
        configuration: settings.profiles_config.clone(),
        defaults: settings.defaults(),
        layout_file: paths.layout.clone(),
        allocations: Arc::clone(&allocations),
        health: Arc::clone(&health_monitor),
        node: settings.node_name.clone(),
        notes: notes.clone(),
        metrics: metrics.clone(),
    };
    let reconciling = reconciler.run(state, node_view.subscribe(), stop.clone());
    supervisor.spawn("layout", reconciling);
    let hook = handlers.starter.preparer.limiter();
    let hook = hook.map(|limiter| limiter.hook.clone());
    let runtime = RuntimeMonitor::new(&settings, &published, &notes, &generator, hook);
    let generating = generator.run(published.clone(), stop.clone());
    supervisor.spawn("nvidia-cdi", generating);
    supervisor.spawn("runtime", runtime.run(node_view.subscribe(), stop.clone()));
    let shown = node_view.subscribe();
    watch_objects(
        &settings,
        &client,
        &pods,
        &published,
        &health_monitor,
        node_view,
        lost_rx,
        &readiness,
        &metrics,
        &tasks,
        &stop,
    );
    let plugins = plugins::register_all(
        paths.plugins,
        Arc::clone(&handlers),
        shown,
        condition_reporter(&readiness, REGISTERED),
        stop.clone(),
    );
    supervisor.spawn("plugins", plugins);
    spawn_housekeeping(&settings, &supervisor, &handlers, lost_tx, &notes, &stop);
    let resizes = resize::run(Arc::clone(&handlers.starter), stop.clone());
    supervisor.spawn("resizes", resizes);
    tasks.close();
    tasks.wait().await;
    if withdrawn.load(Ordering::Relaxed) {
        cleanup::clean_up(&allocations, &client, &settings).await;
        return Ok(());
    }
    supervisor
        .failed_task()
        .map_or(Ok(()), |name| Err(AgentError::Ended(name)))
}

fn event_queue(tasks: &TaskTracker, client: &Client, stop: &CancellationToken) -> EventSender {
    let (notes, queue) = event::queue();
    let (client, stop) = (client.clone(), stop.clone());
    tasks.spawn(publish(client, "aliquot-device-plugin", queue, stop));
    notes
}

fn call_handlers(
    settings: &Settings,
    allocations: &Arc<NodeAllocations>,
    limiter: Option<InstalledLimiter>,
    client: &Client,
    metrics: &Metrics,
) -> Arc<CallHandlers> {
    let context = settings.context_memory.map(Mib);
    let starter = ContainerStarter {
        allocations: Arc::clone(allocations),
        validator: Validator {
            node: settings.node_name.as_str().into(),
            rules: settings.node_rules(),
            namespace_rights: Some(settings.namespace_rights.clone()),
        },
        preparer: Arc::new(Preparer::new(Arc::clone(allocations), limiter, context)),
        lookup: lookup(client.clone(), &settings.node_name),
    };
    Arc::new(CallHandlers {
        starter: Arc::new(starter),
        advertised: AdvertisedLists::default(),
        metrics: metrics.clone(),
    })
}

fn spawn_housekeeping(
    settings: &Settings,
    supervisor: &TaskSupervisor,
    handlers: &CallHandlers,
    lost: watch::Sender<Option<BTreeSet<PodUid>>>,
    notes: &EventSender,
    stop: &CancellationToken,
) {
    let interval = Duration::from_secs(settings.housekeeping_seconds);
    let housekeeping = housekeeping::run(
        Arc::clone(&handlers.starter.preparer),
        PathBuf::from("/proc"),
        interval,
        lost,
        notes.clone(),
        handlers.metrics.clone(),
        stop.clone(),
    );
    supervisor.spawn("housekeeping", housekeeping);
    let owners = ResourceOwnerMonitor {
        allocations: Arc::clone(&handlers.starter.allocations),
        advertised: handlers.advertised.clone(),
        node: settings.node_name.clone(),
        notes: notes.clone(),
        metrics: handlers.metrics.clone(),
    };
    supervisor.spawn("resource-owners", owners.run(interval, stop.clone()));
    let instances = instance_check::run(
        Arc::clone(&handlers.starter.allocations),
        Duration::from_secs(settings.audit_seconds),
        notes.clone(),
        handlers.metrics.clone(),
        stop.clone(),
    );
    supervisor.spawn("mig-instances", instances);
}

/// The stored layout, or that of a new node. Blocks while modes are applied.
fn initial_state(
    settings: &Settings,
    facts: &nvml::DriverInventory,
    modes: &SharingModes,
    store: &Store,
    paths: &Paths,
) -> Result<ReconcilerState, StoredLayoutError> {
    let inputs = StartInputs {
        configured: settings.profiles_config.is_some(),
        facts,
        defaults: &settings.defaults(),
        modes,
        accepted: &store.all().cloned().collect::<Vec<_>>(),
        path: &paths.layout,
    };
    let stored = StoredLayout::load(&paths.layout)?;
    tokio::task::block_in_place(|| ReconcilerState::start(stored, &inputs))
}

async fn readings(
    driver: &Arc<dyn Driver>,
) -> Result<(nvml::DriverInventory, Vec<nvml::DeviceHealth>), AgentError> {
    let driver = Arc::clone(driver);
    let read = move || Ok::<_, NvmlError>((driver.inventory()?, driver.health()?));
    Ok(spawn_blocking(read).await??)
}

fn log_driver_problems(facts: &nvml::DriverInventory) {
    for note in &facts.notes {
        tracing::warn!(gpu = ?note.gpu, call = note.call, problem = note.problem, "the NVIDIA driver did not answer a call; what it would have reported is unknown");
    }
}

/// Creates the files by which the monitor closes the driver on request.
fn create_driver_access(settings: &Settings) {
    if let Err(error) = DriverAccess::new(&settings.state_dir).create() {
        tracing::warn!(%error, "cannot create the files by which the monitor closes the driver for a change of the MIG mode");
    }
}

fn install_limiter(
    settings: &Settings,
    paths: &Paths,
) -> Result<Option<InstalledLimiter>, FileError> {
    let limiter = settings.limiter_library.as_deref();
    let limiter = limiter.map(|source| injection::install(source, &paths.limiter, &paths.programs));
    if limiter.is_none() {
        tracing::warn!(
            "--limiter-library is not set: memory and compute limits are published but not enforced"
        );
    }
    limiter.transpose()
}

/// Updates the files of accepted pods: NVIDIA's own spec may have changed while the agent was down.
async fn refresh(preparer: &Arc<Preparer>) -> Result<(), tokio::task::JoinError> {
    let refreshing = Arc::clone(preparer);
    match spawn_blocking(move || refreshing.refresh()).await? {
        Ok(refreshed) => {
            let containers = refreshed.containers;
            tracing::info!(containers, "updated the files of accepted pods");
        }
        Err(error) => tracing::warn!(%error, "cannot update the files of accepted pods"),
    }
    Ok(())
}

/// Lists this node's pods once, for a pod that the watch has not delivered yet.
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
