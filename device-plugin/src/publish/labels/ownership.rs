//! Which labels of the node are ours to write and to remove.
//!
//! The keys that we wrote stand in an annotation of the node, written in the same patch. A label
//! that is not among them belongs to somebody else and is left alone, unless the policy is `on`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::node_view::NodeView;
use crate::settings::LabelPolicy;

/// The node annotation with the keys of our labels, separated by commas.
pub const OWNED: &str = "aliquot.dev/feature-labels";
/// The labels that node-feature-discovery writes, including gpu-feature-discovery's.
const OF_NFD: &str = "nfd.node.kubernetes.io/feature-labels";
/// A label of gpu-feature-discovery that we never write.
const OF_GFD: &str = "nvidia.com/gfd.timestamp";
const OURS: &str = "aliquot.dev/";
const NVIDIAS: &str = "nvidia.com/";

/// The patch of the node's metadata, if one is needed. Labels with other prefixes than ours and
/// NVIDIA's are left alone, whatever the annotation lists.
pub fn patch(
    desired: &BTreeMap<String, String>,
    view: &NodeView,
    policy: LabelPolicy,
) -> Option<Value> {
    let concerns = |key: &str| key.starts_with(OURS) || key.starts_with(NVIDIAS);
    let shown = |key: &str| view.labels.get(key).filter(|_| concerns(key));
    let (owned, of_nfd) = (listed(view, OWNED), listed(view, OF_NFD));
    let runs = shown(OF_GFD).is_some() || of_nfd.iter().any(|key| key.starts_with(NVIDIAS));
    let others = |key: &str| shown(key).is_some() && !owned.contains(key);
    let may = |key: &str| match policy {
        LabelPolicy::Off => false,
        LabelPolicy::On => true,
        LabelPolicy::Auto => key.starts_with(OURS) || (!runs && !others(key)),
    };
    let mine: BTreeMap<&String, &String> = desired.iter().filter(|(key, _)| may(key)).collect();
    let mut labels = Map::new();
    for key in &owned {
        let gone = !mine.keys().any(|mine| mine == key) && !of_nfd.contains(key);
        if gone && shown(key).is_some() {
            labels.insert((*key).to_owned(), Value::Null);
        }
    }
    for (key, value) in &mine {
        if shown(key) != Some(*value) {
            labels.insert((*key).clone(), json!(value));
        }
    }
    let keys: Vec<&str> = mine.keys().map(|key| key.as_str()).collect();
    let note = (!keys.is_empty()).then(|| keys.join(","));
    if labels.is_empty() && note.as_deref() == view.annotation(OWNED) {
        return None;
    }
    Some(json!({"metadata": {"labels": labels, "annotations": {OWNED: note}}}))
}

/// The keys in an annotation, separated by commas.
fn listed<'a>(view: &'a NodeView, annotation: &str) -> BTreeSet<&'a str> {
    let keys = view.annotation(annotation).unwrap_or_default().split(',');
    keys.map(str::trim).filter(|key| !key.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: &str = "nvidia.com/gpu.count";
    const MODE: &str = "aliquot.dev/mode.vgpu";
    const OTHERS: &str = "nvidia.com/gpu.product";

    fn node(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> NodeView {
        let map = |pairs: &[(&str, &str)]| -> Value {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), json!(v)))
                .collect()
        };
        let node = json!({"metadata": {"labels": map(labels), "annotations": map(annotations)}});
        NodeView::read(&serde_json::from_value(node).expect("a node"))
    }

    /// The labels that a patch sets (or removes: null), and the annotation after it.
    fn check(seen: &NodeView, policy: LabelPolicy, expected: &Value) {
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
        let more = format!("{both},{OTHERS}");
        let auto = LabelPolicy::Auto;
        let (right, wrong) = ([(COUNT, "2"), (MODE, "2")], [(COUNT, "3"), (MODE, "2")]);
        let old = [(COUNT, "2"), (MODE, "2"), (OTHERS, "gone")];
        let ours = |labels: &[(&str, &str)]| node(labels, &[(OWNED, &both)]);
        let none = node(&[], &[]);
        let all = json!([{COUNT: "2", MODE: "2"}, both]);
        check(&none, auto, &all);
        check(&ours(&right), auto, &Value::Null);
        check(&ours(&wrong), auto, &json!([{COUNT: "2"}, both]));
        let seen = node(&old, &[(OWNED, &more)]);
        check(&seen, auto, &json!([{OTHERS: null}, both]));
        let off = json!([{COUNT: null, MODE: null}, null]);
        check(&ours(&right), LabelPolicy::Off, &off);
        check(&none, LabelPolicy::Off, &Value::Null);
        // Of another owner.
        let by_hand = node(&[(COUNT, "7")], &[]);
        check(&by_hand, auto, &json!([{MODE: "2"}, MODE]));
        check(&by_hand, LabelPolicy::On, &all);
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
