//! Checks the container runtime at an interval and publishes its problems, which
//! [`super::problems`] finds.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::{
    DriverSources, RuntimeClassState, RuntimeFacts, condition, config, hook, runtime, status,
    toolkit,
};
use crate::allocation::host;
use crate::allocation::nvidia_cdi::SpecGenerator;
use crate::gpus::inventory::{NodePublisher, RuntimeProblem, RuntimeStatus};
use crate::kubelet::answer::DeviceListStrategy;
use crate::node_view::NodeView;
use crate::paths::SpecFolders;
use crate::settings::Settings;

/// The interval between two checks.
const INTERVAL: Duration = Duration::from_mins(1);
/// The longest wait for the API server.
const DEADLINE: Duration = Duration::from_secs(5);

/// The monitor of the node's container runtime.
pub struct RuntimeMonitor {
    /// The API server.
    pub client: Client,
    /// The node's name, for events.
    pub node: String,
    /// The path of the runtime's configuration, if it is not at its usual place.
    pub config: Option<PathBuf>,
    /// The runtime class that pods with GPUs are given.
    pub class: Option<String>,
    /// Where our own CDI specs are written.
    pub cdi: PathBuf,
    /// Where NVIDIA's CDI specs are.
    pub specs: SpecFolders,
    /// What generates NVIDIA's CDI spec.
    pub generator: Arc<SpecGenerator>,
    /// The OCI hook of containers with a limit.
    pub hook: Option<PathBuf>,
    /// How containers get their GPUs, as configured.
    pub device_list: DeviceListStrategy,
    /// Where the problems are published.
    pub published: NodePublisher,
    /// Events.
    pub notes: EventSender,
    /// The configuration file that was read last, which is logged when it changes.
    reported_file: Mutex<PathBuf>,
}

impl RuntimeMonitor {
    /// A monitor with the agent's settings.
    pub fn new(
        settings: &Settings,
        client: Client,
        published: &NodePublisher,
        notes: &EventSender,
        generator: &Arc<SpecGenerator>,
        hook: Option<PathBuf>,
    ) -> Self {
        let paths = settings.paths();
        Self {
            client,
            node: settings.node_name.clone(),
            config: settings.runtime_config.clone(),
            class: settings.runtime_class.clone(),
            cdi: paths.cdi,
            specs: paths.nvidia_cdi,
            generator: Arc::clone(generator),
            hook,
            device_list: settings.device_list,
            published: published.clone(),
            notes: notes.clone(),
            reported_file: Mutex::default(),
        }
    }

    /// Checks until `stop`.
    pub async fn run(self, mut seen: watch::Receiver<Option<NodeView>>, stop: CancellationToken) {
        let this = Arc::new(self);
        let mut reported: Option<Vec<RuntimeProblem>> = None;
        loop {
            let version = seen
                .borrow_and_update()
                .as_ref()
                .map(|seen| seen.runtime.clone());
            let version = version.unwrap_or_default();
            let is_known = version.is_some();
            if let Some(version) = version {
                let class = this.class().await;
                let monitor = Arc::clone(&this);
                let found = spawn_blocking(move || monitor.check(&version, &class)).await;
                let Ok(found) = found else { return };
                this.report(reported.as_deref(), &found.problems);
                reported = Some(found.problems.clone());
                this.published.set_runtime(found);
            }
            let first = async {
                let _changed = seen.changed().await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = first, if !is_known => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    async fn class(&self) -> RuntimeClassState {
        let Some(name) = self.class.clone().filter(|name| !name.is_empty()) else {
            return RuntimeClassState::NotSet;
        };
        let classes: Api<RuntimeClass> = Api::all(self.client.clone());
        match tokio::time::timeout(DEADLINE, classes.get_opt(&name)).await {
            Ok(Ok(Some(class))) => RuntimeClassState::Found(name, class.handler),
            Ok(Ok(None)) => RuntimeClassState::Missing(name),
            Ok(Err(_)) | Err(_) => RuntimeClassState::Unknown,
        }
    }

    fn check(&self, version: &str, class: &RuntimeClassState) -> RuntimeStatus {
        let (kind, number) = runtime(version);
        let specs = host::specs(&self.specs);
        let node = self.published.get();
        let gpus = &node.readings.facts.gpus;
        let without = gpus
            .iter()
            .filter(|gpu| !host::has_driver(&specs.usable, gpu));
        let named: Vec<_> = gpus.iter().map(host::named_gpu).collect();
        let config = config::read(kind, number, self.config.as_deref());
        let file = config.as_ref().ok().map(|config| config.file.clone());
        if let Some(file) = file.filter(|file| *self.reported_file.lock() != *file) {
            tracing::info!(file = %file.display(), "read the container runtime's configuration");
            *self.reported_file.lock() = file;
        }
        let readable = config.as_ref().ok();
        let injected = readable.is_some_and(|config| toolkit::injects_driver(config, class));
        let driver = DriverSources {
            without: without.map(|gpu| gpu.uuid.as_str().into()).collect(),
            has_spec: !specs.usable.is_empty(),
            refused: specs.refusals(&named),
            generation: self.generator.problem(),
            injected,
        };
        let directories = self.specs.directories.iter();
        let directories: Vec<PathBuf> = directories
            .map(|path| host::on_host(&self.specs.host_root, path))
            .collect();
        let facts = RuntimeFacts {
            version,
            config: &config,
            cdi: &self.cdi,
            directories: &directories,
            driver: &driver,
            class,
            device_list: self.device_list,
        };
        let mut status = status(&facts);
        let hook = self.hook.as_deref();
        let hook = hook.and_then(|hook| hook::problem(&self.specs.host_root, hook));
        status.problems.extend(hook);
        status
    }

    /// Logs and sends an event, if the problems changed.
    fn report(&self, before: Option<&[RuntimeProblem]>, now: &[RuntimeProblem]) {
        if before == Some(now) || before.is_none() && now.is_empty() {
            return;
        }
        let [_, reason, text] = condition(now);
        tracing::warn!(reason, text, "container runtime check");
        self.notes.send(EventNote {
            pod: PodRef::node(&self.node),
            warning: !now.is_empty(),
            reason: if now.is_empty() {
                "RuntimeComplete"
            } else {
                "RuntimeIncomplete"
            },
            action: "Looking",
            text: format!("{reason}: {text}"),
        });
    }
}
