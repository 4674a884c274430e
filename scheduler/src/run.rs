//! The wiring: clients, watches, tasks, the listener, and their end.
//!
//! Fed by: [`crate::settings`]. Must not: decide anything.

use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::leader::Leadership;
use aliquot_k8s::slim::SlimPod;
use aliquot_k8s::watch::{self, Freshness};
use aliquot_k8s::{client, event, publisher};
use aliquot_serve::tls::{Mounted, TlsListener, mutual_config};
use aliquot_serve::{Readiness, admin, http, stop};
use anyhow::Context;
use axum::Router;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use kube::runtime::watcher;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bind::{Binder, DEADLINE};
use crate::books::Books;
use crate::explain::Explain;
use crate::gauges::Gauges;
use crate::leader::Leader;
use crate::metrics::WATCHED;
use crate::preempt::Preemptor;
use crate::routes::{self, Verbs};
use crate::settings::Settings;
use crate::{audit, evict, explain, gauges, learn, nudge, page, statement};

/// `/readyz` fails this long before the listener closes.
const LINGER: Duration = Duration::from_millis(200);

/// Serves until a signal comes.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let client = client::client(settings.kubeconfig.as_deref()).await?;
    let readiness = Readiness::new(WATCHED);
    let stop = stop::on_signals(readiness.clone(), LINGER).context("cannot listen for signals")?;
    let books = Arc::new(Books::new(
        settings.request.settings()?,
        settings.policies(),
    ));
    let (notes, note_rx) = event::queue();
    let mut registry = Registry::default();
    let watches = Watches::default();
    let leadership = match settings.identity {
        Some(identity) if settings.scheduler_lease.is_some() => Leadership::of(identity, DEADLINE),
        _ => Leadership::always(),
    };
    let leader = Leader::new(leadership, watches.pods.clone());
    let gauges = Gauges::of(&books, &notes, &leader, watches.named());
    let metrics = gauges.register(&mut registry);
    let binder = Binder::new(books.clone(), client.clone(), notes.clone(), leader.clone());
    let binder = Arc::new(binder.with_hami_annotations(settings.hami_annotations));
    let tasks = TaskTracker::new();
    tasks.spawn(leader.clone().list_for_each_term(stop.clone()));
    if let Some(lease) = settings.scheduler_lease {
        tasks.spawn(leader.clone().follow(client.clone(), lease, stop.clone()));
    }
    let all = || client.clone();
    watches.start(&tasks, &client, &books, &stop);
    tasks.spawn(freshness(readiness.clone(), watches.named(), stop.clone()));
    let publisher = (all(), stop.clone());
    tasks.spawn(async move {
        publisher::publish(publisher.0, "aliquot-scheduler", note_rx, publisher.1).await;
    });
    tasks.spawn(nudge::run(
        books.clone(),
        all(),
        leader.clone(),
        metrics.clone(),
        stop.clone(),
    ));
    tasks.spawn(learn::run(books.clone(), stop.clone()));
    tasks.spawn(audit::run(
        books.clone(),
        binder.clone(),
        metrics.clone(),
        stop.clone(),
    ));
    if settings.preempt {
        let preemptor = Preemptor::new(&books, all(), &notes, &leader, &metrics);
        tasks.spawn(preemptor.run(stop.clone()));
    }
    let after = Duration::from_secs(settings.evict_after);
    tasks.spawn(evict::run(
        books.clone(),
        binder.clone(),
        all(),
        notes.clone(),
        leader.clone(),
        after,
        stop.clone(),
    ));

    let verbs = Verbs {
        books,
        leader,
        binder,
        tasks: tasks.clone(),
        notes,
        metrics,
        readiness,
        shortlist: settings.shortlist,
    };
    let questions = questions(&verbs, registry);
    if let Some(address) = settings.admin_listen {
        let listener = http::plain(http::bind(address).await?);
        let serving = http::serve(listener, questions.clone(), stop.clone(), http::DRAIN);
        tasks.spawn(serving);
    }
    let router = routes::router(verbs).merge(questions);
    let listener = http::bind(settings.listen).await?;
    tracing::info!(listen = %settings.listen, tls = settings.tls_dir.is_some(), "serving");
    if let Some(folder) = &settings.tls_dir {
        let mounted = Mounted::open(folder)?;
        let config = mutual_config(&mounted.certificates(), mounted.clients()?)?;
        tasks.spawn(mounted.keep(stop.clone()));
        let listener = TlsListener::new(listener, config);
        http::serve(listener, router, stop.clone(), http::DRAIN).await?;
    } else {
        http::serve(http::plain(listener), router, stop.clone(), http::DRAIN).await?;
    }
    stop.cancel();
    tasks.close();
    tokio::time::timeout(http::DRAIN, tasks.wait())
        .await
        .context("tasks still running at the drain deadline")
}

/// Everything that is served besides the verbs; nothing of it changes anything.
fn questions(verbs: &Verbs, registry: Registry) -> Router {
    let (books, readiness) = (verbs.books.clone(), verbs.readiness.clone());
    let explain = Explain {
        books: books.clone(),
        binder: verbs.binder.clone(),
        leader: verbs.leader.clone(),
        readiness: readiness.clone(),
    };
    let cards = gauges::cards(books.clone());
    statement::router(books)
        .merge(page::router(explain.clone()))
        .merge(explain::router(explain))
        .merge(admin::router_with(readiness, Arc::new(registry), cards))
}

/// What the books rest on.
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

    /// Starts all of them; each lists first.
    fn start(
        &self,
        tasks: &TaskTracker,
        client: &Client,
        books: &Arc<Books>,
        stop: &CancellationToken,
    ) {
        let (any, all) = (watcher::Config::default, || client.clone());
        tasks.spawn(watch::drive::<SlimPod, Pod>(
            Api::all(all()),
            any(),
            books.clone(),
            self.pods.clone(),
            stop.clone(),
        ));
        tasks.spawn(watch::drive::<Node, Node>(
            Api::all(all()),
            any(),
            books.clone(),
            self.nodes.clone(),
            stop.clone(),
        ));
        tasks.spawn(watch::drive::<ResourceQuota, ResourceQuota>(
            Api::all(all()),
            any(),
            books.clone(),
            self.quotas.clone(),
            stop.clone(),
        ));
    }
}

/// Keeps readiness in step with the watches.
async fn freshness(
    readiness: Readiness,
    watches: [(&'static str, Freshness); 3],
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        for (name, freshness) in &watches {
            match freshness.fault(Instant::now()) {
                None => readiness.holds(name),
                Some(fault) => readiness.fails(name, fault),
            }
        }
    }
}
