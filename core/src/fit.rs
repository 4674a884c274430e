//! May this node take this pod, on which cards, and if not, why.
//!
//! Fed by: [`crate::decide`] and [`crate::ledger`], with a node's state.
//! Must not: change anything; the same state and demand give the same answer.
//! Rules: HAMi's `Fit` (order of checks, exclusive cards, `gpucores: 0`), with
//! the effective use of [`crate::usage`] in place of its collapse.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::allocation::{self, Allocation, Grant};
use crate::card_policy::CardPolicy;
use crate::choose::{self, Candidate, Manner};
use crate::demand::{ContainerDemand, Demand, Stage};
use crate::id::NodeName;
use crate::inventory::Inventory;
use crate::judge::Judge;
use crate::node::{Card, NodeState};
use crate::reason::{Reason, Refusal};
use crate::request::{Ask, Memory};
use crate::score::Policy;
use crate::typical::Typical;
use crate::units::Mib;
use crate::usage::{self, Use};

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
    /// The pod's effective use of each card it touches, by the card's place.
    pub uses: Vec<(usize, Use)>,
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

/// One container on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    container: usize,
    card: usize,
    used: Use,
}

/// Places all containers of `demand` on the node's cards, or counts for each
/// card why not.
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
        containers.filter_map(move |(i, c)| Some((i, c.ask.as_ref().filter(|_| wanted(c.stage))?)))
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
        order.sort_by_key(|(_, ask)| Reverse(size(ask)));
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
    let uses = uses(demand, &shares);
    let score = judge.node(&uses);
    Ok(Fit {
        score,
        uses,
        shares,
    })
}

fn size(ask: &Ask) -> (u64, u32) {
    match ask.memory {
        Memory::Mib(memory) => (memory.0, ask.cores.0),
        // Unresolved percentages sort among the large ones by their part of 1 TiB.
        Memory::Share(part) => (Mib(crate::request::MAX_CARD_MIB).share(part).0, ask.cores.0),
    }
}

fn place(
    judge: &Judge<'_>,
    order: &[(usize, &Ask)],
    policy: CardPolicy,
    trace: &mut impl Trace,
) -> Result<Vec<Share>, Refusal> {
    let (node, demand) = (judge.node, judge.demand);
    let mut resources = node.resources.iter();
    let resource = resources.position(|name| *name == demand.resource);
    let rules = &demand.rules;
    // Rules that look at the cards themselves; most pods have none.
    let picky = node.inventory.as_ref().filter(|_| rules.choose_cards());
    let mut shares: Vec<Share> = Vec::with_capacity(order.len());
    let mut candidates = Vec::with_capacity(node.cards.len());
    for &(container, ask) in order {
        trace.container(container);
        let manner = Manner {
            count: usize::try_from(ask.count).unwrap_or(usize::MAX),
            one_numa: rules.one_numa || node.one_numa,
            numa_key: policy.numa_key(),
            links: policy.links,
        };
        if manner.count > node.cards.len() {
            return Err(Refusal::of(Reason::NodeInsufficientDevice));
        }
        let mut refusal = Refusal::default();
        candidates.clear();
        for (place, card) in node.cards.iter().enumerate() {
            let share = share(container, ask, place, card);
            let used = pod_use(demand, &shares, Some(share), place);
            let mismatch = resource != Some(usize::from(card.resource));
            let other = mismatch.then_some(Reason::CardTypeMismatch);
            let closed = card.closed.or(other);
            let unwanted = || picky.and_then(|found| rules.refuse(&found.gpus[place]));
            let refused = closed
                .or_else(unwanted)
                .or_else(|| room(card, &used, policy));
            trace.card(place, used, refused);
            if let Some(reason) = refused {
                refusal.add(reason);
                continue;
            }
            candidates.push(Candidate {
                stranger: demand.containers[container].stage == Stage::Init
                    && !shares.iter().any(|s| s.card == place),
                rank: judge.card(policy, place, used),
                place,
            });
        }
        if let Err(reason) = choose::choose(node, manner, &mut candidates) {
            if reason == Reason::NumaNotFit {
                for &Candidate { place, .. } in &candidates {
                    let share = share(container, ask, place, &node.cards[place]);
                    let used = pod_use(demand, &shares, Some(share), place);
                    trace.card(place, used, Some(reason));
                    refusal.add(reason);
                }
            } else if !candidates.is_empty() {
                refusal.add(reason);
            }
            return Err(refusal);
        }
        let chosen = candidates[..manner.count].iter().map(|chosen| chosen.place);
        shares.extend(chosen.map(|place| share(container, ask, place, &node.cards[place])));
    }
    Ok(shares)
}

/// What a container would get of a card.
fn share(container: usize, ask: &Ask, place: usize, card: &Card) -> Share {
    let memory = match ask.memory {
        Memory::Mib(memory) => memory,
        Memory::Share(part) => card.scaled.share(part),
    };
    Share {
        container,
        card: place,
        used: Use::of(memory, ask.cores),
    }
}

/// Why the card has no room for this use. `mutex` comes right after the seats
/// (HAMi 4.6 rule 7) and wants a card without any other share.
fn room(card: &Card, used: &Use, policy: CardPolicy) -> Option<Reason> {
    let refused = card.refuse(used);
    let busy = policy.idle && (card.sums.pods > 0 || used.seats > 1);
    match refused {
        Some(Reason::CardTimeSlicingExhausted) => refused,
        _ if busy => Some(Reason::ExclusiveDeviceAllocateConflict),
        _ => refused,
    }
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

/// The pod's effective use of each card that `shares` name.
fn uses(demand: &Demand, shares: &[Share]) -> Vec<(usize, Use)> {
    if let [share] = shares {
        return vec![(share.card, share.used)];
    }
    let mut cards: Vec<usize> = shares.iter().map(|share| share.card).collect();
    cards.sort_unstable();
    cards.dedup();
    let used = |card| (card, pod_use(demand, shares, None, card));
    cards.into_iter().map(used).collect()
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
                    mig: None,
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
