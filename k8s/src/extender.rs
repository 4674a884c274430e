//! The messages between kube-scheduler and its extender, version 1.
//!
//! Source: k8s.io/kube-scheduler/extender/v1, whose Go fields carry no tags: the keys are
//! the capitalised field names. The golden files in `tests/golden` are written by those Go
//! types (`clustertool golden`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::view::PodView;

/// The arguments of filter and prioritize.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub struct ExtenderArgs<'a> {
    /// The pod being scheduled.
    #[serde(default)]
    pub pod: Option<PodView>,
    /// Whole nodes; sent when `nodeCacheCapable` is false.
    #[serde(default)]
    pub nodes: Option<NodeList>,
    /// Names of the candidate nodes; sent when `nodeCacheCapable` is true.
    #[serde(default, borrow)]
    pub node_names: Option<Vec<Cow<'a, str>>>,
}

/// A `v1.NodeList`. Keeps its nodes as received, too, because an answer repeats them.
#[derive(Clone, Debug)]
pub struct NodeList {
    /// The decoded nodes.
    pub items: Vec<Node>,
    raw: Vec<Value>,
}

impl<'de> Deserialize<'de> for NodeList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            items: Vec<Value>,
        }
        let raw = Wire::deserialize(deserializer)?.items;
        let items = raw.iter().map(Node::deserialize).collect::<Result<_, _>>();
        let items = items.map_err(D::Error::custom)?;
        Ok(Self { items, raw })
    }
}

impl NodeList {
    /// The nodes' names, in their order.
    pub fn names(&self) -> Vec<String> {
        let names = self.items.iter().map(|node| node.metadata.name.clone());
        names.map(Option::unwrap_or_default).collect()
    }

    /// The list of only these nodes, in their order.
    pub fn only(&self, names: &[&str]) -> Value {
        let place = |name| {
            self.items
                .iter()
                .position(|node| node.metadata.name.as_deref() == Some(name))
        };
        let items = names.iter().filter_map(|name| self.raw.get(place(name)?));
        json!({"metadata": {}, "items": items.collect::<Vec<_>>()})
    }
}

/// The answer of filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderFilterResult {
    /// The nodes that can take the pod, where whole nodes were sent.
    pub nodes: Option<Value>,
    /// The nodes that can take the pod.
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
    /// The node.
    pub host: String,
    /// 0 (worst) to 10.
    pub score: i64,
}

/// The arguments of bind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingArgs {
    /// The pod's name.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its uid.
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
    /// The preemptor.
    pub pod: Option<PodView>,
    /// Whole pods; sent when `nodeCacheCapable` is false.
    #[serde(default)]
    pub node_name_to_victims: Option<BTreeMap<String, Victims>>,
    /// Uids only; sent when `nodeCacheCapable` is true.
    #[serde(default)]
    pub node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

impl ExtenderPreemptionArgs {
    /// The victims by node, in whichever form they were sent.
    pub fn victims(&self) -> BTreeMap<String, MetaVictims> {
        if let Some(victims) = &self.node_name_to_meta_victims {
            return victims.clone();
        }
        let uid = |pod: &PodView| MetaPod {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        };
        let meta = |victims: &Victims| MetaVictims {
            pods: victims.pods.iter().flatten().map(uid).collect(),
            num_pdb_violations: victims.num_pdb_violations,
        };
        let nodes = self.node_name_to_victims.iter().flatten();
        nodes
            .map(|(node, victims)| (node.clone(), meta(victims)))
            .collect()
    }
}

/// Pods that would be evicted, as objects.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Victims {
    /// The pods.
    #[serde(default)]
    pub pods: Option<Vec<PodView>>,
    /// How many of them a disruption budget protects.
    #[serde(rename = "NumPDBViolations", default)]
    pub num_pdb_violations: i64,
}

/// Pods that would be evicted, by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    /// The pods.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub pods: Vec<MetaPod>,
    /// How many of them a disruption budget protects.
    #[serde(rename = "NumPDBViolations", default)]
    pub num_pdb_violations: i64,
}

/// A pod by its uid.
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
    /// Victims by node.
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
    fn reads_victims_as_uids_or_pods() {
        for form in ["meta", "pods"] {
            let text = golden(&format!("extender-preemption-args-{form}"));
            let args: ExtenderPreemptionArgs = serde_json::from_str(&text).unwrap();
            let victims = args.victims();
            assert_eq!(victims["n1"].pods[0].uid, "u-2", "{form}");
            assert_eq!(victims["n1"].num_pdb_violations, 1, "{form}");
        }
    }

    #[test]
    fn reads_extender_args_of_both_forms() {
        let text = golden("extender-args-names");
        let args: ExtenderArgs<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!(args.node_names.unwrap(), ["n1", "n2"]);
        assert_eq!(args.pod.unwrap().name(), Some("p"));
        let text = golden("extender-args-nodes");
        let args: ExtenderArgs<'_> = serde_json::from_str(&text).unwrap();
        assert!(args.node_names.is_none());
        let nodes = args.nodes.unwrap();
        assert_eq!(nodes.only(&["n1"])["items"][0]["metadata"]["name"], "n1");
    }
}
