//! The review behind HTTP: decodes the request, calls `review`, and encodes the response.

use std::sync::Arc;
use std::time::Instant;

use aliquot_serve::body;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use crate::metrics::{Metrics, Outcome, OutcomeLabels};
use crate::review::{PodReview, Verdict, review};
use crate::settings::Settings;
use crate::wire::{self, AdmissionRequest, ReviewResponse};

/// The path that the webhook configuration names.
pub const PATH: &str = "/mutate";

/// The state of the handlers.
#[derive(Clone, Debug)]
pub struct HandlerState {
    /// The administrator's settings.
    pub settings: Arc<Settings>,
    /// Counts the outcomes.
    pub metrics: Metrics,
}

/// The route for pods. A body that is no pod review gets 400 and the reason.
pub fn router(state: HandlerState) -> Router {
    Router::new()
        .route(PATH, post(mutate))
        .layer(body::limit(body::REVIEW_BYTES))
        .with_state(state)
}

async fn mutate(State(state): State<HandlerState>, body: Bytes) -> Response {
    let start = Instant::now();
    let (outcome, response) = match wire::decode(&body) {
        Ok(request) => respond(&request, &state.settings),
        Err(error) => {
            tracing::warn!(%error, "rejecting malformed AdmissionReview");
            let response = (StatusCode::BAD_REQUEST, error.to_string()).into_response();
            (Outcome::Malformed, response)
        }
    };
    state
        .metrics
        .reviews
        .get_or_create(&OutcomeLabels { outcome })
        .inc();
    state
        .metrics
        .duration
        .observe(start.elapsed().as_secs_f64());
    response
}

fn respond(request: &AdmissionRequest, settings: &Settings) -> (Outcome, Response) {
    let pod_review = PodReview {
        operation: &request.operation,
        sub_resource: &request.sub_resource,
        namespace: &request.namespace,
        pod: &request.object,
        old_pod: &request.old_object,
    };
    let verdict = review(&pod_review, settings);
    let metadata = &request.object["metadata"];
    let pod = metadata["name"]
        .as_str()
        .or_else(|| metadata["generateName"].as_str());
    let (namespace, pod) = (&request.namespace, pod.unwrap_or_default());
    let outcome = match &verdict {
        Verdict::Deny(refusals) => {
            tracing::info!(
                namespace,
                pod,
                reason = wire::message(refusals),
                "pod denied"
            );
            Outcome::Denied
        }
        Verdict::Allow { patch, .. } if patch.is_empty() => {
            tracing::debug!(namespace, pod, "pod admitted unchanged");
            Outcome::Unchanged
        }
        Verdict::Allow { patch, .. } => {
            tracing::info!(namespace, pod, operations = patch.len(), "pod patched");
            Outcome::Patched
        }
    };
    let response = ReviewResponse::new(request.uid.clone(), verdict);
    (outcome, Json(response).into_response())
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use prometheus_client::registry::Registry;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    async fn post(body: String) -> (StatusCode, String) {
        let state = HandlerState {
            settings: Arc::new(Settings::default()),
            metrics: Metrics::register(&mut Registry::default()),
        };
        let request = axum::http::Request::post(PATH)
            .body(Body::from(body))
            .unwrap();
        let response = router(state).oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), 16 << 20).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    fn body(limits: &Value, padding: usize) -> String {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "r-7", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE", "namespace": "default", "padding": "x".repeat(padding),
            "object": {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}},
        }})
        .to_string()
    }

    #[tokio::test]
    async fn responds_with_uid_of_request() {
        for (limits, allowed) in [("3k", true), ("3Gi", false)] {
            let limits = json!({"nvidia.com/gpumem": limits});
            let (status, text) = post(body(&limits, 0)).await;
            assert_eq!(status, StatusCode::OK);
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["response"]["uid"], "r-7");
            assert_eq!(answer["response"]["allowed"], allowed);
        }
    }

    #[tokio::test]
    async fn responds_400_with_reason_to_malformed_body() {
        let (status, text) = post("{".to_owned()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(
            text.starts_with("the body is not an AdmissionReview"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn accepts_bodies_over_2_mb_up_to_the_limit() {
        let limits = json!({"nvidia.com/gpu": "1"});
        assert_eq!(post(body(&limits, 6 << 20)).await.0, StatusCode::OK);
        let (status, _) = post(body(&limits, 9 << 20)).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    }
}
