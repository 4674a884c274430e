//! The monitor's tasks, started and ended together.
//!
//! Fed by: the settings. Must not: decide anything; the tasks do.

use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::client::ClientError;
use aliquot_k8s::event;
use aliquot_k8s::publisher::publish;
use aliquot_k8s::watch::{Freshness, drive};
use aliquot_nvml::{MemoryLimits, Nvml, NvmlError, Options};
use aliquot_serve::{Readiness, admin, http};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1 as api;
use kube::runtime::watcher;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::act::Actor;
use crate::arbiter::shell::{self, Levels};
use crate::cards::Cards;
use crate::enforce::Enforcements;
use crate::figures::{Exporter, Shown};
use crate::judge::Judge;
use crate::look::Looker;
use crate::pods::Pods;
use crate::processes::Processes;
use crate::rounds::{Looked, Policy, Rounds};
use crate::seats::{self, Seats};
use crate::settings::Settings;

/// The first look is done, and the last one not long ago.
const LOOKED: &str = "looked";
const LATE_REASON: &str = "a look does not end: the driver does not answer";

/// Why the monitor cannot run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The driver cannot be opened.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// No client of the API server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// The address is taken.
    #[error(transparent)]
    Listen(#[from] http::BindError),
    /// A blocking task ended early.
    #[error("a blocking task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Opens what is needed, and runs until a signal ends it.
pub async fn start(settings: Settings) -> Result<(), RunError> {
    raise_files();
    let readiness = Readiness::new([LOOKED]);
    let stop = aliquot_serve::stop::on_signals(readiness.clone(), Duration::ZERO);
    let stop = stop.map_err(RunError::Signals)?;
    let root = settings.driver_root.as_deref();
    let library = aliquot_nvml::root::library(&settings.nvml_library, root)?;
    let options = Options {
        library,
        ..Options::default()
    };
    let driver = spawn_blocking(move || Nvml::open(options)).await??;
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    run(settings, Arc::new(driver), client, readiness, stop).await
}

/// As many open files as the system allows: each share has one or two.
fn raise_files() {
    let most = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: most,
        maximum: most,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays");
    }
}

/// Runs until `stop`.
pub async fn run(
    settings: Settings,
    driver: Arc<dyn Cards>,
    client: Client,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let tasks = TaskTracker::new();
    let listener = http::bind(settings.listen).await?;
    let shown = Shown::default();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exporter {
        shown: shown.clone(),
        families: settings.families(),
    }));
    let alive = Readiness::new([]);
    let router = admin::router_alive(readiness.clone(), alive.clone(), Arc::new(registry));
    let serving = http::serve(http::plain(listener), router, stop.clone(), http::DRAIN);
    tasks.spawn(serving.map(drop));

    let (notes, note_rx) = event::queue();
    let publishing = publish(client.clone(), "aliquot-monitor", note_rx, stop.clone());
    tasks.spawn(publishing);
    let (pods, freshness) = (Pods::default(), Freshness::default());
    let of_node = format!("spec.nodeName={}", settings.node_name);
    tasks.spawn(drive(
        Api::<api::Pod>::all(client),
        watcher::Config::default().fields(&of_node),
        Arc::new(pods.clone()),
        freshness.clone(),
        stop.clone(),
    ));

    let (seats_tx, seats) = watch::channel(Arc::<Seats>::default());
    let (levels_tx, levels) = watch::channel(Arc::<Levels>::default());
    tasks.spawn(arbitrate(seats, levels, stop.clone()));
    let (processes, state) = (Processes::default(), &settings.state_dir);
    let rounds = Rounds {
        node: settings.node_name.clone(),
        policy: Policy {
            unmanaged: settings.on_unmanaged,
            spared: settings.spared_namespaces.clone(),
            tolerance: settings.oom_tolerance << 20,
        },
        enforcements: Enforcements::new(Arc::clone(&driver) as Arc<dyn MemoryLimits>),
        looker: Looker::new(driver, state, processes.clone(), pods.clone()),
        judge: Judge::default(),
        actor: Actor::new(
            settings.node_name.clone(),
            processes,
            pods.clone(),
            notes.clone(),
            state,
        ),
        pods: (pods, freshness),
        notes,
        shown,
        seats_tx,
        levels_tx,
    };
    let looked = move |look: Looked| match look {
        Looked::Ended => {
            readiness.holds(LOOKED);
            alive.holds(LOOKED);
        }
        Looked::Late => {
            readiness.fails(LOOKED, LATE_REASON);
            alive.fails(LOOKED, LATE_REASON);
        }
    };
    tasks.spawn(rounds.run(looked, stop));
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// Keeps the arbiter's thread until `stop`; the monitor ends with it.
async fn arbitrate(
    seats: seats::Shown,
    levels: watch::Receiver<Arc<Levels>>,
    stop: CancellationToken,
) {
    let (ends, ended) = std::sync::mpsc::channel();
    let mut thread = spawn_blocking(move || shell::run(seats, levels, &ended));
    tokio::select! {
        () = stop.cancelled() => {
            drop(ends);
            // It opens the gates and ends within a tick.
            let _ = thread.await;
        }
        _ = &mut thread => {
            tracing::error!("the arbiter ended; the monitor ends");
            stop.cancel();
        }
    }
}
