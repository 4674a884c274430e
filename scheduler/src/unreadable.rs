//! Names the pods whose unreadable allocation makes their node full: by events on the pod and on
//! the node, and in the answers of `/explain` and `/top`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::explain::NodeAnswer;
use aliquot_core::refusal::Reason;
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::event::{EventNote, EventSender, PodRef, pods_text};
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::ticks::Ticks;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(2);

/// A pod whose allocation cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadablePod {
    pub pod: PodRef,
    /// Its node, which takes no more pods.
    pub node: NodeName,
}

impl UnreadablePod {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.pod.namespace, self.pod.name)
    }

    /// On the node and on the pod. Whoever reads the node's may read no pods of that namespace.
    fn events(self) -> [EventNote; 2] {
        let text = |pod: &str| {
            format!(
                "annotation {ALLOCATION} of {pod} cannot be read, so node {} counts as full and no pod gets a GPU there; expected: what the scheduler wrote; delete the pod",
                self.node
            )
        };
        let on_node = text("a pod, which kubectl aliquot top names,");
        let on_pod = text(&format!("pod {}", self.full_name()));
        let note = |pod, text| EventNote {
            pod,
            warning: true,
            reason: "AllocationUnreadable",
            action: "Scheduling",
            text,
        };
        [
            note(PodRef::node(self.node.as_str()), on_node),
            note(self.pod, on_pod),
        ]
    }
}

/// Sends the events once for each pod, until `stop`.
pub async fn run(
    cache: Arc<LedgerCache>,
    events: EventSender,
    leader: Leader,
    stop: CancellationToken,
) {
    let mut reported = HashSet::new();
    let mut ticks = Ticks::every(INTERVAL, &stop);
    while leader.next_tick(&mut ticks).await {
        for found in unreported(&mut reported, unreadable_pods(&cache)) {
            let pod = found.full_name();
            tracing::error!(pod, node = %found.node, annotation = ALLOCATION, "unreadable allocation; the node counts as full");
            for event in found.events() {
                events.send(event);
            }
        }
    }
}

/// Those that were not reported yet; forgets those that are gone.
fn unreported(
    reported: &mut HashSet<PodUid>,
    mut now: BTreeMap<PodUid, UnreadablePod>,
) -> Vec<UnreadablePod> {
    reported.retain(|uid| now.contains_key(uid));
    now.retain(|uid, _| reported.insert(uid.clone()));
    now.into_values().collect()
}

/// The pods whose unreadable allocation makes their node full.
pub fn unreadable_pods(cache: &LedgerCache) -> BTreeMap<PodUid, UnreadablePod> {
    let found: Vec<(PodUid, NodeName)> = cache.read(|ledger| {
        let pods = ledger.unreadable();
        pods.map(|(uid, entry)| (uid.clone(), entry.node.clone()))
            .collect()
    });
    let bound_pods = &cache.lock().bound_pods;
    let named = |(uid, node): (PodUid, NodeName)| {
        let pod = bound_pods.get(&uid)?.pod.clone();
        Some((uid, UnreadablePod { pod, node }))
    };
    found.into_iter().filter_map(named).collect()
}

/// Names them at each device of a node that is refused for them,
/// for those who may read the pods of namespace `readers`, or all of them without one.
pub(crate) fn add_unreadable_pods(
    cache: &LedgerCache,
    answer: &mut NodeAnswer,
    readers: Option<&str>,
) {
    if !answer.why.contains(Reason::NodeAllocationUnreadable.name()) {
        return;
    }
    let here: Vec<PodRef> = unreadable_pods(cache)
        .into_values()
        .filter(|found| found.node == answer.node)
        .map(|found| found.pod)
        .collect();
    let named = here.iter().map(|pod| (&*pod.namespace, &*pod.name));
    let pods = pods_text(readers, named);
    let is_named = |pod: &PodRef| readers.is_none_or(|readers| readers == pod.namespace);
    let of = if here.iter().any(is_named) {
        "of pod"
    } else {
        "of"
    };
    for gpu in &mut answer.gpus {
        gpu.detail = format!("{of} {pods}");
    }
}

#[cfg(test)]
mod tests {
    use aliquot_k8s::watch::Index;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::ledger_cache::tests::{node, pod, pod_with};

    #[test]
    fn reports_pod_with_unreadable_allocation_once() {
        let cache = LedgerCache::default();
        Index::<Node>::reset(&cache, vec![node("n", 1000)]);
        let spoilt = json!({"metadata": {"annotations": {ALLOCATION: "{"}}});
        Index::apply(&cache, pod_with("a", 600, Some("n"), spoilt));
        let mut reported = HashSet::new();
        let mut found = unreported(&mut reported, unreadable_pods(&cache));
        let [on_node, on_pod] = found.pop().map(UnreadablePod::events).unwrap();
        assert_eq!((on_node.pod.name.as_str(), on_node.warning), ("n", true));
        assert_eq!(on_pod.pod.name, "a");
        let begin = "annotation aliquot.dev/allocation of pod d/a cannot be read, so node n";
        assert!(on_pod.text.starts_with(begin), "{}", on_pod.text);
        let begin = "annotation aliquot.dev/allocation of a pod, which kubectl aliquot top names,";
        assert!(on_node.text.starts_with(begin), "{}", on_node.text);
        assert_eq!(unreported(&mut reported, unreadable_pods(&cache)), []);
        Index::apply(&cache, pod("a", 600, Some("n")));
        assert_eq!(unreported(&mut reported, unreadable_pods(&cache)), []);
        assert!(reported.is_empty());
    }
}
