//! Starts and stops the monitor's tasks.

use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::access;
use aliquot_k8s::bare::Bare;
use aliquot_k8s::client::ClientError;
use aliquot_k8s::event;
use aliquot_k8s::publisher::publish;
use aliquot_k8s::watch::{Freshness, drive};
use aliquot_node_state::processes::Processes;
use aliquot_node_state::state::StateDirectory;
use aliquot_nvml::{DriverAccess, MemoryLimits, ReleasableNvml, Usage};
use aliquot_serve::access_control::{self, AccessControl};
use aliquot_serve::tls::SelfSignedError;
use aliquot_serve::{Readiness, admin, http};
use k8s_openapi::api::core::v1 as api;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actions::ActionRunner;
use crate::agent_reports::{GpuListReport, UnmanagedReport};
use crate::arbiter::measurements::Measurements;
use crate::arbiter::priority_cap::PriorityCap;
use crate::arbiter::runner;
use crate::enforce::DriverLimits;
use crate::evaluation::Evaluator;
use crate::exporter::{Exporter, LatestSnapshot};
use crate::lending::Lending;
use crate::managed_containers::{ContainersReceiver, ManagedContainers};
use crate::pods::Pods;
use crate::sampler::Sampler;
use crate::sampling_loop::{SampleStatus, SamplingLoop};
use crate::settings::Settings;
use crate::usage_routes::UsageRecord;

/// The readiness condition: samples complete.
const SAMPLED: &str = "sampled";
const OVERDUE_REASON: &str = "a sample does not complete: the driver does not answer";

#[derive(Debug, Error)]
pub enum RunError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Listen(#[from] http::ListenError),
    #[error(transparent)]
    AccessControl(#[from] SelfSignedError),
}

/// Opens a client, and runs until a signal. The driver is opened when it is there.
pub async fn start(settings: Settings) -> Result<(), RunError> {
    raise_open_file_limit();
    let readiness = Readiness::new([SAMPLED]);
    let handled = aliquot_serve::stop::on_signals(readiness.clone(), Duration::ZERO);
    let stop = handled.map_err(RunError::Signals)?;
    let root = settings.driver_root.as_deref();
    let access = DriverAccess::new(&settings.state_dir);
    let driver = ReleasableNvml::new(&settings.nvml_library, root, access);
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    run(settings, Arc::new(driver), client, readiness, stop).await
}

/// Raises the limit of open files to the maximum: each container needs one or two.
fn raise_open_file_limit() {
    let most = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: most,
        maximum: most,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

pub async fn run(
    settings: Settings,
    driver: Arc<ReleasableNvml>,
    client: Client,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let tasks = TaskTracker::new();
    let listener = http::bind(settings.listen).await?;
    let shown = LatestSnapshot::default();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exporter {
        shown: shown.clone(),
        hami: settings.compat_metrics,
    }));
    let alive = Readiness::new([]);
    let usage = UsageRecord::default();
    let common = admin::router_alive(readiness.clone(), alive.clone(), Arc::new(registry));
    let router = common.merge(usage.router());
    let reviewer = access::reviewer(client.clone());
    let control = settings
        .authenticate
        .then(|| AccessControl::new(reviewer, []));
    let serving = access_control::serve(listener, router, control.transpose()?, stop.clone());
    tasks.spawn(serving);

    let (notes, note_rx) = event::queue();
    let publishing = publish(client.clone(), "aliquot-monitor", note_rx, stop.clone());
    tasks.spawn(publishing);
    let (pods, freshness) = (Pods::default(), Freshness::default());
    let of_node = format!("spec.nodeName={}", settings.node_name);
    tasks.spawn(drive::<Bare<api::Pod>, api::Pod>(
        Api::all(client),
        Some(of_node),
        Arc::new(pods.clone()),
        freshness.clone(),
        stop.clone(),
    ));

    let (containers_tx, containers) = watch::channel(Arc::<ManagedContainers>::default());
    let (measurements_tx, measurements) = watch::channel(Arc::<Measurements>::default());
    let cap = PriorityCap(settings.priority_cap);
    tasks.spawn(arbitrate(cap, containers, measurements, stop.clone()));
    let (processes, state) = (Processes::default(), &settings.state_dir);
    let sampling = SamplingLoop {
        node: settings.node_name.clone(),
        tolerance: settings.oom_tolerance << 20,
        lending: Lending::new(settings.grace()),
        limits: DriverLimits::new(Arc::clone(&driver) as Arc<dyn MemoryLimits>),
        sampler: Sampler::new(
            Arc::clone(&driver) as Arc<dyn Usage>,
            state,
            processes.clone(),
            pods.clone(),
        ),
        driver,
        evaluator: Evaluator::default(),
        actions: ActionRunner::new(settings.node_name.clone(), processes, pods, notes.clone()),
        uncorrected: GpuListReport::new(StateDirectory(state).uncorrected()),
        unmeasured: GpuListReport::new(StateDirectory(state).unmeasured()),
        unmanaged: UnmanagedReport::new(StateDirectory(state).unmanaged()),
        freshness,
        notes,
        shown,
        usage,
        containers_tx,
        measurements_tx,
    };
    let report = move |sample: SampleStatus| match sample {
        SampleStatus::Completed => {
            readiness.pass(SAMPLED);
            alive.pass(SAMPLED);
        }
        SampleStatus::Overdue => {
            readiness.fail(SAMPLED, OVERDUE_REASON);
            alive.fail(SAMPLED, OVERDUE_REASON);
        }
        SampleStatus::DriverClosed(reason) => {
            readiness.fail(SAMPLED, format!("the driver is closed: {reason}"));
            alive.pass(SAMPLED);
        }
    };
    tasks.spawn(sampling.run(report, stop));
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// Runs the arbiter's thread until `stop`; if it ends, the monitor stops.
async fn arbitrate(
    cap: PriorityCap,
    containers: ContainersReceiver,
    measurements: watch::Receiver<Arc<Measurements>>,
    stop: CancellationToken,
) {
    let (stop_tx, stop_rx) = std::sync::mpsc::channel();
    let mut thread = spawn_blocking(move || runner::run(cap, containers, measurements, &stop_rx));
    tokio::select! {
        () = stop.cancelled() => {
            drop(stop_tx);
            // It clears the throttle flags and ends within a tick.
            let _ = thread.await;
        }
        _ = &mut thread => {
            tracing::error!("the arbiter stopped; the monitor exits");
            stop.cancel();
        }
    }
}
