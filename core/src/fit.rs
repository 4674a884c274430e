//! May this node take this pod, on which cards, and if not, why.
//!
//! Fed by: [`crate::ledger`], which keeps a [`NodeState`] per node.
//! Must not: change anything; the same state and demand give the same answer.
//! Rules: HAMi's `Fit` (order of checks, exclusive cards, `gpucores: 0`), with
//! the effective use of [`crate::usage`] in place of its collapse.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::allocation::{self, Allocation, Grant};
use crate::demand::{ContainerDemand, Demand, Stage};
use crate::id::NodeName;
use crate::inventory::{Gpu, Health, Inventory, Mode};
use crate::reason::{Reason, Refusal};
use crate::request::{Ask, Memory};
use crate::score::{self, Load, Policy};
use crate::units::Mib;
use crate::usage::{self, Use};

/// All pods' uses of one card, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The sum of the pods' effective uses.
    pub used: Use,
    /// How many pods.
    pub pods: u32,
}

/// A node as the books see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// What it published; `None` while only pods are known of it.
    pub inventory: Option<Arc<Inventory>>,
    /// One for each card of the inventory, in its order.
    pub sums: Vec<Sums>,
    /// A pod on it has an allocation that cannot be read: counts as full.
    pub unreadable: bool,
}

/// Which choice is better, for nodes and for the cards of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Between nodes.
    pub node: Policy,
    /// Between the cards of a node.
    pub gpu: Policy,
}

impl Default for Policies {
    /// HAMi's defaults.
    fn default() -> Self {
        Self {
            node: Policy::Binpack,
            gpu: Policy::Spread,
        }
    }
}

/// A way to place a pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// How good the node is, by the node policy; higher is better.
    pub score: u64,
    shares: Vec<Share>,
}

/// One container on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    container: usize,
    card: usize,
    used: Use,
}

/// Places all containers of `demand` on the node's cards, or counts for each
/// card why not.
pub fn fit(node: &NodeState, demand: &Demand, defaults: Policies) -> Result<Fit, Refusal> {
    let Some(inventory) = &node.inventory else {
        return Err(Refusal::of(Reason::NodeNotRegistered));
    };
    if node.unreadable {
        return Err(Refusal::of(Reason::NodeAllocationUnreadable));
    }
    let policy = demand.gpu_policy.unwrap_or(defaults.gpu);
    let mut order: Vec<(usize, &Ask)> = Vec::with_capacity(demand.containers.len());
    let asking = |wanted: fn(Stage) -> bool| {
        let containers = demand.containers.iter().enumerate();
        containers.filter_map(move |(i, c)| Some((i, c.ask.as_ref().filter(|_| wanted(c.stage))?)))
    };
    // Init containers last: they go where the app containers are, if they fit.
    order.extend(asking(|stage| stage != Stage::Init));
    order.extend(asking(|stage| stage == Stage::Init));

    let shares = place(node, inventory, demand, &order, policy).or_else(|refusal| {
        if order.len() < 2 {
            return Err(refusal);
        }
        // The policy's choice for one container may have taken what another
        // needed: try the largest first, each on the fullest card.
        order.sort_by_key(|(_, ask)| std::cmp::Reverse(size(ask)));
        place(node, inventory, demand, &order, Policy::Binpack).map_err(|_| refusal)
    })?;
    let score = score::score(
        demand.node_policy.unwrap_or(defaults.node),
        node_load(node, inventory, demand, &shares),
    );
    Ok(Fit { score, shares })
}

/// Why this card cannot take this use beside what it carries; `None` if it can.
pub fn refuse(gpu: &Gpu, foreign: bool, sums: &Sums, used: &Use, resource: &str) -> Option<Reason> {
    let others = &sums.used;
    if gpu.health != Health::Ok {
        Some(Reason::CardNotHealth)
    } else if gpu.mode != Mode::Vgpu || gpu.resource != resource {
        Some(Reason::CardTypeMismatch)
    } else if foreign {
        Some(Reason::CardHeldByForeignPod)
    } else if others.seats + used.seats > gpu.seats {
        Some(Reason::CardTimeSlicingExhausted)
    } else if others.alone || (used.alone && sums.pods > 0) {
        Some(Reason::ExclusiveDeviceAllocateConflict)
    } else if others.memory + used.memory > gpu.scaled {
        Some(Reason::CardInsufficientMemory)
    } else if others.cores + used.cores > gpu.cores {
        Some(Reason::CardInsufficientCore)
    } else if used.leftover && others.cores >= gpu.cores {
        Some(Reason::CardComputeUnitsExhausted)
    } else {
        None
    }
}

fn size(ask: &Ask) -> (u64, u32) {
    match ask.memory {
        Memory::Mib(memory) => (memory.0, ask.cores.0),
        // Unresolved percentages sort among the large ones by their part of 1 TiB.
        Memory::Share(part) => (Mib(crate::request::MAX_CARD_MIB).share(part).0, ask.cores.0),
    }
}

fn place(
    node: &NodeState,
    inventory: &Inventory,
    demand: &Demand,
    order: &[(usize, &Ask)],
    policy: Policy,
) -> Result<Vec<Share>, Refusal> {
    let mut shares: Vec<Share> = Vec::with_capacity(order.len());
    for &(container, ask) in order {
        let count = usize::try_from(ask.count).unwrap_or(usize::MAX);
        if count > inventory.gpus.len() {
            return Err(Refusal::of(Reason::NodeInsufficientDevice));
        }
        let mut refusal = Refusal::default();
        let mut candidates = Vec::with_capacity(inventory.gpus.len());
        for (card, gpu) in inventory.gpus.iter().enumerate() {
            let memory = match ask.memory {
                Memory::Mib(memory) => memory,
                Memory::Share(part) => gpu.scaled.share(part),
            };
            let share = Share {
                container,
                card,
                used: Use::of(memory, ask.cores),
            };
            let used = pod_use(demand, &shares, Some(share), card);
            let foreign = inventory.foreign.iter().any(|f| f.gpu == gpu.uuid);
            if let Some(reason) = refuse(gpu, foreign, &node.sums[card], &used, &demand.resource) {
                refusal.add(reason);
                continue;
            }
            let stranger = demand.containers[container].stage == Stage::Init
                && !shares.iter().any(|s| s.card == card);
            let load = card_load(gpu, &node.sums[card], &used);
            let rank = std::cmp::Reverse(score::score(policy, load));
            candidates.push((stranger, rank, card, share));
        }
        if candidates.len() < count {
            if !candidates.is_empty() {
                refusal.add(Reason::AllocatedCardsInsufficientRequest);
            }
            return Err(refusal);
        }
        candidates.sort_unstable_by_key(|&(stranger, rank, card, _)| (stranger, rank, card));
        shares.extend(candidates[..count].iter().map(|&(.., share)| share));
    }
    Ok(shares)
}

/// The pod's effective use of `card` with `shares`, and `more` if it comes too.
fn pod_use(demand: &Demand, shares: &[Share], more: Option<Share>, card: usize) -> Use {
    if let (true, Some(share)) = (shares.is_empty(), more) {
        return share.used;
    }
    let mut on_card: Vec<Share> = shares.iter().copied().filter(|s| s.card == card).collect();
    on_card.extend(more);
    on_card.sort_by_key(|share| share.container);
    usage::on_card(
        on_card
            .iter()
            .map(|share| (demand.containers[share.container].stage, share.used)),
    )
}

fn card_load(gpu: &Gpu, sums: &Sums, more: &Use) -> Load {
    let used = sums.used.with(*more);
    Load {
        seats: (u64::from(used.seats), u64::from(gpu.seats)),
        cores: (u64::from(used.cores.0), u64::from(gpu.cores.0)),
        memory: (used.memory.0, gpu.scaled.0),
    }
}

fn node_load(node: &NodeState, inventory: &Inventory, demand: &Demand, shares: &[Share]) -> Load {
    let cards = inventory.gpus.iter().zip(&node.sums).enumerate();
    cards.fold(Load::default(), |sum, (card, (gpu, sums))| {
        let more = if shares.iter().any(|share| share.card == card) {
            pod_use(demand, shares, None, card)
        } else {
            Use::default()
        };
        sum.plus(card_load(gpu, sums, &more))
    })
}

impl Fit {
    /// The allocation that this way of placing means.
    pub fn allocation(
        &self,
        name: &NodeName,
        inventory: &Inventory,
        demand: &Demand,
    ) -> Allocation {
        let mut containers = BTreeMap::new();
        let mut init = BTreeMap::new();
        for (index, ContainerDemand { name, stage, ask }) in demand.containers.iter().enumerate() {
            if ask.is_none() {
                continue;
            }
            let grants: Vec<Grant> = self
                .shares
                .iter()
                .filter(|share| share.container == index)
                .map(|share| Grant {
                    resource: demand.resource.to_string(),
                    gpu: inventory.gpus[share.card].uuid.clone(),
                    memory: share.used.memory,
                    cores: share.used.cores,
                })
                .collect();
            let kind = match stage {
                Stage::App => &mut containers,
                Stage::Init | Stage::Sidecar => &mut init,
            };
            kind.insert(name.clone(), grants);
        }
        Allocation {
            v: allocation::VERSION,
            node: name.clone(),
            containers,
            init,
            priority: demand.priority,
        }
    }
}
