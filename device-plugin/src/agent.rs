//! Wires the agent's parts: driver, watches, plugins, housekeeping, admin routes. It serves the
//! kubelet before the API server answers: containers accepted earlier must start without it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aliquot_core::{Mib, PodUid};
use aliquot_k8s::bare::Bare;
use aliquot_k8s::client::ClientError;
use aliquot_k8s::event::{self, EventSender};
use aliquot_k8s::publisher::publish;
use aliquot_k8s::watch::{Freshness, drive};
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
use crate::driver_wait;
use crate::files::{self, FileError};
use crate::gpus::inventory::NodePublisher;
use crate::health::errors::ErrorRecord;
use crate::health::gpus::HealthMonitor;
use crate::health::mps::MpsMonitor;
use crate::kubelet::plugin::CallHandlers;
use crate::kubelet::plugins;
use crate::kubelet::resource_owner::{AdvertisedLists, ResourceOwnerMonitor};
use crate::kubelet::topology;
use crate::layout::reconciler::{LayoutReconciler, ReconcilerState, StartInputs};
use crate::layout::stored_layout::{StoredLayout, StoredLayoutError};
use crate::metrics::Metrics;
use crate::modes::SharingModes;
use crate::node_view::NodeView;
use crate::paths::Paths;
use crate::pods::Pods;
use crate::pods::pod::Pod;
use crate::publish::capacity::CapacityResources;
use crate::publish::cleanup;
use crate::publish::device_metrics::DeviceCollector;
use crate::publish::node::{self, NodeWriter};
use crate::publish::objects::{NodeIndex, PodIndex, clear_errors, report_pod_freshness};
use crate::runtime::monitor::RuntimeMonitor;
use crate::selinux;
use crate::settings::Settings;
use crate::task_supervisor::TaskSupervisor;

/// How long an agent that has cleaned up its node waits to be removed.
const REMOVAL_TIMEOUT: Duration = Duration::from_mins(10);

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
    #[error("the agent's task {0:?} ended unexpectedly; see the log above")]
    Ended(&'static str),
    #[error("a blocking task panicked: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Runs the agent until a signal ends it.
pub async fn start(settings: Settings) -> Result<(), AgentError> {
    let readiness = Readiness::new([REGISTERED, INVENTORY, PODS]);
    // No Service sends requests here: nothing to wait for before stopping.
    let stop = aliquot_serve::stop::on_signals(readiness.clone(), Duration::ZERO);
    let stop = stop.map_err(AgentError::Signals)?;
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    let (library, root) = (settings.nvml_library.clone(), settings.driver_root.clone());
    let xids = settings.xid_actions.clone();
    let open = move || -> Result<Arc<dyn Driver>, NvmlError> {
        Ok(Arc::new(nvml::Nvml::open(nvml::Options {
            library: nvml::root::library(&library, root.as_deref())?,
            xids: xids.clone(),
        })?))
    };
    let work = stop.child_token();
    run(settings.clone(), open, client, readiness, work).await?;
    if stop.is_cancelled() {
        return Ok(());
    }
    Ok(until_removed(admin::serve_after_cleanup(&settings, stop)).await?)
}

/// Waits for the removal of an agent that has cleaned up its node. Where nobody removes it, the
/// request was a mistake, such as the Job of the uninstallation applied as an ordinary object: the
/// process ends, and the one that the kubelet starts serves the node again.
async fn until_removed<E>(served: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    let Ok(ended) = tokio::time::timeout(REMOVAL_TIMEOUT, served).await else {
        tracing::warn!(wait = ?REMOVAL_TIMEOUT, "nobody removed the agent; serving the node again");
        return Ok(());
    };
    ended
}

/// What the tasks of an agent share.
struct Agent {
    settings: Settings,
    client: Client,
    readiness: Readiness,
    stop: CancellationToken,
    tasks: TaskTracker,
    supervisor: TaskSupervisor,
    notes: EventSender,
    metrics: Metrics,
    allocations: Arc<NodeAllocations>,
    handlers: Arc<CallHandlers>,
    generator: Arc<SpecGenerator>,
    /// Our Node object as it was last seen.
    node_view: watch::Sender<Option<NodeView>>,
}

/// The running pods that the kubelet's checkpoint does not list.
type LostPods = Option<BTreeSet<PodUid>>;

/// Runs an agent, once `open` opens the driver, until `stop`.
pub async fn run<F>(
    settings: Settings,
    open: F,
    client: Client,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), AgentError>
where
    F: Fn() -> Result<Arc<dyn Driver>, NvmlError> + Clone + Send + 'static,
{
    let (metrics, mut registry) = Metrics::registered();
    let collected = Arc::<OnceLock<NodePublisher>>::default();
    registry.register_collector(Box::new(DeviceCollector(Arc::clone(&collected))));
    // The kubelet restarts an agent that does not answer, and GPUs may be partitioned below.
    let admin = admin::serve(&settings, &client, &readiness, registry, stop.clone()).await?;
    let tasks = TaskTracker::new();
    tasks.spawn(admin);
    let node = &settings.node_name;
    let opened = driver_wait::open(node, &client, &readiness, &metrics, open, &stop).await?;
    let Some(driver) = opened else {
        tasks.close();
        tasks.wait().await;
        return Ok(());
    };
    let PreparedNode {
        allocations,
        limiter,
        errors,
        layout,
        readings,
    } = PreparedNode::new(&settings, &driver).await?;
    collected.get_or_init(|| allocations.published.clone());
    let toolkit = settings.toolkit.clone();
    let agent = Agent {
        supervisor: TaskSupervisor::new(&tasks, &stop),
        notes: event_queue(&tasks, &client, &stop),
        handlers: call_handlers(&settings, &allocations, limiter, &client, &metrics),
        generator: Arc::new(SpecGenerator::new(&allocations.paths, toolkit)),
        node_view: watch::Sender::new(None),
        settings,
        client,
        readiness,
        stop,
        tasks,
        metrics,
        allocations,
    };
    let withdrawn = agent.tasks.spawn(cleanup::on_request(
        agent.node_view.subscribe(),
        agent.allocations.published.clone(),
        agent.stop.clone(),
    ));
    agent.generator.start(&readings.0).await;
    refresh(&agent.handlers.starter.preparer).await?;
    let (lost_tx, lost_rx) = watch::channel(LostPods::None);
    let health = agent.start_health(driver, errors, layout, readings).await?;
    agent.start_publishing(health, lost_rx);
    agent.start_kubelet(lost_tx);
    agent.tasks.close();
    agent.tasks.wait().await;
    if withdrawn.await.unwrap_or(false) {
        cleanup::clean_up(&agent.allocations, &agent.client, &agent.settings).await;
        return Ok(());
    }
    let failed = agent.supervisor.failed_task();
    failed.map_or(Ok(()), |name| Err(AgentError::Ended(name)))
}

impl Agent {
    /// Watches the GPUs and the MPS daemons, and gives each GPU the mode of the node's profile.
    async fn start_health(
        &self,
        driver: Arc<dyn Driver>,
        errors: ErrorRecord,
        layout: ReconcilerState,
        readings: Readings,
    ) -> Result<Arc<HealthMonitor>, AgentError> {
        let stop = || self.stop.clone();
        let daemons = MpsMonitor::new(
            &self.settings.state_dir,
            &driver,
            &self.allocations,
            &self.notes,
            &self.metrics,
        );
        self.supervisor.spawn("mps", daemons.run(stop()));
        let (allocations, policy) = (Arc::clone(&self.allocations), self.settings.health_policy());
        let (notes, metrics) = (self.notes.clone(), self.metrics.clone());
        let health = spawn_blocking(move || {
            HealthMonitor::new(
                driver,
                errors,
                allocations,
                policy,
                notes,
                metrics,
                readings,
            )
        });
        let health = health.await?;
        let report = condition_reporter(&self.readiness, DRIVER);
        let driver_watch = Arc::clone(&health).watch_driver(report, stop());
        self.supervisor.spawn("health", driver_watch);
        self.supervisor
            .spawn("pods", Arc::clone(&health).watch_pods(stop()));
        let reconciler = LayoutReconciler {
            configuration: self.settings.profiles_config.clone(),
            defaults: self.settings.defaults(),
            layout_file: self.allocations.paths.layout.clone(),
            allocations: Arc::clone(&self.allocations),
            health: Arc::clone(&health),
            node: self.settings.node_name.clone(),
            notes: self.notes.clone(),
            metrics: self.metrics.clone(),
        };
        let reconciling = reconciler.run(layout, self.node_view.subscribe(), stop());
        self.supervisor.spawn("layout", reconciling);
        Ok(health)
    }

    /// Watches our Node and its pods, the kubelet's configuration and the container runtime, and
    /// keeps the Node object as it should be.
    fn start_publishing(&self, health: Arc<HealthMonitor>, lost: watch::Receiver<LostPods>) {
        let (settings, published) = (&self.settings, &self.allocations.published);
        let stop = || self.stop.clone();
        let limiter = self.handlers.starter.preparer.edits().limiter();
        let hook = limiter.map(|limiter| limiter.hook.clone());
        let runtime = RuntimeMonitor::new(settings, published, &self.notes, &self.generator, hook);
        let generating = Arc::clone(&self.generator).run(published.clone(), stop());
        self.supervisor.spawn("nvidia-cdi", generating);
        let inspecting = runtime.run(self.node_view.subscribe(), stop());
        self.supervisor.spawn("runtime", inspecting);

        let (policy, kubelet) = (settings.topology_policy, settings.kubelet_config());
        // Before anything is advertised to the kubelet.
        topology::refresh(policy, &kubelet, published);
        let policy_watch = topology::run(policy, kubelet, published.clone(), stop());
        self.tasks.spawn(policy_watch);
        let name = &settings.node_name;
        let nodes: Api<api::Node> = Api::all(self.client.clone());
        self.tasks.spawn(drive::<Bare<api::Node>, api::Node>(
            Api::all(self.client.clone()),
            Some(format!("metadata.name={name}")),
            Arc::new(NodeIndex(self.node_view.clone())),
            Freshness::default(),
            stop(),
        ));
        let freshness = Freshness::default();
        self.tasks.spawn(drive::<Bare<api::Pod>, api::Pod>(
            Api::all(self.client.clone()),
            Some(format!("spec.nodeName={name}")),
            Arc::new(PodIndex(self.allocations.pods.clone())),
            freshness.clone(),
            stop(),
        ));
        let report = condition_reporter(&self.readiness, PODS);
        self.tasks
            .spawn(report_pod_freshness(freshness, report, stop()));
        let writer = NodeWriter {
            nodes,
            name: name.clone(),
            published: published.clone(),
            resource: settings.resource_name.clone(),
            capacity: CapacityResources::from_settings(settings),
            pods: self.allocations.pods.clone(),
            view: self.node_view.clone(),
            metrics: self.metrics.clone(),
            clear: clear_errors(health),
            taken: Mutex::default(),
        };
        let report = condition_reporter(&self.readiness, INVENTORY);
        self.tasks
            .spawn(node::reconcile(writer, lost, report, stop()));
    }

    /// Serves the kubelet, and keeps the files of containers.
    fn start_kubelet(&self, lost: watch::Sender<LostPods>) {
        let (starter, metrics) = (&self.handlers.starter, || self.metrics.clone());
        let (notes, stop) = (|| self.notes.clone(), || self.stop.clone());
        let plugins = plugins::register_all(
            self.allocations.paths.plugins.clone(),
            Arc::clone(&self.handlers),
            self.node_view.subscribe(),
            condition_reporter(&self.readiness, REGISTERED),
            stop(),
        );
        self.supervisor.spawn("plugins", plugins);
        let interval = Duration::from_secs(self.settings.housekeeping_seconds);
        let housekeeping = housekeeping::run(
            Arc::clone(&starter.preparer),
            PathBuf::from("/proc"),
            interval,
            lost,
            notes(),
            metrics(),
            stop(),
        );
        self.supervisor.spawn("housekeeping", housekeeping);
        let owners = ResourceOwnerMonitor {
            allocations: Arc::clone(&self.allocations),
            advertised: self.handlers.advertised.clone(),
            node: self.settings.node_name.clone(),
            notes: notes(),
            metrics: metrics(),
        };
        self.supervisor
            .spawn("resource-owners", owners.run(interval, stop()));
        let instances = instance_check::run(
            Arc::clone(&self.allocations),
            Duration::from_secs(self.settings.audit_seconds),
            notes(),
            metrics(),
            stop(),
        );
        self.supervisor.spawn("mig-instances", instances);
        let resizes = resize::run(Arc::clone(starter), stop());
        self.supervisor.spawn("resizes", resizes);
    }
}

/// The driver's facts about the GPUs, and their health.
type Readings = (nvml::DriverInventory, Vec<nvml::DeviceHealth>);

/// A node with the agent's files, whose GPUs are set up as they were when the last agent ended.
struct PreparedNode {
    allocations: Arc<NodeAllocations>,
    limiter: Option<InstalledLimiter>,
    errors: ErrorRecord,
    layout: ReconcilerState,
    readings: Readings,
}

impl PreparedNode {
    async fn new(settings: &Settings, driver: &Arc<dyn Driver>) -> Result<Self, AgentError> {
        let (facts, _) = readings(driver).await?;
        log_driver_problems(&facts);
        let paths = settings.paths();
        files::directory(&paths.container_directories, 0o700)?;
        files::directory(&paths.cdi, 0o755)?;
        create_driver_access(settings);
        let limiter = install_limiter(settings, &paths)?;
        selinux::label_state(
            &settings.selinux_label,
            &paths.container_directories,
            &paths.limiter,
            &paths.mps,
        );
        let store = Store::open(paths.accepted.clone())?;
        let modes = SharingModes::new(driver, &settings.state_dir);
        let errors = ErrorRecord::of_this_boot(settings.state_dir.join("health.json"));
        driver.restore_errors(errors.load());
        let layout = initial_state(settings, &facts, &modes, &store, &paths)?;
        // Applying the layout may have changed modes and MIG instances.
        let (facts, health) = readings(driver).await?;
        let node_layout = layout.node_layout(&settings.resource_name);
        let published = NodePublisher::new(facts.clone(), health.clone(), node_layout);
        published.set_host_reserve(settings.host_memory_reserve.map(Mib));
        let allocations = Arc::new(NodeAllocations {
            default_resource: settings.resource_name.clone(),
            paths,
            modes,
            pods: Pods::default(),
            published,
            store: Mutex::new(store),
            checkpoint: CheckpointCache::default(),
        });
        Ok(Self {
            allocations,
            limiter,
            errors,
            layout,
            readings: (facts, health),
        })
    }
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
        proc: PathBuf::from("/proc"),
    };
    Arc::new(CallHandlers {
        starter: Arc::new(starter),
        advertised: AdvertisedLists::default(),
        metrics: metrics.clone(),
    })
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

async fn readings(driver: &Arc<dyn Driver>) -> Result<Readings, AgentError> {
    let driver = Arc::clone(driver);
    let read = move || Ok::<_, NvmlError>((driver.inventory()?, driver.health()?));
    Ok(spawn_blocking(read).await??)
}

fn log_driver_problems(facts: &nvml::DriverInventory) {
    for note in &facts.notes {
        tracing::warn!(
            gpu = note.gpu,
            call = note.call,
            problem = note.problem,
            "the NVIDIA driver did not answer a call; what it would have reported is unknown"
        );
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
        let pods: Api<Bare<api::Pod>> = Api::all(client.clone());
        let params = params.clone();
        Box::pin(async move {
            let list = pods.list(&params).await?;
            let mut found = list.items.iter().filter_map(|Bare(pod)| Pod::read(pod));
            Ok(found.find(|pod| pod.kubelet_uid == uid))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn node_whose_agent_nobody_removes_is_served_again() {
        let began = Instant::now();
        let removed = until_removed(ready(Ok::<(), AdminError>(()))).await;
        assert!(removed.is_ok() && began.elapsed() < REMOVAL_TIMEOUT);
        let stays = until_removed(pending::<Result<(), AdminError>>()).await;
        assert!(stays.is_ok() && began.elapsed() >= REMOVAL_TIMEOUT);
    }
}
