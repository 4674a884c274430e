//! What makes pods: the author of a Deployment never sees what the review of its pods says, so it
//! is said here, and nothing else is done.
//!
//! Fed by: POST bodies of the API server about Deployments, `StatefulSets` and Jobs.
//! Must not: refuse or change anything.

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
use crate::handler::Reviews;
use crate::review::{Question, Verdict, review};
use crate::settings::Settings;
use crate::wire::{self, Answer, Request};

/// The path that the webhook configuration names.
pub const PATH: &str = "/warn";

/// What is warned about.
pub const KINDS: [&str; 3] = ["Deployment", "StatefulSet", "Job"];

/// The one route. A body that is no review of these kinds gets 400 and the reason.
pub fn router(reviews: Reviews) -> Router {
    Router::new()
        .route(PATH, post(warn))
        .layer(body::limit(body::REVIEW_BYTES))
        .with_state(reviews)
}

async fn warn(State(reviews): State<Reviews>, body: Bytes) -> Response {
    match wire::decode_of(&KINDS, &body) {
        Ok(request) => {
            let warnings = warnings(&request, &reviews.settings);
            Json(Answer::warning(request.uid, &warnings)).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, "malformed review");
            (StatusCode::BAD_REQUEST, error.to_string()).into_response()
        }
    }
}

/// What the review of a pod of this object will say; nothing of one that will not be reviewed.
pub fn warnings(request: &Request, settings: &Settings) -> Vec<String> {
    let template = &request.object["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    if settings.pods_may_ignore && configuration::is_kept_away(labels) {
        return Vec::new();
    }
    let pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
    let question = Question {
        operation: "CREATE",
        sub_resource: "",
        namespace: &request.namespace,
        pod: &pod,
        old_pod: &Value::Null,
    };
    let kind = &request.kind.kind;
    match review(&question, settings) {
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
        let found = warned(kind, &json!({}), limits, &Settings::default());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    fn warned(kind: &str, labels: &Value, limits: &Value, settings: &Settings) -> Vec<String> {
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
    fn authors_of_what_makes_pods_hear_what_their_pods_will_be_told() {
        check("Deployment", &json!({}), &[]);
        let whole = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30",
            "nvidia.com/priority": "1"});
        check("Job", &whole, &[]);
        let bare =
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30", "nvidia.com/priority": "1"});
        check(
            "StatefulSet",
            &bare,
            &["nvidia.com/gpumem not set: 5000 MiB"],
        );
        let refused = "pods of this Deployment will be refused: spec.template.spec.containers[0].resources.limits[\"nvidia.com/gpumem\"]";
        check(
            "Deployment",
            &json!({"nvidia.com/gpumem": "3Gi"}),
            &[refused],
        );
    }

    #[test]
    fn a_template_that_the_webhook_leaves_alone_was_warned_of() {
        let wrong = json!({"nvidia.com/gpumem": "3Gi"});
        let check = |labels: &Value, pods_may_ignore, expected: usize| {
            let settings = Settings {
                pods_may_ignore,
                ..Settings::default()
            };
            for kind in KINDS {
                let found = warned(kind, labels, &wrong, &settings);
                assert_eq!(found.len(), expected, "{labels} {found:?}");
            }
        };
        for label in ["aliquot.dev/webhook", "hami.io/webhook"] {
            check(&json!({label: "ignore"}), true, 0);
            // Then the pods' labels mean nothing, and the pods are refused.
            check(&json!({label: "ignore"}), false, 1);
            check(&json!({label: "please"}), true, 1);
        }
        check(&Value::Null, true, 1);
    }

    #[test]
    fn a_review_of_a_pod_is_not_for_this_route() {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "kind": {"kind": "Pod"}, "operation": "CREATE"},
        });
        let refused = wire::decode_of(&KINDS, review.to_string().as_bytes()).unwrap_err();
        let expected = r#"the review is about "Pod"; accepted: "Deployment", "StatefulSet", "Job""#;
        assert_eq!(refused.to_string(), expected);
    }
}
