//! May this node take this pod, on which cards, and if not, why.
//!
//! Fed by: [`crate::decide`] and [`crate::ledger`], with a node's state.
//! Must not: change anything; the same state and demand give the same answer.
//! Rules: HAMi's `Fit` (order of checks, exclusive cards, `gpucores: 0`), with
//! the effective use of [`crate::usage`] in place of its collapse; then the kubelet's
//! count of seats, so that a card that is full or sick is what is told of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::allocation::{self, Allocation, Grant};
use crate::card_policy::CardPolicy;
use crate::demand::{ContainerDemand, Demand, Stage};
use crate::id::NodeName;
use crate::inventory::{Gpu, Inventory};
use crate::judge::Judge;
use crate::mig::published::{Mig, Placed};
use crate::mig::{self, Instance};
use crate::node::NodeState;
use crate::placing::{self, Share, place};
use crate::reason::{Reason, Refusal};
use crate::request::{Ask, Memory};
use crate::score::Policy;
use crate::typical::Typical;
use crate::units::Mib;
use crate::usage::{Use, Uses};

/// Which choice is better, for nodes and for the cards of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Between nodes.
    pub node: Policy,
    /// Between the cards of a node.
    pub gpu: CardPolicy,
    /// What [`Policy::Fragmentation`] keeps room for.
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

/// A way to place a pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// How good the node is, by the node policy; higher is better.
    pub score: u64,
    /// The pod's effective use of each unit it touches, by the card's place.
    pub uses: Vec<(usize, Use)>,
    /// Which of `uses` are instances of cards that are cut as pods come, by their
    /// places in that list.
    pub instances: Vec<(usize, Instance)>,
    shares: Vec<Share>,
}

/// Hears how the cards are judged, container by container.
pub trait Trace: Default {
    /// The container of this number is placed next.
    fn container(&mut self, _container: usize) {}
    /// What the pod would then take of this card, and why it cannot. Said again
    /// of a card that would do and is refused for its neighbours.
    fn card(&mut self, _card: usize, _needs: Use, _refused: Option<Reason>) {}
}

/// Nobody listens.
impl Trace for () {}

/// Places all containers of `demand` on the node's cards, or counts for each
/// card why not. Where they would do, the kubelet must have the seats.
pub fn fit(node: &NodeState, demand: &Demand, defaults: &Policies) -> Result<Fit, Refusal> {
    traced(node, demand, defaults, &mut ())
}

/// The same; `trace` hears of the attempt that decided.
pub fn traced<T: Trace>(
    node: &NodeState,
    demand: &Demand,
    defaults: &Policies,
    trace: &mut T,
) -> Result<Fit, Refusal> {
    if let Some(reason) = node.closed {
        return Err(Refusal::of(reason));
    }
    let judge = Judge::new(node, demand, defaults);
    let policy = demand.gpu_policy.unwrap_or(defaults.gpu);
    let mut order: Vec<(usize, &Ask)> = Vec::with_capacity(demand.containers.len());
    let asking = |wanted: fn(Stage) -> bool| {
        let containers = demand.containers.iter().enumerate();
        let staged = containers.filter(move |(_, c)| wanted(c.stage));
        staged.flat_map(|(i, c)| c.asks.iter().map(move |ask| (i, ask)))
    };
    // Init containers last: they go where the app containers are, if they fit.
    order.extend(asking(|stage| stage != Stage::Init));
    order.extend(asking(|stage| stage == Stage::Init));

    let shares = place(&judge, &order, policy, trace).or_else(|refusal| {
        if order.len() < 2 {
            return Err(refusal);
        }
        // The policy's choice for one container may have taken what another
        // needed: try the largest first, each on the fullest card.
        order.sort_by_key(|(_, ask)| Reverse(size(demand, ask)));
        let mut again = T::default();
        let shares = place(
            &judge,
            &order,
            policy.ordered_by(Policy::Binpack),
            &mut again,
        );
        let shares = shares.map_err(|_| refusal)?;
        *trace = again;
        Ok(shares)
    })?;
    if let Some(short) = node.seats.short(demand) {
        return Err(Refusal::short(short));
    }
    let (uses, instances) = placing::uses(demand, &shares);
    let score = score(demand, &shares, judge.node(&uses));
    Ok(Fit {
        score,
        uses,
        instances,
        shares,
    })
}

/// The node's score with what the shares cost beside room: nodes where instances
/// cost fewer placements of others come first whatever the policy, and those that
/// give whole cards to pods that are content with less come last.
fn score(demand: &Demand, shares: &[Share], score: u64) -> u64 {
    let score = if shares.iter().any(|share| share.waste) {
        score >> 10
    } else {
        score
    };
    if !demand.wants_instances() {
        return score;
    }
    let loss: u32 = shares.iter().map(|share| share.loss).sum();
    score + (u64::from(4095 - loss.min(4095)) << 44)
}

/// Instances by their compute slices, which their resource's name begins with,
/// then by memory and compute.
fn size(demand: &Demand, ask: &Ask) -> (u64, u64, u32) {
    let name = demand.resource(ask).strip_prefix(mig::RESOURCES);
    let slices = name.and_then(|name| name.split('g').next()?.parse().ok());
    let memory = match ask.memory {
        Memory::Mib(memory) => memory,
        // Unresolved percentages sort among the large ones by their part of 1 TiB.
        Memory::Share(part) => Mib(crate::request::MAX_CARD_MIB).share(part),
    };
    (slices.unwrap_or(0), memory.0, ask.cores.0)
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
        for (index, ContainerDemand { name, stage, asks }) in demand.containers.iter().enumerate() {
            if asks.is_empty() {
                continue;
            }
            let grants: Vec<Grant> = self
                .shares
                .iter()
                .filter(|share| share.container == index)
                .map(|share| grant(share, inventory, demand))
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

    /// What the pod would hold, as [`crate::usage::effective`] reads it from the allocation.
    pub fn held(&self, inventory: &Inventory) -> Uses {
        let units = self.uses.iter().enumerate();
        let named = units.map(|(place, (card, used))| {
            let gpu = &inventory.gpus[*card];
            let instance = self.instances.iter().find(|(at, _)| *at == place);
            let placed = instance.and_then(|(_, instance)| placed(gpu, *instance));
            let unit = placed.map_or_else(|| gpu.uuid.clone(), |placed| placed.unit(&gpu.uuid));
            (unit, *used)
        });
        named.collect()
    }
}

fn grant(share: &Share, inventory: &Inventory, demand: &Demand) -> Grant {
    let gpu = &inventory.gpus[share.card];
    let resource = demand.resources.get(usize::from(share.resource));
    Grant {
        resource: resource.map_or_else(String::new, ToString::to_string),
        gpu: gpu.uuid.clone(),
        memory: share.used.memory,
        cores: share.used.cores,
        seats: share.used.seats,
        mig: share.instance.and_then(|instance| placed(gpu, instance)),
    }
}

fn placed(gpu: &Gpu, instance: Instance) -> Option<Placed> {
    let cut = gpu.mig.as_ref().and_then(Mig::dynamic)?;
    let profile = cut.geometry.profiles().get(instance.profile)?;
    Some(Placed {
        profile: profile.name.clone(),
        start: instance.start,
    })
}
