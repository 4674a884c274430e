//! Warnings about workloads: the author of a Deployment, a `StatefulSet` or a Job never sees the
//! review of its pods, so the review of the workload returns its texts as warnings. It refuses
//! and changes nothing.

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};

use aliquot_serve::body;

use crate::configuration;
use crate::handler::HandlerState;
use crate::review::{PodReview, Verdict, review};
use crate::settings::Settings;
use crate::wire::{self, AdmissionRequest, ReviewResponse};

/// The path that the webhook configuration names.
pub const PATH: &str = "/warn";

/// The kinds of workloads that are reviewed.
pub const KINDS: [&str; 3] = ["Deployment", "StatefulSet", "Job"];

/// The route for workloads. A body that is no review of these kinds gets 400 and the reason.
pub fn router(state: HandlerState) -> Router {
    Router::new()
        .route(PATH, post(warn))
        .layer(body::limit(body::REVIEW_BYTES))
        .with_state(state)
}

async fn warn(State(state): State<HandlerState>, body: Bytes) -> Response {
    match wire::decode_of(&KINDS, &body) {
        Ok(request) => {
            let warnings = warnings(&request, &state.settings);
            Json(ReviewResponse::warning(request.uid, &warnings)).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, "rejecting malformed AdmissionReview");
            (StatusCode::BAD_REQUEST, error.to_string()).into_response()
        }
    }
}

/// The texts of the review of this workload's pods; none where these are not reviewed.
pub fn warnings(request: &AdmissionRequest, settings: &Settings) -> Vec<String> {
    let template = &request.object["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    if settings.pods_may_ignore && configuration::is_ignored(labels) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: &str, limits: &Value, expected: &[&str]) {
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
        let request = wire::decode_of(&KINDS, review.to_string().as_bytes()).unwrap();
        warnings(&request, settings)
    }

    #[test]
    fn warns_workload_authors_of_their_pods_refusals() {
        check("Deployment", &json!({}), &[]);
        let whole = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30",
            "nvidia.com/priority": "1"});
        check("Job", &whole, &[]);
        let bare =
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30", "nvidia.com/priority": "1"});
        check(
            "StatefulSet",
            &bare,
            &["nvidia.com/gpumem not set, defaulting to 5000 MiB"],
        );
        let refused = "pods of this Deployment will be refused: spec.template.spec.containers[0].resources.limits[\"nvidia.com/gpumem\"]";
        check(
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
            for kind in KINDS {
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
        let refused = wire::decode_of(&KINDS, review.to_string().as_bytes()).unwrap_err();
        let expected = r#"the AdmissionReview is for kind "Pod"; expected: "Deployment", "StatefulSet", "Job""#;
        assert_eq!(refused.to_string(), expected);
    }
}
