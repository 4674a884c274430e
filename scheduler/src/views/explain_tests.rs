//! The answers about pending, bound and unknown pods.

use std::sync::Arc;

use aliquot_core::Mib;
use aliquot_core::access::{Access, Forbidden};
use aliquot_core::allocation::ALLOCATION;
use aliquot_k8s::watch::Index;
use aliquot_serve::Readiness;
use aliquot_serve::access_control::{AccessControl, Reviewed, TOKEN_HEADER};
use axum::body::{Body, to_bytes};
use http::Request;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::leader::Leader;
use crate::ledger_cache::tests::{from, node, pod, pod_json, pod_with};
use crate::pod_client::PodClient;
use crate::pod_client::tests::{api_server, status};
use crate::views::hour::Hour;
use crate::views::monitors::Monitors;

const MESSAGE: &str = "0/3 nodes are available: 3 Insufficient cpu.";

/// Three nodes of 1000 MiB; on `a` 600 are allocated.
fn cache() -> LedgerCache {
    let cache = LedgerCache::default();
    let nodes = ["b", "a", "c"].map(|name| node(name, 1000));
    Index::<Node>::reset(&cache, nodes.to_vec());
    let pods = vec![pod("holder", 600, Some("a")), pod("p", 500, None)];
    Index::<PodView>::reset(&cache, pods);
    cache
}

/// The answer, where the API server has `known`.
async fn ask(cache: Arc<LedgerCache>, path: &str, known: Option<Value>) -> (StatusCode, String) {
    ask_guarded(cache, path, known, None).await
}

/// The answer to a token that `control` lets get some paths.
async fn ask_guarded(
    cache: Arc<LedgerCache>,
    path: &str,
    known: Option<Value>,
    control: Option<AccessControl>,
) -> (StatusCode, String) {
    let (client, mut calls) = api_server();
    tokio::spawn(async move {
        if let Some(call) = calls.next_call().await {
            match known {
                Some(pod) => call.answer(200, &pod),
                None => call.answer(404, &status(404)),
            }
        }
    });
    let leader = Leader::always();
    let router = router(ReadModel {
        cache,
        pods: PodClient::new(client.clone()),
        monitors: Monitors::new(client, None, control),
        hour: Hour::default(),
        leader,
        readiness: Readiness::new([]),
    });
    let request = Request::get(path).header(TOKEN_HEADER, "token");
    let request = request.body(Body::empty()).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    let status = answer.status();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn explains_pending_pod_node_by_node() {
    let cache = Arc::new(cache());
    let uid = PodUid::from("p");
    let mut waiting = cache.pending(&uid).unwrap().as_ref().clone();
    waiting.offered = cache.snapshot().set(&["a", "b"]);
    waiting.refusals = Some(RefusalRecord::new("first".to_owned(), Instant::now()));
    cache.lock().refuse(&uid, waiting.clone());
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    waiting.refusals = Some(RefusalRecord::new("0/2 nodes".to_owned(), Instant::now()));
    cache.lock().refuse(&uid, waiting);
    let (status, text) = ask(cache, "/explain/d/p", Some(refused_by_kube_scheduler())).await;
    assert_eq!(status, StatusCode::OK);
    let answer: PodAnswer = serde_json::from_str(&text).unwrap();
    let refused = answer.head.refused.unwrap();
    assert_eq!((refused.times, refused.text.as_str()), (2, "0/2 nodes"));
    assert!(
        (refused.first_seconds_ago, refused.last_seconds_ago) == (5.0, 0.0),
        "{refused:?}"
    );
    assert_eq!(answer.head.requests[0].memory, "500 MiB");
    assert_eq!(answer.head.condition.unwrap().message, MESSAGE);
    let nodes = answer.nodes.iter();
    let lines: Vec<_> = nodes
        .map(|n| {
            (
                n.node.as_str(),
                n.offered,
                n.fits,
                n.gpus[0].answer.as_str(),
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            ("a", true, false, "CardInsufficientMemory"),
            ("b", true, true, "chosen"),
            ("c", false, true, "chosen"),
        ]
    );
    let tail = answer.tail;
    assert_eq!((tail.offered, tail.fitting), (2, 1));
    assert_eq!(tail.why, "1 CardInsufficientMemory");
}

/// Pod `p`, which no node can take by kube-scheduler's own checks.
fn refused_by_kube_scheduler() -> Value {
    let mut known = pod_json("p", 500, None);
    known["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": MESSAGE}]);
    known
}

#[tokio::test]
async fn shows_why_kube_scheduler_refuses_a_pod_that_fits() {
    let cache = Arc::new(cache());
    let known = refused_by_kube_scheduler();
    Index::delete(&*cache, pod("p", 500, None));
    // Both while the watch is behind, and after it.
    for _ in 0..2 {
        let (_, text) = ask(cache.clone(), "/explain/d/p", Some(known.clone())).await;
        let answer: PodAnswer = serde_json::from_str(&text).unwrap();
        let condition = answer.head.condition.unwrap();
        let found = (condition.reason.as_str(), condition.message.as_str());
        assert_eq!(found, ("Unschedulable", MESSAGE));
        assert_eq!((answer.tail.offered, answer.tail.fitting), (0, 0));
        let nodes = answer.nodes.iter().filter(|node| node.fits);
        let nodes: Vec<_> = nodes
            .map(|node| (node.node.as_str(), node.offered))
            .collect();
        assert_eq!(nodes, [("b", false), ("c", false)]);
        Index::<PodView>::apply(&*cache, from(known.clone()));
    }
}

/// RBAC may let an account get `/explain/d/*` alone.
#[tokio::test]
async fn names_pods_only_to_those_who_may_read_their_namespace() {
    let spoilt = json!({"metadata": {"namespace": "other", "annotations": {ALLOCATION: "{"}}});
    let spoilt = pod_with("spoilt", 100, Some("a"), spoilt);
    for (prefix, detail) in [
        ("/", "of pod other/spoilt"),
        ("/explain/d/", "of 1 pod of another namespace"),
    ] {
        let review = move |_, path: String| -> Reviewed {
            let account = "limited".to_owned();
            Box::pin(async move {
                Ok(match path.strip_prefix(prefix) {
                    Some(_) => Access::Allowed,
                    None => Access::Forbidden(Forbidden { account, path }),
                })
            })
        };
        let control = AccessControl::new(review, []).unwrap();
        let cache = cache();
        Index::apply(&cache, spoilt.clone());
        let known = pod_json("p", 500, None);
        let asked = ask_guarded(Arc::new(cache), "/explain/d/p", Some(known), Some(control));
        let answer: PodAnswer = serde_json::from_str(&asked.await.1).unwrap();
        assert_eq!(answer.nodes[0].gpus[0].detail, detail, "{prefix}");
    }
}

#[tokio::test]
async fn answers_why_a_pod_is_not_explained() {
    let check = async |known: Option<Value>, status: StatusCode, words: &str| {
        let (found, text) = ask(Arc::new(cache()), "/explain/d/x", known).await;
        assert_eq!((found, text.as_str()), (status, words));
    };
    check(None, StatusCode::NOT_FOUND, "pod d/x not found").await;
    let plain = |spec: Value, phase: &str| json!({"metadata": {"name": "x", "namespace": "d", "uid": "x"}, "spec": spec, "status": {"phase": phase}});
    let empty = json!({"containers": [{"name": "main"}]});
    let conflict = StatusCode::CONFLICT;
    check(
        Some(plain(empty.clone(), "Pending")),
        conflict,
        "pod d/x requests no GPU",
    )
    .await;
    check(
        Some(plain(empty, "Failed")),
        conflict,
        "pod d/x has finished and has no GPU allocation",
    )
    .await;
    let asks = json!({"nodeName": "a", "containers": [
        {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]});
    let words = "pod d/x requests a GPU share, but runs on node a without an allocation: another scheduler placed it";
    check(Some(plain(asks, "Running")), conflict, words).await;
}

#[tokio::test]
async fn shows_placement_of_bound_pod() {
    let known = pod_json("x", 300, Some("a"));
    let (status, text) = ask(Arc::new(cache()), "/explain/d/x", Some(known)).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let answer: PodAnswer = serde_json::from_str(&text).unwrap();
    let placement = answer.head.placement.unwrap();
    assert_eq!((placement.node.as_str(), placement.confirmed), ("a", true));
    let allocated: Vec<_> = placement.gpus.into_iter().flatten().collect();
    assert_eq!(
        (allocated[0].0.as_str(), allocated[0].1.memory),
        ("GPU-a", Mib(300))
    );
    assert!(answer.nodes.is_empty());
}

#[tokio::test]
async fn top_lists_nodes_by_name() {
    let (_, text) = ask(Arc::new(cache()), "/top", None).await;
    let answer: TopAnswer = serde_json::from_str(&text).unwrap();
    let nodes = answer.nodes.iter();
    let lines: Vec<_> = nodes
        .map(|n| (n.node.as_str(), n.gpus[0].largest))
        .collect();
    let expected = [("a", 400), ("b", 1000), ("c", 1000)].map(|(n, m)| (n, Some(Mib(m))));
    assert_eq!(lines, expected);
}
