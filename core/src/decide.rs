//! Filter and prioritize as functions: a snapshot and node names in, a ranking out. The
//! scheduler, `kubectl aliquot explain -f` and tests/packing share them.
//!
//! No node is ever named in `FailedNodes`: kube-scheduler would then requeue the pod with
//! its own message.
//!
//! Verdicts on nodes are cached for each shape of pod. A verdict is valid until its node's
//! version changes, so an extender call evaluates only the nodes that changed since the
//! last pod of the same shape. Pods without GPUs change only CPU and memory of a node, which no
//! refusal and few scores depend on. A change of the typical pods empties the cache; whoever changes
//! the policies starts a new one. Nodes of one kind ([`NodeState::kind`]) have one verdict.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::fit;
use crate::fragmentation::HostView;
use crate::node::{DeviceState, NodeState};
use crate::quota::{Headroom, QuotaAmount};
use crate::refusal::{Reason, Refusal};
use crate::request::Memory;
use crate::score::Policies;
use crate::typical::Typical;
use crate::units::{HostResources, Mib, MilliCpu};

/// Verdicts cached; the least recently used shape is dropped. About 50 MiB: 200 shapes of 5,000
/// nodes.
const VERDICTS: usize = 1 << 20;
const _: () = assert!(size_of::<Option<(u64, NodeVerdict)>>() <= 48);
/// The fewest shapes cached with many nodes, and the most with few: pods make up any number of
/// shapes, each of some KiB.
const SHAPES: (usize, usize) = (32, 1024);

/// Which nodes can take a pod with this demand.
#[derive(Clone, Copy, Debug)]
pub struct NodeQuery<'a> {
    pub cluster: &'a Cluster,
    pub demand: &'a Demand,
    /// The policies for pods that choose none.
    pub policies: &'a Policies,
    /// The slot of the node where a share is assumed for this pod, and that node without it.
    pub without_own: Option<&'a (usize, NodeState)>,
    /// What the quotas of the pod's namespace leave; `None` without limits. A node is
    /// charged for the devices that the pod would get there.
    pub headroom: Option<&'a Headroom>,
}

impl NodeQuery<'_> {
    fn verdict<'v>(&self, verdicts: &'v mut Verdicts<'_>, slot: usize) -> Cow<'v, NodeVerdict> {
        match self.without_own {
            Some((own, state)) if *own == slot => {
                Cow::Owned(NodeVerdict::on(state, self.demand, self.policies))
            }
            _ => Cow::Borrowed(verdicts.on(slot)),
        }
    }
}

/// A node that can take the pod. The order is best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ranked<'n> {
    score: Reverse<u64>,
    /// The node; among equals the name decides.
    name: &'n str,
}

/// The best `most` of the named nodes that can take the pod, best first, or why there are none.
pub fn best<'n, S: AsRef<str>>(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &'n [S],
    most: usize,
) -> Result<Vec<&'n str>, Refusal> {
    let mut best = BinaryHeap::new();
    each_fitting(query, memo, names, |fit| {
        if best.len() < most {
            best.push(fit);
        } else if let Some(mut worst) = best.peek_mut()
            && fit < *worst
        {
            *worst = fit;
        }
    })?;
    let sorted = best.into_sorted_vec().into_iter();
    Ok(sorted.map(|ranked| ranked.name).collect())
}

/// Calls `found` for each of the named nodes that can take the pod, or returns why there are none.
fn each_fitting<'n, S: AsRef<str>>(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &'n [S],
    mut found: impl FnMut(Ranked<'n>),
) -> Result<(), Refusal> {
    let mut verdicts = memo.verdicts(query.cluster, query.demand, query.policies);
    let mut any = false;
    let mut next = 0;
    for name in names.iter().map(AsRef::as_ref) {
        let Some(slot) = query.cluster.slot_near(name, next) else {
            continue;
        };
        next = slot + 1;
        let NodeVerdict::Fits { score, amount } = *query.verdict(&mut verdicts, slot) else {
            continue;
        };
        if query.headroom.is_some_and(|left| !left.allows(amount)) {
            continue;
        }
        any = true;
        found(Ranked {
            score: Reverse(score),
            name,
        });
    }
    if any {
        return Ok(());
    }
    let mut refusal = Refusal::default();
    let mut over: Option<(QuotaAmount, Refusal)> = None;
    let mut next = 0;
    for name in names.iter().map(AsRef::as_ref) {
        let slot = query.cluster.slot_near(name, next);
        next = slot.map_or(next, |slot| slot + 1);
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
/// [`best`] the verdicts are cached.
pub fn refused_for<'n, S: AsRef<str>>(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &'n [S],
    reason: Reason,
) -> Vec<&'n str> {
    let mut verdicts = memo.verdicts(query.cluster, query.demand, query.policies);
    let mut refused = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        let Some(slot) = query.cluster.slot(name) else {
            continue;
        };
        let verdict = query.verdict(&mut verdicts, slot);
        if matches!(&*verdict, NodeVerdict::Refused(why) if why.count(reason) > 0) {
            refused.push(name);
        }
    }
    refused.sort_unstable();
    refused
}

/// Ranks 0 to 10 for the named nodes, in their order: 10 for one, the others by their
/// position; 0 for nodes that do not fit.
pub fn ranks<'n, S: AsRef<str>>(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &'n [S],
) -> Vec<(&'n str, i64)> {
    let fits = best(query, memo, names, names.len()).unwrap_or_default();
    let places = fits.iter().enumerate();
    let rank = |place| rank_of(place, fits.len());
    let ranks: HashMap<&str, i64> = places.map(|(at, name)| (*name, rank(at))).collect();
    let of = |name: &str| ranks.get(name).copied().unwrap_or(0);
    let names = names.iter().map(AsRef::as_ref);
    names.map(|name| (name, of(name))).collect()
}

/// Ranks 0 to 10 for a pod that asks for no GPU and takes this much of its node, so that free GPUs keep
/// the CPU that pods like the typical ones need with them ([`Typical::gpus_served_by`]): 10 for the best
/// nodes, the others by their position. Unknown nodes have no GPUs and are the best.
///
/// The least of the GPUs' free capacity must lose its CPU. Of nodes alike in that, those with the least
/// free GPUs are the best, then those with the least free CPU. Where the CPU of all of them does not
/// suffice for the free GPUs, the pod goes where there are none, or else where they lack most CPU already.
pub fn cpu_only_ranks<S: AsRef<str>>(
    cluster: &Cluster,
    typical: &Typical,
    taken: HostResources,
    names: &[S],
) -> Vec<i64> {
    let served = |host: HostResources| {
        let served = typical.gpus_served_by(host.cpu);
        i128::from(served.unwrap_or(u64::MAX))
    };
    let free = |node: &NodeState| {
        let free = node.devices.iter().map(DeviceState::free);
        i128::from(free.sum::<u64>())
    };
    let nodes: Vec<Option<&Arc<NodeState>>> = names
        .iter()
        .map(|name| cluster.node(name.as_ref()))
        .collect();
    let known = || nodes.iter().flatten();
    let all_served: i128 = known().map(|node| served(node.host.free())).sum();
    let all_free: i128 = known().map(|node| free(node)).sum();
    let is_scarce = all_served < all_free;
    let key = |node: &NodeState| {
        let (host, free) = (node.host.free(), free(node));
        let before = served(host);
        let lost = free.min(before) - free.min(served(host.less(taken)));
        if is_scarce {
            (lost, free > 0, before - free, MilliCpu(0))
        } else {
            (lost, false, free, host.cpu)
        }
    };
    let keys: Vec<_> = nodes
        .iter()
        .map(|node| node.map(|node| key(node)))
        .collect();
    let order: BTreeSet<_> = keys.iter().copied().collect();
    let places: BTreeMap<_, usize> = order.into_iter().zip(0..).collect();
    let ranks = keys.iter().map(|key| rank_of(places[key], places.len()));
    ranks.collect()
}

fn rank_of(place: usize, places: usize) -> i64 {
    let last = places.max(2) - 1;
    match place {
        0 => 10,
        _ => i64::try_from(9 * (last - place) / last).unwrap_or(0),
    }
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
        let free = open.map(|device| device.free_memory().0);
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

/// The demand as far as it matters to these nodes: namespaces without any reservation are
/// all alike.
pub fn shape<'a>(demand: &'a Demand, cluster: &Cluster) -> Cow<'a, Demand> {
    if demand.namespace.as_str().is_empty() || cluster.reserves_for(&demand.namespace) {
        return Cow::Borrowed(demand);
    }
    Cow::Owned(Demand {
        namespace: "".into(),
        ..demand.clone()
    })
}

/// Whether a node can take a pod of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeVerdict {
    Fits {
        /// The score; higher is better.
        score: u64,
        /// What the pod would use there, for its namespace's quotas. The verdict is valid
        /// for pods of every namespace without reservations.
        amount: QuotaAmount,
    },
    /// It cannot. Nodes with equal refusals share one, because it is large.
    Refused(Arc<Refusal>),
}

impl NodeVerdict {
    pub fn on(node: &NodeState, demand: &Demand, policies: &Policies) -> Self {
        match fit::fit(node, demand, policies) {
            Ok(fit) => Self::Fits {
                score: fit.score,
                amount: fit.amount(),
            },
            Err(refusal) => Self::Refused(Arc::new(refusal)),
        }
    }
}

#[derive(Debug, Default)]
struct ShapeVerdicts {
    last_used: u64,
    /// By slot: the node's version, and the verdict on it.
    verdicts: Vec<Option<(u64, NodeVerdict)>>,
    /// By the kind of a node, if the pods name no device, and what they see of its CPU and memory:
    /// most nodes of a cluster are like others.
    kinds: hashbrown::HashMap<(u64, HostView), NodeVerdict>,
    refusal: Arc<Refusal>,
}

/// Kinds of nodes that are remembered for a shape.
const KINDS: usize = 1024;

/// Verdicts by shape and node.
#[derive(Debug, Default)]
pub struct Memo {
    shapes: HashMap<Demand, ShapeVerdicts>,
    calls: u64,
    /// The typical pods that the verdicts were made with.
    typical: Option<Arc<Typical>>,
}

#[derive(Debug)]
pub struct Verdicts<'a> {
    shape: &'a mut ShapeVerdicts,
    cluster: &'a Cluster,
    demand: &'a Demand,
    policies: &'a Policies,
    by_kind: bool,
    sees_host: bool,
}

impl Memo {
    /// The verdicts for pods like `demand`.
    pub fn verdicts<'a>(
        &'a mut self,
        cluster: &'a Cluster,
        demand: &'a Demand,
        policies: &'a Policies,
    ) -> Verdicts<'a> {
        self.calls += 1;
        let known = self.typical.as_ref();
        if !known.is_some_and(|known| Arc::ptr_eq(known, &policies.typical)) {
            self.shapes.clear();
            self.typical = Some(policies.typical.clone());
        }
        let most = (VERDICTS / cluster.slots().max(1)).clamp(SHAPES.0, SHAPES.1);
        let key = shape(demand, cluster);
        if !self.shapes.contains_key(&*key) && self.shapes.len() >= most {
            let oldest = self.shapes.iter().min_by_key(|(_, shape)| shape.last_used);
            if let Some(oldest) = oldest.map(|(demand, _)| demand.clone()) {
                self.shapes.remove(&oldest);
            }
        }
        let shape = self.shapes.entry(key.into_owned()).or_default();
        shape.last_used = self.calls;
        shape.verdicts.resize_with(cluster.slots(), || None);
        let links = demand.gpu_policy.unwrap_or(policies.gpu).links;
        Verdicts {
            shape,
            cluster,
            demand,
            policies,
            by_kind: !links && !demand.rules.name_devices(),
            sees_host: policies.see_host(demand),
        }
    }
}

impl Verdicts<'_> {
    /// The verdict on the node in this slot of the snapshot.
    pub fn on(&mut self, slot: usize) -> &NodeVerdict {
        let version = self.cluster.version(slot);
        let same_devices = self.cluster.devices_version(slot)..=version;
        let sees_host = self.sees_host;
        let ShapeVerdicts {
            verdicts,
            kinds,
            refusal,
            ..
        } = &mut *self.shape;
        let cached = &mut verdicts[slot];
        let is_current = cached.as_ref().is_some_and(|(evaluated, verdict)| {
            if sees_host && matches!(verdict, NodeVerdict::Fits { .. }) {
                *evaluated == version
            } else {
                same_devices.contains(evaluated)
            }
        });
        if !is_current {
            *cached = None;
        }
        let evaluated = cached.get_or_insert_with(|| {
            let node = self.cluster.at(slot);
            let kind = self.cluster.kind(slot).filter(|_| self.by_kind);
            let key = kind.zip(node).map(|(kind, node)| {
                let typical = &self.policies.typical;
                let free = self.cluster.free(slot);
                let host = sees_host.then(|| HostView::new(typical, node, free, self.demand.host));
                (kind, host.unwrap_or_default())
            });
            if let Some(known) = key.and_then(|key| kinds.get(&key)) {
                return (version, known.clone());
            }
            let mut verdict = node.map_or_else(
                || NodeVerdict::Refused(Refusal::from(Reason::NodeNotRegistered).into()),
                |node| NodeVerdict::on(node, self.demand, self.policies),
            );
            if let NodeVerdict::Refused(why) = &mut verdict {
                if why == refusal {
                    *why = refusal.clone();
                } else {
                    *refusal = why.clone();
                }
            }
            if let Some(key) = key {
                if kinds.len() >= KINDS {
                    kinds.clear();
                }
                kinds.insert(key, verdict.clone());
            }
            (version, verdict)
        });
        &evaluated.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{app, gpu, ledger};
    use crate::units::{HostResources, MilliCpu};

    #[test]
    fn remembers_a_bounded_number_of_shapes() {
        let ledger = ledger(vec![gpu(0, 1000, 9)]);
        let (mut memo, policies) = (Memo::default(), Policies::default());
        for cpu in 0..2000 {
            let host = HostResources {
                cpu: MilliCpu(cpu),
                ..HostResources::default()
            };
            let demand = Demand {
                host,
                ..app(1, 100, 0)
            };
            memo.verdicts(ledger.cluster(), &demand, &policies).on(0);
        }
        assert_eq!(memo.shapes.len(), SHAPES.1);
    }
}
