//! Whether the scheduler's ledger matches the pods. A pod that starts or ends between the lists is
//! not a difference.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::usage::DeviceUses;
use aliquot_k8s::pod;
use aliquot_k8s::view::PodView;
use k8s_openapi::api::core::v1::Pod;

use super::facts::{ClusterFacts, LedgerEntry, LedgerView};
use super::finding::{About, Finding};
use crate::metrics;
use crate::table::counted;

/// The names and allocations of these pods, by uid.
fn allocations(pods: &[Pod], settings: &pod::Settings) -> BTreeMap<String, (String, LedgerEntry)> {
    let alive = pods.iter().filter(|pod| !pod::is_finished(pod));
    let line = |object: &Pod| {
        let (node, allocated) = pod::allocated(&PodView::from(object), settings)?;
        if allocated.uses().is_some_and(DeviceUses::is_empty) {
            return None;
        }
        let gpus = allocated.uses().map(|uses| {
            let uses = uses.iter();
            uses.map(|(gpu, used)| (gpu.clone(), (*used).into()))
                .collect()
        });
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let name = format!("{}/{name}", pod::namespace(object));
        Some((
            pod::uid(object).to_string(),
            (name, LedgerEntry { node, gpus }),
        ))
    };
    alive.filter_map(line).collect()
}

/// For each pod whose allocation differs between ledger and pod, a message.
fn differences(
    ledger: &LedgerView,
    pods: &BTreeMap<String, (String, LedgerEntry)>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (uid, (name, line)) in pods {
        match ledger.allocations.get(uid) {
            Some(entry) if entry == line => {}
            Some(entry) => {
                let what = format!(
                    "{name}: the ledger has node {}, the pod has node {}",
                    entry.node, line.node
                );
                let what = if entry.node == line.node {
                    format!("{name}: the ledger has other amounts than the pod's annotation")
                } else {
                    what
                };
                found.insert(uid.clone(), what);
            }
            None => drop(found.insert(
                uid.clone(),
                format!("{name}: has an allocation that is not in the ledger"),
            )),
        }
    }
    let known: BTreeSet<&String> = pods.keys().collect();
    for (uid, entry) in &ledger.allocations {
        if !known.contains(uid) {
            let what = format!(
                "pod {uid}: the ledger has it on node {}, and no pod has the allocation",
                entry.node
            );
            found.insert(uid.clone(), what);
        }
    }
    found
}

/// The differences from the pods that were listed both before and after the ledger was read.
pub fn compare(
    before: &[Pod],
    ledger: &LedgerView,
    after: &[Pod],
    settings: &pod::Settings,
) -> Vec<String> {
    let first = differences(ledger, &allocations(before, settings));
    let mut last = differences(ledger, &allocations(after, settings));
    last.retain(|uid, what| first.get(uid) == Some(what));
    last.into_values().collect()
}

/// The ledger matches the pods.
pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let check = "books";
    let mut found = vec![match &facts.differences {
        Err(why) => about.unknown(check, why),
        Ok(differences) if differences.is_empty() => {
            let count = facts
                .ledger
                .as_ref()
                .map_or(0, |ledger| ledger.allocations.len());
            about.ok(
                check,
                format!(
                    "{}, the same as in the pods",
                    counted(count, "allocation", "allocations")
                ),
            )
        }
        Ok(differences) => {
            let some = differences
                .iter()
                .take(5)
                .cloned()
                .collect::<Vec<_>>()
                .join("; ");
            about.problem(
                check,
                format!("{} between ledger and pod: {some}", counted(differences.len(), "pod differs", "pods differ")),
                "save the scheduler's log and report it, for this is a bug in Aliquot; then restart the scheduler pods, which rebuild the ledger from the pods",
            )
        }
    }];
    let check = "books-self-check";
    found.push(match &facts.metrics {
        Err(why) => about.unknown(check, why),
        Ok(page) => match metrics::sum(page, "aliquot_scheduler_self_check_differences_total") {
            None => about.unknown(
                check,
                "the scheduler has no metric aliquot_scheduler_self_check_differences_total; is it of this release?",
            ),
            Some(0.0) => about.ok(check, "the ledger never differed from the recomputed one"),
            Some(count) => about.warning(
                check,
                format!(
                    "the ledger differed {} from the recomputed one, which replaced it",
                    counted(count, "time", "times")
                ),
                "this is a bug in Aliquot: report it with the scheduler's log, which has each difference",
            ),
        },
    });
    found
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

    fn ledger(lines: &[(&str, u64)]) -> LedgerView {
        let line = |(uid, memory): &(&str, u64)| {
            let gpus = json!({"GPU-a": {"seats": 1, "memory": memory, "cores": 0}});
            let line = json!({"node": "n", "confirmed": true, "gpus": gpus});
            ((*uid).to_owned(), serde_json::from_value(line).unwrap())
        };
        LedgerView {
            allocations: lines.iter().map(line).collect(),
        }
    }

    fn check(before: &[Pod], lines: &[(&str, u64)], after: &[Pod], expected: &[&str]) {
        let found = compare(before, &ledger(lines), after, &pod::Settings::default());
        assert_eq!(found, expected);
    }

    #[test]
    fn finds_no_difference_when_ledger_matches_pods() {
        check(&[], &[], &[], &[]);
        let pods = [pod("a", 100), pod("b", 200)];
        check(&pods, &[("a", 100), ("b", 200)], &pods, &[]);
    }

    #[test]
    fn reports_differences_seen_before_and_after() {
        let pods = [pod("a", 100)];
        check(
            &pods,
            &[],
            &pods,
            &["d/a: has an allocation that is not in the ledger"],
        );
        check(
            &[],
            &[("a", 100)],
            &[],
            &["pod a: the ledger has it on node n, and no pod has the allocation"],
        );
        check(
            &pods,
            &[("a", 50)],
            &pods,
            &["d/a: the ledger has other amounts than the pod's annotation"],
        );
    }

    #[test]
    fn ignores_pod_that_starts_or_ends_between_lists() {
        let pods = [pod("a", 100)];
        check(&[], &[("a", 100)], &pods, &[]);
        check(&pods, &[], &[], &[]);
    }
}
