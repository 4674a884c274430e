//! Placeholders: pods that never run and ask for whole GPUs, so that an autoscaler adds them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use aliquot_core::scale_up::MissingGpus;
use aliquot_k8s::node::{COUNTED, is_label_of_agents};
use aliquot_k8s::pod::PLACEHOLDER_SCHEDULER;
use aliquot_k8s::selection::NodeSelection;
use aliquot_k8s::view::PodView;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::node_types::{KnownLabel, NodeTypeSpec};

/// Every node's label with its own host name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The label of placeholders. Its value says what for: two with the same value are alike.
pub(super) const PLACEHOLDER: &str = "aliquot.dev/placeholder";

/// Which nodes a pod's spec allows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Constraints(NodeSelection);

impl Constraints {
    /// Those of this pod.
    pub(super) fn read(pod: &PodView) -> Self {
        Self(NodeSelection::read(pod))
    }

    /// Whether nothing that is known of this type contradicts them.
    pub(super) fn permit(&self, node_type: &NodeTypeSpec) -> bool {
        let Self(selection) = self;
        let mut selected = selection.labels.iter();
        selected.all(|(key, value)| match node_type.label(key) {
            KnownLabel::Value(known) => known == *value,
            KnownLabel::Absent => false,
            KnownLabel::Present | KnownLabel::Unknown => true,
        }) && selection.terms.as_ref().is_none_or(|terms| {
            terms.iter().any(|term| {
                let mut wanted = term.match_expressions.iter().flatten();
                wanted.all(|wanted| may_match(wanted, node_type))
            })
        })
    }

    /// Those that a new node of this type can meet: the labels that its agents will write are left to
    /// [`Self::permit`].
    fn for_new_node(&self, node_type: &NodeTypeSpec) -> Self {
        let written_later =
            |key: &String| is_label_of_agents(key) && !node_type.node_selector.contains_key(key);
        let mut own = self.clone();
        own.0.labels.retain(|key, _| !written_later(key));
        for term in own.0.terms.iter_mut().flatten() {
            if let Some(expressions) = &mut term.match_expressions {
                expressions.retain(|wanted| !written_later(&wanted.key));
            }
        }
        own
    }
}

/// Whether a node of this type may meet the requirement on a label.
fn may_match(wanted: &NodeSelectorRequirement, node_type: &NodeTypeSpec) -> bool {
    let is_listed = |known: &String| wanted.values.iter().flatten().any(|value| value == known);
    match (wanted.operator.as_str(), node_type.label(&wanted.key)) {
        ("In", KnownLabel::Value(known)) => is_listed(&known),
        ("NotIn", KnownLabel::Value(known)) => !is_listed(&known),
        ("In" | "Exists", KnownLabel::Absent)
        | ("DoesNotExist", KnownLabel::Value(_) | KnownLabel::Present) => false,
        _ => true,
    }
}

/// Where placeholders are created, and for whom.
#[derive(Clone, Debug)]
pub struct Owner {
    pub namespace: String,
    /// The scheduler's pod by name and uid: placeholders end with it.
    pub pod: Option<(String, String)>,
}

/// Keeps placeholders off the nodes whose GPUs are `counted`. A node has a replica for each share,
/// so autoscalers take a node whose GPUs are all shared for one with many free GPUs.
pub(super) fn uncounted(node_type: &NodeTypeSpec, counted: &[&str]) -> Value {
    match (node_type.template_from_node, counted) {
        // A new node has no such label until its GPUs are counted.
        (false, _) => json!({"key": COUNTED, "operator": "DoesNotExist"}),
        // The copy of a counted node has the label, too.
        (true, []) => json!({"key": HOSTNAME, "operator": "Exists"}),
        (true, counted) => json!({"key": HOSTNAME, "operator": "NotIn", "values": counted}),
    }
}

/// What placeholders for these GPUs have as their label's value.
pub(super) fn key(
    constraints: &Constraints,
    node_type: &NodeTypeSpec,
    gpus: u32,
    uncounted: &Value,
) -> String {
    let type_labels = &node_type.node_selector;
    let text = json!([constraints, node_type.name, type_labels, uncounted]).to_string();
    let mut hasher = DefaultHasher::new();
    (text, gpus).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

pub(super) fn placeholder(
    missing: &MissingGpus,
    constraints: &Constraints,
    node_type: &NodeTypeSpec,
    resource: &str,
    owner: &Owner,
    uncounted: &Value,
) -> Value {
    let gpus = missing.gpus.to_string();
    let mut requests = json!({resource: gpus});
    if missing.cpu > 0 {
        requests["cpu"] = json!(format!("{}m", missing.cpu));
    }
    if missing.memory > 0 {
        requests["memory"] = json!(format!("{}Mi", missing.memory));
    }
    let Constraints(own) = constraints.for_new_node(node_type);
    let mut selector = node_type.node_selector.clone();
    selector.extend(own.labels);
    let mut tolerations = own.tolerations;
    let more = node_type.tolerations.iter();
    tolerations.extend(
        more.filter(|one| !constraints.0.tolerations.contains(one))
            .cloned(),
    );
    let terms = own.terms.iter().flatten();
    let mut terms: Vec<Value> = terms.map(|term| json!(term)).collect();
    if terms.is_empty() {
        terms.push(json!({}));
    }
    for term in &mut terms {
        if let Some(expressions) = term["matchExpressions"].as_array_mut() {
            expressions.push(uncounted.clone());
        } else {
            term["matchExpressions"] = json!([uncounted]);
        }
    }
    let owners: Vec<Value> = owner
        .pod
        .iter()
        .map(|(name, uid)| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "aliquot-placeholder-",
            "namespace": owner.namespace,
            "labels": {PLACEHOLDER: key(constraints, node_type, missing.gpus, uncounted)},
            "ownerReferences": owners,
        },
        "spec": {
            "schedulerName": PLACEHOLDER_SCHEDULER,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": selector,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}},
            "tolerations": tolerations,
            "securityContext": {
                "runAsNonRoot": true,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "placeholder",
                "image": "placeholder.invalid/never-runs",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": {"requests": requests, "limits": {resource: gpus}},
            }],
        },
    })
}

/// The status by which an autoscaler recognizes a pod that needs a node.
pub(super) fn unschedulable(now: Timestamp) -> Value {
    json!({"status": {"conditions": [{
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "GPUs are missing for pending pods with shares; this pod never runs",
        "lastTransitionTime": now.to_string(),
    }]}})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::node_types::NodeTypes;

    fn node_type() -> NodeTypeSpec {
        let text = r#"[{"name": "a100", "gpus": 8, "model": "A", "gpuMemory": 81920,
            "nodeSelector": {"pool": "a100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}]"#;
        let mut types: NodeTypes = text.parse().expect("valid types");
        types.0.remove(0)
    }

    fn constraints(spec: &Value) -> Constraints {
        let mut pod = json!({"spec": {"containers": []}});
        pod["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        Constraints::read(&serde_json::from_value(pod).unwrap())
    }

    fn affinity(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    /// The placeholder for two GPUs of this type, for pods with this spec.
    fn made(spec: &Value, node_type: &NodeTypeSpec, counted: &[&str]) -> Value {
        let missing = MissingGpus {
            group: 0,
            node_type: 0,
            gpus: 2,
            cpu: 1500,
            memory: 64,
        };
        let owner = Owner {
            namespace: "system".to_owned(),
            pod: Some(("me".to_owned(), "u".to_owned())),
        };
        let (wanted, resource) = (constraints(spec), "nvidia.com/gpu");
        let uncounted = uncounted(node_type, counted);
        placeholder(&missing, &wanted, node_type, resource, &owner, &uncounted)
    }

    fn terms(made: &Value) -> &Value {
        let affinity = &made["spec"]["affinity"]["nodeAffinity"];
        &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    }

    #[test]
    fn placeholder_has_the_constraints_of_its_pods() {
        let zone = json!({"key": "zone", "operator": "In", "values": ["z"]});
        let mut spec = affinity(&json!([{"matchExpressions": [zone]}]));
        spec["nodeSelector"] = json!({"disk": "ssd"});
        spec["tolerations"] = json!([{"key": "team", "operator": "Exists"}]);
        let made = made(&spec, &node_type(), &["n"]);
        let spec = &made["spec"];
        assert_eq!(spec["nodeSelector"], json!({"disk": "ssd", "pool": "a100"}));
        let uncounted = json!({"key": "aliquot.dev/counted", "operator": "DoesNotExist"});
        let expected = json!([{"matchExpressions": [zone, uncounted]}]);
        assert_eq!(*terms(&made), expected);
        let keys = spec["tolerations"].as_array().unwrap().iter();
        assert_eq!(
            keys.map(|one| &one["key"]).collect::<Vec<_>>(),
            ["team", "gpu"]
        );
        let resources = &spec["containers"][0]["resources"];
        assert_eq!(
            *resources,
            json!({
                "requests": {"nvidia.com/gpu": "2", "cpu": "1500m", "memory": "64Mi"},
                "limits": {"nvidia.com/gpu": "2"},
            })
        );
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u");
        serde_json::from_value::<Pod>(made).unwrap();
    }

    #[test]
    fn placeholder_selects_no_label_that_agents_write() {
        let product = json!({"key": "aliquot.dev/product.A", "operator": "Exists"});
        let mut spec = affinity(&json!([{"matchExpressions": [product]}]));
        spec["nodeSelector"] = json!({"nvidia.com/gpu.product": "A", "disk": "ssd"});
        let found = made(&spec, &node_type(), &[]);
        let expected = json!({"disk": "ssd", "pool": "a100"});
        assert_eq!(found["spec"]["nodeSelector"], expected);
        let uncounted = json!({"key": COUNTED, "operator": "DoesNotExist"});
        let expected = json!([{"matchExpressions": [uncounted]}]);
        assert_eq!(*terms(&found), expected);
        // The administrator says that the template has it.
        let mut labelled = node_type();
        let product = "nvidia.com/gpu.product".to_owned();
        labelled.node_selector.insert(product, "A".to_owned());
        let found = made(&spec, &labelled, &[]);
        assert_eq!(found["spec"]["nodeSelector"]["nvidia.com/gpu.product"], "A");
    }

    #[test]
    fn placeholder_fits_a_copy_of_a_counted_node() {
        let mut copied = node_type();
        copied.template_from_node = true;
        let check = |counted: &[&str], expected: Value| {
            let found = made(&json!({}), &copied, counted);
            assert_eq!(*terms(&found), json!([{"matchExpressions": [expected]}]));
            found["metadata"]["labels"][PLACEHOLDER].clone()
        };
        let exists = json!({"key": "kubernetes.io/hostname", "operator": "Exists"});
        let named = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n"]});
        let (before, after) = (check(&[], exists), check(&["n"], named));
        assert_ne!(before, after, "replaced when a node is counted");
    }

    #[test]
    fn pods_permit_only_types_with_labels_they_select() {
        let check = |spec: Value, expected: bool| {
            let found = constraints(&spec).permit(&node_type());
            assert_eq!(found, expected, "{spec}");
        };
        for (selector, expected) in [
            (json!({}), true),
            (json!({"pool": "a100", "disk": "ssd"}), true),
            (json!({"pool": "h100"}), false),
            (
                json!({"nvidia.com/gpu.product": "A", "aliquot.dev/product.A": "8"}),
                true,
            ),
            (json!({"nvidia.com/gpu.product": "H"}), false),
            (json!({"aliquot.dev/product.H": "8"}), false),
        ] {
            check(json!({"nodeSelector": selector}), expected);
        }
        for (operator, values, expected) in [
            ("In", json!(["h100", "a100"]), true),
            ("In", json!(["h100"]), false),
            ("NotIn", json!(["a100"]), false),
            ("NotIn", json!(["h100"]), true),
            ("Exists", json!([]), true),
            ("DoesNotExist", json!([]), false),
        ] {
            let wanted = json!({"key": "pool", "operator": operator, "values": values});
            check(affinity(&json!([{"matchExpressions": [wanted]}])), expected);
            // One of the terms is enough.
            let either = json!([{"matchExpressions": [wanted]}, {"matchExpressions": []}]);
            check(affinity(&either), true);
        }
        let other = json!({"key": "aliquot.dev/product.H", "operator": "Exists"});
        check(affinity(&json!([{"matchExpressions": [other]}])), false);
    }
}
