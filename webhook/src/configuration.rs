//! The `MutatingWebhookConfiguration` as it must be, and whether a live one is.
//!
//! Fed by: where we are reached, the resources' names, the CA bundle.
//! Must not: do IO.

mod conditions;

use aliquot_core::request::ResourceNames;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::{handler, warn};
use conditions::{ANOTHER, mentions};

/// Name of the configuration object.
pub const NAME: &str = "aliquot-webhook";
/// Name of the webhook that reviews pods.
pub const WEBHOOK: &str = "pods.aliquot.dev";
/// Name of the one that warns about what makes pods.
pub const WORKLOADS: &str = "workloads.aliquot.dev";

/// Labels that keep a pod or a namespace away from us, with the value `ignore`.
const IGNORE: [&str; 2] = ["hami.io/webhook", "aliquot.dev/webhook"];

/// An object with these labels is kept away from us, where its own labels may do that.
pub fn is_kept_away(labels: &Value) -> bool {
    IGNORE.iter().any(|key| labels[*key] == "ignore")
}

/// Where the API server reaches us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A Service in our namespace, port 443.
    Service {
        /// Its name.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// A fixed address, as in `https://127.0.0.1:8443/mutate`.
    Url {
        /// All of it.
        url: String,
        /// The name or address in it.
        host: String,
    },
}

impl Target {
    /// The names that our certificate must carry.
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

    fn client_config(&self, path: &str, bundle: &str) -> Value {
        let bundle = STANDARD.encode(bundle);
        match self {
            Self::Service { name, namespace } => json!({
                "caBundle": bundle,
                "service": {"name": name, "namespace": namespace, "path": path, "port": 443},
            }),
            Self::Url { url, .. } => {
                let host = url.strip_suffix(handler::PATH).unwrap_or(url);
                json!({"caBundle": bundle, "url": format!("{host}{path}")})
            }
        }
    }
}

/// The five resources, and others that renamed cards are advertised under.
type Names<'a> = (&'a ResourceNames, &'a [String]);

/// Whom the API server sends to us, and where.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Where we are reached.
    pub target: &'a Target,
    /// Ours, which never waits for us.
    pub namespace: &'a str,
    /// Which pods are ours.
    pub names: Names<'a>,
    /// Runtime classes of NVIDIA's runtime: pods in them are looked at, too.
    pub nvidia_runtime_classes: &'a [String],
    /// A pod's own label keeps it away from us, too; of a namespace it always does.
    pub pods_may_ignore: bool,
}

/// The whole object.
pub fn wanted(scope: Scope<'_>, bundle: &str) -> Value {
    let Scope {
        target,
        namespace,
        names,
        nvidia_runtime_classes: classes,
        pods_may_ignore,
    } = scope;
    let ignored = |key: &str| json!({"key": key, "operator": "NotIn", "values": ["ignore"]});
    let own = json!({
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace],
    });
    let ignored: Vec<Value> = IGNORE.into_iter().map(ignored).collect();
    let namespaces: Vec<Value> = ignored.iter().cloned().chain([own]).collect();
    let objects = if pods_may_ignore {
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
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "aliquot-webhook"}},
        "webhooks": [{
            "name": WEBHOOK,
            "admissionReviewVersions": ["v1"],
            "clientConfig": target.client_config(handler::PATH, bundle),
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
            "matchConditions": [{"name": "mentions-a-gpu", "expression": mentions("object", names, classes)}],
        }, {
            // Nothing waits for it, and it changes nothing.
            "name": WORKLOADS,
            "admissionReviewVersions": ["v1"],
            "clientConfig": target.client_config(warn::PATH, bundle),
            "rules": [
                rule("apps", &["CREATE", "UPDATE"], &["deployments", "statefulsets"]),
                rule("batch", &["CREATE"], &["jobs"]),
            ],
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "Never",
            "sideEffects": "None",
            "timeoutSeconds": 2,
            "namespaceSelector": {"matchExpressions": namespaces},
            "matchConditions": [
                {"name": "has-another-template", "expression": ANOTHER},
                {"name": "mentions-a-gpu", "expression": mentions("object.spec.template", names, classes)},
            ],
        }],
    })
}

/// `live` says everything that `wanted` says, and lists hold nothing beyond.
/// Fields that only `live` has (status, defaults of a later version) are ignored.
pub fn conforms(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted
            .iter()
            .all(|(key, value)| live.get(key).is_some_and(|live| conforms(value, live))),
        (Value::Array(wanted), Value::Array(live)) => {
            wanted.len() == live.len() && wanted.iter().zip(live).all(|(w, l)| conforms(w, l))
        }
        _ => wanted == live,
    }
}

/// The CA bundle that a live configuration holds, PEM; empty where it has none.
pub fn published(live: &Value) -> String {
    let bundle = live["webhooks"][0]["clientConfig"]["caBundle"].as_str();
    let bytes = bundle.and_then(|text| STANDARD.decode(text).ok());
    String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service() -> Value {
        let target = Target::Service {
            name: "aliquot-webhook".to_owned(),
            namespace: "aliquot-system".to_owned(),
        };
        let names = ResourceNames::default();
        let scope = Scope {
            target: &target,
            namespace: "aliquot-system",
            names: (&names, &[]),
            nvidia_runtime_classes: &["nvidia".to_owned()],
            pods_may_ignore: true,
        };
        wanted(scope, "PEM")
    }

    #[test]
    fn who_makes_pods_is_warned_by_a_second_webhook_that_nothing_waits_for() {
        let whole = service();
        let second = &whole["webhooks"][1];
        assert_eq!(second["failurePolicy"], "Ignore");
        assert_eq!(second["clientConfig"]["service"]["path"], "/warn");
        let expression = second["matchConditions"][1]["expression"].as_str().unwrap();
        assert!(expression.contains("has(object.spec.template.spec.containers)"));
        assert!(!expression.contains("object.spec.containers"));
        let target = Target::Url {
            url: "https://127.0.0.1:8443/mutate".to_owned(),
            host: "127.0.0.1".to_owned(),
        };
        let config = target.client_config(warn::PATH, "");
        assert_eq!(config["url"], "https://127.0.0.1:8443/warn");
    }

    #[test]
    fn a_tenants_own_label_can_be_made_to_mean_nothing() {
        let target = Target::Service {
            name: "w".to_owned(),
            namespace: "n".to_owned(),
        };
        let names = ResourceNames::default();
        let check = |pods_may_ignore, expected: usize| {
            let scope = Scope {
                target: &target,
                namespace: "n",
                names: (&names, &[]),
                nvidia_runtime_classes: &[],
                pods_may_ignore,
            };
            let whole = wanted(scope, "");
            let labels = whole["webhooks"][0]["objectSelector"]["matchExpressions"].as_array();
            assert_eq!(labels.map_or(0, Vec::len), expected);
            let selector = &whole["webhooks"][0]["namespaceSelector"]["matchExpressions"];
            assert_eq!(
                selector.as_array().map(Vec::len),
                Some(3),
                "a namespace's label holds"
            );
        };
        check(true, 2);
        check(false, 0);
    }

    #[test]
    fn any_change_of_a_field_of_ours_is_seen_and_foreign_fields_are_not() {
        let wanted = service();
        let mut live = wanted.clone();
        live["metadata"]["generation"] = json!(7);
        live["webhooks"][0]["aFieldOfKubernetes2"] = json!(true);
        assert!(conforms(&wanted, &live));
        for (pointer, value) in [
            ("/webhooks/0/failurePolicy", json!("Ignore")),
            ("/webhooks/0/clientConfig/caBundle", json!("")),
            ("/webhooks/0/matchConditions/0/expression", json!("false")),
            ("/webhooks/0/namespaceSelector/matchExpressions", json!([])),
            ("/webhooks/0/rules/1/operations", json!([])),
            ("/webhooks/0/timeoutSeconds", json!(30)),
        ] {
            let mut changed = live.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(!conforms(&wanted, &changed), "{pointer}");
        }
        let mut more = live.clone();
        let never = json!({"name": "never", "expression": "false"});
        more["webhooks"][0]["matchConditions"]
            .as_array_mut()
            .unwrap()
            .push(never);
        assert!(!conforms(&wanted, &more));
    }

    #[test]
    fn the_published_bundle_is_read_back() {
        assert_eq!(published(&service()), "PEM");
        assert_eq!(published(&json!({"webhooks": []})), "");
    }
}
