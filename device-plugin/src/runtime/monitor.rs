//! Checks the container runtime at an interval and publishes its [`status`].

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

use super::toolkit::{self, Handler};
use super::{DriverSources, RuntimeFacts, condition, config, hook, runtime, status};
use crate::container_edits::driver_spec::SpecGenerator;
use crate::gpus::inventory::{NodePublisher, RuntimeProblem, RuntimeStatus};
use crate::node_view::NodeView;
use crate::settings::Settings;

const INTERVAL: Duration = Duration::from_mins(1);
const DEADLINE: Duration = Duration::from_secs(5);

pub struct RuntimeMonitor {
    pub client: Client,
    pub node: String,
    /// The path of the runtime's configuration, if it is not at its usual place.
    pub config: Option<PathBuf>,
    /// The runtime class that pods with GPUs are given.
    pub class: Option<String>,
    pub generator: Arc<SpecGenerator>,
    /// The OCI hook of containers with a limit.
    pub hook: Option<PathBuf>,
    pub published: NodePublisher,
    pub notes: EventSender,
    /// The configuration file that was read last, which is logged when it changes.
    reported_file: Mutex<PathBuf>,
}

impl RuntimeMonitor {
    pub fn new(
        settings: &Settings,
        client: Client,
        published: &NodePublisher,
        notes: &EventSender,
        generator: &Arc<SpecGenerator>,
        hook: Option<PathBuf>,
    ) -> Self {
        Self {
            client,
            node: settings.node_name.clone(),
            config: settings.runtime_config.clone(),
            class: settings.runtime_class.clone(),
            generator: Arc::clone(generator),
            hook,
            published: published.clone(),
            notes: notes.clone(),
            reported_file: Mutex::default(),
        }
    }

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
                let handler = this.handler().await;
                let monitor = Arc::clone(&this);
                let found = spawn_blocking(move || monitor.check(&version, &handler)).await;
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

    /// The handler of pods with GPUs.
    async fn handler(&self) -> Handler {
        let Some(name) = self.class.as_ref().filter(|name| !name.is_empty()) else {
            return Handler::Default;
        };
        let classes: Api<RuntimeClass> = Api::all(self.client.clone());
        match tokio::time::timeout(DEADLINE, classes.get_opt(name)).await {
            Ok(Ok(Some(class))) => Handler::Named(class.handler),
            Ok(Ok(None) | Err(_)) | Err(_) => Handler::Unknown,
        }
    }

    fn check(&self, version: &str, handler: &Handler) -> RuntimeStatus {
        let (kind, number) = runtime(version);
        let config = config::read(kind, number, self.config.as_deref());
        let file = config.as_ref().ok().map(|config| config.file.clone());
        if let Some(file) = file.filter(|file| *self.reported_file.lock() != *file) {
            tracing::info!(file = %file.display(), "read the container runtime's configuration");
            *self.reported_file.lock() = file;
        }
        let readable = config.as_ref().ok();
        let injected = readable.is_some_and(|config| toolkit::injects_driver(config, handler));
        let has_gpus = !self.published.get().readings.facts.gpus.is_empty();
        let missing = has_gpus.then(|| self.generator.missing()).flatten();
        let mut status = status(&RuntimeFacts {
            version,
            config: &config,
            driver: &DriverSources { missing, injected },
        });
        let hook = self.hook.as_deref();
        let hook = hook.and_then(|hook| hook::problem(&self.generator.host_root, hook));
        // It says what to do where NVIDIA's programs cannot run for the same reason.
        if let Some(problem) = hook {
            status.problems.insert(0, problem);
        }
        status
    }

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
            action: "Inspecting",
            text: format!("{reason}: {text}"),
        });
    }
}
