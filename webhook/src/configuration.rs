//! The CA bundle in the `MutatingWebhookConfiguration`, which the chart creates, and the patch that
//! publishes another one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Name of the configuration object.
pub const NAME: &str = "aliquot-webhook";

/// Its webhooks: for pods, and for those of namespaces whose label chooses the other form of requests.
const ALL: [&str; 2] = ["pods.aliquot.dev", "labelled.pods.aliquot.dev"];

/// The first of our webhooks that a live configuration lacks.
pub fn missing_webhook(live: &Value) -> Option<&'static str> {
    let has = |name: &str| webhooks(live).any(|one| one["name"] == name);
    ALL.into_iter().find(|name| !has(name))
}

/// The strategic merge patch that publishes this CA bundle, PEM, for our webhooks, on the version
/// that was read; `None` where all have it.
pub fn bundle_patch(live: &Value, bundle: &str) -> Option<Value> {
    let bundle = STANDARD.encode(bundle);
    let due: Vec<Value> = webhooks(live)
        .filter(|one| ALL.iter().any(|name| one["name"] == *name))
        .filter(|one| one["clientConfig"]["caBundle"] != bundle.as_str())
        .map(|one| json!({"name": one["name"], "clientConfig": {"caBundle": bundle}}))
        .collect();
    let version = &live["metadata"]["resourceVersion"];
    (!due.is_empty()).then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": due}))
}

fn webhooks(live: &Value) -> impl Iterator<Item = &Value> {
    live["webhooks"].as_array().into_iter().flatten()
}

/// The CA bundle of a live configuration, PEM; empty where it has none.
pub fn published_bundle(live: &Value) -> String {
    let bundle = live["webhooks"][0]["clientConfig"]["caBundle"].as_str();
    let bytes = bundle.and_then(|text| STANDARD.decode(text).ok());
    String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// As the chart creates it, as far as the webhook reads it.
    pub(crate) fn created() -> Value {
        let webhook = |name| {
            json!({
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {},
            })
        };
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": ALL.map(webhook),
        })
    }

    #[test]
    fn publishes_ca_bundle_for_own_webhooks_only() {
        let mut live = created();
        live["metadata"]["resourceVersion"] = json!("7");
        assert_eq!(published_bundle(&live), "");
        let bundle = |name| json!({"name": name, "clientConfig": {"caBundle": "UEVN"}});
        let patch = |webhooks| json!({"metadata": {"resourceVersion": "7"}, "webhooks": webhooks});
        let all = patch(json!(ALL.map(bundle)));
        assert_eq!(bundle_patch(&live, "PEM"), Some(all));
        live["webhooks"][0]["clientConfig"]["caBundle"] = json!("UEVN");
        assert_eq!(published_bundle(&live), "PEM");
        let second = patch(json!([bundle(ALL[1])]));
        assert_eq!(bundle_patch(&live, "PEM"), Some(second));
        live["webhooks"][1]["clientConfig"]["caBundle"] = json!("UEVN");
        assert_eq!(bundle_patch(&live, "PEM"), None);
        assert_eq!(missing_webhook(&live), None);
        live["webhooks"][1]["name"] = json!("other");
        assert_eq!(missing_webhook(&live), Some(ALL[1]));
        assert_eq!(bundle_patch(&live, "PEM"), None);
    }
}
