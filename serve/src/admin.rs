//! The admin routes: `/healthz`, `/readyz`, `/metrics`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::readiness::Readiness;

/// `OpenMetrics`, the text format that the registry writes.
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Routes to merge into a program's router or to serve alone.
///
/// `/healthz` is 200 while the process answers. `/readyz` is 200 `ok` or 503 with one
/// reason a line. `/metrics` is the registry as `OpenMetrics` text.
pub fn router(readiness: Readiness, registry: Arc<Registry>) -> Router {
    router_with(readiness, registry, || Box::new(std::iter::empty()))
}

/// The same, where `/healthz` is 503 with its reasons while a condition of `alive` fails:
/// then only a restart helps.
pub fn router_alive(readiness: Readiness, alive: Readiness, registry: Arc<Registry>) -> Router {
    routes(readiness, alive, registry, || Box::new(std::iter::empty()))
}

/// Only `/healthz` and `/readyz`.
pub fn health(readiness: Readiness) -> Router {
    health_of(readiness, Readiness::new([]))
}

/// Text that is produced while it is read.
pub type TextStream = Box<dyn Iterator<Item = String> + Send>;

/// The same, with metric families after those of the registry that would be large as one
/// text. `more` is called at every scrape.
pub fn router_with<F>(readiness: Readiness, registry: Arc<Registry>, more: F) -> Router
where
    F: Fn() -> TextStream + Clone + Send + Sync + 'static,
{
    routes(readiness, Readiness::new([]), registry, more)
}

fn routes<F>(readiness: Readiness, alive: Readiness, registry: Arc<Registry>, more: F) -> Router
where
    F: Fn() -> TextStream + Clone + Send + Sync + 'static,
{
    health_of(readiness, alive).route(
        "/metrics",
        get(move || std::future::ready(metrics(&registry, more()))),
    )
}

fn health_of(readiness: Readiness, alive: Readiness) -> Router {
    Router::new()
        .route(
            "/healthz",
            get(move || std::future::ready(condition_status(&alive))),
        )
        .route(
            "/readyz",
            get(move || std::future::ready(condition_status(&readiness))),
        )
}

fn condition_status(conditions: &Readiness) -> Response {
    let reasons = conditions.reasons();
    if reasons.is_empty() {
        return "ok".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n")).into_response()
}

fn metrics(registry: &Registry, more: TextStream) -> Response {
    let (mut text, mut end) = (String::new(), String::new());
    let written = encode_registry(&mut text, registry).and_then(|()| encode_eof(&mut end));
    if let Err(error) = written {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    let parts = std::iter::once(text).chain(more).chain([end]);
    // Each is produced once the one before was sent, so that a long answer takes little memory.
    let parts = parts.filter(|part| !part.is_empty());
    let body = Body::from_stream(tokio_stream::iter(parts.map(Ok::<_, Infallible>)));
    ([(header::CONTENT_TYPE, METRICS_CONTENT_TYPE)], body).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::http::Request;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    use super::*;

    async fn check(router: &Router, path: &str, status: StatusCode, body: &str) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), body, "{path}");
    }

    #[tokio::test]
    async fn answers_health_readiness_with_reasons_and_metrics() {
        let readiness = Readiness::new(["ledger", "lease"]);
        let mut registry = Registry::default();
        let calls = Counter::<u64>::default();
        registry.register("calls", "Calls served", calls.clone());
        calls.inc();
        let router = router(readiness.clone(), Arc::new(registry));

        check(&router, "/healthz", StatusCode::OK, "ok").await;
        let reasons = "lease: not yet\nledger: not yet";
        check(&router, "/readyz", StatusCode::SERVICE_UNAVAILABLE, reasons).await;
        readiness.pass("ledger");
        readiness.pass("lease");
        check(&router, "/readyz", StatusCode::OK, "ok").await;
        let text = "# HELP calls Calls served.\n# TYPE calls counter\ncalls_total 1\n# EOF\n";
        check(&router, "/metrics", StatusCode::OK, text).await;
    }

    #[tokio::test]
    async fn reports_why_it_is_not_alive() {
        let alive = Readiness::new([]);
        let router = router_alive(Readiness::new([]), alive.clone(), Arc::default());
        check(&router, "/healthz", StatusCode::OK, "ok").await;
        alive.fail("sampled", "not for 30 s");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        check(&router, "/healthz", status, "sampled: not for 30 s").await;
        check(&router, "/readyz", StatusCode::OK, "ok").await;
        alive.pass("sampled");
        check(&router, "/healthz", StatusCode::OK, "ok").await;
    }

    #[tokio::test]
    async fn streams_metrics_before_the_last_piece() {
        let more = || -> TextStream { Box::new(["a 1\n", "b 2\n"].into_iter().map(str::to_owned)) };
        let router = router_with(Readiness::new([]), Arc::default(), more);
        check(&router, "/metrics", StatusCode::OK, "a 1\nb 2\n# EOF\n").await;
    }
}
