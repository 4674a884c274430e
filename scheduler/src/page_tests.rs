//! What the page is told, and which files it has.

use aliquot_k8s::event;
use aliquot_k8s::watch::Index;
use aliquot_serve::Readiness;
use axum::body::{Body, to_bytes};
use http::Request;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use std::sync::Arc;
use tower::ServiceExt as _;
use tower_test::mock;

use super::*;
use crate::bind::Binder;
use crate::books::tests::{node, pod};
use crate::leader::Leader;

/// Two nodes, a pod on one of them, one that waits.
fn books() -> Books {
    let books = Books::default();
    let nodes = ["b", "a"].map(|name| node(name, 1000));
    Index::<Node>::reset(&books, nodes.to_vec());
    let pods = vec![pod("holder", 600, Some("a")), pod("p", 500, None)];
    Index::<Pod>::reset(&books, pods);
    books
}

async fn ask(path: &str, readiness: Readiness) -> Response {
    let (service, _) =
        mock::pair::<Request<kube::client::Body>, http::Response<kube::client::Body>>();
    let books = Arc::new(books());
    let leader = Leader::always();
    let client = kube::Client::new(service, "d");
    let binder = Binder::new(books.clone(), client, event::queue().0, leader.clone());
    let router = router(Explain {
        books,
        binder: Arc::new(binder),
        leader,
        readiness,
    });
    let request = Request::get(path).body(Body::empty()).unwrap();
    router.oneshot(request).await.unwrap()
}

#[test]
fn the_page_is_told_each_share_on_its_card_and_each_pod_that_waits() {
    let told = serde_json::to_value(shown(&books(), true)).unwrap();
    let names: Vec<&Value> = told["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| &n["node"])
        .collect();
    assert_eq!(names, ["a", "b"]);
    let gpu = &told["nodes"][0]["gpus"][0];
    assert_eq!(
        (&gpu["gpu"], &gpu["mode"]),
        (&json!("GPU-a"), &json!("vgpu"))
    );
    let share = &gpu["shares"][0];
    assert_eq!(
        (&share["memory"], &share["confirmed"]),
        (&json!(600), &json!(true))
    );
    assert_eq!(share["pod"], "holder");
    assert_eq!(told["nodes"][1]["gpus"][0]["shares"], json!([]));
    let waiting = told["waiting"].as_array().unwrap();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0]["pod"], "p");
    assert_eq!(waiting[0]["asks"][0]["memory"], "500 MiB");
    assert_eq!(
        (&told["leads"], &told["more_waiting"]),
        (&json!(true), &json!(0))
    );
}

#[tokio::test]
async fn the_pages_files_have_their_types_and_load_nothing_from_elsewhere() {
    for (name, kind, text) in FILES {
        let answer = ask(&format!("/page/{name}"), Readiness::new([])).await;
        assert_eq!(answer.status(), StatusCode::OK, "{name}");
        assert_eq!(answer.headers()[header::CONTENT_TYPE], *kind);
        let policy = answer.headers()[header::CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        assert_eq!(bytes, text.as_bytes());
        // Below the way of a proxy an absolute one leads elsewhere.
        assert!(!text.contains("\"/") && !text.contains("http://") && !text.contains("https://"));
    }
    for (path, status) in [
        ("/page/secret.txt", StatusCode::NOT_FOUND),
        ("/page", StatusCode::PERMANENT_REDIRECT),
        ("/page/state", StatusCode::OK),
    ] {
        assert_eq!(
            ask(path, Readiness::new([])).await.status(),
            status,
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_scheduler_without_books_shows_none() {
    let answer = ask("/page/state", Readiness::new(["pods"])).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
}
