//! What is answered for waiting, bound and unknown pods.

use aliquot_core::answer::{PodAnswer, TopAnswer};
use aliquot_core::decide::SoftNote;
use aliquot_core::usage::Use;
use aliquot_core::{Mib, Percent};
use aliquot_k8s::event;
use aliquot_k8s::watch::Index;
use axum::body::{Body, to_bytes};
use http::Request;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tower::ServiceExt as _;
use tower_test::mock;

use super::*;
use crate::books::tests::{node, pod};

/// Three nodes of 1000 MiB; on `a` 600 are taken.
fn books() -> Books {
    let books = Books::default();
    let nodes = ["b", "a", "c"].map(|name| node(name, 1000));
    Index::<Node>::reset(&books, nodes.to_vec());
    let pods = vec![pod("holder", 600, Some("a")), pod("p", 500, None)];
    Index::<Pod>::reset(&books, pods);
    books
}

/// The answer, where the API server knows `known`.
async fn ask(books: Arc<Books>, path: &str, known: Option<Value>) -> (StatusCode, String) {
    let (service, mut server) =
        mock::pair::<Request<kube::client::Body>, http::Response<kube::client::Body>>();
    tokio::spawn(async move {
        if let Some((_, send)) = server.next_request().await {
            let status = if known.is_some() { 200 } else { 404 };
            let missing =
                json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
            let body = known.unwrap_or(missing).to_string().into_bytes();
            let answer = http::Response::builder().status(status).body(body.into());
            send.send_response(answer.unwrap());
        }
    });
    let client = kube::Client::new(service, "d");
    let leader = Leader::always();
    let binder = Binder::new(books.clone(), client, event::queue().0, leader.clone());
    let router = router(Explain {
        books,
        binder: Arc::new(binder),
        leader,
        readiness: Readiness::new([]),
    });
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    let status = answer.status();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pod_is_explained_node_by_node() {
    let books = Arc::new(books());
    let uid = PodUid::from("p");
    let mut waiting = books.waiting(&uid).unwrap();
    waiting.offered = books.snapshot().set(&["a", "b"]);
    waiting.told = Some(Told::once("first".to_owned(), Instant::now()));
    books.refused(&uid, waiting.clone(), 0);
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    waiting.told = Some(Told::once("0/2 nodes".to_owned(), Instant::now()));
    books.refused(&uid, waiting, 0);
    let slot = books.snapshot().slot("b").unwrap();
    let claim = crate::claims::Claim {
        note: SoftNote {
            slot,
            uses: vec![(0, Use::of(Mib(700), Percent(0)))],
            instances: vec![],
            seats: aliquot_core::Seats::default(),
        },
        namespace: "d".into(),
    };
    let other = PodUid::from("other");
    let before = books.claims.lock().put(&other, claim, Instant::now());
    assert!(before.is_none());

    let (status, text) = ask(books, "/explain/d/p", None).await;
    assert_eq!(status, StatusCode::OK);
    let answer: PodAnswer = serde_json::from_str(&text).unwrap();
    let told = answer.head.refused.unwrap();
    assert_eq!((told.times, told.text.as_str()), (2, "0/2 nodes"));
    assert!(
        (told.first_seconds_ago, told.last_seconds_ago) == (5.0, 0.0),
        "{told:?}"
    );
    assert_eq!(answer.head.asks[0].memory, "500 MiB");
    let nodes = answer.nodes.iter();
    let lines: Vec<_> = nodes
        .map(|n| {
            (
                n.node.as_str(),
                n.offered,
                n.fits,
                n.crowded,
                n.gpus[0].answer.as_str(),
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            ("a", true, false, false, "CardInsufficientMemory"),
            ("b", true, true, true, "taken"),
            ("c", false, true, false, "taken"),
        ]
    );
    let tail = answer.tail;
    assert_eq!((tail.offered, tail.fitting), (2, 1));
    assert_eq!(tail.why, "1 CardInsufficientMemory");
}

#[tokio::test]
async fn pods_that_do_not_wait_are_answered_in_clear_words() {
    let check = async |known: Option<Value>, status: StatusCode, words: &str| {
        let (found, text) = ask(Arc::new(books()), "/explain/d/x", known).await;
        assert_eq!((found, text.as_str()), (status, words));
    };
    check(
        None,
        StatusCode::NOT_FOUND,
        "there is no pod x in namespace d",
    )
    .await;
    let plain = |spec: Value, phase: &str| json!({"metadata": {"name": "x", "namespace": "d", "uid": "x"}, "spec": spec, "status": {"phase": phase}});
    let empty = json!({"containers": [{"name": "main"}]});
    let conflict = StatusCode::CONFLICT;
    check(
        Some(plain(empty.clone(), "Pending")),
        conflict,
        "pod d/x asks for no GPU",
    )
    .await;
    check(
        Some(plain(empty, "Failed")),
        conflict,
        "pod d/x has ended and holds nothing",
    )
    .await;
    let asks = json!({"nodeName": "a", "containers": [
        {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]});
    let words = "pod d/x asks for a share and is on node a without one: Aliquot did not place it";
    check(Some(plain(asks, "Running")), conflict, words).await;
}

#[tokio::test]
async fn a_bound_pod_is_shown_where_it_is() {
    let known = serde_json::to_value(pod("x", 300, Some("a"))).unwrap();
    let (status, text) = ask(Arc::new(books()), "/explain/d/x", Some(known)).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let answer: PodAnswer = serde_json::from_str(&text).unwrap();
    let booked = answer.head.booked.unwrap();
    assert_eq!((booked.node.as_str(), booked.confirmed), ("a", true));
    let held: Vec<_> = booked.gpus.into_iter().flatten().collect();
    assert_eq!((held[0].0.as_str(), held[0].1.memory), ("GPU-a", Mib(300)));
    assert!(answer.nodes.is_empty());
}

#[tokio::test]
async fn top_lists_the_nodes_by_name() {
    let (_, text) = ask(Arc::new(books()), "/top", None).await;
    let answer: TopAnswer = serde_json::from_str(&text).unwrap();
    let nodes = answer.nodes.iter();
    let lines: Vec<_> = nodes
        .map(|n| (n.node.as_str(), n.gpus[0].largest))
        .collect();
    let expected = [("a", 400), ("b", 1000), ("c", 1000)].map(|(n, m)| (n, Some(Mib(m))));
    assert_eq!(lines, expected);
}
