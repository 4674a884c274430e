//! The pods that have the devices which another pod pins: a refusal names them.

use std::collections::BTreeSet;

use aliquot_core::explain::{NodeAnswer, blocks_pinned_device};
use aliquot_core::{Demand, PodUid, Reason};
use aliquot_k8s::event::pods_text;

use crate::ledger_cache::LedgerCache;

/// Maximum number of pods named.
const MAX_NAMED: usize = 3;

/// The pods on a node that have the devices which this one pins, by namespace and name.
fn users(cache: &LedgerCache, node: &str, demand: &Demand) -> Vec<(String, String)> {
    let users: Vec<(PodUid, String)> = cache.read(|ledger| {
        let Some(state) = ledger.cluster().node(node) else {
            return Vec::new();
        };
        let entries = ledger.pods_on(node);
        let entries = entries.filter_map(|uid| Some((uid, ledger.pod_entry(uid)?)));
        let users = entries.filter(|(_, entry)| {
            let uses = entry.allocated.uses();
            uses.is_some_and(|uses| blocks_pinned_device(state, demand, uses))
        });
        users
            .map(|(uid, entry)| (uid.clone(), entry.namespace.to_string()))
            .collect()
    });
    // One lock at a time: whoever writes bound pods has the lock of the pending pods.
    let bound_names: Vec<Option<String>> = {
        let bound_pods = cache.bound_pods.0.read();
        let name = |(uid, _): &(PodUid, String)| Some(bound_pods.get(uid)?.pod.name.clone());
        users.iter().map(name).collect()
    };
    let pending_pods = cache.pending.pods.lock();
    let name = |((uid, namespace), bound): ((PodUid, String), Option<String>)| {
        let pending = || Some(pending_pods.get(&uid)?.pod.name.clone());
        let name = bound.or_else(pending);
        (namespace, name.unwrap_or_else(|| format!("(uid {uid})")))
    };
    users.into_iter().zip(bound_names).map(name).collect()
}

/// ` (allocated to ns/pod)` for those who may read the pods of namespace `readers`, or all of them
/// without one; empty where no pod is found. Stops at the node where enough pods are found.
pub(crate) fn users_text(
    cache: &LedgerCache,
    nodes: &[&str],
    demand: &Demand,
    readers: Option<&str>,
) -> String {
    let mut found = BTreeSet::new();
    for node in nodes {
        found.extend(users(cache, node, demand));
        if found.len() > MAX_NAMED {
            break;
        }
    }
    let mut found = Vec::from_iter(found);
    // Those that are named first.
    found.sort_by_key(|(namespace, _)| readers.is_some_and(|readers| readers != namespace));
    let more = if found.len() > MAX_NAMED { ", ..." } else { "" };
    found.truncate(MAX_NAMED);
    let found = found
        .iter()
        .map(|(namespace, name)| (&**namespace, &**name));
    match pods_text(readers, found) {
        none if none.is_empty() => none,
        some => format!(" (allocated to {some}{more})"),
    }
}

/// Adds to each device that is refused as pinned which pods it is allocated to.
pub(crate) fn add_users(
    cache: &LedgerCache,
    answer: &mut NodeAnswer,
    demand: &Demand,
    readers: Option<&str>,
) {
    let pinned = Reason::CardPinned.name();
    for gpu in answer.gpus.iter_mut().filter(|gpu| gpu.answer == pinned) {
        let allocated = users_text(cache, &[answer.node.as_str()], demand, readers);
        let bare = allocated.trim_start_matches(" (").trim_end_matches(')');
        bare.clone_into(&mut gpu.detail);
    }
}
