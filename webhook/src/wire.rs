//! `AdmissionReview` v1 as it goes over the wire; the pod stays raw JSON.
//!
//! These are our own types because kube's write the patch as a list of numbers where the API
//! reference says base64 text. Source: k8s.io/api/admission/v1; golden files from it.

use aliquot_core::Excerpt;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::verdict::{Refusal, Verdict};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Refusals shown one by one; of further ones only the number is shown.
const MAX_REFUSALS: usize = 10;
/// Warnings sent; the API server truncates them at 4096 bytes in all.
const MAX_WARNINGS: usize = 20;

/// Values in a body: more than a pod of 100 containers with 100 variables each has. Each takes up to 700
/// bytes of memory once it is read, 80 times what it takes in the body.
const MAX_VALUES: usize = 200_000;

/// Why a body is not a review that can be answered.
#[derive(Debug, Error)]
pub enum WireError {
    /// Not JSON, or a field has another type.
    #[error("the body is not an AdmissionReview: {0}")]
    Json(Excerpt),
    /// More than can be read in the webhook's memory.
    #[error("the body has more than {MAX_VALUES} values; expected: at most that many")]
    TooManyValues,
    /// Another kind or version of object.
    #[error(
        "the body has kind {kind:?} and apiVersion {api_version:?}; expected: \"{KIND}\" and \"{API_VERSION}\""
    )]
    Kind {
        /// `kind` as received.
        kind: Excerpt,
        /// `apiVersion` as received.
        api_version: Excerpt,
    },
    /// A review without a request.
    #[error("the AdmissionReview has no request")]
    NoRequest,
    /// A request about another kind of object.
    #[error("the AdmissionReview is for kind {kind:?}; expected: {expected}")]
    OtherKind {
        /// `request.kind.kind` as received.
        kind: Excerpt,
        /// The kinds that it may be.
        expected: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IncomingReview {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<AdmissionRequest>,
}

/// The fields of a request that are read. `object` and `old_object` are null where absent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    /// Echoed in the response.
    pub uid: String,
    /// What the object is.
    pub kind: Kind,
    /// `CREATE`, `UPDATE`, ...
    pub operation: String,
    /// Empty, or such as `ephemeralcontainers`.
    #[serde(default)]
    pub sub_resource: String,
    /// The object's namespace.
    #[serde(default)]
    pub namespace: String,
    /// The object.
    #[serde(default)]
    pub object: Value,
    /// The object before an update.
    #[serde(default)]
    pub old_object: Value,
}

/// The part of `GroupVersionKind` that is read.
#[derive(Debug, Deserialize)]
pub struct Kind {
    /// Such as `Pod`.
    pub kind: String,
}

/// Reads the request about a pod out of a body.
pub fn decode(body: &[u8]) -> Result<AdmissionRequest, WireError> {
    decode_of(&["Pod"], body)
}

/// Reads the request about an object of one of these kinds out of a body.
pub fn decode_of(kinds: &[&str], body: &[u8]) -> Result<AdmissionRequest, WireError> {
    if values(body) > MAX_VALUES {
        return Err(WireError::TooManyValues);
    }
    let review: IncomingReview =
        serde_json::from_slice(body).map_err(|error| WireError::Json(Excerpt::of(error)))?;
    if review.kind != KIND || review.api_version != API_VERSION {
        return Err(WireError::Kind {
            kind: Excerpt::of(review.kind),
            api_version: Excerpt::of(review.api_version),
        });
    }
    let request = review.request.ok_or(WireError::NoRequest)?;
    if !kinds.contains(&request.kind.kind.as_str()) {
        let expected: Vec<String> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
        return Err(WireError::OtherKind {
            kind: Excerpt::of(request.kind.kind),
            expected: expected.join(", "),
        });
    }
    Ok(request)
}

/// The objects, lists and separators of a JSON text, outside its strings: at least as many as its values
/// but one.
fn values(text: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' | b',' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// A whole `AdmissionReview` with the response.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewResponse {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    /// Base64 of the JSON patch. Absent together with its type when nothing
    /// changes: the API server refuses a type without a patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The parts of `metav1.Status` that a refusal uses.
#[derive(Debug, Serialize)]
struct Status {
    message: String,
    reason: &'static str,
    code: u16,
}

impl ReviewResponse {
    /// The response that admits the object unchanged, with warnings.
    pub fn warning(uid: String, warnings: &[String]) -> Self {
        let verdict = Verdict::Allow {
            patch: Patch(Vec::new()),
            warnings: warnings.to_vec(),
        };
        Self::new(uid, verdict)
    }

    /// The response to the request `uid`.
    pub fn new(uid: String, verdict: Verdict) -> Self {
        let mut response = Response {
            uid,
            allowed: true,
            status: None,
            patch: None,
            patch_type: None,
            warnings: Vec::new(),
        };
        match verdict {
            Verdict::Deny(refusals) => {
                response.allowed = false;
                response.status = Some(Status {
                    message: message(&refusals),
                    reason: "Invalid",
                    code: 422,
                });
            }
            Verdict::Allow { patch, warnings } => {
                response.warnings = bounded(&warnings, MAX_WARNINGS);
                if !patch.is_empty() {
                    response.patch = Some(base64(&patch));
                    response.patch_type = Some("JSONPatch");
                }
            }
        }
        Self {
            api_version: API_VERSION,
            kind: KIND,
            response,
        }
    }
}

/// All refusals in one text, bounded.
pub fn message(refusals: &[Refusal]) -> String {
    let lines: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
    bounded(&lines, MAX_REFUSALS).join("; ")
}

fn bounded(lines: &[String], most: usize) -> Vec<String> {
    let mut shown: Vec<String> = lines.iter().take(most).cloned().collect();
    if lines.len() > most {
        shown.push(format!("and {} more", lines.len() - most));
    }
    shown
}

fn base64(patch: &Patch) -> String {
    STANDARD.encode(patch.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_golden(file: &str, verdict: Verdict) {
        let mut golden: Value = serde_json::from_str(file).unwrap();
        // Go writes an empty metadata into every status.
        if let Some(status) = golden.pointer_mut("/response/status") {
            let metadata = status.as_object_mut().unwrap().remove("metadata");
            assert_eq!(metadata, Some(json!({})));
        }
        let response =
            serde_json::to_value(ReviewResponse::new("r-1".to_owned(), verdict)).unwrap();
        assert_eq!(response, golden);
    }

    #[test]
    fn responses_match_what_go_types_write() {
        let patch = serde_json::from_str(r#"[{"op":"add","path":"/a","value":1}]"#).unwrap();
        let allowed = Verdict::Allow {
            patch,
            warnings: vec!["w".to_owned()],
        };
        check_golden(include_str!("../tests/golden/review-allowed.json"), allowed);
    }

    #[test]
    fn refusals_match_what_go_types_write() {
        let mut golden: Value =
            serde_json::from_str(include_str!("../tests/golden/review-denied.json")).unwrap();
        golden["response"]["status"]["message"] = json!("spec: no");
        let denied = Verdict::Deny(vec![Refusal {
            field: "spec".to_owned(),
            message: "no".to_owned(),
        }]);
        check_golden(&golden.to_string(), denied);
    }

    #[test]
    fn omits_empty_patch_and_its_type() {
        let allowed = Verdict::Allow {
            patch: Patch(Vec::new()),
            warnings: Vec::new(),
        };
        let response = serde_json::to_value(ReviewResponse::new("u".to_owned(), allowed)).unwrap();
        assert_eq!(response["response"], json!({"uid": "u", "allowed": true}));
    }

    #[test]
    fn limits_number_of_refusals_shown() {
        let refusal = |index: usize| Refusal {
            field: format!("f{index}"),
            message: "no".to_owned(),
        };
        let text = message(&(0..300).map(refusal).collect::<Vec<_>>());
        assert!(text.ends_with("f9: no; and 290 more"), "{text}");
    }

    #[test]
    fn repeats_no_long_part_of_a_body() {
        let long = "x".repeat(7 << 20);
        let review = |request| json!({"kind": KIND, "apiVersion": API_VERSION, "request": request});
        for body in [
            json!({"kind": long, "apiVersion": long}),
            json!(long),
            review(json!(long)),
            review(json!({"uid": "u", "kind": {"kind": long}, "operation": "CREATE"})),
        ] {
            let refused = decode(body.to_string().as_bytes()).unwrap_err().to_string();
            assert!(refused.len() < 2_000, "{} bytes", refused.len());
        }
    }

    #[test]
    fn refuses_to_read_more_values_than_fit_in_memory() {
        let review = |object: &str| {
            let head = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":"#;
            format!(
                r#"{head}{{"uid":"u","kind":{{"kind":"Pod"}},"operation":"CREATE","object":{object}}}}}"#
            )
        };
        let many = review(&format!("[{}0]", r#"{"a":0},"#.repeat(200_000)));
        let refused = decode(many.as_bytes()).unwrap_err();
        assert!(matches!(refused, WireError::TooManyValues), "{refused}");
        let text = serde_json::to_string(&r#"{"a":[0,\,"#.repeat(200_000)).unwrap();
        assert!(decode(review(&text).as_bytes()).is_ok());
    }

    #[test]
    fn rejects_body_that_is_no_pod_review() {
        let review = |kind: &str| {
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u", "kind": {"kind": kind}, "operation": "CREATE", "object": {}}})
        };
        for (body, expected) in [
            (json!("x"), "the body is not an AdmissionReview: "),
            (json!({}), r#"the body has kind "" and apiVersion """#),
            (
                json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}),
                r#"the body has kind "AdmissionReview" and apiVersion "admission.k8s.io/v1beta1"; expected: "#,
            ),
            (
                json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
                "the AdmissionReview has no request",
            ),
            (
                review("Node"),
                r#"the AdmissionReview is for kind "Node"; expected: "Pod""#,
            ),
        ] {
            let refused = decode(body.to_string().as_bytes()).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
        assert!(decode(review("Pod").to_string().as_bytes()).is_ok());
    }
}
