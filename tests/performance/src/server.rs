//! The scheduler's own routes over the made-up cluster, with the default policies, and the
//! baseline: a route that only decodes the call and returns the first name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_k8s::event;
use aliquot_k8s::extender::{ExtenderArgs, ExtenderFilterResult};
use aliquot_k8s::pod;
use aliquot_k8s::watch::Index;
use aliquot_scheduler::bind::Binder;
use aliquot_scheduler::extender::{self, ExtenderState};
use aliquot_scheduler::leader::Leader;
use aliquot_scheduler::learn;
use aliquot_scheduler::ledger_cache::LedgerCache;
use aliquot_scheduler::metrics::Metrics;
use aliquot_scheduler::pod_client::PodClient;
use aliquot_scheduler::settings::Settings;
use aliquot_serve::Readiness;
use aliquot_serve::http::{self, Limits};
use anyhow::Result;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser as _;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster;

/// Serves on a free port, prints it, and ends with stdin.
pub(crate) async fn serve(size: usize) -> Result<()> {
    let settings = Settings::parse_from(["aliquot-scheduler"]);
    let cache = Arc::new(LedgerCache::new(
        pod::Settings::default(),
        settings.policies(),
    ));
    let all_nodes: Result<Vec<_>> = (0..size).map(cluster::node).collect();
    Index::reset(&*cache, all_nodes?);
    let all_pods: Result<Vec<_>> = (0..size).map(cluster::pods).collect();
    Index::reset(&*cache, all_pods?.into_iter().flatten().collect());
    learn::learn(&cache);

    let (events, event_rx) = event::queue();
    let mut registry = Registry::default();
    // Filter and prioritize never call the API server.
    let nowhere = kube::Config::new("http://127.0.0.1:9".parse()?);
    let client = kube::Client::try_from(nowhere)?;
    let state = ExtenderState {
        leader: Leader::always(),
        metrics: Metrics::new(&mut registry),
        binder: Arc::new(Binder::new(
            cache.clone(),
            PodClient::new(client),
            events.clone(),
            Leader::always(),
        )),
        cache,
        tasks: TaskTracker::new(),
        events,
        readiness: Readiness::new([]),
        shortlist: settings.shortlist,
    };
    let cache = state.cache.clone();
    let floor = Router::new().route("/floor", post(floor));
    let times = Times::default();
    let layer = middleware::from_fn_with_state((times.clone(), cache), timed);
    let router = extender::router(state)
        .merge(floor)
        .layer(layer)
        .route("/times", get(move || async move { Json(times.take()) }));
    let listener = http::bind(([127, 0, 0, 1], 0).into()).await?;
    println!("{}", listener.local_addr()?);

    let stop = CancellationToken::new();
    let ended = stop.clone();
    tokio::task::spawn_blocking(move || {
        // End of file or an error: the client has exited.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ended.cancel();
    });
    http::serve(listener, None, router, Limits::new(16 << 20), stop).await;
    drop(event_rx);
    Ok(())
}

/// Milliseconds of each call.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<f64>>>);

impl Times {
    fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Measures a call; after it, what filter assumed is forgotten, one pod is allocated and the previous
/// one released, as between the calls of a real cluster.
async fn timed(
    State((times, cache)): State<(Times, Arc<LedgerCache>)>,
    request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let answer = next.run(request).await;
    let took = start.elapsed();
    let count = {
        let mut times = times.0.lock();
        times.push(took.as_secs_f64() * 1000.0);
        times.len()
    };
    let later = tokio::time::Instant::now() + Duration::from_secs(5);
    cache.lock().expire(later);
    let nodes = cache.read(|ledger| ledger.cluster().slots());
    let name = cluster::name(count * 7919 % nodes).into();
    if let Ok(demand) = cluster::demand(5_000) {
        // A node may be full: then this call changes one node, not two.
        drop(cache.reserve(
            &format!("between-{count}").into(),
            &"default".into(),
            &name,
            &demand,
        ));
    }
    cache.cancel(&format!("between-{}", count - 1).into());
    answer
}

async fn floor(body: Bytes) -> Response {
    let Ok(args) = serde_json::from_slice::<ExtenderArgs<'_>>(&body) else {
        return axum::http::StatusCode::BAD_REQUEST.into_response();
    };
    let names = args.node_names.unwrap_or_default().into_iter().take(1);
    Json(ExtenderFilterResult {
        node_names: Some(names.map(Into::into).collect()),
        ..ExtenderFilterResult::default()
    })
    .into_response()
}
