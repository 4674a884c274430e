//! How good a choice is for a pod, of devices by the GPU policy and of a node by the node
//! policy, and which of the devices that fit are best: by the policy's keys, by NUMA node,
//! by the links between devices (HAMi 4.7). Capacity is not checked here.
//!
//! Fullness is the sum of the used parts of replicas, compute and memory, including the new
//! pod (HAMi's default weights 1/1/1); `binpack` prefers the fullest, `spread` the
//! emptiest. Integers only: equal states must give equal scores.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::demand::Demand;
use crate::fragmentation::View;
use crate::inventory::Inventory;
use crate::node::{DeviceState, NodeState};
use crate::policy::{GpuPolicy, GpuSortKey, MAX_KEYS, Policy, Weights};
use crate::refusal::Reason;
use crate::typical::Typical;
use crate::units::Mib;
use crate::usage::DeviceUse;

/// Up to this many candidates all combinations are compared.
const EXHAUSTIVE_LIMIT: usize = 8;
/// More than any policy's score: what nodes that need not come last have in advance.
const AHEAD: u64 = 1 << 40;

/// Which choice is better, for nodes and for the devices of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    pub node: Policy,
    /// Between the devices of a node.
    pub gpu: GpuPolicy,
    /// The typical pods that [`Policy::Fragmentation`] saves capacity for.
    pub typical: Arc<Typical>,
}

impl Default for Policies {
    /// HAMi's defaults.
    fn default() -> Self {
        Self {
            node: Policy::Binpack,
            gpu: Policy::Spread.into(),
            typical: Arc::default(),
        }
    }
}

impl Policies {
    /// Whether a score for this pod depends on a node's CPU and memory.
    pub(crate) fn see_host(&self, demand: &Demand) -> bool {
        let gpu = demand.gpu_policy.unwrap_or(self.gpu);
        let by_load = Some(GpuSortKey::Load(Policy::Fragmentation));
        demand.node_policy.unwrap_or(self.node) == Policy::Fragmentation
            || gpu.keys.contains(&by_load)
    }
}

/// Used and total amounts of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub replicas: (u64, u64),
    /// Compute in percent.
    pub cores: (u64, u64),
    /// Memory in MiB.
    pub memory: (u64, u64),
}

impl Load {
    fn new(device: &DeviceState, more: DeviceUse) -> Self {
        let used = device.allocated.used.with(more);
        Self {
            replicas: (u64::from(used.replicas), u64::from(device.replicas)),
            cores: (u64::from(used.cores.0), u64::from(device.cores.0)),
            memory: (used.memory.0, device.scaled.0),
        }
    }

    fn of_node(node: &NodeState, uses: &[(usize, DeviceUse)]) -> Self {
        let devices = node.devices.iter().enumerate();
        devices.fold(Self::default(), |sum, (place, device)| {
            let here = uses.iter().filter(|(device, _)| *device == place);
            let more = here.fold(DeviceUse::default(), |more, (_, used)| more.with(*used));
            sum.plus(Self::new(device, more))
        })
    }

    pub fn plus(self, other: Self) -> Self {
        let add = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        Self {
            replicas: add(self.replicas, other.replicas),
            cores: add(self.cores, other.cores),
            memory: add(self.memory, other.memory),
        }
    }

    /// The weighted sum of the three used parts, in millionths: 0 (empty) to the sum of the
    /// weights times 1,000,000.
    fn fullness(self, weights: Weights) -> u64 {
        let part = |(used, total): (u64, u64), weight: u32| {
            let used = used.min(total).saturating_mul(1_000_000);
            used.checked_div(total).unwrap_or(0) * u64::from(weight)
        };
        part(self.replicas, weights.replicas)
            + part(self.cores, weights.cores)
            + part(self.memory, weights.memory)
    }
}

/// The score of a choice that would lead to `load`. Higher is better. `fragmentation` needs
/// more than a load; here it prefers the fuller.
pub fn score(policy: Policy, load: Load, weights: Weights) -> u64 {
    match policy {
        Policy::Binpack | Policy::Fragmentation => load.fullness(weights),
        Policy::Spread => weights.most() - load.fullness(weights),
    }
}

/// Scores choices on one node for one pod.
pub(crate) struct Scorer<'a> {
    pub(crate) node: &'a NodeState,
    pub(crate) demand: &'a Demand,
    defaults: &'a Policies,
    /// Made when fragmentation is first needed.
    view: OnceCell<View<'a>>,
}

impl<'a> Scorer<'a> {
    /// `defaults` apply to a pod that chooses no policy.
    pub(crate) fn new(node: &'a NodeState, demand: &'a Demand, defaults: &'a Policies) -> Self {
        Self {
            node,
            demand,
            defaults,
            view: OnceCell::new(),
        }
    }

    fn view(&self) -> &View<'a> {
        let view = || View::new(&self.defaults.typical, self.node, self.demand.host);
        self.view.get_or_init(view)
    }

    /// The rank of a device that would be used like this; lower is better, key by key.
    pub(crate) fn device(
        &self,
        policy: GpuPolicy,
        place: usize,
        used: DeviceUse,
    ) -> [u64; MAX_KEYS] {
        policy.keys.map(|key| match key {
            Some(GpuSortKey::Load(Policy::Fragmentation)) => {
                u64::MAX - u64::from(self.view().score(&[(place, used)]))
            }
            Some(GpuSortKey::Load(policy)) => {
                let load = Load::new(&self.node.devices[place], used);
                u64::MAX - score(policy, load, self.demand.rules.weights)
            }
            // NUMA nodes are compared once all candidates are known.
            Some(GpuSortKey::Numa) | None => 0,
        })
    }

    /// The score of the node with these uses of its devices; higher is better. Under
    /// `fragmentation` the fuller node wins among equal scores. Nodes where instances cost
    /// fewer placements of others (`loss`) come first under any policy, and nodes that would
    /// give a whole GPU to a pod that asked for less (`waste`), or one with memory held outside
    /// every share, come last.
    pub(crate) fn node(&self, uses: &[(usize, DeviceUse)], waste: bool, loss: u32) -> u64 {
        let by_policy = match self.demand.node_policy.unwrap_or(self.defaults.node) {
            Policy::Fragmentation => {
                let view = self.view();
                u64::from(view.score(uses)) << 32 | view.fullness()
            }
            policy => score(policy, Load::of_node(self.node, uses), Weights::default()),
        };
        let is_unmanaged =
            |(device, _): &(usize, DeviceUse)| self.node.devices[*device].unmanaged > Mib(0);
        let is_last = waste || uses.iter().any(is_unmanaged);
        let score = by_policy + if is_last { 0 } else { AHEAD };
        if !self.demand.requests_mig_instances() {
            return score;
        }
        score + (u64::from(4095 - loss.min(4095)) << 44)
    }
}

/// A device that fits. The order is best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    /// For an init container: the pod's app containers are not on it.
    pub(crate) outside_apps: bool,
    /// Memory that processes outside every share hold of it.
    pub(crate) unmanaged: Mib,
    /// A whole GPU for a container that asked for less.
    pub(crate) waste: bool,
    /// One number for each key of the policy; lower is better.
    pub(crate) rank: [u64; MAX_KEYS],
    /// The device's index on the node.
    pub(crate) place: usize,
    /// What the container would get of it.
    pub(crate) used: DeviceUse,
    /// What the pod would then use of it.
    pub(crate) pod_use: DeviceUse,
}

impl Candidate {
    /// What is compared before links.
    fn class(&self) -> (bool, bool) {
        (self.outside_apps, self.unmanaged > Mib(0))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSelection {
    pub(crate) count: usize,
    /// All of them on one NUMA node.
    pub(crate) one_numa: bool,
    /// The index of the policy's `numa` key.
    pub(crate) numa_key: Option<usize>,
    /// Compare links first.
    pub(crate) links: bool,
}

/// Moves the chosen devices to the front, or returns why there are none.
pub(crate) fn select_devices(
    node: &NodeState,
    selection: DeviceSelection,
    candidates: &mut Vec<Candidate>,
) -> Result<(), Reason> {
    let count = selection.count;
    if candidates.len() < count {
        return Err(Reason::AllocatedCardsInsufficientRequest);
    }
    if let Some(key) = selection.numa_key {
        prefer_whole_numa(node, count, key, candidates);
    }
    candidates.sort_unstable();
    if !selection.one_numa && !selection.links {
        return Ok(());
    }
    let groups = if selection.one_numa {
        by_numa(node, candidates)
    } else {
        vec![candidates.clone()]
    };
    let able = groups.into_iter().filter(|group| group.len() >= count);
    let best = able.map(|group| pick(node, selection, group)).min();
    *candidates = best.ok_or(Reason::NumaNotFit)?.devices;
    Ok(())
}

/// The candidates of each NUMA node, in their order. Devices without a known NUMA node are
/// one more group.
fn by_numa(node: &NodeState, candidates: &[Candidate]) -> Vec<Vec<Candidate>> {
    let mut groups: BTreeMap<Option<u32>, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        let numa = node.devices[candidate.place].numa;
        groups.entry(numa).or_default().push(*candidate);
    }
    groups.into_values().collect()
}

/// The `numa` key: NUMA nodes that can hold the whole request come first, then
/// the lower number.
fn prefer_whole_numa(node: &NodeState, count: usize, key: usize, candidates: &mut [Candidate]) {
    let numa = |c: &Candidate| node.devices[c.place].numa;
    let numas: Vec<_> = candidates.iter().map(numa).collect();
    for candidate in candidates {
        let own = numa(candidate);
        let together = numas.iter().filter(|numa| **numa == own).count();
        let split = u64::from(together < count) << 32;
        candidate.rank[key] = split + u64::from(own.unwrap_or(u32::MAX));
    }
}

/// Devices of one group. The order is best first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Selected {
    outside_apps: usize,
    unmanaged: Mib,
    /// The strain of their links: lower is better.
    strain: i64,
    ranks: Vec<[u64; MAX_KEYS]>,
    devices: Vec<Candidate>,
}

/// The best devices of one group, which is sorted.
fn pick(node: &NodeState, selection: DeviceSelection, mut group: Vec<Candidate>) -> Selected {
    let needed = group.iter().take(selection.count);
    let last = needed.map(Candidate::class).max();
    group.retain(|candidate| last.is_none_or(|last| candidate.class() <= last));
    let mut strain = 0;
    if let (true, Some(inventory)) = (selection.links, &node.inventory) {
        let places: Vec<usize> = group.iter().map(|c| c.place).collect();
        let (found, chosen) = by_links(&scores(inventory, &places), selection.count);
        strain = found;
        group = chosen.into_iter().map(|at| group[at]).collect();
    }
    group.truncate(selection.count);
    Selected {
        outside_apps: group.iter().filter(|c| c.outside_apps).count(),
        unmanaged: group.iter().map(|c| c.unmanaged).sum(),
        strain,
        ranks: group.iter().map(|c| c.rank).collect(),
        devices: group,
    }
}

/// The link score of each pair of devices; 0 for a link that only one of them reports.
fn scores(inventory: &Inventory, places: &[usize]) -> Vec<Vec<i64>> {
    let link = |a: usize, b: usize| {
        let (a, b) = (&inventory.gpus[a], &inventory.gpus[b]);
        let there = a.links.get(&b.uuid).copied().unwrap_or(0);
        i64::from(there.min(b.links.get(&a.uuid).copied().unwrap_or(0)))
    };
    let row = |&a: &usize| places.iter().map(|&b| link(a, b)).collect();
    places.iter().map(row).collect()
}

/// Chooses `count` devices with the least strain: a single one that is linked least to the
/// others, or several that are linked most to each other; among equals, the first in order.
/// Up to [`EXHAUSTIVE_LIMIT`] devices, all combinations are compared; beyond, each device
/// seeds a set that grows by its closest device and is then improved by exchanges, which
/// bounds the cost.
fn by_links(scores: &[Vec<i64>], count: usize) -> (i64, Vec<usize>) {
    let all = scores.len();
    if count == 1 {
        let strain = |at: usize| scores[at].iter().sum::<i64>() - scores[at][at];
        let best = (0..all).min_by_key(|&at| (strain(at), at)).unwrap_or(0);
        return (strain(best), vec![best]);
    }
    let mut best = (i64::MAX, Vec::new());
    let mut consider = |set: Vec<usize>| {
        let strain = -within(scores, &set);
        best = std::mem::take(&mut best).min((strain, set));
    };
    if all <= EXHAUSTIVE_LIMIT {
        for mask in 1_u32..1 << all {
            let set: Vec<usize> = (0..all).filter(|at| mask & (1 << at) != 0).collect();
            if set.len() == count {
                consider(set);
            }
        }
    } else {
        for seed in 0..all {
            consider(improve(scores, grow(scores, seed, count)));
        }
    }
    best
}

/// The sum of the link scores in a set.
fn within(scores: &[Vec<i64>], set: &[usize]) -> i64 {
    let pairs = set
        .iter()
        .map(|&a| set.iter().map(|&b| scores[a][b]).sum::<i64>());
    let diagonal: i64 = set.iter().map(|&a| scores[a][a]).sum();
    (pairs.sum::<i64>() - diagonal) / 2
}

fn pull(scores: &[Vec<i64>], set: &[usize], at: usize) -> i64 {
    set.iter().map(|&other| scores[at][other]).sum()
}

fn grow(scores: &[Vec<i64>], seed: usize, count: usize) -> Vec<usize> {
    let mut set = vec![seed];
    while set.len() < count {
        let outside = (0..scores.len()).filter(|at| !set.contains(at));
        let closest = outside.min_by_key(|&at| (-pull(scores, &set, at), at));
        let Some(closest) = closest else { break };
        set.push(closest);
    }
    set
}

/// Exchanges one device at a time while that improves the sum, at most as often as there
/// are devices.
fn improve(scores: &[Vec<i64>], mut set: Vec<usize>) -> Vec<usize> {
    for _ in 0..scores.len() {
        let outside = (0..scores.len()).filter(|at| !set.contains(at));
        let exchanges = outside.flat_map(|new| (0..set.len()).map(move |old| (old, new)));
        let gain = |&(old, new): &(usize, usize)| {
            let out = set[old];
            pull(scores, &set, new)
                - scores[new][out]
                - (pull(scores, &set, out) - scores[out][out])
        };
        let best = exchanges.max_by_key(gain);
        match best {
            Some(exchange) if gain(&exchange) > 0 => set[exchange.0] = exchange.1,
            _ => break,
        }
    }
    set.sort_unstable();
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbours are linked best, then the devices of one half.
    fn ladder(devices: usize) -> Vec<Vec<i64>> {
        let link = |a: usize, b: usize| match (a == b, a / 2 == b / 2, a / 4 == b / 4) {
            (true, ..) => 0,
            (_, true, _) => 400,
            (_, _, true) => 100,
            _ => 10,
        };
        let row = |a| (0..devices).map(|b| link(a, b)).collect();
        (0..devices).map(row).collect()
    }

    #[test]
    fn picks_closest_group_and_least_linked_single_device() {
        let mut scores = ladder(8);
        assert_eq!(by_links(&scores, 2), (-400, vec![0, 1]));
        assert_eq!(by_links(&scores, 4), (-1200, vec![0, 1, 2, 3]));
        assert_eq!(by_links(&scores, 1).1, [0]);
        scores[5][4] = 0;
        scores[4][5] = 0;
        assert_eq!(by_links(&scores, 1).1, [4]);
        assert_eq!(by_links(&ladder(3), 1).1, [2]);
        assert_eq!(by_links(&ladder(1), 1), (0, vec![0]));
    }

    #[test]
    fn chooses_among_sixteen_devices_as_well_as_exhaustively() {
        let scores = ladder(16);
        for count in 2..=16 {
            let (strain, set) = by_links(&scores, count);
            assert_eq!(set.len(), count);
            assert_eq!(strain, -within(&scores, &set));
            let first: Vec<usize> = (0..count).collect();
            assert!(strain <= -within(&scores, &first), "{count}: {set:?}");
        }
    }
}
