//! Evicts pods that their node refused to start, because they bypassed the scheduler or a late
//! Binding of an old leader overcommitted the device. Also evicts pods on unhealthy GPUs, where the
//! node's owner wants that. The nodes' inventories list both.
//!
//! Never evicts a mirror pod (the kubelet owns it), a pod of another uid, or a pod that is not on
//! the node whose agent lists it. A finished pod stays too, with its status and log: the node's list
//! may be old, and the Eviction API would delete it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::{Inventory, RefusedPod};
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use aliquot_serve::fail_point;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::pod_client::{EvictionOutcome, PodClient};
use crate::ticks::Ticks;

/// Interval of checking the lists.
const INTERVAL: Duration = Duration::from_secs(2);

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Refused,
    UnhealthyGpu,
}

impl Cause {
    /// The pods that an inventory lists for it.
    fn list(self, inventory: &Inventory) -> &[RefusedPod] {
        match self {
            Self::Refused => &inventory.refused,
            Self::UnhealthyGpu => &inventory.evict,
        }
    }

    /// Reason and beginning of the text of the event.
    fn event(self) -> (&'static str, &'static str) {
        match self {
            Self::Refused => (
                "EvictedRefused",
                "Evicted because its node refused to start it",
            ),
            Self::UnhealthyGpu => (
                "EvictedFromGpu",
                "Evicted because its GPU is out of service or changes its sharing mode",
            ),
        }
    }
}

/// Runs until `stop`. A pod is evicted after it was refused for `after`, and at once if it must
/// leave an unhealthy GPU.
pub async fn run(
    cache: Arc<LedgerCache>,
    pods: PodClient,
    events: EventSender,
    leader: Leader,
    after: Duration,
    stop: CancellationToken,
) {
    let mut since = HashMap::new();
    let mut ticks = Ticks::every(INTERVAL, &stop);
    while leader.next_tick(&mut ticks).await {
        let refused = listed_by_nodes(&cache, Cause::Refused);
        let due = due(&mut since, refused, Instant::now(), after);
        let unhealthy = listed_by_nodes(&cache, Cause::UnhealthyGpu);
        for (cause, all) in [(Cause::Refused, due), (Cause::UnhealthyGpu, unhealthy)] {
            for (node, listed) in all {
                // Those before it took time.
                if !leader.leads() || !is_listed(&cache, cause, &node, &listed.pod) {
                    continue;
                }
                if let Err(error) = evict(&pods, &events, cause, &node, &listed).await {
                    tracing::warn!(pod = listed.name, ?cause, error, "cannot evict pod");
                }
            }
        }
    }
}

/// The pods that every node's inventory lists for this cause, with their node.
fn listed_by_nodes(cache: &LedgerCache, cause: Cause) -> Vec<(NodeName, RefusedPod)> {
    let mut listed = Vec::new();
    for (_, name, node) in cache.snapshot().iter() {
        if let Some(inventory) = &node.inventory {
            let pods = cause.list(inventory).iter();
            listed.extend(pods.map(|pod| (name.clone(), pod.clone())));
        }
    }
    listed
}

fn is_listed(cache: &LedgerCache, cause: Cause, node: &NodeName, pod: &PodUid) -> bool {
    cache.read(|ledger| {
        let published = ledger.published(node.as_str());
        let inventory = published.and_then(|published| published.inventory.as_deref());
        inventory.is_some_and(|inventory| cause.list(inventory).iter().any(|one| one.pod == *pod))
    })
}

/// The refused pods that are due; removes those that are no longer refused from `since`.
fn due(
    since: &mut HashMap<PodUid, Instant>,
    refused: Vec<(NodeName, RefusedPod)>,
    now: Instant,
    after: Duration,
) -> Vec<(NodeName, RefusedPod)> {
    since.retain(|uid, _| refused.iter().any(|(_, r)| r.pod == *uid));
    let mut due = refused;
    due.retain(|(_, r)| now - *since.entry(r.pod.clone()).or_insert(now) >= after);
    due
}

async fn evict(
    pods: &PodClient,
    events: &EventSender,
    cause: Cause,
    node: &NodeName,
    listed: &RefusedPod,
) -> Result<(), String> {
    let pod = PodRef {
        namespace: listed.namespace.clone(),
        name: listed.name.clone(),
        uid: listed.pod.to_string(),
    };
    let found = pods.get(&pod).await.map_err(|error| error.to_string())?;
    let Some(found) = found else {
        return Ok(());
    };
    if found.is_mirror() || found.is_terminating() || found.is_finished() {
        return Ok(());
    }
    if found.node().as_ref() != Some(node) {
        return Err(format!(
            "node {node} lists the pod for eviction, but the pod is not on that node"
        ));
    }
    fail_point::at("EvictBefore");
    match pods.evict(&pod, false).await {
        EvictionOutcome::Accepted => {}
        EvictionOutcome::Gone => return Ok(()),
        EvictionOutcome::Protected(why) | EvictionOutcome::Failed(why) => return Err(why),
    }
    fail_point::at("EvictAfter");
    tracing::info!(
        pod = pod.name,
        namespace = pod.namespace,
        ?cause,
        "pod evicted"
    );
    let (reason, text) = cause.event();
    events.send(EventNote {
        pod,
        warning: true,
        reason,
        action: "Evicting",
        text: format!("{text}: {}", listed.reason),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use aliquot_core::inventory::INVENTORY;
    use aliquot_k8s::watch::Index;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::ledger_cache::tests::{cache, node, pod_json, with};
    use crate::pod_client::tests::{api_server, status};

    /// The agent of a node with a sick GPU may be away while its pods end.
    #[tokio::test]
    async fn finished_pod_is_not_evicted() {
        for (phase, expected) in [("Running", 2), ("Succeeded", 1), ("Failed", 1)] {
            let shown = with(
                pod_json("a", 600, Some("n")),
                json!({"status": {"phase": phase}}),
            );
            let (client, mut calls) = api_server();
            let answering = tokio::spawn(async move {
                let mut count = 0;
                while let Some(call) = calls.next_call().await {
                    count += 1;
                    if call.method.as_str() == "GET" {
                        call.answer(200, &shown);
                    } else {
                        call.answer(201, &status(201));
                    }
                }
                count
            });
            let (_, listed) = refused("a");
            let (events, _event_rx) = aliquot_k8s::event::queue();
            let pods = PodClient::new(client);
            let node = "n".into();
            let evicted = evict(&pods, &events, Cause::UnhealthyGpu, &node, &listed);
            assert_eq!(evicted.await, Ok(()));
            drop(pods);
            assert_eq!(answering.await.unwrap(), expected, "{phase}");
        }
    }

    /// Node `n`, whose agent has these pods evicted.
    fn evicting(names: &[&str]) -> Node {
        let mut node = node("n", 1000);
        let annotations = node.metadata.annotations.as_mut().unwrap();
        let text = annotations.get_mut(INVENTORY).unwrap();
        let mut inventory = Inventory::decode(text).unwrap();
        let listed = names.iter().map(|name| refused(name).1);
        inventory.evict = listed.collect();
        *text = inventory.encode().unwrap();
        node
    }

    /// While the first of two pods is evicted, the second one's GPU is healthy again, or another replica
    /// leads.
    #[tokio::test(start_paused = true)]
    async fn evicts_nobody_for_a_list_that_is_over() {
        for is_healthy in [true, false] {
            let (client, mut calls) = api_server();
            let cache = Arc::new(cache());
            Index::<Node>::apply(&*cache, evicting(&["a", "b"]));
            let leader = Leader::replica();
            leader.set_holder("pod-a_1");
            let (events, _event_rx) = aliquot_k8s::event::queue();
            let (pods, stop) = (PodClient::new(client), CancellationToken::new());
            let evicting_pods = run(
                cache.clone(),
                pods,
                events,
                leader.clone(),
                Duration::ZERO,
                stop.clone(),
            );
            let evicting_pods = tokio::spawn(evicting_pods);
            let call = calls.next_call().await.unwrap();
            call.answer(200, &pod_json("a", 600, Some("n")));
            let call = calls.next_call().await.unwrap();
            assert_eq!(call.uri.path(), "/api/v1/namespaces/d/pods/a/eviction");
            if is_healthy {
                Index::<Node>::apply(&*cache, evicting(&[]));
            } else {
                leader.set_holder("pod-b_1");
            }
            call.answer(201, &status(201));
            let more = tokio::time::timeout(INTERVAL * 2, calls.next_call()).await;
            assert!(more.is_err(), "a call too many");
            stop.cancel();
            evicting_pods.await.unwrap();
        }
    }

    fn refused(uid: &str) -> (NodeName, RefusedPod) {
        let refused = RefusedPod {
            pod: uid.into(),
            namespace: "d".to_owned(),
            name: uid.to_owned(),
            reason: "r".to_owned(),
        };
        (NodeName::from("n"), refused)
    }

    #[test]
    fn evicts_pods_refused_without_interruption() {
        let mut since = HashMap::new();
        let start = Instant::now();
        let mut check = |second: u64, refused: &[(NodeName, RefusedPod)], expected: usize| {
            let now = start + Duration::from_secs(second);
            let after = Duration::from_secs(30);
            assert_eq!(
                due(&mut since, refused.to_vec(), now, after).len(),
                expected
            );
        };
        check(0, &[refused("a")], 0);
        check(29, &[refused("a"), refused("b")], 0);
        check(30, &[refused("a"), refused("b")], 1);
        check(40, &[refused("b")], 0);
        check(60, &[refused("a"), refused("b")], 1);
    }
}
