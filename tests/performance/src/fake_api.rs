//! An API server that only lists: 5,000 nodes and 100,000 pods in pages, and
//! watches in which nothing happens. Everything else is an empty list.
//!
//! Fed by: one client at a time. Must not: be quick by leaving things out; a pod
//! is as large as API servers send it, managed fields and all.

use std::convert::Infallible;
use std::fmt::Write as _;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster;

/// What is listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Nodes of 8 GPUs with 16 pods each.
    pub nodes: usize,
    /// Pods without GPU beside them, on the same nodes.
    pub others: usize,
}

#[derive(Debug, Deserialize)]
struct Asked {
    watch: Option<bool>,
    limit: Option<usize>,
    #[serde(rename = "continue")]
    from: Option<usize>,
}

/// The routes.
pub(crate) fn router(scale: Scale) -> Router {
    Router::new()
        .route("/api/v1/{kind}", get(list))
        .route("/apis/{group}/{version}/{kind}", get(nothing))
        .with_state(scale)
}

async fn nothing(Query(asked): Query<Asked>) -> Response {
    if asked.watch == Some(true) {
        return silence();
    }
    answer("", None)
}

async fn list(
    State(scale): State<Scale>,
    Path(kind): Path<String>,
    Query(asked): Query<Asked>,
) -> Response {
    if asked.watch == Some(true) {
        return silence();
    }
    let of = |total: usize, one: &dyn Fn(usize) -> Result<String>| {
        let from = asked.from.unwrap_or(0);
        let to = total.min(from + asked.limit.unwrap_or(total));
        let items: Result<Vec<_>> = (from..to).map(one).collect();
        match items {
            Ok(items) => answer(&items.join(","), (to < total).then_some(to)),
            Err(error) => (
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                format!("{error:#}"),
            )
                .into_response(),
        }
    };
    match kind.as_str() {
        "nodes" => of(scale.nodes, &|at| {
            Ok(serde_json::to_string(&cluster::node(at)?)?)
        }),
        "pods" => of(scale.nodes * cluster::PODS + scale.others, &|at| {
            pod(scale, at)
        }),
        _ => answer("", None),
    }
}

fn answer(items: &str, next: Option<usize>) -> Response {
    let next = next.map_or_else(String::new, |next| next.to_string());
    let text = format!(
        r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"7","continue":"{next}"}},"items":[{items}]}}"#
    );
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

/// A watch in which nothing happens.
fn silence() -> Response {
    let never = futures::stream::pending::<Result<Bytes, Infallible>>();
    Body::from_stream(never).into_response()
}

fn pod(scale: Scale, at: usize) -> Result<String> {
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
    dress(&mut pod);
    Ok(pod.to_string())
}

/// What every real pod has besides: about 4 KB.
fn dress(pod: &mut Value) {
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
