//! Whether the scheduler's books are what the pods say.
//!
//! Fed by: the answer of `GET /books`, and lists of pods from before and after it. Must not: take
//! for a difference what came or went in between.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::ledger::Held;
use aliquot_core::top::Amount;
use aliquot_core::{GpuUuid, NodeName};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

/// What matters of the scheduler's statement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Statement {
    /// By uid.
    pub bookings: BTreeMap<String, Line>,
}

/// A booking; or what a pod says that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// Where.
    pub node: NodeName,
    /// What of which card; nothing where the allocation cannot be read.
    pub gpus: Option<BTreeMap<GpuUuid, Amount>>,
}

/// What these pods hold, by uid, and their names.
fn held(pods: &[Pod], settings: &pod::Settings) -> BTreeMap<String, (String, Line)> {
    let alive = pods.iter().filter(|pod| !pod::ended(pod));
    let line = |object: &Pod| {
        let (node, held) = pod::held(object, settings)?;
        let gpus = match held {
            Held::Uses(uses) if uses.is_empty() => return None,
            Held::Uses(uses) => Some(uses.into_iter().map(|(gpu, used)| (gpu, used.into()))),
            Held::Unreadable => None,
        };
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let name = format!("{}/{name}", pod::namespace(object));
        let gpus = gpus.map(Iterator::collect);
        Some((pod::uid(object).to_string(), (name, Line { node, gpus })))
    };
    alive.filter_map(line).collect()
}

/// Each pod of which books and pod say something else, in words.
fn differences(
    books: &Statement,
    pods: &BTreeMap<String, (String, Line)>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (uid, (name, line)) in pods {
        match books.bookings.get(uid) {
            Some(booked) if booked == line => {}
            Some(booked) => {
                let what = format!("{name}: booked on {}, and says {}", booked.node, line.node);
                let what = if booked.node == line.node {
                    format!("{name}: booked with other amounts than it says")
                } else {
                    what
                };
                found.insert(uid.clone(), what);
            }
            None => drop(found.insert(uid.clone(), format!("{name}: holds a share, not booked"))),
        }
    }
    let known: BTreeSet<&String> = pods.keys().collect();
    for (uid, booked) in &books.bookings {
        if !known.contains(uid) {
            let what = format!("pod {uid}: booked on {}, and holds nothing", booked.node);
            found.insert(uid.clone(), what);
        }
    }
    found
}

/// What differs from the pods as they were before the books were asked and after it as well.
pub fn compare(
    before: &[Pod],
    books: &Statement,
    after: &[Pod],
    settings: &pod::Settings,
) -> Vec<String> {
    let first = differences(books, &held(before, settings));
    let mut last = differences(books, &held(after, settings));
    last.retain(|uid, what| first.get(uid) == Some(what));
    last.into_values().collect()
}

#[cfg(test)]
mod tests {
    use aliquot_core::allocation::ALLOCATION;
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, memory: u64) -> Pod {
        let grant =
            json!({"resource": "nvidia.com/gpu", "gpu": "GPU-a", "memory": memory, "cores": 0});
        let text = json!({"v": 1, "node": "n", "containers": {"main": [grant]}, "init": {}, "priority": 1});
        serde_json::from_value(json!({
            "metadata": {"name": uid, "namespace": "d", "uid": uid,
                "annotations": {ALLOCATION: text.to_string()}},
            "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
        }))
        .unwrap()
    }

    fn books(lines: &[(&str, u64)]) -> Statement {
        let line = |(uid, memory): &(&str, u64)| {
            let gpus = json!({"GPU-a": {"seats": 1, "memory": memory, "cores": 0}});
            let line = json!({"node": "n", "confirmed": true, "gpus": gpus});
            ((*uid).to_owned(), serde_json::from_value(line).unwrap())
        };
        Statement {
            bookings: lines.iter().map(line).collect(),
        }
    }

    fn check(before: &[Pod], lines: &[(&str, u64)], after: &[Pod], expected: &[&str]) {
        let found = compare(before, &books(lines), after, &pod::Settings::default());
        assert_eq!(found, expected);
    }

    #[test]
    fn what_books_and_pods_say_alike_is_no_difference() {
        check(&[], &[], &[], &[]);
        let pods = [pod("a", 100), pod("b", 200)];
        check(&pods, &[("a", 100), ("b", 200)], &pods, &[]);
    }

    #[test]
    fn what_differs_before_and_after_is_named() {
        let pods = [pod("a", 100)];
        check(&pods, &[], &pods, &["d/a: holds a share, not booked"]);
        check(
            &[],
            &[("a", 100)],
            &[],
            &["pod a: booked on n, and holds nothing"],
        );
        check(
            &pods,
            &[("a", 50)],
            &pods,
            &["d/a: booked with other amounts than it says"],
        );
    }

    #[test]
    fn a_pod_that_came_or_went_in_between_is_no_difference() {
        let pods = [pod("a", 100)];
        check(&[], &[("a", 100)], &pods, &[]);
        check(&pods, &[], &[], &[]);
    }
}
