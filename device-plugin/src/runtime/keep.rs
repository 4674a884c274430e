//! Looks at the container runtime now and then, and publishes what it lacks.
//!
//! Fed by: the watched Node, the runtime's files, the cluster's runtime class. Must not: decide
//! ([`super::faults`] does); hold anybody up.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::event::{Note, Notes, PodRef};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::choice::{self, Looked};
use super::{Class, Fault, Known, condition, config, runtime};
use crate::by_env::DeviceList;
use crate::host;
use crate::inventory::Published;
use crate::node::Seen;
use crate::settings::Settings;

/// Between two looks.
const EVERY: Duration = Duration::from_mins(1);
/// Longest wait for the API server.
const DEADLINE: Duration = Duration::from_secs(5);

/// What looking rests on.
pub struct Look {
    /// The API server.
    pub client: Client,
    /// The node's name, for events.
    pub node: String,
    /// The runtime's configuration, where it is not at its usual place.
    pub config: Option<PathBuf>,
    /// The runtime class that pods with a share are given.
    pub class: Option<String>,
    /// Where our own specs go.
    pub cdi: PathBuf,
    /// Where NVIDIA's specs may be.
    pub directories: Vec<PathBuf>,
    /// How containers get their GPUs, as the agent is told.
    pub device_list: DeviceList,
    /// The driver has a root of its own.
    pub rooted: bool,
    /// Where what is missing is published.
    pub published: Published,
    /// Events.
    pub notes: Notes,
}

impl Look {
    /// As the agent's flags say.
    pub fn new(settings: &Settings, client: Client, published: &Published, notes: &Notes) -> Self {
        let paths = settings.paths();
        Self {
            client,
            node: settings.node_name.clone(),
            config: settings.runtime_config.clone(),
            class: settings.runtime_class.clone(),
            cdi: paths.cdi,
            directories: paths.nvidia_cdi,
            device_list: settings.device_list,
            rooted: paths.driver_root.is_some(),
            published: published.clone(),
            notes: notes.clone(),
        }
    }

    /// Looks until `stop`.
    pub async fn keep(self, mut seen: watch::Receiver<Option<Seen>>, stop: CancellationToken) {
        let this = Arc::new(self);
        let mut said: Option<Vec<Fault>> = None;
        loop {
            let version = seen
                .borrow_and_update()
                .as_ref()
                .map(|seen| seen.runtime.clone());
            let version = version.unwrap_or_default();
            let known = version.is_some();
            if let Some(version) = version {
                let class = this.class().await;
                let looking = Arc::clone(&this);
                let found = spawn_blocking(move || looking.look(&version, &class)).await;
                let Ok(found) = found else { return };
                this.tell(said.as_deref(), &found.lacks);
                said = Some(found.lacks.clone());
                this.published.runtime(found);
            }
            let first = async {
                let _changed = seen.changed().await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = first, if !known => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    async fn class(&self) -> Class {
        let Some(name) = self.class.clone().filter(|name| !name.is_empty()) else {
            return Class::Usual;
        };
        let classes: Api<RuntimeClass> = Api::all(self.client.clone());
        match tokio::time::timeout(DEADLINE, classes.get_opt(&name)).await {
            Ok(Ok(Some(class))) => Class::There(name, class.handler),
            Ok(Ok(None)) => Class::Missing(name),
            Ok(Err(_)) | Err(_) => Class::Unknown,
        }
    }

    fn look(&self, version: &str, class: &Class) -> Looked {
        let (kind, _) = runtime(version);
        let specs = host::specs(&self.directories);
        let devices = specs.iter().flat_map(|spec| &spec.devices);
        let devices: BTreeSet<String> = devices.map(|device| device.name.clone()).collect();
        let node = self.published.get();
        let cards = node.facts.cards.iter();
        let cards: Vec<_> = cards.map(|c| (c.uuid.as_str().into(), c.index)).collect();
        let config = config::read(kind, self.config.as_deref());
        let toolkit = config.as_ref().ok();
        let toolkit = toolkit.and_then(|config| choice::toolkit(config, class));
        let known = Known {
            version,
            config: &config,
            cdi: &self.cdi,
            directories: &self.directories,
            devices: (!specs.is_empty()).then_some(&devices),
            cards: &cards,
            class,
            handed: self.device_list,
            chosen: self.device_list == DeviceList::Auto,
            rooted: self.rooted,
        };
        choice::look(&known, node.handed(), toolkit)
    }

    /// Logs and an event, where it is new.
    fn tell(&self, before: Option<&[Fault]>, now: &[Fault]) {
        if before == Some(now) || before.is_none() && now.is_empty() {
            return;
        }
        let [_, reason, text] = condition(now);
        tracing::warn!(reason, text, "container runtime");
        self.notes.send(Note {
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
