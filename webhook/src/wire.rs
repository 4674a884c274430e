//! `AdmissionReview` v1 in kube's types, and the bounds of what is read and written of it.

use aliquot_core::Excerpt;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND,
    SerializePatchError,
};
use kube::core::{DynamicObject, TypeMeta};
use serde_json::{Value, json};
use thiserror::Error;

use crate::verdict::{Refusal, Verdict};

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
    #[error("the body is not an AdmissionReview: {0}")]
    Json(Excerpt),
    #[error("the body has more than {MAX_VALUES} values; expected: at most that many")]
    TooManyValues,
    #[error(
        "the body has kind {kind:?} and apiVersion {api_version:?}; expected: {META_KIND:?} and {META_API_VERSION_V1:?}"
    )]
    Kind { kind: Excerpt, api_version: Excerpt },
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("the AdmissionReview is for kind {kind:?}; expected: \"Pod\"")]
    OtherKind { kind: Excerpt },
}

/// Reads the request about a pod out of a body.
pub fn decode(body: &[u8]) -> Result<AdmissionRequest<DynamicObject>, WireError> {
    if values(body) > MAX_VALUES {
        return Err(WireError::TooManyValues);
    }
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|error| WireError::Json(Excerpt::of(error)))?;
    let TypeMeta { api_version, kind } = &review.types;
    if kind != META_KIND || api_version != META_API_VERSION_V1 {
        return Err(WireError::Kind {
            kind: Excerpt::of(kind),
            api_version: Excerpt::of(api_version),
        });
    }
    let mut request = review.request.ok_or(WireError::NoRequest)?;
    if request.kind.kind != "Pod" {
        return Err(WireError::OtherKind {
            kind: Excerpt::of(request.kind.kind),
        });
    }
    request.types = review.types;
    Ok(request)
}

/// The object with all fields of its spec, also those that this release does not know.
pub fn raw(object: Option<DynamicObject>) -> Value {
    let Some(DynamicObject { metadata, data, .. }) = object else {
        return Value::Null;
    };
    let mut raw = json!({"metadata": metadata});
    if let (Value::Object(raw), Value::Object(rest)) = (&mut raw, data) {
        raw.extend(rest);
    }
    raw
}

/// Counts the objects, lists and separators of a JSON text outside its strings. A text has at most
/// one value more than these.
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

pub fn answer(
    request: &AdmissionRequest<DynamicObject>,
    verdict: Verdict,
) -> Result<AdmissionReview<DynamicObject>, SerializePatchError> {
    let mut response = AdmissionResponse::from(request);
    match verdict {
        Verdict::Deny(refusals) => {
            response = response.deny(message(&refusals));
            "Invalid".clone_into(&mut response.result.reason);
            response.result.code = 422;
        }
        Verdict::Allow { patch, warnings } => {
            response.warnings = Some(bounded(&warnings, MAX_WARNINGS));
            if !patch.is_empty() {
                response = response.with_patch(patch)?;
            }
        }
    }
    Ok(response.into_review())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn review(kind: &str, object: &Value) -> Value {
        json!({"apiVersion": META_API_VERSION_V1, "kind": META_KIND, "request": {
            "uid": "r-1", "operation": "CREATE", "userInfo": {}, "object": object,
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
        }})
    }

    fn sent(verdict: Verdict) -> Value {
        let body = review("Pod", &json!({})).to_string();
        let answer = answer(&decode(body.as_bytes()).unwrap(), verdict).unwrap();
        assert_eq!(answer.types.api_version, META_API_VERSION_V1);
        serde_json::to_value(answer).unwrap()["response"].clone()
    }

    #[test]
    fn answers_with_patch_and_warnings_or_refusals() {
        let text = r#"[{"op":"add","path":"/a","value":1}]"#;
        let allowed = |text: &str| Verdict::Allow {
            patch: serde_json::from_str(text).unwrap(),
            warnings: vec!["w".to_owned()],
        };
        let answer = sent(allowed(text));
        assert_eq!(answer["patch"], json!(text.as_bytes()));
        assert_eq!(answer["patchType"], "JSONPatch");
        assert_eq!(answer["uid"], "r-1");
        assert_eq!(answer["warnings"], json!(["w"]));
        // The API server refuses a type without a patch.
        let unchanged = sent(allowed("[]"));
        assert_eq!(unchanged.get("patch"), None);
        assert_eq!(unchanged.get("patchType"), None);
        let denied = sent(Verdict::Deny(vec![Refusal {
            field: "spec".to_owned(),
            message: "no".to_owned(),
        }]));
        assert_eq!(denied["uid"], "r-1");
        assert_eq!(denied["allowed"], false);
        let status = json!({"message": "spec: no", "reason": "Invalid", "code": 422});
        assert_eq!(denied["status"], status);
    }

    #[test]
    fn reads_whole_pod_with_unknown_fields() {
        let pod = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"later": [1.5, null]}});
        let request = decode(review("Pod", &pod).to_string().as_bytes()).unwrap();
        assert_eq!(raw(request.object), pod);
        assert_eq!(raw(request.old_object), Value::Null);
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
        for body in [
            json!({"kind": long, "apiVersion": long}),
            json!(long),
            json!({"kind": META_KIND, "apiVersion": META_API_VERSION_V1, "request": long}),
            review(&long, &json!({})),
        ] {
            let refused = decode(body.to_string().as_bytes()).unwrap_err().to_string();
            assert!(refused.len() < 2_000, "{} bytes", refused.len());
        }
    }

    #[test]
    fn refuses_to_read_more_values_than_fit_in_memory() {
        let decode = |pod: &Value| decode(review("Pod", pod).to_string().as_bytes());
        let many = vec![json!({"a": 0}); 200_000];
        let refused = decode(&json!({"spec": many})).unwrap_err();
        assert!(matches!(refused, WireError::TooManyValues), "{refused}");
        let text = r#"{"a":[0,\,"#.repeat(200_000);
        assert!(decode(&json!({"spec": text})).is_ok());
    }

    #[test]
    fn rejects_body_that_is_no_pod_review() {
        let of_version = |version: &str| json!({"apiVersion": version, "kind": META_KIND});
        for (body, expected) in [
            (json!("x"), "the body is not an AdmissionReview: "),
            (json!({}), "the body is not an AdmissionReview: "),
            (
                of_version("admission.k8s.io/v1beta1"),
                r#"the body has kind "AdmissionReview" and apiVersion "admission.k8s.io/v1beta1"; expected: "AdmissionReview" and "admission.k8s.io/v1""#,
            ),
            (
                of_version("admission.k8s.io/v1"),
                "the AdmissionReview has no request",
            ),
            (
                review("Node", &json!({})),
                r#"the AdmissionReview is for kind "Node"; expected: "Pod""#,
            ),
        ] {
            let refused = decode(body.to_string().as_bytes()).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
