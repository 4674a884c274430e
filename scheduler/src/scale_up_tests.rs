//! Against an API server that stores placeholders and records the calls.

use std::convert::Infallible;

use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use http::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use tower::service_fn;

use super::*;
use crate::ledger_cache::tests::{cache, from, node, pod, pod_json, with};
use crate::pod_client::tests::status as failure;

const TYPES: &str = r#"[{"name": "t", "gpus": 1, "model": "m", "gpuMemory": 1000}]"#;
const TWO_TYPES: &str = r#"[
    {"name": "a", "gpus": 1, "model": "A", "gpuMemory": 1000, "nodeSelector": {"pool": "a100"}},
    {"name": "h", "gpus": 1, "model": "H", "gpuMemory": 1000, "nodeSelector": {"pool": "h100"}}]"#;

/// The API server: its calls, and the placeholders that it stores.
#[derive(Default)]
struct FakeServer {
    calls: Mutex<Vec<String>>,
    placeholders: Mutex<Vec<Value>>,
    /// Of the spec of every pending pod.
    spec: Value,
    /// It refuses placeholders for this many GPUs.
    refused: Option<&'static str>,
}

impl FakeServer {
    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Value {
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut stored = self.placeholders.lock();
        let call = match (method, path) {
            (&Method::GET, "/api/v1/namespaces/system/pods") => {
                return json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": *stored});
            }
            (&Method::GET, _) => {
                let spec = self.spec.as_object().cloned().unwrap_or_default();
                return with(unschedulable_json(name, 600), json!({ "spec": spec }));
            }
            (&Method::POST, _) => {
                let mut made: Value = serde_json::from_slice(body).unwrap();
                let limits = &made["spec"]["containers"][0]["resources"]["limits"];
                if limits["nvidia.com/gpu"].as_str() == self.refused {
                    return failure(403);
                }
                made["metadata"]["name"] = json!(format!("p{}", stored.len()));
                stored.push(made.clone());
                self.calls.lock().push("create".to_owned());
                return made;
            }
            (&Method::DELETE, _) => {
                stored.retain(|one| one["metadata"]["name"] != name);
                "delete"
            }
            (&Method::PATCH, path) if path.ends_with("/status") => {
                let status: Value = serde_json::from_slice(body).unwrap();
                let named = path.rsplit('/').nth(1).unwrap();
                let mut all = stored.iter_mut();
                let found = all.find(|one| one["metadata"]["name"] == named).unwrap();
                found["status"] = status["status"].clone();
                self.calls.lock().push("report".to_owned());
                return found.clone();
            }
            (&Method::PATCH, _) => "label",
            _ => panic!("{method} {path}"),
        };
        self.calls.lock().push(format!("{call} {name}"));
        json!({"apiVersion": "v1", "kind": "Status", "metadata": {"name": name}, "status": "Success"})
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock())
    }
}

/// A pending pod that kube-scheduler reports as unschedulable.
fn unschedulable(name: &str, memory: u64) -> PodView {
    from(unschedulable_json(name, memory))
}

fn unschedulable_json(name: &str, memory: u64) -> Value {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let status = json!({"status": {"conditions": [condition]}});
    with(pod_json(name, memory, None), status)
}

fn counted(name: &str) -> Node {
    let mut node = node(name, 1000);
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(COUNTED.to_owned(), "true".to_owned());
    node
}

fn scale_up(cache: &Arc<LedgerCache>, server: &Arc<FakeServer>, types: &str) -> ScaleUp {
    let server = server.clone();
    let service = service_fn(move |request: Request<Body>| {
        let server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let answer = server.answer(&parts.method, parts.uri.path(), &body);
            let code = answer["code"].as_u64().unwrap_or(200);
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            let response = Response::builder().status(u16::try_from(code).unwrap());
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    let owner = Owner {
        namespace: "system".to_owned(),
        pod: None,
    };
    let types = types.parse().unwrap();
    let client = Client::new(service, "d");
    ScaleUp::new(cache.clone(), client, Leader::always(), types, owner)
}

#[tokio::test]
async fn labels_a_node_after_deleting_its_placeholders() {
    let (cache, server) = (Arc::new(cache()), Arc::new(FakeServer::default()));
    Index::apply(&*cache, pod("x", 600, Some("n")));
    for name in ["a", "b"] {
        Index::apply(&*cache, unschedulable(name, 600));
    }
    // A finalizer keeps it, and no GPU is missing for it.
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let deleted = with(unschedulable_json("deleted", 600), deleted);
    Index::apply(&*cache, from::<PodView>(deleted));
    let mut scale_up = scale_up(&cache, &server, TYPES);
    // A need is stated when it lasts.
    scale_up.reconcile().await.unwrap();
    assert_eq!(server.calls(), ["label n"]);
    Index::<Node>::apply(&*cache, counted("n"));
    scale_up.reconcile().await.unwrap();
    assert_eq!(server.calls(), ["create", "create", "report", "report"]);
    scale_up.reconcile().await.unwrap();
    assert_eq!(server.calls(), [""; 0]);
    // The new node has room for one of the two.
    Index::<Node>::apply(&*cache, node("m", 1000));
    scale_up.reconcile().await.unwrap();
    assert_eq!(server.calls(), ["delete p1", "label m"]);
    Index::<Node>::apply(&*cache, counted("m"));
    Index::apply(&*cache, pod("a", 600, Some("m")));
    Index::delete(&*cache, unschedulable("b", 600));
    scale_up.reconcile().await.unwrap();
    assert_eq!(server.calls(), ["delete p0"]);
}

#[tokio::test(start_paused = true)]
async fn node_that_joins_is_counted_before_the_next_tick() {
    let (cache, server) = (Arc::new(cache()), Arc::new(FakeServer::default()));
    Index::apply(&*cache, pod("x", 600, Some("n")));
    Index::apply(&*cache, unschedulable("a", 600));
    let stop = CancellationToken::new();
    let running = tokio::spawn(scale_up(&cache, &server, TYPES).run(stop.clone()));
    let pause = Duration::from_millis(1);
    while !server.calls().contains(&"report".to_owned()) {
        tokio::time::advance(pause).await;
    }
    let joined = tokio::time::Instant::now();
    Index::<Node>::apply(&*cache, node("m", 1000));
    while !server.calls().contains(&"delete p0".to_owned()) {
        tokio::time::advance(pause).await;
    }
    assert!(joined.elapsed() < INTERVAL / 2, "{:?}", joined.elapsed());
    stop.cancel();
    running.await.unwrap();
}

/// Another replica leads since the count began.
#[tokio::test]
async fn old_leader_states_no_need() {
    let (cache, server) = (Arc::new(cache()), Arc::new(FakeServer::default()));
    Index::apply(&*cache, unschedulable("a", 900));
    Index::apply(&*cache, pod("x", 600, Some("n")));
    let mut scale_up = scale_up(&cache, &server, TYPES);
    scale_up.leader = Leader::replica();
    scale_up.leader.set_holder("pod-b_1");
    for _ in 0..2 {
        scale_up.reconcile().await.unwrap();
    }
    assert_eq!(server.calls(), [""; 0]);
}

#[tokio::test]
async fn placeholders_are_no_pending_pods() {
    let (cache, server) = (Arc::new(cache()), Arc::new(FakeServer::default()));
    Index::apply(&*cache, unschedulable("a", 2000));
    Index::apply(&*cache, unschedulable("b", 900));
    let mut scale_up = scale_up(&cache, &server, TYPES);
    for _ in 0..2 {
        scale_up.reconcile().await.unwrap();
        Index::<Node>::apply(&*cache, counted("n"));
    }
    // No GPU of the type is large enough for one of the two.
    assert_eq!(server.calls(), ["label n", "create", "report"]);
    let mut made = server.placeholders.lock()[0].clone();
    made["metadata"]["uid"] = json!("p");
    let pending = cache.pending_counts().0;
    Index::<PodView>::apply(&*cache, from(made));
    assert_eq!(cache.pending_counts().0, pending);
}

#[tokio::test]
async fn a_refused_placeholder_stops_no_other() {
    let types = r#"[{"name": "t", "gpus": 2, "model": "m", "gpuMemory": 1000}]"#;
    let limits = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "900"});
    let two = json!({"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}});
    for refused in ["1", "2"] {
        let cache = Arc::new(cache());
        let server = Arc::new(FakeServer {
            refused: Some(refused),
            ..FakeServer::default()
        });
        Index::<Node>::apply(&*cache, counted("n"));
        Index::apply(&*cache, unschedulable("a", 900));
        let both = with(unschedulable_json("b", 900), two.clone());
        Index::<PodView>::apply(&*cache, from(both));
        let mut scale_up = scale_up(&cache, &server, types);
        for _ in 0..2 {
            scale_up.reconcile().await.unwrap();
        }
        assert_eq!(server.calls(), ["create", "report"], "{refused}");
    }
}

#[tokio::test]
async fn buys_the_type_that_the_pod_selects_and_tolerates() {
    let toleration = json!([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]);
    let cache = Arc::new(cache());
    let server = Arc::new(FakeServer {
        spec: json!({"nodeSelector": {"pool": "h100"}, "tolerations": toleration}),
        ..FakeServer::default()
    });
    Index::apply(&*cache, pod("x", 600, Some("n")));
    Index::apply(&*cache, unschedulable("a", 600));
    let mut scale_up = scale_up(&cache, &server, TWO_TYPES);
    for _ in 0..2 {
        scale_up.reconcile().await.unwrap();
    }
    let made = server.placeholders.lock()[0].clone();
    assert_eq!(made["spec"]["nodeSelector"], json!({"pool": "h100"}));
    assert_eq!(made["spec"]["tolerations"], toleration);
}
