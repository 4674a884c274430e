//! The scheduler's own routes over the made-up cluster, and a floor beside
//! them: a route that only decodes the call and answers the first 64 names.
//!
//! Must not: shorten the path of a call; what is measured is what ships.

use std::sync::Arc;

use aliquot_k8s::event;
use aliquot_k8s::extender::{ExtenderArgs, ExtenderFilterResult};
use aliquot_k8s::watch::Index;
use aliquot_scheduler::bind::Binder;
use aliquot_scheduler::books::Books;
use aliquot_scheduler::leader::Leader;
use aliquot_scheduler::metrics::Metrics;
use aliquot_scheduler::routes::{self, Verbs};
use aliquot_serve::{Readiness, body, http};
use anyhow::Result;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster;

/// The most that filter answers: the scheduler's default.
const SHORTLIST: usize = 64;

/// Serves on a free port, prints it, and ends with stdin.
pub(crate) async fn serve(size: usize) -> Result<()> {
    let books = Arc::new(Books::default());
    let all_nodes: Result<Vec<_>> = (0..size).map(cluster::node).collect();
    Index::reset(&*books, all_nodes?);
    let all_pods: Result<Vec<_>> = (0..size).map(cluster::pods).collect();
    Index::reset(&*books, all_pods?.into_iter().flatten().collect());

    let (notes, note_rx) = event::queue();
    let mut registry = Registry::default();
    // No call of filter or prioritize reaches the API server.
    let nowhere = kube::Config::new("http://127.0.0.1:9".parse()?);
    let client = kube::Client::try_from(nowhere)?;
    let verbs = Verbs {
        metrics: Metrics::new(&mut registry),
        binder: Arc::new(Binder::new(
            books.clone(),
            client,
            notes.clone(),
            Leader::always(),
        )),
        books,
        tasks: TaskTracker::new(),
        notes,
        readiness: Readiness::new([]),
        shortlist: SHORTLIST,
    };
    let floor = Router::new()
        .route("/floor", post(floor))
        .layer(body::limit(16 << 20));
    let router = routes::router(verbs).merge(floor);
    let listener = http::bind(([127, 0, 0, 1], 0).into()).await?;
    println!("{}", listener.local_addr()?);

    let stop = CancellationToken::new();
    let ended = stop.clone();
    tokio::task::spawn_blocking(move || {
        // End of file or an error: either way the one who asks is gone.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ended.cancel();
    });
    http::serve(http::plain(listener), router, stop, http::DRAIN).await?;
    drop(note_rx);
    Ok(())
}

async fn floor(body: Bytes) -> Response {
    let Ok(args) = serde_json::from_slice::<ExtenderArgs<'_>>(&body) else {
        return axum::http::StatusCode::BAD_REQUEST.into_response();
    };
    let names = args
        .node_names
        .unwrap_or_default()
        .into_iter()
        .take(SHORTLIST);
    Json(ExtenderFilterResult {
        node_names: Some(names.map(Into::into).collect()),
        ..ExtenderFilterResult::default()
    })
    .into_response()
}
