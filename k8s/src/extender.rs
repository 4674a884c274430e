//! The messages between kube-scheduler and its extender, version 1.
//!
//! Source: k8s.io/kube-scheduler/extender/v1, whose Go fields carry no tags: the keys are
//! the capitalised field names. The golden files in `tests/golden` are written by those Go
//! types (`clustertool golden`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::view::PodView;

/// The arguments of filter and prioritize.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub struct ExtenderArgs<'a> {
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Names of the candidate nodes; sent when `nodeCacheCapable` is true.
    #[serde(default, borrow)]
    pub node_names: Option<Vec<Cow<'a, str>>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderFilterResult {
    /// Whole nodes. Never set, as none are asked for.
    pub nodes: Option<Value>,
    pub node_names: Option<Vec<String>>,
    /// Nodes that preemption might help on. Never set (see `aliquot_core::decide`).
    pub failed_nodes: Option<BTreeMap<String, String>>,
    /// Nodes that preemption will not help on, with the reason.
    pub failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    /// An error of the extender itself; kube-scheduler tries again.
    pub error: String,
}

/// One node's rank, 0 to 10.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    pub host: String,
    /// 0 (worst) to 10.
    pub score: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingArgs {
    pub pod_name: String,
    pub pod_namespace: String,
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// The node that kube-scheduler chose.
    pub node: String,
}

/// The answer of bind: empty if bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingResult {
    /// Why the pod is not bound.
    pub error: String,
}

/// The arguments of preempt: the pods that kube-scheduler would evict, by node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionArgs {
    pub pod: Option<PodView>,
    /// By uid; sent when `nodeCacheCapable` is true.
    #[serde(default)]
    pub node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

/// Pods that would be evicted, by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub pods: Vec<MetaPod>,
    /// How many of them a disruption budget protects.
    #[serde(rename = "NumPDBViolations", default)]
    pub num_pdb_violations: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaPod {
    /// `metadata.uid`.
    #[serde(rename = "UID")]
    pub uid: String,
}

/// The answer of preempt: the remaining nodes, and the victims there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionResult {
    pub node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

fn null_is_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MetaPod>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> String {
        let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    /// Decodes a golden file and compares it with our encoding.
    fn check<T: serde::de::DeserializeOwned + Serialize>(name: &str) {
        let text = golden(name);
        let ours = serde_json::to_value(serde_json::from_str::<T>(&text).unwrap()).unwrap();
        assert_eq!(
            ours,
            serde_json::from_str::<Value>(&text).unwrap(),
            "{name}"
        );
    }

    #[test]
    fn encodes_answers_like_the_go_types() {
        check::<ExtenderFilterResult>("extender-filter-fits");
        check::<ExtenderFilterResult>("extender-filter-refused");
        check::<ExtenderFilterResult>("extender-filter-error");
        check::<Vec<HostPriority>>("extender-priorities");
        check::<ExtenderBindingArgs>("extender-binding-args");
        check::<ExtenderBindingResult>("extender-binding-result");
        check::<ExtenderPreemptionResult>("extender-preemption-result");
    }

    #[test]
    fn reads_calls_as_the_go_types_write_them() {
        let text = golden("extender-preemption-args-meta");
        let args: ExtenderPreemptionArgs = serde_json::from_str(&text).unwrap();
        let victims = args.node_name_to_meta_victims.unwrap();
        assert_eq!(victims["n1"].pods[0].uid, "u-2");
        assert_eq!(victims["n1"].num_pdb_violations, 1);
        let text = golden("extender-args-names");
        let args: ExtenderArgs<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!(args.node_names.unwrap(), ["n1", "n2"]);
        assert_eq!(args.pod.unwrap().name(), Some("p"));
    }
}
