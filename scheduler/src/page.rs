//! The cluster page: nodes and GPUs as bars cut into shares, and pending pods with their reasons.
//! `GET /page/`, read only; its files are those of `scheduler/page`.
//!
//! Fed by: the books. Must not: change anything, or name a file outside the page.

use std::collections::{BTreeMap, HashMap};

use aliquot_core::answer::{self, Asked};
use aliquot_core::ledger::Held;
use aliquot_core::mig::published::Placed;
use aliquot_core::top::{Amount, GpuTop, NodeTop};
use aliquot_core::{Ledger, NodeName, PodUid};
use axum::extract::{Path, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use crate::books::Books;
use crate::explain::Explain;
use crate::waiting::Waiting;

/// Most pending pods that are named; the others are counted.
const MOST: usize = 500;
/// The page loads nothing from elsewhere.
const POLICY: (HeaderName, &str) = (
    header::CONTENT_SECURITY_POLICY,
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'",
);
/// Name, type and content.
const FILES: [(&str, &str, &str); 4] = [
    (
        "",
        "text/html; charset=utf-8",
        include_str!("../page/index.html"),
    ),
    (
        "page.css",
        "text/css; charset=utf-8",
        include_str!("../page/page.css"),
    ),
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_str!("../page/page.js"),
    ),
    (
        "model.js",
        "text/javascript; charset=utf-8",
        include_str!("../page/model.js"),
    ),
];

/// Everything that the page shows.
#[derive(Debug, Serialize)]
struct Shown {
    /// This replica may bind; another does not know why pods were refused.
    leads: bool,
    nodes: Vec<NodeShown>,
    waiting: Vec<WaitingShown>,
    more_waiting: usize,
}

#[derive(Debug, Serialize)]
struct NodeShown {
    node: NodeName,
    closed: Option<String>,
    gpus: Vec<GpuShown>,
}

#[derive(Debug, Serialize)]
struct GpuShown {
    #[serde(flatten)]
    top: GpuTop,
    shares: Vec<Share>,
}

#[derive(Debug, Serialize)]
struct Share {
    namespace: String,
    pod: String,
    #[serde(flatten)]
    amount: Amount,
    /// Of a card that is cut as pods come: which part of it.
    instance: Option<String>,
    confirmed: bool,
}

#[derive(Debug, Serialize)]
struct WaitingShown {
    namespace: String,
    pod: String,
    asks: Vec<Asked>,
    times: u32,
    text: Option<String>,
}

/// The routes.
pub fn router(explain: Explain) -> Router {
    Router::new()
        // Behind a proxy only a relative way is right.
        .route("/page", get(|| async { Redirect::permanent("page/") }))
        .route("/page/", get(|| async { file("") }))
        .route("/page/state", get(state))
        .route(
            "/page/{file}",
            get(|Path(name): Path<String>| async move { file(&name) }),
        )
        .with_state(explain)
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

async fn state(State(explain): State<Explain>) -> Result<Response, (StatusCode, String)> {
    explain.ready()?;
    let leads = explain.leader.fault().is_none();
    Ok(Json(shown(&explain.books, leads)).into_response())
}

fn shown(books: &Books, leads: bool) -> Shown {
    // A copy: the lock is not held while the text is made.
    let ledger = books.read(Ledger::clone);
    let mut shares = shares(books, &ledger);
    let cores = books.settings().defaults.cores;
    let mut nodes: Vec<NodeShown> = ledger
        .cluster()
        .iter()
        .filter_map(|(_, name, node)| NodeTop::of(name, node, cores))
        .map(|node| NodeShown {
            gpus: node
                .gpus
                .into_iter()
                .map(|top| GpuShown {
                    shares: shares.remove(top.gpu.as_str()).unwrap_or_default(),
                    top,
                })
                .collect(),
            node: node.node,
            closed: node.closed,
        })
        .collect();
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    let mut waiting: Vec<Waiting> = books.waits.lock().values().cloned().collect();
    let name = |one: &Waiting| (one.pod.namespace.clone(), one.pod.name.clone());
    waiting.sort_by_cached_key(name);
    let more_waiting = waiting.len().saturating_sub(MOST);
    waiting.truncate(MOST);
    Shown {
        leads,
        nodes,
        waiting: waiting.into_iter().map(line).collect(),
        more_waiting,
    }
}

/// By card, in the order of the pods' names.
fn shares(books: &Books, ledger: &Ledger) -> HashMap<String, Vec<Share>> {
    let tenants = books.tenants.0.read();
    let name = |uid: &PodUid| {
        let tenant = tenants.get(uid);
        tenant.map_or_else(|| uid.to_string(), |tenant| tenant.pod.name.clone())
    };
    let mut found: HashMap<String, BTreeMap<(String, String, String), Share>> = HashMap::new();
    for (uid, booking) in ledger.bookings() {
        let Held::Uses(uses) = &booking.held else {
            continue;
        };
        for (unit, used) in uses {
            let (card, placed) = match Placed::of(unit) {
                Some((card, placed)) => (card, Some(placed)),
                None => (unit.as_str(), None),
            };
            let instance = placed.map(|placed| format!("{}@{}", placed.profile, placed.start));
            let share = Share {
                namespace: booking.namespace.to_string(),
                pod: name(uid),
                amount: (*used).into(),
                instance: instance.clone(),
                confirmed: booking.confirmed,
            };
            let key = (
                share.namespace.clone(),
                share.pod.clone(),
                format!("{uid}{instance:?}"),
            );
            found.entry(card.to_owned()).or_default().insert(key, share);
        }
    }
    let sorted =
        |(card, shares): (String, BTreeMap<_, Share>)| (card, shares.into_values().collect());
    found.into_iter().map(sorted).collect()
}

fn line(waiting: Waiting) -> WaitingShown {
    WaitingShown {
        asks: answer::asked(&waiting.demand),
        times: waiting.told.as_ref().map_or(0, |told| told.times),
        text: waiting.told.map(|told| told.text),
        namespace: waiting.pod.namespace,
        pod: waiting.pod.name,
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
