//! The cluster page at `GET /page/`, read-only: nodes with their GPUs and shares, and pending pods
//! with the reasons. Its files are those of `scheduler/page`.

use std::collections::{BTreeMap, HashMap};

use aliquot_core::explain::{ContainerRequest, container_requests};
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::top::{DeviceAmount, GpuTop};
use aliquot_core::{Ledger, NodeName, PodUid};
use axum::extract::{Path, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use super::{ReadModel, nodes_by_name};
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::PendingPod;

/// Maximum number of pending pods listed; the others are counted.
const MAX_PENDING: usize = 500;
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

/// The data of the page.
#[derive(Debug, Serialize)]
struct PageState {
    /// This replica leads; others do not know why pods were refused.
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
    shares: Vec<PageShare>,
}

#[derive(Debug, Serialize)]
struct PageShare {
    namespace: String,
    pod: String,
    #[serde(flatten)]
    amount: DeviceAmount,
    /// On a GPU with dynamic MIG: profile and start of the instance.
    instance: Option<String>,
    confirmed: bool,
}

#[derive(Debug, Serialize)]
struct WaitingShown {
    namespace: String,
    pod: String,
    asks: Vec<ContainerRequest>,
    /// In the pod's annotation.
    annotated: bool,
    times: u32,
    text: Option<String>,
}

/// The routes.
pub fn router(model: ReadModel) -> Router {
    Router::new()
        // Behind a proxy only a relative location is right.
        .route("/page", get(|| async { Redirect::permanent("page/") }))
        .route("/page/", get(|| async { file("") }))
        .route("/page/state", get(state))
        .route(
            "/page/{file}",
            get(|Path(name): Path<String>| async move { file(&name) }),
        )
        .with_state(model)
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

async fn state(State(model): State<ReadModel>) -> Result<Response, (StatusCode, String)> {
    model.ready()?;
    Ok(Json(page_state(&model.cache, model.leads())).into_response())
}

fn page_state(cache: &LedgerCache, leads: bool) -> PageState {
    // A copy, so that the lock is not held while the answer is made.
    let ledger = cache.read(Ledger::clone);
    let mut shares = shares(cache, &ledger);
    let cores = cache.settings().defaults.cores;
    let nodes = nodes_by_name(ledger.cluster().clone(), cores).map(|node| NodeShown {
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
    });
    let nodes = nodes.collect();
    let mut waiting: Vec<PendingPod> = cache.pending.pods.lock().values().cloned().collect();
    let name = |one: &PendingPod| (one.pod.namespace.clone(), one.pod.name.clone());
    waiting.sort_by_cached_key(name);
    let more_waiting = waiting.len().saturating_sub(MAX_PENDING);
    waiting.truncate(MAX_PENDING);
    PageState {
        leads,
        nodes,
        waiting: waiting.into_iter().map(line).collect(),
        more_waiting,
    }
}

/// The shares by GPU, sorted by the pods' names.
fn shares(cache: &LedgerCache, ledger: &Ledger) -> HashMap<String, Vec<PageShare>> {
    let bound_pods = cache.bound_pods.0.read();
    let name = |uid: &PodUid| {
        let bound_pod = bound_pods.get(uid);
        bound_pod.map_or_else(|| uid.to_string(), |bound_pod| bound_pod.pod.name.clone())
    };
    let mut found: HashMap<String, BTreeMap<(String, String, String), PageShare>> = HashMap::new();
    for (uid, entry) in ledger.pod_entries() {
        let counted = entry.allocated.uses();
        let Some(uses) = counted.filter(|_| ledger.counts(uid, entry)) else {
            continue;
        };
        for (device, used) in uses {
            let (gpu, placed) = match MigPlacement::parse_device_key(device) {
                Some((gpu, placed)) => (gpu, Some(placed)),
                None => (device.as_str(), None),
            };
            let instance = placed.map(|placed| format!("{}@{}", placed.profile, placed.start));
            let share = PageShare {
                namespace: entry.namespace.to_string(),
                pod: name(uid),
                amount: (*used).into(),
                instance: instance.clone(),
                confirmed: entry.confirmed,
            };
            let key = (
                share.namespace.clone(),
                share.pod.clone(),
                format!("{uid}{instance:?}"),
            );
            found.entry(gpu.to_owned()).or_default().insert(key, share);
        }
    }
    let sorted =
        |(gpu, shares): (String, BTreeMap<_, PageShare>)| (gpu, shares.into_values().collect());
    found.into_iter().map(sorted).collect()
}

fn line(waiting: PendingPod) -> WaitingShown {
    WaitingShown {
        asks: container_requests(&waiting.demand),
        annotated: waiting.annotated,
        times: waiting
            .refusals
            .as_ref()
            .map_or(0, |refusals| refusals.times),
        text: waiting.refusals.map(|refusals| refusals.text),
        namespace: waiting.pod.namespace,
        pod: waiting.pod.name,
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
