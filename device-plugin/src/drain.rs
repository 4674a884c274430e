//! What the node's owner and we say of sick cards on the Node object: the taint of a node
//! that is to be drained, and the owner's word that a card is well again.
//!
//! Fed by: the watched node and what is published. Must not: evict; the scheduler does.

use k8s_openapi::api::core::v1 as api;
use serde_json::{Value, json};

/// The taint of a node that is drained because of a card.
pub const TAINT: &str = "aliquot.dev/gpu-drain";
/// The node annotation by which its owner says that cards are well: uuids with commas. It is
/// taken away when that was done.
pub const CLEARED: &str = "aliquot.dev/gpu-cleared";

/// What the node shows.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    taints: Vec<api::Taint>,
    version: Option<String>,
    cleared: Option<String>,
}

/// The version changes with everything on the node, and says nothing by itself.
impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        (&self.taints, &self.cleared) == (&other.taints, &other.cleared)
    }
}

impl Eq for Seen {}

impl Seen {
    /// Reads the node.
    pub fn read(node: &api::Node) -> Self {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
        let taints = taints.unwrap_or_default();
        let annotations = node.metadata.annotations.as_ref();
        let cleared = annotations.and_then(|all| all.get(CLEARED)).cloned();
        Self {
            version: node.metadata.resource_version.clone(),
            taints,
            cleared,
        }
    }

    /// The cards that the owner says are well; `None` when nothing is said.
    pub fn cleared(&self) -> Option<Vec<String>> {
        let text = self.cleared.as_deref()?;
        let words = text.split(',').map(str::trim);
        let words = words.filter(|word| !word.is_empty());
        Some(words.map(str::to_owned).collect())
    }

    /// The patch that taints the node, or takes our taint away; `None`: it is right. The list
    /// is written whole, so it is written only over the version that was read.
    pub fn taint(&self, drained: bool) -> Option<Value> {
        let ours = |taint: &api::Taint| taint.key == TAINT;
        if self.taints.iter().any(ours) == drained {
            return None;
        }
        let mut taints: Vec<api::Taint> = self.taints.clone();
        taints.retain(|taint| !ours(taint));
        if drained {
            taints.push(api::Taint {
                key: TAINT.to_owned(),
                effect: "NoSchedule".to_owned(),
                ..api::Taint::default()
            });
        }
        Some(json!({"metadata": {"resourceVersion": self.version}, "spec": {"taints": taints}}))
    }
}

/// The patch after the owner's word was followed.
pub fn heard() -> Value {
    json!({"metadata": {"annotations": {CLEARED: null}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(taints: &[&str], cleared: Option<&str>) -> Seen {
        let taints: Vec<_> = taints
            .iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"}))
            .collect();
        let node = json!({
            "metadata": {"resourceVersion": "7", "annotations": cleared.map(|text| json!({CLEARED: text}))},
            "spec": {"taints": taints},
        });
        Seen::read(&serde_json::from_value(node).expect("a node"))
    }

    #[test]
    fn the_taint_comes_and_goes_among_those_of_others() {
        let check = |taints: &[&str], drained: bool, expected: Option<&[&str]>| {
            let found = seen(taints, None).taint(drained).map(|patch| {
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
    fn the_owner_names_cards_with_commas() {
        assert_eq!(seen(&[], None).cleared(), None);
        let found = seen(&[], Some("GPU-a, GPU-b,")).cleared();
        assert_eq!(found, Some(vec!["GPU-a".to_owned(), "GPU-b".to_owned()]));
        assert_eq!(seen(&[], Some("")).cleared(), Some(Vec::new()));
    }
}
