//! The data of the page, and its files.

use aliquot_core::request_annotation::REQUEST;
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
use crate::leader::Leader;
use crate::ledger_cache::tests::{node, pod};
use crate::pod_client::PodClient;

/// Two nodes, a pod on one of them, and a pending one.
fn cache() -> LedgerCache {
    let cache = LedgerCache::default();
    let nodes = ["b", "a"].map(|name| node(name, 1000));
    Index::<Node>::reset(&cache, nodes.to_vec());
    let pods = vec![pod("holder", 600, Some("a")), pod("p", 500, None)];
    Index::<Pod>::reset(&cache, pods);
    cache
}

async fn ask(path: &str, readiness: Readiness) -> Response {
    let (service, _) =
        mock::pair::<Request<kube::client::Body>, http::Response<kube::client::Body>>();
    let cache = Arc::new(cache());
    let leader = Leader::always();
    let client = kube::Client::new(service, "d");
    let router = router(ReadModel {
        cache,
        pods: PodClient::new(client),
        leader,
        readiness,
    });
    let request = Request::get(path).body(Body::empty()).unwrap();
    router.oneshot(request).await.unwrap()
}

#[test]
fn page_state_has_shares_by_gpu_and_pending_pods() {
    let state_json = serde_json::to_value(page_state(&cache(), true)).unwrap();
    let names: Vec<&Value> = state_json["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| &n["node"])
        .collect();
    assert_eq!(names, ["a", "b"]);
    let gpu = &state_json["nodes"][0]["gpus"][0];
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
    assert_eq!(state_json["nodes"][1]["gpus"][0]["shares"], json!([]));
    let waiting = state_json["waiting"].as_array().unwrap();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0]["pod"], "p");
    assert_eq!(waiting[0]["asks"][0]["memory"], "500 MiB");
    assert_eq!(
        (&state_json["leads"], &state_json["more_waiting"]),
        (&json!(true), &json!(0))
    );
}

#[test]
fn pending_pod_shows_request_from_its_annotation() {
    let cache = LedgerCache::default();
    let mut annotated = pod("p", 500, None);
    let request = json!({"v": 1, "containers": {"main": {"memory": 700, "cores": 30}}});
    annotated.metadata.annotations = Some([(REQUEST.to_owned(), request.to_string())].into());
    let containers = &mut annotated.spec.as_mut().unwrap().containers;
    containers[0].resources =
        serde_json::from_value(json!({"limits": {"nvidia.com/gpu": "1"}})).unwrap();
    Index::<Pod>::reset(&cache, vec![annotated]);
    let state_json = serde_json::to_value(page_state(&cache, true)).unwrap();
    let waiting = &state_json["waiting"][0];
    assert_eq!(waiting["annotated"], true);
    let asks = &waiting["asks"][0];
    assert_eq!(
        (&asks["memory"], &asks["cores"]),
        (&json!("700 MiB"), &json!(30))
    );
}

#[tokio::test]
async fn serves_page_files_that_load_nothing_external() {
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
        // Behind the path of a proxy an absolute location leads elsewhere.
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
async fn page_state_is_unavailable_before_first_list() {
    let answer = ask("/page/state", Readiness::new(["pods"])).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
}
