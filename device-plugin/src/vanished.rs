//! Resources that this node does not offer any more: their keys go from the Node.
//!
//! The kubelet writes a plugin that ended as 0, for some minutes again at each of its updates, and
//! leaves the key for ever.
//! Fed by: what was offered once, and what the watched Node shows. Must not: take a key that
//! somebody may still ask for, or quarrel with the kubelet at each of its updates.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1 as api;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// A key that came back is taken again after this: it doubles from the first to the second.
const AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));

/// When which key was taken, and how long it is left alone since.
#[derive(Debug, Default)]
pub struct Taken(BTreeMap<String, (Instant, Duration)>);

impl Taken {
    /// The keys to take now: of resources that vanished, and of which the node has none left.
    pub fn due(
        &mut self,
        vanished: &BTreeSet<String>,
        shown: &BTreeMap<String, (String, String)>,
        now: Instant,
    ) -> Vec<String> {
        self.0.retain(|resource, _| vanished.contains(resource));
        let mut due = Vec::new();
        for resource in vanished
            .iter()
            .filter(|resource| is_none_left(shown, resource))
        {
            if !shown.contains_key(resource) {
                continue;
            }
            let pause = match self.0.get(resource) {
                Some((taken, pause)) if now - *taken < *pause => continue,
                Some((_, pause)) => (*pause * 2).min(AGAIN.1),
                None => AGAIN.0,
            };
            self.0.insert(resource.clone(), (now, pause));
            due.push(resource.clone());
        }
        due
    }
}

/// The kubelet counts none of this resource any more.
pub fn is_none_left(shown: &BTreeMap<String, (String, String)>, resource: &str) -> bool {
    let shown = shown.get(resource);
    shown.is_none_or(|(capacity, allocatable)| capacity == "0" && allocatable == "0")
}

/// Capacity and allocatable of each resource with a domain.
pub fn shown(node: &api::Node) -> BTreeMap<String, (String, String)> {
    let status = node.status.as_ref();
    let capacity = status.and_then(|status| status.capacity.as_ref());
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let extended = capacity
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.contains('/'));
    let both = extended.map(|(key, capacity)| {
        let allocatable = allocatable.and_then(|all| all.get(key));
        let allocatable = allocatable.map_or_else(|| "0".to_owned(), |quantity| quantity.0.clone());
        (key.clone(), (capacity.0.clone(), allocatable))
    });
    both.collect()
}

/// Takes these keys from the node's status; `None`: there are none.
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
    fn a_key_is_taken_when_nothing_is_left_and_again_after_growing_pauses() {
        let name = "nvidia.com/gpu.shared".to_owned();
        let mut taken = Taken::default();
        let start = Instant::now();
        let mut check = |seconds, vanished: bool, shown: Option<&str>, expected: bool| {
            let vanished = vanished.then(|| name.clone()).into_iter().collect();
            let shown = shown.map(|n| (name.clone(), (n.to_owned(), n.to_owned())));
            let now = start + Duration::from_secs(seconds);
            let due = taken.due(&vanished, &shown.into_iter().collect(), now);
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
    fn what_the_node_offers_is_read_and_taken_key_by_key() {
        let node = json!({"status": {
            "capacity": {"cpu": "2", "nvidia.com/gpu": "3"}, "allocatable": {"cpu": "2"}}});
        let node: api::Node = serde_json::from_value(node).expect("a node");
        let shown = shown(&node);
        let expected = (
            "nvidia.com/gpu".to_owned(),
            ("3".to_owned(), "0".to_owned()),
        );
        assert_eq!(shown, [expected].into());
        assert!(!is_none_left(&shown, "nvidia.com/gpu"));
        assert_eq!(patch(&[]), None);
        let gone = json!({"a/b": null});
        let expected = json!({"status": {"capacity": gone, "allocatable": gone}});
        assert_eq!(patch(&["a/b".to_owned()]), Some(expected));
    }
}
