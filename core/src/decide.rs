//! Filter and prioritize as functions: a snapshot and node names in, a ranking out. The
//! scheduler and `kubectl-aliquot simulate` share them.
//!
//!
//! No node is ever named in `FailedNodes`: kube-scheduler would then requeue the pod with
//! its own message.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::fit::{self, Policies};
use crate::memo::{Memo, NodeVerdict, Verdicts};
use crate::mig::Instance;
use crate::node::{DeviceState, NodeState};
use crate::quota::{Headroom, QuotaAmount};
use crate::reason::{Reason, Refusal};
use crate::replicas::Replicas;
use crate::request::Memory;
use crate::units::Mib;
use crate::usage::DeviceUse;

/// A pod whose best node was just returned to kube-scheduler, and which is not reserved
/// yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPlacement {
    /// The node's slot.
    pub slot: usize,
    /// What the pod would use of each device.
    pub uses: Vec<(usize, DeviceUse)>,
    /// Which of `uses` are MIG instances ([`fit::Fit::instances`]).
    pub instances: Vec<(usize, Instance)>,
    /// The kubelet's replicas that it would use.
    pub replicas: Replicas,
}

impl PendingPlacement {
    /// The placement of a pod with this demand on the node in this slot.
    pub fn of(slot: usize, fit: fit::Fit, demand: &Demand) -> Self {
        Self {
            slot,
            uses: fit.uses,
            instances: fit.instances,
            replicas: demand.replicas(),
        }
    }

    /// The node with the pod on it.
    pub fn on(&self, node: &NodeState) -> NodeState {
        node.with(&self.uses, &self.instances, &self.replicas)
    }
}

/// Which nodes can take a pod with this demand.
#[derive(Clone, Copy, Debug)]
pub struct NodeQuery<'a> {
    /// The snapshot.
    pub cluster: &'a Cluster,
    /// The pod's demand.
    pub demand: &'a Demand,
    /// The policies for pods that choose none.
    pub policies: &'a Policies,
    /// Placements of other pods that are about to come. They lower a node's rank, never its
    /// feasibility: their uses count as allocated, and a node that is full with them comes
    /// last.
    pub pending: &'a [PendingPlacement],
    /// The slot of the node with a reservation for this pod, and that node without the
    /// reservation.
    pub own_reservation: Option<&'a (usize, NodeState)>,
    /// What the quotas of the pod's namespace leave; `None` without limits. A node is
    /// charged for the devices that the pod would get there.
    pub headroom: Option<&'a Headroom>,
}

impl NodeQuery<'_> {
    /// The node in a slot as this pod sees it.
    fn node(&self, slot: usize) -> Option<&NodeState> {
        match self.own_reservation {
            Some((own, state)) if *own == slot => Some(state),
            _ => self.cluster.at(slot).map(|state| &**state),
        }
    }

    /// Whether the node in this slot can take the pod.
    fn verdict<'v>(&self, verdicts: &'v mut Verdicts<'_>, slot: usize) -> Cow<'v, NodeVerdict> {
        match self.own_reservation {
            Some((own, state)) if *own == slot => {
                Cow::Owned(NodeVerdict::on(state, self.demand, self.policies))
            }
            _ => Cow::Borrowed(verdicts.of(slot)),
        }
    }
}

/// A node that can take the pod. The order is best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranked<'n> {
    /// Full once the pending placements are made.
    crowded: bool,
    score: Reverse<u64>,
    /// The node; among equals the name decides.
    pub name: &'n str,
}

/// The named nodes that can take the pod, in the order of `names`, or why there are none.
pub fn fitting<'n, S: AsRef<str>>(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &'n [S],
) -> Result<Vec<Ranked<'n>>, Refusal> {
    let pending_by_slot = pending_by_slot(query);
    let mut verdicts = memo.verdicts(query.cluster, query.demand, query.policies);
    let mut fits = Vec::with_capacity(names.len());
    for name in names.iter().map(AsRef::as_ref) {
        let Some(slot) = query.cluster.slot(name) else {
            continue;
        };
        if let NodeVerdict::Fits { score, amount } = *query.verdict(&mut verdicts, slot) {
            if query.headroom.is_some_and(|left| !left.allows(amount)) {
                continue;
            }
            let (crowded, score) = match pending_by_slot.get(&slot) {
                None => (false, score),
                Some(others) => match score_with_pending(query, slot, others) {
                    Some(score) => (false, score),
                    None => (true, score),
                },
            };
            fits.push(Ranked {
                crowded,
                score: Reverse(score),
                name,
            });
        }
    }
    if !fits.is_empty() {
        return Ok(fits);
    }
    let mut refusal = Refusal::default();
    let mut over: Option<(QuotaAmount, Refusal)> = None;
    for name in names.iter().map(AsRef::as_ref) {
        let slot = query.cluster.slot(name);
        let verdict = slot.map(|slot| query.verdict(&mut verdicts, slot));
        match verdict.as_deref() {
            Some(NodeVerdict::Refused(why)) => refusal.merge(why),
            Some(NodeVerdict::Fits { amount, .. }) => {
                // Most nodes would give the same amount: compute the excess once, count it
                // often.
                if over.as_ref().is_none_or(|(asked, _)| asked != amount) {
                    let passed = query.headroom.and_then(|left| left.excess(*amount));
                    over = passed.map(|passed| (*amount, Refusal::quota_exceeded(passed)));
                }
                if let Some((_, why)) = &over {
                    refusal.merge(why);
                }
            }
            None => refusal.add(Reason::NodeNotRegistered),
        }
    }
    Err(refusal)
}

/// The named nodes where some device refuses the pod for this reason, sorted by name. After
/// [`fitting`] the verdicts are cached.
pub fn refused_for<'n, S: AsRef<str>>(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &'n [S],
    reason: Reason,
) -> Vec<&'n str> {
    let mut verdicts = memo.verdicts(query.cluster, query.demand, query.policies);
    let names = names.iter().map(AsRef::as_ref);
    let refused = names.filter(|name| {
        let slot = query.cluster.slot(name);
        let verdict = slot.map(|slot| query.verdict(&mut verdicts, slot));
        matches!(verdict.as_deref(), Some(NodeVerdict::Refused(why)) if why.count(reason) > 0)
    });
    let mut refused: Vec<&str> = refused.collect();
    refused.sort_unstable();
    refused
}

/// The pending placements by slot.
fn pending_by_slot<'a>(query: &NodeQuery<'a>) -> HashMap<usize, Vec<&'a PendingPlacement>> {
    let mut pending_by_slot: HashMap<usize, Vec<&PendingPlacement>> = HashMap::new();
    for placement in query.pending {
        pending_by_slot
            .entry(placement.slot)
            .or_default()
            .push(placement);
    }
    pending_by_slot
}

/// The score of a node with its pending placements; `None` if the pod does not fit beside
/// them.
fn score_with_pending(
    query: &NodeQuery<'_>,
    slot: usize,
    others: &[&PendingPlacement],
) -> Option<u64> {
    let mut state = query.node(slot)?.clone();
    for placement in others {
        state = placement.on(&state);
    }
    let fit = fit::fit(&state, query.demand, query.policies);
    fit.ok().map(|fit| fit.score)
}

/// The best `most` of them, best first.
pub fn shortlist(mut fits: Vec<Ranked<'_>>, most: usize) -> Vec<&str> {
    if most < fits.len() {
        fits.select_nth_unstable(most);
        fits.truncate(most);
    }
    fits.sort_unstable();
    fits.into_iter().map(|ranked| ranked.name).collect()
}

/// Ranks 0 to 10 for the named nodes, in their order: 10 for one, the others by their
/// position; 0 for nodes that do not fit.
pub fn ranks<'n, S: AsRef<str>>(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &'n [S],
) -> Vec<(&'n str, i64)> {
    let mut fits = fitting(query, memo, names).unwrap_or_default();
    fits.sort_unstable();
    let last = fits.len().max(2) - 1;
    let rank = |place| match place {
        0 => 10,
        _ => i64::try_from(9 * (last - place) / last).unwrap_or(0),
    };
    let places = fits.iter().enumerate();
    let ranks: HashMap<&str, i64> = places.map(|(at, fit)| (fit.name, rank(at))).collect();
    let of = |name: &str| ranks.get(name).copied().unwrap_or(0);
    let names = names.iter().map(AsRef::as_ref);
    names.map(|name| (name, of(name))).collect()
}

/// Ranks 0 to 10 for a pod that asks for no GPU: 10 for nodes without free GPUs, so that
/// free capacity stays usable; the others lower the more is free.
pub fn cpu_only_ranks<S: AsRef<str>>(cluster: &Cluster, names: &[S]) -> Vec<i64> {
    let free = |name: &S| {
        let node = cluster.node(name.as_ref());
        node.map_or(0, |node| {
            node.devices.iter().map(DeviceState::free).sum::<u64>()
        })
    };
    let free: Vec<u64> = names.iter().map(free).collect();
    let most = free.iter().copied().max().unwrap_or(0);
    let rank = |free: u64| match free {
        0 => 10,
        _ => i64::try_from(9 * (most - free) / most).unwrap_or(0),
    };
    free.into_iter().map(rank).collect()
}

/// The refusal as kube-scheduler (which puts a 1 before it), the event and the user see it. Its
/// length does not grow with the cluster, and equal ledgers give equal texts.
pub fn refusal_text(nodes: usize, refusal: &Refusal) -> String {
    match nodes {
        1 => format!("GPU request does not fit the one node offered: {refusal}"),
        _ => format!("GPU request fits none of {nodes} nodes: {refusal}"),
    }
}

/// The device that is nearest to the memory that the pod requests in MiB, as the end of a refusal's
/// text; empty if none of the open devices has too little.
pub fn nearest_text<S: AsRef<str>>(cluster: &Cluster, demand: &Demand, names: &[S]) -> String {
    let requests = demand.containers.iter().flat_map(|one| &one.requests);
    let mib = requests.filter_map(|request| match request.memory {
        Memory::Mib(memory) => Some((memory, demand.resource(request))),
        Memory::Share(_) => None,
    });
    let Some((needed, resource)) = mib.max() else {
        return String::new();
    };
    let free = |name: &S| {
        let node = cluster.node(name.as_ref())?;
        let resource = node
            .resources
            .iter()
            .position(|known| **known == *resource)?;
        let open = node
            .devices
            .iter()
            .filter(|device| device.closed.is_none() && usize::from(device.resource) == resource);
        let free = open.map(|device| {
            device
                .scaled
                .0
                .saturating_sub(device.allocated.used.memory.0)
        });
        free.filter(|free| *free < needed.0).max()
    };
    match names.iter().filter_map(free).max() {
        Some(free) => format!(
            "; it needs {needed}, and at most {} are free on one GPU",
            Mib(free)
        ),
        None => String::new(),
    }
}
