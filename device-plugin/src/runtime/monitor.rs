//! Checks the container runtime at an interval and publishes its problems, which
//! [`super::problems`] finds.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::device_list::{self, RuntimeStatus};
use super::{RuntimeClassState, RuntimeFacts, RuntimeProblem, condition, config, runtime};
use crate::host;
use crate::inventory::NodePublisher;
use crate::node::NodeView;
use crate::non_cdi::DeviceListStrategy;
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
    /// Where NVIDIA's CDI specs may be.
    pub directories: Vec<PathBuf>,
    /// How containers get their GPUs, as configured.
    pub device_list: DeviceListStrategy,
    /// The driver has a root of its own.
    pub has_driver_root: bool,
    /// Where the problems are published.
    pub published: NodePublisher,
    /// Events.
    pub notes: EventSender,
}

impl RuntimeMonitor {
    /// A monitor with the agent's settings.
    pub fn new(
        settings: &Settings,
        client: Client,
        published: &NodePublisher,
        notes: &EventSender,
    ) -> Self {
        let paths = settings.paths();
        Self {
            client,
            node: settings.node_name.clone(),
            config: settings.runtime_config.clone(),
            class: settings.runtime_class.clone(),
            cdi: paths.cdi,
            directories: paths.nvidia_cdi,
            device_list: settings.device_list,
            has_driver_root: paths.driver_root.is_some(),
            published: published.clone(),
            notes: notes.clone(),
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
        let (kind, _) = runtime(version);
        let specs = host::specs(&self.directories);
        let devices = specs.iter().flat_map(|spec| &spec.devices);
        let devices: BTreeSet<String> = devices.map(|device| device.name.clone()).collect();
        let node = self.published.get();
        let gpus = node.facts.gpus.iter();
        let gpus: Vec<_> = gpus.map(|c| (c.uuid.as_str().into(), c.index)).collect();
        let config = config::read(kind, self.config.as_deref());
        let toolkit = config.as_ref().ok();
        let toolkit = toolkit.and_then(|config| device_list::toolkit(config, class));
        let facts = RuntimeFacts {
            version,
            config: &config,
            cdi: &self.cdi,
            directories: &self.directories,
            devices: (!specs.is_empty()).then_some(&devices),
            gpus: &gpus,
            class,
            device_list: self.device_list,
            chosen: self.device_list == DeviceListStrategy::Auto,
            has_driver_root: self.has_driver_root,
        };
        device_list::assess(&facts, node.device_list(), toolkit)
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
