//! The cluster page at `GET /page/`, read-only: nodes with their GPUs and shares, quotas, and pending pods
//! with the reasons ([`super::page_state`]), and what is used of them ([`super::monitors`]). Its files are those of
//! `scheduler/page`.

use std::sync::Arc;

use aliquot_core::NodeName;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::monitors::Measured;
use super::page_state::Editions;
use super::{HttpError, ReadModel, blocking};

const JSON: (HeaderName, &str) = (header::CONTENT_TYPE, "application/json");
/// Whether this replica leads, so that `kubectl aliquot dashboard` asks another one if it does not.
const LEADS: HeaderName = HeaderName::from_static("aliquot-leads");
/// The page loads nothing from other hosts.
const POLICY: (HeaderName, &str) = (
    header::CONTENT_SECURITY_POLICY,
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'",
);
/// Name, type and content.
const FILES: [(&str, &str, &str); 4] = [
    (
        "",
        "text/html; charset=utf-8",
        include_str!("../../page/index.html"),
    ),
    (
        "page.css",
        "text/css; charset=utf-8",
        include_str!("../../page/page.css"),
    ),
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_str!("../../page/page.js"),
    ),
    (
        "model.js",
        "text/javascript; charset=utf-8",
        include_str!("../../page/model.js"),
    ),
];

/// The page without its data, which names pods.
pub fn open_paths() -> impl Iterator<Item = String> {
    let files = FILES.iter().map(|(name, ..)| format!("/page/{name}"));
    files.chain(["/page".to_owned()])
}

#[derive(Clone)]
struct Page {
    model: ReadModel,
    editions: Arc<Mutex<Editions>>,
}

#[derive(Deserialize)]
struct Since {
    since: Option<String>,
}

#[derive(Deserialize)]
struct Nodes {
    /// Separated by commas.
    nodes: String,
}

pub fn router(model: ReadModel) -> Router {
    Router::new()
        // Behind a proxy only a relative location is right.
        .route("/page", get(|| async { Redirect::permanent("page/") }))
        .route("/page/", get(|| async { file("") }))
        .route("/page/state", get(state))
        .route(
            "/page/usage",
            get(|page, nodes, headers| measured(page, nodes, headers, Measured::Now)),
        )
        .route(
            "/page/history",
            get(|page, nodes, headers| measured(page, nodes, headers, Measured::LastHour)),
        )
        .route(
            "/page/{file}",
            get(|Path(name): Path<String>| async move { file(&name) }),
        )
        .with_state(Page {
            model,
            editions: Arc::default(),
        })
}

fn file(name: &str) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => {
            let kind = (header::CONTENT_TYPE, *kind);
            let cache = (header::CACHE_CONTROL, "no-cache");
            ([kind, cache, POLICY], *text).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// What changed since the edition that the browser has.
async fn state(
    State(Page { model, editions }): State<Page>,
    Query(Since { since }): Query<Since>,
) -> Result<Response, HttpError> {
    model.ready()?;
    let (now, leads) = (Instant::now(), model.leader.leads());
    let answer = blocking(move || {
        let mut editions = editions.lock();
        editions.update(&model.cache, &model.hour, leads, now);
        editions.answer(since.as_deref())
    });
    let leads = (LEADS, if leads { "true" } else { "false" });
    Ok(([JSON, leads], answer.await?).into_response())
}

/// What the monitors of these nodes answer.
async fn measured(
    State(Page { model, .. }): State<Page>,
    Query(Nodes { nodes }): Query<Nodes>,
    headers: HeaderMap,
    what: Measured,
) -> Result<Response, HttpError> {
    model.ready()?;
    let names = nodes.split(',').map(NodeName::from);
    let cluster = model.cache.snapshot();
    let known = names.filter(|name| cluster.node(name.as_str()).is_some());
    let token = aliquot_serve::access_control::token(&headers);
    let answer = model.monitors.ask(known.collect(), what, token).await;
    Ok(([JSON], answer).into_response())
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
