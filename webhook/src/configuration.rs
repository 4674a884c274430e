//! The `MutatingWebhookConfiguration` that the chart creates: whether a live one has what our flags
//! need, and the patch that publishes a CA bundle in it.

mod conditions;

use aliquot_core::request::ResourceNames;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::server::{MUTATE_PATH, form_path};
use crate::settings::{IGNORE_LABELS, REQUEST_AS_LABEL, RequestForm};
use conditions::mentions_gpu;

/// Name of the configuration object.
pub const NAME: &str = "aliquot-webhook";
/// Name of the webhook that reviews pods.
pub const WEBHOOK: &str = "pods.aliquot.dev";
/// Name of the webhook that reviews the pods of namespaces whose label chooses the other form.
pub const LABELLED: &str = "labelled.pods.aliquot.dev";

const ALL: [&str; 2] = [WEBHOOK, LABELLED];

/// Where the API server reaches the webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A Service in our namespace, port 443.
    Service { name: String, namespace: String },
    /// A fixed URL, as in `https://127.0.0.1:8443/mutate`.
    Url {
        url: String,
        /// The name or address in it.
        host: String,
    },
}

impl Target {
    /// The names that the serving certificate must carry.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Service { name, namespace } => vec![
                format!("{name}.{namespace}.svc"),
                format!("{name}.{namespace}"),
                format!("{name}.{namespace}.svc.cluster.local"),
            ],
            Self::Url { host, .. } => vec![host.clone()],
        }
    }

    fn client_config(&self, path: &str) -> Value {
        match self {
            Self::Service { name, namespace } => json!({
                "service": {"name": name, "namespace": namespace, "path": path, "port": 443},
            }),
            Self::Url { url, .. } => {
                let host = url.strip_suffix(MUTATE_PATH).unwrap_or(url);
                json!({"url": format!("{host}{path}")})
            }
        }
    }
}

/// Which pods the API server sends to the webhook, and where.
#[derive(Clone, Debug)]
pub struct Scope {
    /// How the API server reaches the webhook.
    pub target: Target,
    /// The webhook's own namespace, which is exempt.
    pub namespace: String,
    pub names: ResourceNames,
    /// Other resources, under which renamed GPUs are advertised.
    pub extra: Vec<String>,
    /// Runtime classes of NVIDIA's runtime: pods in them are reviewed, too.
    pub nvidia_runtime_classes: Vec<String>,
    /// A pod's own label exempts it, too; a namespace's label always does.
    pub pods_may_ignore: bool,
    /// The form of requests in namespaces without a label.
    pub request_as: RequestForm,
}

impl Scope {
    /// The whole object, without a CA bundle: what the chart renders.
    pub fn configuration(&self) -> Value {
        let ignored = |key: &str| json!({"key": key, "operator": "NotIn", "values": ["ignore"]});
        let own = json!({
            "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [self.namespace],
        });
        let ignored: Vec<Value> = IGNORE_LABELS.into_iter().map(ignored).collect();
        let namespaces: Vec<Value> = ignored.iter().cloned().chain([own]).collect();
        let objects = if self.pods_may_ignore {
            json!({"matchExpressions": ignored})
        } else {
            json!({})
        };
        let rule = |group: &str, operations: &[&str], resources: &[&str]| {
            json!({
                "apiGroups": [group], "apiVersions": ["v1"], "scope": "Namespaced",
                "operations": operations, "resources": resources,
            })
        };
        let other = self.request_as.other();
        let in_form = |operator: &str| {
            let label = json!({
                "key": REQUEST_AS_LABEL, "operator": operator, "values": [other.name()],
            });
            let all = namespaces.iter().cloned().chain([label]);
            all.collect::<Vec<Value>>()
        };
        let of_pods = |name: &str, path: &str, namespaces: Vec<Value>| {
            json!({
                "name": name,
                "admissionReviewVersions": ["v1"],
                "clientConfig": self.target.client_config(path),
                "rules": [
                    rule("", &["CREATE"], &["pods"]),
                    rule("", &["UPDATE"], &["pods/ephemeralcontainers"]),
                ],
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "timeoutSeconds": 5,
                "namespaceSelector": {"matchExpressions": namespaces},
                "objectSelector": objects,
                "matchConditions": [{"name": "mentions-a-gpu", "expression": mentions_gpu(self)}],
            })
        };
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": NAME},
            "webhooks": [
                of_pods(WEBHOOK, MUTATE_PATH, in_form("NotIn")),
                of_pods(LABELLED, &form_path(other), in_form("In")),
            ],
        })
    }
}

/// `live` has every field of `desired`, and its lists have no further items.
/// Fields that only `live` has (status, defaults of a later version) are ignored.
pub fn conforms(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired
            .iter()
            .all(|(key, value)| live.get(key).is_some_and(|live| conforms(value, live))),
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() == live.len() && desired.iter().zip(live).all(|(d, l)| conforms(d, l))
        }
        _ => desired == live,
    }
}

/// The first of our webhooks that a live configuration lacks.
pub fn missing_webhook(live: &Value) -> Option<&'static str> {
    let has = |name: &str| webhooks(live).any(|one| one["name"] == name);
    ALL.into_iter().find(|name| !has(name))
}

/// The strategic merge patch that publishes this CA bundle, PEM, for our webhooks, on the version
/// that was read; `None` where all have it.
pub fn bundle_patch(live: &Value, bundle: &str) -> Option<Value> {
    let bundle = STANDARD.encode(bundle);
    let ours = webhooks(live).filter(|one| ALL.iter().any(|name| one["name"] == *name));
    let due = ours.filter(|one| one["clientConfig"]["caBundle"] != bundle.as_str());
    let due: Vec<Value> = due
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
mod tests {
    use super::*;

    fn configured(pods_may_ignore: bool, request_as: RequestForm) -> Value {
        let scope = Scope {
            target: Target::Service {
                name: "aliquot-webhook".to_owned(),
                namespace: "aliquot-system".to_owned(),
            },
            namespace: "aliquot-system".to_owned(),
            names: ResourceNames::default(),
            extra: Vec::new(),
            nvidia_runtime_classes: vec!["nvidia".to_owned()],
            pods_may_ignore,
            request_as,
        };
        scope.configuration()
    }

    fn service() -> Value {
        configured(true, RequestForm::Resources)
    }

    #[test]
    fn pods_may_ignore_controls_object_selector() {
        for (pods_may_ignore, expected) in [(true, 2), (false, 0)] {
            let whole = configured(pods_may_ignore, RequestForm::Resources);
            let labels = whole["webhooks"][0]["objectSelector"]["matchExpressions"].as_array();
            assert_eq!(labels.map_or(0, Vec::len), expected);
            let selector = &whole["webhooks"][0]["namespaceSelector"]["matchExpressions"];
            assert_eq!(
                selector.as_array().map(Vec::len),
                Some(4),
                "a namespace's label always exempts"
            );
        }
    }

    #[test]
    fn each_namespace_is_reviewed_in_one_form() {
        for form in RequestForm::ALL {
            let whole = configured(false, form);
            let other = form.other().name();
            let paths = ["/mutate", &format!("/mutate/{other}")];
            for (index, operator, path) in [(0, "NotIn", paths[0]), (1, "In", paths[1])] {
                let webhook = &whole["webhooks"][index];
                assert_eq!(webhook["clientConfig"]["service"]["path"], path);
                let label = &webhook["namespaceSelector"]["matchExpressions"][3];
                let expected = json!({
                    "key": "aliquot.dev/request-as", "operator": operator, "values": [other],
                });
                assert_eq!(label, &expected);
            }
        }
    }

    #[test]
    fn detects_changes_of_owned_fields_only() {
        let desired = service();
        let mut live = desired.clone();
        live["metadata"]["generation"] = json!(7);
        live["webhooks"][0]["aFieldOfKubernetes2"] = json!(true);
        assert!(conforms(&desired, &live));
        for (pointer, value) in [
            ("/webhooks/0/failurePolicy", json!("Ignore")),
            ("/webhooks/0/clientConfig/service/name", json!("other")),
            ("/webhooks/0/matchConditions/0/expression", json!("false")),
            ("/webhooks/0/namespaceSelector/matchExpressions", json!([])),
            ("/webhooks/0/rules/1/operations", json!([])),
            ("/webhooks/0/timeoutSeconds", json!(30)),
        ] {
            let mut changed = live.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(!conforms(&desired, &changed), "{pointer}");
        }
        let mut more = live.clone();
        let never = json!({"name": "never", "expression": "false"});
        more["webhooks"][0]["matchConditions"]
            .as_array_mut()
            .unwrap()
            .push(never);
        assert!(!conforms(&desired, &more));
    }

    #[test]
    fn publishes_ca_bundle_for_own_webhooks_only() {
        let mut live = service();
        live["metadata"]["resourceVersion"] = json!("7");
        assert_eq!(published_bundle(&live), "");
        let bundle = |name| json!({"name": name, "clientConfig": {"caBundle": "UEVN"}});
        let patch = |webhooks| json!({"metadata": {"resourceVersion": "7"}, "webhooks": webhooks});
        let all = patch(json!(ALL.map(bundle)));
        assert_eq!(bundle_patch(&live, "PEM"), Some(all));
        live["webhooks"][0]["clientConfig"]["caBundle"] = json!("UEVN");
        assert_eq!(published_bundle(&live), "PEM");
        let second = patch(json!([bundle(LABELLED)]));
        assert_eq!(bundle_patch(&live, "PEM"), Some(second));
        live["webhooks"][1]["clientConfig"]["caBundle"] = json!("UEVN");
        assert_eq!(bundle_patch(&live, "PEM"), None);
        assert_eq!(missing_webhook(&live), None);
        live["webhooks"][1]["name"] = json!("other");
        assert_eq!(missing_webhook(&live), Some(LABELLED));
        assert_eq!(bundle_patch(&live, "PEM"), None);
    }
}
