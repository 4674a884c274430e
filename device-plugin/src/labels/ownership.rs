//! Which labels of the node are ours to write and to remove.
//!
//! The keys that we wrote stand in an annotation of the node, written in the same patch. A label
//! that is not among them belongs to somebody else and is left alone, unless the policy is `on`.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use k8s_openapi::api::core::v1 as api;
use serde_json::{Map, Value, json};

/// The node annotation with the keys of our labels, separated by commas.
pub const OWNED: &str = "aliquot.dev/feature-labels";
/// The labels that node-feature-discovery writes, including gpu-feature-discovery's.
const OF_NFD: &str = "nfd.node.kubernetes.io/feature-labels";
/// A label of gpu-feature-discovery that we never write.
const OF_GFD: &str = "nvidia.com/gfd.timestamp";
const OURS: &str = "aliquot.dev/";
const NVIDIAS: &str = "nvidia.com/";

/// Who writes the feature labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LabelPolicy {
    /// The agent, but NVIDIA's names only where no gpu-feature-discovery runs.
    #[default]
    Auto,
    /// The agent, overwriting existing labels.
    On,
    /// Not the agent; it removes those that it wrote.
    Off,
}

/// The labels that the node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels {
    labels: BTreeMap<String, String>,
    owned: Option<String>,
    of_nfd: BTreeSet<String>,
}

impl NodeLabels {
    /// Reads the node.
    pub fn read(node: &api::Node) -> Self {
        let concerns = |key: &str| key.starts_with(OURS) || key.starts_with(NVIDIAS);
        let labels = node.metadata.labels.iter().flatten();
        let labels = labels.filter(|(key, _)| concerns(key));
        let annotations = node.metadata.annotations.as_ref();
        let annotation = |key| annotations.and_then(|all| all.get(key));
        let of_nfd = annotation(OF_NFD).map(String::as_str).unwrap_or_default();
        let of_nfd = of_nfd.split(',').map(str::trim);
        Self {
            labels: labels.map(|(k, v)| (k.clone(), v.clone())).collect(),
            owned: annotation(OWNED).cloned(),
            of_nfd: of_nfd
                .filter(|key| concerns(key))
                .map(str::to_owned)
                .collect(),
        }
    }

    fn discovery_runs(&self) -> bool {
        let nvidias = |key: &String| key.starts_with(NVIDIAS);
        self.labels.contains_key(OF_GFD) || self.of_nfd.iter().any(nvidias)
    }
}

/// The patch of the node's metadata, if one is needed.
pub fn patch(
    desired: &BTreeMap<String, String>,
    seen: &NodeLabels,
    policy: LabelPolicy,
) -> Option<Value> {
    let owned = seen.owned.as_deref().unwrap_or_default();
    let owned: BTreeSet<&str> = owned.split(',').filter(|key| !key.is_empty()).collect();
    let runs = seen.discovery_runs();
    let others = |key: &str| seen.labels.contains_key(key) && !owned.contains(key);
    let may = |key: &str| match policy {
        LabelPolicy::Off => false,
        LabelPolicy::On => true,
        LabelPolicy::Auto => key.starts_with(OURS) || (!runs && !others(key)),
    };
    let mine: BTreeMap<&String, &String> = desired.iter().filter(|(key, _)| may(key)).collect();
    let mut labels = Map::new();
    for key in owned {
        let gone = !mine.keys().any(|mine| *mine == key) && !seen.of_nfd.contains(key);
        if gone && seen.labels.contains_key(key) {
            labels.insert(key.to_owned(), Value::Null);
        }
    }
    for (key, value) in &mine {
        if seen.labels.get(*key) != Some(*value) {
            labels.insert((*key).clone(), json!(value));
        }
    }
    let keys: Vec<&str> = mine.keys().map(|key| key.as_str()).collect();
    let note = (!keys.is_empty()).then(|| keys.join(","));
    if labels.is_empty() && note == seen.owned {
        return None;
    }
    Some(json!({"metadata": {"labels": labels, "annotations": {OWNED: note}}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: &str = "nvidia.com/gpu.count";
    const MODE: &str = "aliquot.dev/mode.vgpu";
    const OTHERS: &str = "nvidia.com/gpu.product";

    fn node(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> NodeLabels {
        let map = |pairs: &[(&str, &str)]| -> Value {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), json!(v)))
                .collect()
        };
        let node = json!({"metadata": {"labels": map(labels), "annotations": map(annotations)}});
        NodeLabels::read(&serde_json::from_value(node).expect("a node"))
    }

    /// The labels that a patch sets (or removes: null), and the annotation after it.
    fn check(seen: &NodeLabels, policy: LabelPolicy, expected: &Value) {
        let desired = [(COUNT, "2"), (MODE, "2")];
        let desired = desired.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let patch = patch(&desired, seen, policy);
        let found = patch.map_or(Value::Null, |patch| {
            let metadata = &patch["metadata"];
            json!([metadata["labels"], metadata["annotations"][OWNED]])
        });
        assert_eq!(found, *expected, "{policy:?}: {seen:?}");
    }

    #[test]
    fn writes_restores_and_removes_own_labels() {
        let both = format!("{MODE},{COUNT}");
        let owned = [(OWNED, both.as_str())];
        let auto = LabelPolicy::Auto;
        check(
            &node(&[], &[]),
            auto,
            &json!([{COUNT: "2", MODE: "2"}, both]),
        );
        let right = [(COUNT, "2"), (MODE, "2")];
        check(&node(&right, &owned), auto, &Value::Null);
        let wrong = [(COUNT, "3"), (MODE, "2")];
        check(&node(&wrong, &owned), auto, &json!([{COUNT: "2"}, both]));
        let more = format!("{both},{OTHERS}");
        let old = [(COUNT, "2"), (MODE, "2"), (OTHERS, "gone")];
        let seen = node(&old, &[(OWNED, &more)]);
        check(&seen, auto, &json!([{OTHERS: null}, both]));
        let off = json!([{COUNT: null, MODE: null}, null]);
        check(&node(&right, &owned), LabelPolicy::Off, &off);
        check(&node(&[], &[]), LabelPolicy::Off, &Value::Null);
    }

    #[test]
    fn leaves_foreign_labels_unless_policy_is_on() {
        let by_hand = node(&[(COUNT, "7")], &[]);
        check(&by_hand, LabelPolicy::Auto, &json!([{MODE: "2"}, MODE]));
        let both = format!("{MODE},{COUNT}");
        check(
            &by_hand,
            LabelPolicy::On,
            &json!([{COUNT: "2", MODE: "2"}, both]),
        );
        check(&by_hand, LabelPolicy::Off, &Value::Null);
    }

    #[test]
    fn writes_only_own_prefix_beside_gpu_feature_discovery() {
        let both = format!("{MODE},{COUNT}");
        for (labels, annotation) in [
            (vec![(OF_GFD, "1"), (COUNT, "2")], (OF_NFD, "")),
            (vec![], (OF_NFD, "cpu-model.id,nvidia.com/gpu.product")),
        ] {
            let seen = node(&labels, &[annotation]);
            check(&seen, LabelPolicy::Auto, &json!([{MODE: "2"}, MODE]));
        }
        // It started after us: our labels go, except those that it now writes.
        let labels = [(COUNT, "2"), (MODE, "2")];
        let seen = node(&labels, &[(OWNED, &both), (OF_NFD, OTHERS)]);
        check(&seen, LabelPolicy::Auto, &json!([{COUNT: null}, MODE]));
        let seen = node(&labels, &[(OWNED, &both), (OF_NFD, COUNT)]);
        check(&seen, LabelPolicy::Auto, &json!([{}, MODE]));
    }
}
