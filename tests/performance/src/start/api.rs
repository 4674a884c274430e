//! A fake API server with one node and its pods that counts requests and accepts every write.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aliquot_serve::http::{self, Limits};
use anyhow::Result;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{NODE, RESOURCE};

/// The server; ends when dropped.
pub(super) struct Api {
    url: String,
    state: Arc<ApiState>,
    _stop: DropGuard,
}

struct ApiState {
    pods: Vec<Value>,
    node: Mutex<Value>,
    requests: AtomicU64,
    writes: AtomicU64,
    last: Mutex<Instant>,
}

impl Api {
    pub(super) async fn start(pods: Vec<Value>) -> Result<Self> {
        let node = json!({"metadata": {"name": NODE, "uid": "node", "resourceVersion": "7"},
                          "spec": {},
                          "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.2.0"}}});
        let state = Arc::new(ApiState {
            pods,
            node: Mutex::new(node),
            requests: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            last: Mutex::new(Instant::now()),
        });
        let listener = http::bind(([127, 0, 0, 1], 0).into()).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let stop = CancellationToken::new();
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&state));
        let serving = http::serve(listener, None, router, Limits::new(1 << 20), stop.clone());
        tokio::spawn(serving);
        let stop = stop.drop_guard();
        Ok(Self {
            url,
            state,
            _stop: stop,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    pub(super) fn writes(&self) -> u64 {
        self.state.writes.load(Ordering::SeqCst)
    }

    /// There was no request for this long.
    pub(super) fn quiet_for(&self, time: Duration) -> bool {
        self.state.last.lock().elapsed() > time
    }
}

async fn answer(State(state): State<Arc<ApiState>>, request: Request) -> Response {
    state.requests.fetch_add(1, Ordering::SeqCst);
    *state.last.lock() = Instant::now();
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if request.method() != Method::GET {
        state.writes.fetch_add(1, Ordering::SeqCst);
        let is_node = path.starts_with("/api/v1/nodes/");
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
        let change = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or(Value::Null);
        if !is_node {
            return Json(change).into_response();
        }
        let mut node = state.node.lock();
        merge(&mut node, &change);
        return Json(node.clone()).into_response();
    }
    if query.contains("watch=true") {
        let never = futures::stream::pending::<Result<Bytes, Infallible>>();
        return (
            [(CONTENT_TYPE, "application/json")],
            Body::from_stream(never),
        )
            .into_response();
    }
    let items = match path.as_str() {
        "/api/v1/nodes" => json!([state.node.lock().clone()]),
        "/api/v1/pods" => json!(state.pods),
        _ => json!([]),
    };
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
                      "items": items});
    Json(list).into_response()
}

/// RFC 7396; lists of conditions are replaced, which is irrelevant here.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        value.clone_from(patch);
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (key, change) in patch {
        if change.is_null() {
            if let Some(all) = value.as_object_mut() {
                all.remove(key);
            }
        } else {
            merge(&mut value[key], change);
        }
    }
}

/// A pod bound to the node, with a small share of this GPU.
pub(super) fn pod(name: &str, gpu: &str) -> Value {
    let grant = json!({"resource": RESOURCE, "gpu": gpu, "memory": 1000, "cores": 1});
    let allocation = json!({"v": 1, "node": NODE, "containers": {"main": [grant]}, "init": {},
                            "priority": 1});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "7",
                     "creationTimestamp": "2026-01-01T00:00:00Z",
                     "annotations": {"aliquot.dev/allocation": allocation.to_string()}},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "resources": {
            "limits": {RESOURCE: "1", "nvidia.com/gpumem": "1000", "nvidia.com/gpucores": "1"}}}]},
        "status": {"phase": "Pending"},
    })
}
