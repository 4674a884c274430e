//! Reviews over HTTP: decodes the request, calls `review`, and encodes the response.

use std::sync::Arc;
use std::time::Instant;

use aliquot_core::Excerpt;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use kube::core::DynamicObject;
use kube::core::admission::AdmissionRequest;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::metrics::{Metrics, OutcomeLabels};
use crate::review::{PodReview, review};
use crate::settings::{RequestForm, Settings};
use crate::verdict::Verdict;
use crate::wire::{self, WireError};

/// The largest review in bytes: the API server accepts requests of 3 MiB, and an update carries the
/// pod before it, too.
pub const REVIEW_BYTES: usize = 7 << 20;

/// Larger bodies are answered one after another, because decoded they take up to 80 times their
/// size.
const LARGE: usize = 64 << 10;

pub const MUTATE_PATH: &str = "/mutate";

#[derive(Clone, Debug)]
pub struct HandlerState {
    pub settings: Arc<Settings>,
    pub metrics: Metrics,
    large: Arc<Semaphore>,
}

impl HandlerState {
    pub fn new(settings: Arc<Settings>, metrics: Metrics) -> Self {
        Self {
            settings,
            metrics,
            large: Arc::new(Semaphore::new(1)),
        }
    }

    /// If this body is large, waits until no other large one is in memory in its decoded form.
    async fn turn(&self, body: &Bytes) -> Option<SemaphorePermit<'_>> {
        if body.len() <= LARGE {
            return None;
        }
        self.large.acquire().await.ok()
    }
}

/// The routes. A body that is no review of the right kind gets 400 and the reason.
pub fn router(state: HandlerState) -> Router {
    // For pods of namespaces whose label (`aliquot.dev/request-as`) chooses the form.
    let labelled = RequestForm::ALL.map(|form| {
        let settings = Settings {
            request_as: form,
            ..(*state.settings).clone()
        };
        let state = HandlerState {
            settings: Arc::new(settings),
            ..state.clone()
        };
        let path = format!("{MUTATE_PATH}/{}", form.name());
        (path, post(mutate).with_state(state))
    });
    let default = Router::new()
        .route(MUTATE_PATH, post(mutate))
        .with_state(state);
    let add = |router: Router, (path, handler): (String, _)| router.route(&path, handler);
    labelled.into_iter().fold(default, add)
}

async fn mutate(State(state): State<HandlerState>, body: Bytes) -> Response {
    let start = Instant::now();
    let _turn = state.turn(&body).await;
    let (outcome, response) = match wire::decode(&body) {
        Ok(request) => respond(request, &state.settings),
        Err(error) => ("malformed", malformed(&error)),
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

fn respond(
    mut request: AdmissionRequest<DynamicObject>,
    settings: &Settings,
) -> (&'static str, Response) {
    let pod = wire::raw(request.object.take());
    let old_pod = wire::raw(request.old_object.take());
    let pod_review = PodReview {
        operation: &request.operation,
        sub_resource: request.sub_resource.as_deref().unwrap_or_default(),
        namespace: request.namespace.as_deref().unwrap_or_default(),
        pod: &pod,
        old_pod: &old_pod,
    };
    let verdict = review(&pod_review, settings);
    let metadata = &pod["metadata"];
    let name = metadata["name"]
        .as_str()
        .or_else(|| metadata["generateName"].as_str());
    let shown = |text: &str| Excerpt::from(text).to_string();
    let namespace = shown(pod_review.namespace);
    let pod = shown(name.unwrap_or_default());
    let outcome = match &verdict {
        Verdict::Deny(refusals) => {
            tracing::info!(
                namespace,
                pod,
                reason = wire::message(refusals),
                "pod denied"
            );
            "denied"
        }
        Verdict::Allow { patch, .. } if patch.is_empty() => {
            tracing::debug!(namespace, pod, "pod admitted unchanged");
            "unchanged"
        }
        Verdict::Allow { patch, .. } => {
            tracing::info!(namespace, pod, operations = patch.len(), "pod patched");
            "patched"
        }
    };
    let response = match wire::answer(&request, verdict) {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    (outcome, response)
}

fn malformed(error: &WireError) -> Response {
    tracing::warn!(%error, "rejecting malformed AdmissionReview");
    (StatusCode::BAD_REQUEST, error.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use prometheus_client::registry::Registry;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    async fn post(body: String) -> (StatusCode, String) {
        post_to(MUTATE_PATH, body).await
    }

    async fn post_to(path: &str, body: String) -> (StatusCode, String) {
        let metrics = Metrics::register(&mut Registry::default());
        let state = HandlerState::new(Arc::new(Settings::default()), metrics);
        let request = axum::http::Request::post(path)
            .body(Body::from(body))
            .unwrap();
        let response = router(state).oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), 16 << 20).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    fn body(limits: &Value) -> String {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "r-7", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE", "namespace": "default", "userInfo": {},
            "object": {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}},
        }})
        .to_string()
    }

    #[tokio::test]
    async fn path_chooses_the_form_of_requests() {
        for (path, annotated) in [
            ("/mutate", false),
            ("/mutate/resources", false),
            ("/mutate/annotation", true),
        ] {
            let (_, text) = post_to(path, body(&json!({"nvidia.com/gpu": "1"}))).await;
            let answer: Value = serde_json::from_str(&text).unwrap();
            let encoded = answer["response"]["patch"].clone();
            let bytes: Vec<u8> = serde_json::from_value(encoded).unwrap();
            let patch = String::from_utf8(bytes).unwrap();
            assert_eq!(patch.contains("aliquot.dev/request"), annotated, "{path}");
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
}
