//! Reviews over HTTP: decodes the request, calls `review`, and encodes the response.
//!
//! The author of a Deployment, a `StatefulSet` or a Job never sees the review of its pods, so the
//! review of the workload returns its texts as warnings. It refuses and changes nothing.

use std::sync::Arc;
use std::time::Instant;

use aliquot_core::Excerpt;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::metrics::{Metrics, Outcome, OutcomeLabels};
use crate::review::{PodReview, review};
use crate::settings::{RequestForm, Settings};
use crate::verdict::Verdict;
use crate::wire::{self, AdmissionRequest, ReviewResponse, WireError};

/// The largest review in bytes: the API server accepts requests of 3 MiB, and an update carries the
/// pod before it, too.
pub const REVIEW_BYTES: usize = 7 << 20;

/// Larger ones are answered one after another: read, they take up to 80 times their size.
const LARGE: usize = 64 << 10;

/// The path for pods.
pub const MUTATE_PATH: &str = "/mutate";
/// The path for workloads.
pub const WARN_PATH: &str = "/warn";

/// The kinds of workloads that are reviewed.
pub const WORKLOAD_KINDS: [&str; 3] = ["Deployment", "StatefulSet", "Job"];

/// The path for pods of namespaces whose label chooses this form.
pub fn form_path(form: RequestForm) -> String {
    format!("{MUTATE_PATH}/{}", form.name())
}

/// The state of the handlers.
#[derive(Clone, Debug)]
pub struct HandlerState {
    /// The administrator's settings.
    pub settings: Arc<Settings>,
    /// Counts the outcomes.
    pub metrics: Metrics,
    large: Arc<Semaphore>,
}

impl HandlerState {
    /// With these settings.
    pub fn new(settings: Arc<Settings>, metrics: Metrics) -> Self {
        Self {
            settings,
            metrics,
            large: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits until no other large body is in memory in its read form, if this is one.
    async fn turn(&self, body: &Bytes) -> Option<SemaphorePermit<'_>> {
        if body.len() <= LARGE {
            return None;
        }
        self.large.acquire().await.ok()
    }
}

/// The routes. A body that is no review of the right kind gets 400 and the reason.
pub fn router(state: HandlerState) -> Router {
    let labelled = RequestForm::ALL.map(|form| {
        let settings = Settings {
            request_as: form,
            ..(*state.settings).clone()
        };
        let state = HandlerState {
            settings: Arc::new(settings),
            ..state.clone()
        };
        (form_path(form), post(mutate).with_state(state))
    });
    let default = Router::new()
        .route(MUTATE_PATH, post(mutate))
        .route(WARN_PATH, post(warn))
        .with_state(state);
    let add = |router: Router, (path, handler): (String, _)| router.route(&path, handler);
    labelled.into_iter().fold(default, add)
}

async fn mutate(State(state): State<HandlerState>, body: Bytes) -> Response {
    let start = Instant::now();
    let _turn = state.turn(&body).await;
    let (outcome, response) = match wire::decode(&body) {
        Ok(request) => respond(&request, &state.settings),
        Err(error) => (Outcome::Malformed, malformed(&error)),
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
    let shown = |text: &str| Excerpt::from(text).to_string();
    let (namespace, pod) = (shown(&request.namespace), shown(pod.unwrap_or_default()));
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

async fn warn(State(state): State<HandlerState>, body: Bytes) -> Response {
    let _turn = state.turn(&body).await;
    match wire::decode_of(&WORKLOAD_KINDS, &body) {
        Ok(request) => {
            let warnings = warnings(&request, &state.settings);
            Json(ReviewResponse::warning(request.uid, &warnings)).into_response()
        }
        Err(error) => malformed(&error),
    }
}

/// The texts of the review of this workload's pods; none where these are not reviewed.
fn warnings(request: &AdmissionRequest, settings: &Settings) -> Vec<String> {
    let template = &request.object["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    if settings.exempts(labels) {
        return Vec::new();
    }
    let pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    let pod_review = PodReview {
        operation: "CREATE",
        sub_resource: "",
        namespace: &request.namespace,
        pod: &pod,
        old_pod: &Value::Null,
    };
    let kind = &request.kind.kind;
    match review(&pod_review, settings) {
        Verdict::Allow { warnings, .. } => warnings,
        Verdict::Deny(refusals) => refusals
            .iter()
            .map(|refusal| format!("pods of this {kind} will be refused: spec.template.{refusal}"))
            .collect(),
    }
}

fn malformed(error: &WireError) -> Response {
    tracing::warn!(%error, "rejecting malformed AdmissionReview");
    (StatusCode::BAD_REQUEST, error.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use base64::Engine;
    use prometheus_client::registry::Registry;
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
            "operation": "CREATE", "namespace": "default",
            "object": {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}},
        }})
        .to_string()
    }

    #[tokio::test]
    async fn responds_with_uid_of_request() {
        for (limits, allowed) in [("3k", true), ("3Gi", false)] {
            let limits = json!({"nvidia.com/gpumem": limits});
            let (status, text) = post(body(&limits)).await;
            assert_eq!(status, StatusCode::OK);
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["response"]["uid"], "r-7");
            assert_eq!(answer["response"]["allowed"], allowed);
        }
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
            let patch = answer["response"]["patch"].as_str().unwrap();
            let patch = base64::engine::general_purpose::STANDARD.decode(patch);
            let patch = String::from_utf8(patch.unwrap()).unwrap();
            assert_eq!(patch.contains("aliquot.dev~1request"), annotated, "{path}");
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

    fn check_warnings(kind: &str, limits: &Value, expected: &[&str]) {
        let found = warnings_of(kind, &json!({}), limits, &Settings::default());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    fn warnings_of(kind: &str, labels: &Value, limits: &Value, settings: &Settings) -> Vec<String> {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "kind": {"kind": kind}, "operation": "CREATE", "namespace": "default",
                "object": {"spec": {"template": {"metadata": {"labels": labels}, "spec": {"containers": [
                    {"name": "main", "resources": {"limits": limits, "requests": limits}},
                ]}}}},
            },
        });
        let request = wire::decode_of(&WORKLOAD_KINDS, review.to_string().as_bytes()).unwrap();
        warnings(&request, settings)
    }

    #[test]
    fn warns_workload_authors_of_their_pods_refusals() {
        check_warnings("Deployment", &json!({}), &[]);
        let whole = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30",
            "nvidia.com/priority": "1"});
        check_warnings("Job", &whole, &[]);
        let bare =
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30", "nvidia.com/priority": "1"});
        check_warnings(
            "StatefulSet",
            &bare,
            &["nvidia.com/gpumem not set, defaulting to 5000 MiB"],
        );
        let refused = "pods of this Deployment will be refused: spec.template.spec.containers[0].resources.limits[\"nvidia.com/gpumem\"]";
        check_warnings(
            "Deployment",
            &json!({"nvidia.com/gpumem": "3Gi"}),
            &[refused],
        );
    }

    #[test]
    fn does_not_warn_about_ignored_pod_templates() {
        let wrong = json!({"nvidia.com/gpumem": "3Gi"});
        let check = |labels: &Value, pods_may_ignore, expected: usize| {
            let settings = Settings {
                pods_may_ignore,
                ..Settings::default()
            };
            for kind in WORKLOAD_KINDS {
                let found = warnings_of(kind, labels, &wrong, &settings);
                assert_eq!(found.len(), expected, "{labels} {found:?}");
            }
        };
        for label in ["aliquot.dev/webhook", "hami.io/webhook"] {
            check(&json!({label: "ignore"}), true, 0);
            // The pods' labels have no effect, and the pods are refused.
            check(&json!({label: "ignore"}), false, 1);
            check(&json!({label: "please"}), true, 1);
        }
        check(&Value::Null, true, 1);
    }

    #[test]
    fn workload_route_rejects_pod_reviews() {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE"},
        });
        let refused = wire::decode_of(&WORKLOAD_KINDS, review.to_string().as_bytes()).unwrap_err();
        let expected = r#"the AdmissionReview is for kind "Pod"; expected: "Deployment", "StatefulSet", "Job""#;
        assert_eq!(refused.to_string(), expected);
    }
}
