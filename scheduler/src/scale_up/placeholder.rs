//! Placeholders: pods that never run and ask for whole GPUs, so that an autoscaler adds them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use aliquot_core::scale_up::MissingGpus;
use aliquot_k8s::node::COUNTED;
use aliquot_k8s::pod::PLACEHOLDER_SCHEDULER;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod, Toleration};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::node_types::NodeTypeSpec;

/// The label of placeholders. Its value says what for: two with the same value are alike.
pub(super) const PLACEHOLDER: &str = "aliquot.dev/placeholder";

/// Which nodes a pod's spec allows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Constraints {
    node_selector: BTreeMap<String, String>,
    terms: Vec<NodeSelectorTerm>,
    tolerations: Vec<Toleration>,
}

impl Constraints {
    /// Those of this pod.
    pub(super) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::default();
        };
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|all| all.node_affinity.as_ref());
        let required = affinity.and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
        Self {
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map_or_else(Vec::new, |one| one.node_selector_terms.clone()),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
        }
    }

    /// Whether no label that they select contradicts those of this type.
    pub(super) fn permit(&self, node_type: &NodeTypeSpec) -> bool {
        let mut labels = node_type.node_selector.iter();
        labels.all(|(key, value)| self.node_selector.get(key).is_none_or(|own| own == value))
    }
}

/// Where placeholders are created, and for whom.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The scheduler's namespace.
    pub namespace: String,
    /// The scheduler's pod by name and uid: placeholders end with it.
    pub pod: Option<(String, String)>,
}

/// What placeholders for these GPUs have as their label's value.
pub(super) fn key(constraints: &Constraints, node_type: &NodeTypeSpec, gpus: u32) -> String {
    let text = json!([constraints, node_type.name, node_type.node_selector]).to_string();
    let mut hasher = DefaultHasher::new();
    (text, gpus).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The placeholder for these GPUs.
pub(super) fn placeholder(
    missing: &MissingGpus,
    constraints: &Constraints,
    node_type: &NodeTypeSpec,
    resource: &str,
    owner: &Owner,
) -> Value {
    let gpus = missing.gpus.to_string();
    let mut requests = json!({resource: gpus});
    if missing.cpu > 0 {
        requests["cpu"] = json!(format!("{}m", missing.cpu));
    }
    if missing.memory > 0 {
        requests["memory"] = json!(format!("{}Mi", missing.memory));
    }
    let mut selector = node_type.node_selector.clone();
    selector.extend(constraints.node_selector.clone());
    let mut tolerations = constraints.tolerations.clone();
    let more = node_type.tolerations.iter();
    tolerations.extend(
        more.filter(|one| !constraints.tolerations.contains(one))
            .cloned(),
    );
    // Autoscalers take a node whose GPUs are all shared for one with many free GPUs: it has a
    // replica for each share. A new node has no such label until its GPUs are counted.
    let uncounted = json!({"key": COUNTED, "operator": "DoesNotExist"});
    let mut terms: Vec<Value> = constraints.terms.iter().map(|term| json!(term)).collect();
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
            "labels": {PLACEHOLDER: key(constraints, node_type, missing.gpus)},
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
    use super::*;
    use crate::node_types::NodeTypes;

    fn node_type() -> NodeTypeSpec {
        let text = r#"[{"name": "a100", "gpus": 8, "model": "A", "gpuMemory": 81920,
            "nodeSelector": {"pool": "a100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}]"#;
        let mut types: NodeTypes = text.parse().expect("valid types");
        types.0.remove(0)
    }

    #[test]
    fn placeholder_has_the_constraints_of_its_pods() {
        let zone = json!({"key": "zone", "operator": "In", "values": ["z"]});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}},
        }}))
        .unwrap();
        let constraints = Constraints::of(&pod);
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
        let made = placeholder(
            &missing,
            &constraints,
            &node_type(),
            "nvidia.com/gpu",
            &owner,
        );
        let spec = &made["spec"];
        assert_eq!(spec["nodeSelector"], json!({"disk": "ssd", "pool": "a100"}));
        let uncounted = json!({"key": "aliquot.dev/counted", "operator": "DoesNotExist"});
        let required =
            &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(
            required["nodeSelectorTerms"],
            json!([{"matchExpressions": [zone, uncounted]}])
        );
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
    fn pods_permit_only_types_with_labels_they_select() {
        let selecting = |selector: Value| {
            let pod = json!({"spec": {"containers": [], "nodeSelector": selector}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            Constraints::of(&pod).permit(&node_type())
        };
        assert!(selecting(json!({})));
        assert!(selecting(json!({"pool": "a100", "disk": "ssd"})));
        assert!(!selecting(json!({"pool": "h100"})));
    }
}
