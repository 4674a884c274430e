//! Resources that this node does not advertise any more: their keys are removed from the Node.
//!
//! The kubelet reports a plugin that ended with 0, rewrites that for some minutes at each of its
//! updates, and never removes the key. A key that pods may still request stays, and retries back
//! off, so that agent and kubelet do not overwrite each other forever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::node_view::NodeView;

/// The pause before a key that came back is removed again; it doubles from the first value up to
/// the second.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// When each key was removed, and the pause after that.
#[derive(Debug, Default)]
pub struct RemovalSchedule(BTreeMap<String, (Instant, Duration)>);

impl RemovalSchedule {
    /// The keys to remove now: of resources that are not advertised any more and of which the node
    /// has none left.
    pub fn due(
        &mut self,
        removed: &BTreeSet<String>,
        node: &NodeView,
        now: Instant,
    ) -> Vec<String> {
        self.0.retain(|resource, _| removed.contains(resource));
        let mut due = Vec::new();
        for resource in removed {
            if !node.resources.contains_key(resource) || !node.counts_none_of(resource) {
                continue;
            }
            let pause = match self.0.get(resource) {
                Some((taken, pause)) if now - *taken < *pause => continue,
                Some((_, pause)) => (*pause * 2).min(RETRY_PAUSE.1),
                None => RETRY_PAUSE.0,
            };
            self.0.insert(resource.clone(), (now, pause));
            due.push(resource.clone());
        }
        due
    }
}

/// The patch that removes these keys from the node's status; `None` if there are none.
pub fn patch(resources: &[String]) -> Option<Value> {
    if resources.is_empty() {
        return None;
    }
    let gone = resources
        .iter()
        .map(|resource| (resource.clone(), Value::Null));
    let gone: Map<String, Value> = gone.collect();
    Some(json!({"status": {"capacity": gone, "allocatable": gone}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_unused_key_and_retries_with_backoff() {
        let name = "nvidia.com/gpu.shared".to_owned();
        let mut taken = RemovalSchedule::default();
        let start = Instant::now();
        let mut check = |seconds, removed: bool, shown: Option<&str>, expected: bool| {
            let removed = removed.then(|| name.clone()).into_iter().collect();
            let shown = shown.map(|n| (name.clone(), (n.to_owned(), n.to_owned())));
            let now = start + Duration::from_secs(seconds);
            let node = NodeView {
                resources: shown.into_iter().collect(),
                ..NodeView::default()
            };
            let due = taken.due(&removed, &node, now);
            assert_eq!(!due.is_empty(), expected, "at {seconds} s");
        };
        check(0, true, Some("3"), false);
        check(1, true, Some("0"), true);
        check(2, true, None, false);
        check(3, true, Some("0"), false);
        check(6, true, Some("0"), true);
        check(12, true, Some("0"), false);
        check(16, true, Some("0"), true);
        check(17, false, Some("0"), false);
        check(18, true, Some("0"), true);
    }

    #[test]
    fn reads_and_removes_node_resources_by_key() {
        let node = json!({"status": {
            "capacity": {"cpu": "2", "nvidia.com/gpu": "3"}, "allocatable": {"cpu": "2"},
            "conditions": [{"type": "Lost", "status": "True", "message": "m"}]}});
        let node = NodeView::read(&serde_json::from_value(node).expect("a node"));
        let expected = (
            "nvidia.com/gpu".to_owned(),
            ("3".to_owned(), "0".to_owned()),
        );
        assert_eq!(node.resources, [expected].into());
        assert!(!node.counts_none_of("nvidia.com/gpu"));
        let lost = ("True".to_owned(), "m".to_owned());
        assert_eq!(node.conditions.get("Lost"), Some(&lost));
        assert_eq!(patch(&[]), None);
        let gone = json!({"a/b": null});
        let expected = json!({"status": {"capacity": gone, "allocatable": gone}});
        assert_eq!(patch(&["a/b".to_owned()]), Some(expected));
    }
}
