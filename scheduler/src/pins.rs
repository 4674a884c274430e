//! The pods that have the devices which another pod pins: a refusal names them.

use std::collections::BTreeSet;

use aliquot_core::explain::{NodeAnswer, blocks_pinned_device};
use aliquot_core::usage::AllocatedUse;
use aliquot_core::{Demand, PodUid, Reason};
use aliquot_k8s::event::PodRef;

use crate::ledger_cache::LedgerCache;

/// Maximum number of pods named.
const MAX_NAMED: usize = 3;

fn qualified_name(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// The pods on a node that have the devices which this one pins, as `namespace/name`.
fn users(cache: &LedgerCache, node: &str, demand: &Demand) -> Vec<String> {
    let users: Vec<PodUid> = cache.read(|ledger| {
        let Some(state) = ledger.cluster().node(node) else {
            return Vec::new();
        };
        let pods = ledger.pods_on(node).filter(|pod| {
            let allocated = ledger.pod_entry(pod).map(|entry| &entry.allocated);
            let uses = allocated.and_then(AllocatedUse::uses);
            uses.is_some_and(|uses| blocks_pinned_device(state, demand, uses))
        });
        pods.cloned().collect()
    });
    // One lock at a time: whoever writes bound pods has the lock of the pending pods.
    let bound_pods: Vec<Option<String>> = {
        let bound_pods = cache.bound_pods.0.read();
        let name = |uid| {
            bound_pods
                .get(uid)
                .map(|bound_pod| qualified_name(&bound_pod.pod))
        };
        users.iter().map(name).collect()
    };
    let pending_pods = cache.pending.pods.lock();
    let name = |(uid, bound_pod): (&PodUid, Option<String>)| {
        bound_pod
            .or_else(|| {
                pending_pods
                    .get(uid)
                    .map(|waiting| qualified_name(&waiting.pod))
            })
            .unwrap_or_else(|| format!("the pod with uid {uid}"))
    };
    users.iter().zip(bound_pods).map(name).collect()
}

/// ` (allocated to ns/pod)`, sorted; empty where no pod is found. Stops at the node where
/// enough pods are found.
pub(crate) fn users_text(cache: &LedgerCache, nodes: &[&str], demand: &Demand) -> String {
    let mut found = BTreeSet::new();
    for node in nodes {
        found.extend(users(cache, node, demand));
        if found.len() > MAX_NAMED {
            break;
        }
    }
    let mut names: Vec<String> = found.into_iter().collect();
    let more = if names.len() > MAX_NAMED { ", ..." } else { "" };
    names.truncate(MAX_NAMED);
    match names.join(", ") {
        none if none.is_empty() => none,
        some => format!(" (allocated to {some}{more})"),
    }
}

/// Adds to each device that is refused as pinned which pods it is allocated to.
pub(crate) fn add_users(cache: &LedgerCache, answer: &mut NodeAnswer, demand: &Demand) {
    let pinned = Reason::CardPinned.name();
    for gpu in answer.gpus.iter_mut().filter(|gpu| gpu.answer == pinned) {
        let allocated = users_text(cache, &[answer.node.as_str()], demand);
        let bare = allocated.trim_start_matches(" (").trim_end_matches(')');
        bare.clone_into(&mut gpu.detail);
    }
}
