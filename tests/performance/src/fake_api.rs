//! An API server that only lists nodes and pods in pages, and whose watches have no events but of pods
//! that go and come. It is the proxy of each node's monitor too. Everything else is an empty list. A
//! pod is as large as API servers send it, with managed fields.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::interval;
use tokio_stream::wrappers::IntervalStream;

use crate::cluster;

/// The objects listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Nodes with 8 GPUs and 16 pods each.
    pub nodes: usize,
    /// Pods without GPU beside them, on the same nodes.
    pub others: usize,
    /// Pods that go or come each second.
    pub changes: u32,
}

impl Scale {
    pub(crate) fn pods(self) -> usize {
        self.nodes * cluster::PODS + self.others
    }
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    watch: Option<bool>,
    limit: Option<usize>,
    #[serde(rename = "continue")]
    from: Option<usize>,
    #[serde(rename = "fieldSelector")]
    fields: Option<String>,
}

/// The pages of both lists, created beforehand, because their creation is not measured.
pub(crate) struct Pages {
    scale: Scale,
    nodes: Vec<Bytes>,
    pods: Vec<Bytes>,
}

/// Objects on a page, as `aliquot_k8s::watch` asks.
pub(crate) const PAGE: usize = 500;

impl Pages {
    pub(crate) fn of(scale: Scale) -> Result<Self> {
        let node = |at| Ok(serde_json::to_string(&cluster::node(at)?)?);
        Ok(Self {
            scale,
            nodes: pages(scale.nodes, &node)?,
            pods: pages(scale.pods(), &|at| Ok(pod(scale, at)?.to_string()))?,
        })
    }
}

fn pages(total: usize, one: &dyn Fn(usize) -> Result<String>) -> Result<Vec<Bytes>> {
    let page = |from: usize| {
        let to = total.min(from + PAGE);
        let items: Result<Vec<_>> = (from..to).map(one).collect();
        let next = (to < total).then_some(to);
        anyhow::Ok(Bytes::from(list_of(&items?.join(","), next)))
    };
    (0..total).step_by(PAGE).map(page).collect()
}

pub(crate) fn router(pages: Arc<Pages>) -> Router {
    Router::new()
        .route("/api/v1/{kind}", get(list))
        .route("/api/v1/namespaces/{namespace}/pods", get(agent))
        .route(
            "/api/v1/namespaces/{namespace}/pods/{agent}/proxy/usage",
            get(usage),
        )
        .route("/apis/{group}/{version}/{kind}", get(empty_list))
        .with_state(pages)
}

async fn empty_list(Query(query): Query<ListQuery>) -> Response {
    if query.watch == Some(true) {
        return empty_watch();
    }
    answer(list_of("", None))
}

async fn list(
    State(all): State<Arc<Pages>>,
    Path(kind): Path<String>,
    Query(query): Query<ListQuery>,
) -> Response {
    let pages = match kind.as_str() {
        "nodes" => &all.nodes,
        "pods" => &all.pods,
        _ => return empty_list(Query(query)).await,
    };
    if query.watch == Some(true) {
        let changes = kind == "pods" && all.scale.changes > 0;
        return if changes {
            watch_changes(all.scale)
        } else {
            empty_watch()
        };
    }
    match pages.get(query.from.unwrap_or(0) / PAGE) {
        Some(page) if query.limit == Some(PAGE) => answer(page.clone()),
        _ => StatusCode::BAD_REQUEST.into_response(),
    }
}

fn list_of(items: &str, next: Option<usize>) -> String {
    let next = next.map_or_else(String::new, |next| next.to_string());
    format!(
        r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"7","continue":"{next}"}},"items":[{items}]}}"#
    )
}

fn answer(text: impl Into<Body>) -> Response {
    ([(CONTENT_TYPE, "application/json")], text.into()).into_response()
}

fn empty_watch() -> Response {
    let never = futures::stream::pending::<Result<Bytes, Infallible>>();
    Body::from_stream(never).into_response()
}

/// A watch in which one pod after the other goes and comes again.
fn watch_changes(scale: Scale) -> Response {
    let ours = scale.nodes * cluster::PODS;
    let ticks = IntervalStream::new(interval(Duration::from_secs(1) / scale.changes));
    let events = ticks.enumerate().map(move |(at, _)| {
        // The next one is on another node.
        let mut object = pod(scale, at / 2 * (cluster::PODS + 1) % ours)?;
        object["metadata"]["resourceVersion"] = json!((at + 8).to_string());
        let kind = ["DELETED", "ADDED"][at % 2];
        anyhow::Ok(format!("{}\n", json!({"type": kind, "object": object})))
    });
    Body::from_stream(events).into_response()
}

/// The agent's pod on the node that the selector names first.
async fn agent(Query(query): Query<ListQuery>) -> Response {
    let fields = query.fields.unwrap_or_default();
    let node = fields
        .split(',')
        .find_map(|one| one.strip_prefix("spec.nodeName="));
    let agent = node.map(|node| json!({"metadata": {"name": format!("agent-{node}")}}).to_string());
    answer(list_of(&agent.unwrap_or_default(), None))
}

/// What a monitor of 8 GPUs and 16 shares answers.
async fn usage(Path((_, agent)): Path<(String, String)>) -> Response {
    let gpu = |number| json!({"gpu": format!("GPU-{number}"), "memory": 31_000, "sm": 72, "temperature": 61, "power": 240});
    let share = |number: usize| {
        json!({"gpu": format!("GPU-{}", number % 8), "device": format!("GPU-{}", number % 8),
        "namespace": "default", "pod": format!("{agent}-{number}"), "container": "main",
        "limit": 9_000, "memory": 2_100, "sm": 28, "throttled": 12})
    };
    let gpus: Vec<Value> = (0..8).map(gpu).collect();
    let shares: Vec<Value> = (0..cluster::PODS).map(share).collect();
    let usage = json!({"node": agent, "taken_at": 1_790_000_000, "gpus": gpus, "shares": shares});
    answer(usage.to_string())
}

fn pod(scale: Scale, at: usize) -> Result<Value> {
    let ours = scale.nodes * cluster::PODS;
    let mut pod = if at < ours {
        cluster::bound_pod(at / cluster::PODS, at % cluster::PODS)?
    } else {
        let mut pod = cluster::pod(&format!("other-{at}"), 1);
        pod["spec"]["nodeName"] = json!(cluster::name(at % scale.nodes));
        pod["spec"]["containers"][0]["resources"] =
            json!({"requests": {"cpu": "100m", "memory": "128Mi"}});
        pod
    };
    add_usual_fields(&mut pod);
    Ok(pod)
}

/// Adds what every real pod has: about 4 KB.
fn add_usual_fields(pod: &mut Value) {
    let mut fields = String::new();
    for field in 0..40 {
        // Writing to a String cannot fail.
        let _ = write!(fields, r#","f:field{field}":{{".":{{}},"f:name":{{}}}}"#);
    }
    let fields: Value = serde_json::from_str(&format!("{{{}}}", &fields[1..])).unwrap_or_default();
    let metadata = &mut pod["metadata"];
    metadata["resourceVersion"] = json!("7");
    metadata["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    metadata["labels"] = json!({"app": "inference", "pod-template-hash": "5d4f8c7b9"});
    metadata["managedFields"] = json!([
        {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
         "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}},
    ]);
    let env: Vec<_> = (0..12)
        .map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "some value"}))
        .collect();
    pod["spec"]["containers"][0]["env"] = json!(env);
    pod["spec"]["volumes"] = json!([{"name": "kube-api-access", "projected": {"sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}]);
    pod["status"] = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
        "conditions": (["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| json!(
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}))),
        "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0, "image": "i",
            "imageID": "registry.example/i@sha256:0123456789abcdef", "containerID": "containerd://0123456789abcdef",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]});
}
