//! Checks that containers see the instances in their allocation, by the environment that their
//! processes were started with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{Excerpt, Grant, PodUid};
use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::allocation::node_allocations::NodeAllocations;
use crate::gpus::inventory::PublishedNode;
use crate::host_device::placement_of;
use crate::metrics::Metrics;
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::allocate_answer::VISIBLE;
use aliquot_node_state::processes;

/// Checks at an interval until `stop`. Each pod gets one event.
pub async fn run(
    allocations: Arc<NodeAllocations>,
    interval: Duration,
    notes: EventSender,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut notified = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        if !allocations.pods.synced() {
            continue;
        }
        let known = Arc::clone(&allocations);
        match spawn_blocking(move || check(&known)).await {
            Ok(Ok(wrong)) => {
                for note in wrong {
                    if notified.insert(note.pod.uid.clone()) {
                        tracing::warn!(pod = note.pod.name, text = note.text);
                        metrics.audit_differences.inc();
                        notes.send(note);
                    }
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot compare MIG instances in containers with allocations");
            }
            Err(_) => return,
        }
    }
}

/// The events about containers that see another instance now.
fn check(known: &NodeAllocations) -> std::io::Result<Vec<EventNote>> {
    let shares: Vec<Arc<AcceptedAllocation>> = known.store.lock().shared().cloned().collect();
    let with_instance = shares.iter().filter(|share| has_instance(share));
    let pods = with_instance.map(|share| share.pod.clone()).collect();
    let found = processes::variable_at_start(Path::new("/proc"), &pods, VISIBLE)?;
    Ok(wrong_instances(&known.published.get(), &shares, &found))
}

fn has_instance(share: &AcceptedAllocation) -> bool {
    let mut grants = share.allocation.all().flat_map(|(_, grants)| grants);
    grants.any(|grant| grant.mig.is_some() || grant.gpu.as_str().starts_with("MIG-"))
}

/// The events about those of these shares that see another instance. `found` holds the values of
/// [`VISIBLE`] in each pod's processes.
fn wrong_instances(
    node: &PublishedNode,
    shares: &[Arc<AcceptedAllocation>],
    found: &BTreeMap<PodUid, BTreeSet<String>>,
) -> Vec<EventNote> {
    let mut notes = Vec::new();
    for share in shares.iter().filter(|share| has_instance(share)) {
        let lists = share
            .allocation
            .all()
            .map(|(_, grants)| visible(node, grants));
        // An instance that is not known now cannot be compared.
        let Some(expected) = lists.collect::<Option<BTreeSet<String>>>() else {
            continue;
        };
        let actual = found.get(&share.pod).into_iter().flatten();
        let wrong = actual.filter(|actual| !expected.contains(*actual));
        notes.extend(wrong.map(|actual| note(share, actual, &expected)));
    }
    notes
}

/// What a container with these grants should see; `None` while an instance is missing.
fn visible(node: &PublishedNode, grants: &[Grant]) -> Option<String> {
    let each = grants.iter().map(|grant| match &grant.mig {
        None => {
            let gpu = node.devices.get(&grant.gpu)?;
            let part = gpu.instance.as_ref().map(|part| part.uuid.clone());
            Some(part.unwrap_or_else(|| grant.gpu.to_string()))
        }
        Some(placed) => {
            let mut gpus = node.readings.facts.gpus.iter();
            let gpu = gpus.find(|gpu| gpu.uuid == grant.gpu.as_str())?;
            let mut instances = gpu.layout.instances.iter();
            let one = instances.find(|one| placement_of(one) == *placed)?;
            Some(one.device()?.uuid.clone())
        }
    });
    Some(each.collect::<Option<Vec<String>>>()?.join(","))
}

fn note(share: &AcceptedAllocation, actual: &str, expected: &BTreeSet<String>) -> EventNote {
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    EventNote {
        pod: PodRef {
            namespace: share.namespace.clone(),
            name: share.pod_name.clone(),
            uid: share.pod.to_string(),
        },
        warning: true,
        reason: "WrongInstance",
        action: "Checking",
        text: format!(
            "a container was started with the device {}, expected {}: delete the pod and create it again",
            Excerpt::of(actual),
            expected.join(" or ")
        ),
    }
}

#[cfg(test)]
#[path = "instance_check_tests.rs"]
mod tests;
