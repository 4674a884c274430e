//! Wires up clients, watches, tasks and listeners, and shuts them down.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::bare::Bare;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::{self, Freshness};
use aliquot_k8s::{access, client, event, publisher};
use aliquot_serve::access_control::{self, AccessControl};
use aliquot_serve::http::Limits;
use aliquot_serve::tls::{MountedCertificates, server_config};
use aliquot_serve::{Readiness, admin, http, stop};
use anyhow::Context;
use axum::Router;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission_policies::Compared;
use crate::bind::Binder;
use crate::extender::{self, ExtenderState};
use crate::leader::{Leader, Leadership};
use crate::ledger_cache::LedgerCache;
use crate::metrics::WATCHED;
use crate::pod_client::{DEADLINE, PodClient};
use crate::preempt::Preemptor;
use crate::resize::Resizer;
use crate::scale_up::{Owner, ScaleUp};
use crate::settings::Settings;
use crate::ticks::Ticks;
use crate::views::gauges::{self, Gauges};
use crate::views::hour::{self, Hour};
use crate::views::monitors::Monitors;
use crate::views::{self, ReadModel, page};
use crate::{evict, learn, requeue, unreadable};

/// How long `/readyz` fails before the listener closes.
const SHUTDOWN_DELAY: Duration = Duration::from_millis(200);

/// Serves until a signal arrives.
#[allow(
    clippy::too_many_lines,
    reason = "the parts in the order of their start"
)]
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let client = client::client(settings.kubeconfig.as_deref()).await?;
    let readiness = Readiness::new(WATCHED);
    let stop =
        stop::on_signals(readiness.clone(), SHUTDOWN_DELAY).context("cannot listen for signals")?;
    let reading = settings.request.settings()?;
    let cache = Arc::new(LedgerCache::new(reading, settings.policies()));
    let (events, event_rx) = event::queue();
    let mut registry = Registry::default();
    let watches = Watches::default();
    let leadership = match settings.identity.clone() {
        Some(identity) if settings.scheduler_lease.is_some() => Leadership::new(identity, DEADLINE),
        _ => Leadership::always(),
    };
    let leader = Leader::new(leadership, watches.pods.clone());
    let policies = Compared::default();
    let gauges = Gauges::new(&cache, &events, &leader, watches.named(), policies.clone());
    let metrics = gauges.register(&mut registry);
    let pods = PodClient::new(client.clone());
    let control = settings.authenticate.then(|| {
        let reviewer = access::reviewer(client.clone());
        AccessControl::new(reviewer, page::open_paths())
    });
    let control = control.transpose()?;
    let monitors = Monitors::new(client.clone(), settings.namespace.clone(), control.clone());
    let binder = Binder::new(cache.clone(), pods.clone(), events.clone(), leader.clone());
    let binder = Arc::new(binder.with_hami_annotations(settings.hami_annotations));
    let tasks = TaskTracker::new();
    tasks.spawn(leader.clone().list_for_each_term(stop.clone()));
    if let Some(lease) = settings.scheduler_lease {
        tasks.spawn(leader.clone().follow(client.clone(), lease, stop.clone()));
    }
    watches.start(&tasks, &client, &cache, &stop);
    tasks.spawn(freshness(readiness.clone(), watches.named(), stop.clone()));
    tasks.spawn(publisher::publish(
        client.clone(),
        "aliquot-scheduler",
        event_rx,
        stop.clone(),
    ));
    tasks.spawn(requeue::run(
        cache.clone(),
        pods.clone(),
        leader.clone(),
        metrics.clone(),
        stop.clone(),
    ));
    tasks.spawn(learn::run(cache.clone(), stop.clone()));
    let hour = Hour::default();
    tasks.spawn(hour::run(
        hour.clone(),
        cache.clone(),
        monitors.clone(),
        readiness.clone(),
        stop.clone(),
    ));
    if let Some(written) = settings.admission_policies {
        tasks.spawn(policies.run(client.clone(), written, stop.clone()));
    }
    tasks.spawn(binder.clone().check_settled(stop.clone()));
    tasks.spawn(cache.clone().check_itself(metrics.clone(), stop.clone()));
    tasks.spawn(cache.clone().expire_until(stop.clone()));
    tasks.spawn(unreadable::run(
        cache.clone(),
        events.clone(),
        leader.clone(),
        stop.clone(),
    ));
    let resizer = Resizer::new(
        cache.clone(),
        pods.clone(),
        events.clone(),
        leader.clone(),
        settings.hami_annotations,
        Duration::from_secs(settings.resize_interval),
    );
    tasks.spawn(resizer.run(stop.clone()));
    if settings.preempt {
        let preemptor = Preemptor::new(&cache, pods.clone(), &events, &leader, &metrics);
        tasks.spawn(preemptor.run(client.clone(), stop.clone()));
    }
    let after = Duration::from_secs(settings.evict_after);
    tasks.spawn(evict::run(
        cache.clone(),
        pods.clone(),
        events.clone(),
        leader.clone(),
        after,
        stop.clone(),
    ));

    if let (Some(types), Some(namespace)) = (settings.node_types, settings.namespace) {
        let owner = Owner {
            namespace,
            pod: settings.identity.zip(settings.pod_uid),
        };
        let scale_up = ScaleUp::new(cache.clone(), client.clone(), leader.clone(), types, owner);
        tasks.spawn(scale_up.run(stop.clone()));
    }

    let verbs = ExtenderState {
        cache,
        leader,
        binder,
        tasks: tasks.clone(),
        events,
        metrics,
        readiness,
        shortlist: settings.shortlist,
    };
    let queries = query_router(&verbs, pods, monitors, hour, registry);
    if let Some(address) = settings.admin_listen {
        let listener = http::bind(address).await?;
        let serving = access_control::serve(listener, queries.clone(), control, stop.clone());
        tasks.spawn(serving);
    }
    let router = extender::router(verbs).merge(queries);
    serve_verbs(settings.listen, settings.tls_dir, router, &tasks, &stop).await?;
    stop.cancel();
    tasks.close();
    tokio::time::timeout(http::DRAIN, tasks.wait())
        .await
        .context("tasks still running at the drain deadline")
}

/// Serves kube-scheduler until `stop`: with a directory, over TLS to clients of its CA.
async fn serve_verbs(
    address: SocketAddr,
    tls_dir: Option<PathBuf>,
    router: Router,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let listener = http::bind(address).await?;
    tracing::info!(listen = %address, tls = tls_dir.is_some(), "serving extender calls");
    let mut tls = None;
    if let Some(directory) = tls_dir {
        let mounted = MountedCertificates::open(&directory)?;
        let clients = Some(mounted.clients()?);
        tls = Some(server_config(&mounted.certificates(), clients)?);
        tasks.spawn(mounted.reload_until(stop.clone()));
    }
    let limits = Limits::new(extender::MAX_BODY);
    http::serve(listener, tls, router, limits, stop.clone()).await;
    Ok(())
}

/// The routes besides the verbs; all are read-only.
fn query_router(
    verbs: &ExtenderState,
    pods: PodClient,
    monitors: Monitors,
    hour: Hour,
    registry: Registry,
) -> Router {
    let (cache, readiness) = (verbs.cache.clone(), verbs.readiness.clone());
    let gpu_metrics = gauges::gpu_metrics(cache.clone());
    let model = ReadModel {
        cache,
        pods,
        monitors,
        hour,
        leader: verbs.leader.clone(),
        readiness: readiness.clone(),
    };
    views::router(model).merge(admin::router_with(
        readiness,
        Arc::new(registry),
        gpu_metrics,
    ))
}

/// The watches that feed the ledger.
#[derive(Default)]
struct Watches {
    pods: Freshness,
    nodes: Freshness,
    quotas: Freshness,
}

impl Watches {
    fn named(&self) -> [(&'static str, Freshness); 3] {
        let [pods, nodes, quotas] = WATCHED;
        [
            (pods, self.pods.clone()),
            (nodes, self.nodes.clone()),
            (quotas, self.quotas.clone()),
        ]
    }

    /// Starts all of them; each begins with a list.
    fn start(
        &self,
        tasks: &TaskTracker,
        client: &Client,
        cache: &Arc<LedgerCache>,
        stop: &CancellationToken,
    ) {
        let all = || client.clone();
        tasks.spawn(watch::drive::<PodView, PodView>(
            Api::all(all()),
            None,
            cache.clone(),
            self.pods.clone(),
            stop.clone(),
        ));
        tasks.spawn(watch::drive::<Bare<Node>, Node>(
            Api::all(all()),
            None,
            cache.clone(),
            self.nodes.clone(),
            stop.clone(),
        ));
        tasks.spawn(watch::drive::<Bare<ResourceQuota>, ResourceQuota>(
            Api::all(all()),
            None,
            cache.clone(),
            self.quotas.clone(),
            stop.clone(),
        ));
    }
}

/// Updates readiness by the state of the watches.
async fn freshness(
    readiness: Readiness,
    watches: [(&'static str, Freshness); 3],
    stop: CancellationToken,
) {
    let mut ticks = Ticks::every(Duration::from_millis(100), &stop);
    while ticks.next().await {
        for (name, freshness) in &watches {
            match freshness.error(Instant::now()) {
                None => readiness.pass(name),
                Some(error) => readiness.fail(name, error),
            }
        }
    }
}
