//! The pods to which devices are allocated that another pod pins: a refusal names them.

use std::collections::BTreeSet;

use aliquot_core::explain::{NodeAnswer, blocks_pinned_device};
use aliquot_core::{Demand, Reason};
use aliquot_k8s::event::pods_text;

use crate::ledger_cache::{LedgerCache, State};

/// Maximum number of pods named.
const MAX_NAMED: usize = 3;

/// The pods on a node that have devices which this pod pins, by namespace and name.
fn users(state: &State, node: &str, demand: &Demand) -> Vec<(String, String)> {
    let Some(cluster_node) = state.ledger.cluster().node(node) else {
        return Vec::new();
    };
    let users = state.ledger.pods_on(node).filter(|(_, entry)| {
        let uses = entry.allocated.uses();
        uses.is_some_and(|uses| blocks_pinned_device(cluster_node, demand, uses))
    });
    let named = users.map(|(uid, entry)| {
        let bound = state.bound_pods.get(uid).map(|bound| &bound.pod);
        let pod = bound.or_else(|| Some(&state.pending.get(uid)?.pod));
        let name = pod.map_or_else(|| format!("(uid {uid})"), |pod| pod.name.clone());
        (entry.namespace.to_string(), name)
    });
    named.collect()
}

/// ` (allocated to ns/pod)` for those who may read the pods of namespace `readers`, or all of them
/// without one; empty where no pod is found. Stops at the node where enough pods are found.
pub(crate) fn users_text(
    state: &State,
    nodes: &[&str],
    demand: &Demand,
    readers: Option<&str>,
) -> String {
    let mut found = BTreeSet::new();
    for node in nodes {
        found.extend(users(state, node, demand));
        if found.len() > MAX_NAMED {
            break;
        }
    }
    let mut found = Vec::from_iter(found);
    // Those that are named first.
    found.sort_by_key(|(namespace, _)| readers.is_some_and(|readers| readers != namespace));
    let more = if found.len() > MAX_NAMED { ", ..." } else { "" };
    found.truncate(MAX_NAMED);
    let named = found
        .iter()
        .map(|(namespace, name)| (&**namespace, &**name));
    match pods_text(readers, named) {
        none if none.is_empty() => none,
        some => format!(" (allocated to {some}{more})"),
    }
}

/// Adds to each device that is refused as pinned the pods to which it is allocated.
pub(crate) fn add_users(
    cache: &LedgerCache,
    answer: &mut NodeAnswer,
    demand: &Demand,
    readers: Option<&str>,
) {
    let pinned = Reason::GpuPinned.name();
    for gpu in answer.gpus.iter_mut().filter(|gpu| gpu.answer == pinned) {
        let allocated = users_text(&cache.lock(), &[answer.node.as_str()], demand, readers);
        let bare = allocated.trim_start_matches(" (").trim_end_matches(')');
        bare.clone_into(&mut gpu.detail);
    }
}
