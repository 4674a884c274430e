//! The data of the page, and its files.

use aliquot_serve::Readiness;
use axum::body::{Body, to_bytes};
use http::Request;

use std::sync::Arc;
use tower::ServiceExt as _;

use super::*;
use crate::leader::Leader;
use crate::pod_client::PodClient;
use crate::pod_client::tests::api_server;
use crate::views::hour::Hour;
use crate::views::monitors::Monitors;
use crate::views::page_state;

async fn ask(path: &str, readiness: Readiness) -> Response {
    let (client, _) = api_server();
    let cache = Arc::new(page_state::tests::cache());
    let leader = Leader::always();
    let router = router(ReadModel {
        cache,
        pods: PodClient::new(client.clone()),
        monitors: Monitors::new(client, None, None),
        hour: Hour::default(),
        leader,
        readiness,
    });
    let request = Request::get(path).body(Body::empty()).unwrap();
    router.oneshot(request).await.unwrap()
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
async fn page_state_names_the_leader() {
    let answer = ask("/page/state", Readiness::new([])).await;
    assert_eq!(answer.headers()["aliquot-leads"], "true");
}

#[tokio::test]
async fn page_state_is_unavailable_before_first_list() {
    let answer = ask("/page/state", Readiness::new(["pods"])).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
}
