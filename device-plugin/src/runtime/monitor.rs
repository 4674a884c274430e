//! Checks the container runtime at an interval and publishes its [`status`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::config::{self, ContainerdConfig};
use super::{condition, hook, status};
use crate::container_edits::driver_spec::SpecGenerator;
use crate::gpus::inventory::{NodePublisher, RuntimeProblem, RuntimeStatus};
use crate::node_view::NodeView;
use crate::settings::Settings;

const INTERVAL: Duration = Duration::from_mins(1);

pub struct RuntimeMonitor {
    pub node: String,
    /// The path of containerd's configuration, if it is not at its usual place.
    pub config: Option<PathBuf>,
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
        published: &NodePublisher,
        notes: &EventSender,
        generator: &Arc<SpecGenerator>,
        hook: Option<PathBuf>,
    ) -> Self {
        Self {
            node: settings.node_name.clone(),
            config: settings.runtime_config.clone(),
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
                let monitor = Arc::clone(&this);
                let found = spawn_blocking(move || monitor.check(&version)).await;
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

    fn check(&self, version: &str) -> RuntimeStatus {
        let has_gpus = !self.published.get().readings.facts.gpus.is_empty();
        let missing_spec = has_gpus.then(|| self.generator.missing()).flatten();
        let mut status = status(version, |number| self.read_config(number), missing_spec);
        // It says what to do where NVIDIA's programs cannot run for the same reason.
        if let Some(hook) = &self.hook
            && let Some(problem) = hook::problem(&self.generator.host_root, hook)
        {
            status.problems.insert(0, problem);
        }
        status
    }

    fn read_config(&self, version: Option<(u32, u32)>) -> Result<ContainerdConfig, String> {
        let config = config::read(version, self.config.as_deref())?;
        let mut reported = self.reported_file.lock();
        if *reported != config.file {
            tracing::info!(file = %config.file.display(), "read the container runtime's configuration");
            reported.clone_from(&config.file);
        }
        Ok(config)
    }

    fn report(&self, before: Option<&[RuntimeProblem]>, now: &[RuntimeProblem]) {
        if before == Some(now) || before.is_none() && now.is_empty() {
            return;
        }
        let condition = condition(now);
        let (reason, text) = (condition.reason, condition.message);
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
