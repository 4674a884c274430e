//! Marks on the Node object about unhealthy GPUs: the taint of a node that must be drained, and the
//! annotation by which the administrator clears a failure. The scheduler evicts; nothing here does.

use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};

use crate::node_view::NodeView;

/// The taint of a node that must be drained because of a GPU.
pub const TAINT: &str = "aliquot.dev/gpu-drain";
/// The node annotation by which the administrator declares GPUs healthy again: UUIDs, separated by
/// commas. The agent removes it once it has acted on it.
pub const CLEARED: &str = "aliquot.dev/gpu-cleared";

/// The GPUs that the administrator declares healthy; `None` without the annotation.
pub fn cleared(node: &NodeView) -> Option<Vec<String>> {
    let words = node.annotation(CLEARED)?.split(',').map(str::trim);
    let words = words.filter(|word| !word.is_empty());
    Some(words.map(str::to_owned).collect())
}

/// The patch that adds or removes our taint; `None` if nothing needs to change. A patch replaces the
/// whole list of taints, so it carries the resource version that was read.
pub fn taint_patch(node: &NodeView, drained: bool) -> Option<Value> {
    let ours = |taint: &api::Taint| taint.key == TAINT;
    if node.taints.iter().any(ours) == drained {
        return None;
    }
    let mut taints: Vec<api::Taint> = node.taints.clone();
    taints.retain(|taint| !ours(taint));
    if drained {
        taints.push(api::Taint {
            key: TAINT.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..api::Taint::default()
        });
    }
    let version = &node.resource_version;
    Some(json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}))
}

/// The patch that removes the annotation after it was acted on, and not one written meanwhile.
pub fn cleared_patch(node: &NodeView) -> Value {
    let version = &node.resource_version;
    json!({"metadata": {"resourceVersion": version, "annotations": {CLEARED: null}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(taints: &[&str], cleared: Option<&str>) -> NodeView {
        let taints: Vec<_> = taints
            .iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"}))
            .collect();
        let node = json!({
            "metadata": {"resourceVersion": "7", "annotations": cleared.map(|text| json!({CLEARED: text}))},
            "spec": {"taints": taints},
        });
        NodeView::read(&serde_json::from_value(node).expect("a node"))
    }

    #[test]
    fn keeps_other_taints_when_adding_or_removing_ours() {
        let check = |taints: &[&str], drained: bool, expected: Option<&[&str]>| {
            let found = taint_patch(&state(taints, None), drained).map(|patch| {
                assert_eq!(patch["metadata"]["resourceVersion"], "7");
                let all = patch["spec"]["taints"].as_array().cloned();
                let keys = all.unwrap_or_default().into_iter();
                keys.map(|taint| taint["key"].as_str().unwrap_or_default().to_owned())
                    .collect::<Vec<_>>()
            });
            let expected: Option<Vec<String>> =
                expected.map(|keys| keys.iter().map(|&key| key.to_owned()).collect());
            assert_eq!(found, expected, "{taints:?} {drained}");
        };
        check(&[], false, None);
        check(&["other"], true, Some(&["other", TAINT]));
        check(&["other", TAINT], true, None);
        check(&[TAINT, "other"], false, Some(&["other"]));
    }

    #[test]
    fn reads_cleared_gpus_separated_by_commas() {
        assert_eq!(cleared(&state(&[], None)), None);
        let found = cleared(&state(&[], Some("GPU-a, GPU-b,")));
        assert_eq!(found, Some(vec!["GPU-a".to_owned(), "GPU-b".to_owned()]));
        assert_eq!(cleared(&state(&[], Some(""))), Some(Vec::new()));
    }
}
