//! One container after the other gets its units, or each unit's reason why not.
//!
//! Fed by: [`crate::fit`], which says in which order. Must not: change the node;
//! what earlier containers of the pod took is in the shares so far.

mod instances;
mod numa;

use crate::card_policy::CardPolicy;
use crate::choose::{self, Candidate, Manner};
use crate::demand::{Demand, Stage};
use crate::fit::Trace;
use crate::inventory::Mode;
use crate::judge::Judge;
use crate::mig::{self, Instance};
use crate::node::{Align, Card, NodeState};
use crate::reason::{Reason, Refusal};
use crate::request::Ask;
use crate::share;
use crate::usage::{self, Use};
use numa::Numa;

/// One container on one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) container: usize,
    /// Which of the demand's resources.
    pub(crate) resource: u8,
    pub(crate) card: usize,
    pub(crate) used: Use,
    /// Which instance, on a card that is cut as pods come.
    pub(crate) instance: Option<Instance>,
    /// A whole card for one that wrote less.
    pub(crate) waste: bool,
    /// What its card can give less in instances.
    pub(crate) loss: u32,
}

/// Places all asks in this order.
pub(crate) fn place(
    judge: &Judge<'_>,
    order: &[(usize, &Ask)],
    policy: CardPolicy,
    trace: &mut impl Trace,
) -> Result<Vec<Share>, Refusal> {
    let mut placing = Placing {
        judge,
        policy,
        shares: Vec::with_capacity(order.len()),
        candidates: Vec::with_capacity(judge.node.cards.len()),
        numa: None,
    };
    let align = placing.align();
    if align == Align::Nothing {
        for &(container, ask) in order {
            trace.container(container);
            placing.one(container, ask, trace)?;
        }
    } else {
        placing.aligned(order, align, trace)?;
    }
    Ok(placing.shares)
}

struct Placing<'a, 'n> {
    judge: &'a Judge<'n>,
    policy: CardPolicy,
    shares: Vec<Share>,
    candidates: Vec<Candidate>,
    /// Only cards of this NUMA node, while something is tried there.
    numa: Option<Numa>,
}

impl Placing<'_, '_> {
    fn one(&mut self, container: usize, ask: &Ask, trace: &mut impl Trace) -> Result<(), Refusal> {
        let (node, demand) = (self.judge.node, self.judge.demand);
        let rules = &demand.rules;
        let units = if rules.same_unit { 1 } else { ask.count };
        let manner = Manner {
            count: usize::try_from(units).unwrap_or(usize::MAX),
            one_numa: self.align() != Align::Nothing,
            numa_key: self.policy.numa_key(),
            links: self.policy.links,
        };
        let name = demand.resource(ask);
        let cuts = !node.cuts.is_empty() && name.starts_with(mig::RESOURCES);
        if manner.count > node.cards.len() && !cuts {
            return Err(Refusal::of(Reason::NodeInsufficientDevice));
        }
        let mut refusal = self.judge_cards(container, ask, trace);
        if cuts && self.candidates.len() < manner.count {
            return self.with_instances(container, ask, manner, refusal, trace);
        }
        if let Err(reason) = choose::choose(node, manner, &mut self.candidates) {
            if reason == Reason::NumaNotFit && cuts {
                return self.with_instances(container, ask, manner, refusal, trace);
            }
            if reason == Reason::NumaNotFit {
                for &Candidate { place, .. } in &self.candidates {
                    let (_, used, _) = self.taken(container, ask, place);
                    trace.card(place, used, Some(reason));
                    refusal.add(reason);
                }
            } else if !self.candidates.is_empty() {
                refusal.add(reason);
            }
            return Err(refusal);
        }
        self.take(container, ask, manner.count);
        Ok(())
    }

    /// Finds the candidates among the units that are there for good.
    fn judge_cards(&mut self, container: usize, ask: &Ask, trace: &mut impl Trace) -> Refusal {
        let Self { judge, policy, .. } = *self;
        let (node, demand) = (judge.node, judge.demand);
        let mut resources = node.resources.iter();
        let name = demand.resource(ask);
        let resource = resources.position(|known| **known == *name);
        // Rules that look at the cards themselves; most pods have none.
        let rules = &demand.rules;
        let picky = node.inventory.as_ref().filter(|_| rules.choose_cards());
        let keeps = node
            .inventory
            .as_ref()
            .filter(|_| !node.kept_for.is_empty());
        let first = demand.containers[container].stage == Stage::Init;
        let mut refusal = Refusal::default();
        self.candidates.clear();
        for (place, card) in node.cards.iter().enumerate() {
            if card.mode == Mode::Mig && instances::serves(node, place, name) {
                continue;
            }
            let (own, used, wrong) = self.taken(container, ask, place);
            let mismatch = resource != Some(usize::from(card.resource));
            let other = || mismatch.then(|| mismatched(node, place, name));
            let unwanted = || picky.and_then(|found| rules.refuse(&found.gpus[place]));
            let kept = || keeps.and_then(|found| demand.kept_from(&found.gpus[place]));
            let refused = card
                .closed
                .or_else(other)
                .or_else(unwanted)
                .or_else(kept)
                .or(wrong)
                .or_else(|| room(card, &used, policy))
                .or_else(|| self.elsewhere(card))
                .map(|reason| pinned(reason, demand));
            trace.card(place, used, refused);
            if let Some(reason) = refused {
                refusal.add(reason);
                continue;
            }
            self.candidates.push(Candidate {
                stranger: first && !self.shares.iter().any(|s| s.card == place),
                waste: is_waste(card, &own, ask),
                rank: judge.card(policy, place, used),
                place,
            });
        }
        refusal
    }

    /// What the container would get of a unit, what the pod would then use of it,
    /// and why the unit's mode cannot serve it.
    fn taken(&self, container: usize, ask: &Ask, place: usize) -> (Use, Use, Option<Reason>) {
        let Judge { node, demand, .. } = *self.judge;
        let alone = demand.wants_one_unit(container);
        let (own, wrong) = share::of(node, place, ask, &demand.rules, alone);
        let used = pod_use(demand, &self.shares, Some((container, own)), place);
        (own, used, wrong)
    }

    /// The container gets the first candidates.
    fn take(&mut self, container: usize, ask: &Ask, count: usize) {
        for &Candidate { place, waste, .. } in &self.candidates[..count] {
            let Judge { node, demand, .. } = *self.judge;
            self.shares.push(Share {
                container,
                resource: ask.resource,
                card: place,
                used: share::of(node, place, ask, &demand.rules, true).0,
                instance: None,
                waste,
                loss: 0,
            });
        }
    }
}

/// Why a unit that is advertised under another resource does not serve.
fn mismatched(node: &NodeState, place: usize, name: &str) -> Reason {
    let gpu = node.inventory.as_ref().and_then(|i| i.gpus.get(place));
    let cut = gpu.is_some_and(|gpu| gpu.mig.is_some());
    match (cut, name.starts_with(mig::RESOURCES)) {
        (true, true) => Reason::CardMigProfileMismatch,
        (true, false) => Reason::CardModeMismatch,
        (false, _) => Reason::CardTypeMismatch,
    }
}

/// A pod that names its unit reads that somebody holds it.
fn pinned(reason: Reason, demand: &Demand) -> Reason {
    let held = matches!(
        reason,
        Reason::CardTimeSlicingExhausted | Reason::ExclusiveDeviceAllocateConflict
    );
    if held && !demand.rules.pins.is_empty() {
        Reason::CardPinned
    } else {
        reason
    }
}

/// The whole unit would go to one that is content with less.
fn is_waste(card: &Card, own: &Use, ask: &Ask) -> bool {
    card.mode == Mode::Exclusive && ask.resource == 0 && ask.cores < own.cores
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

/// The pod's effective use of `card` with `shares`, and `more` of a container if
/// it comes too.
fn pod_use(demand: &Demand, shares: &[Share], more: Option<(usize, Use)>, card: usize) -> Use {
    if let (true, Some((_, used))) = (shares.is_empty(), more) {
        return used;
    }
    let here = shares.iter().filter(|share| share.card == card);
    let mut on_card: Vec<(usize, Use)> = here.map(|s| (s.container, s.used)).collect();
    on_card.extend(more);
    on_unit(demand, on_card)
}

fn on_unit(demand: &Demand, mut containers: Vec<(usize, Use)>) -> Use {
    containers.sort_by_key(|(container, _)| *container);
    let stage = |container: usize| demand.containers[container].stage;
    usage::on_card(containers.into_iter().map(|(c, used)| (stage(c), used)))
}

/// Uses by the card's place, and instances by their place among the uses.
type Units = (Vec<(usize, Use)>, Vec<(usize, Instance)>);

/// The pod's effective use of each unit that `shares` name, and which of them are
/// instances, by their places in the list.
pub(crate) fn uses(demand: &Demand, shares: &[Share]) -> Units {
    if let [share] = shares {
        let instance = share.instance.map(|instance| (0, instance));
        return (
            vec![(share.card, share.used)],
            instance.into_iter().collect(),
        );
    }
    let unit = |share: &Share| (share.card, share.instance.map(|i| (i.start, i.profile)));
    let mut units: Vec<_> = shares.iter().map(unit).collect();
    units.sort_unstable();
    units.dedup();
    let mut uses = Vec::with_capacity(units.len());
    let mut instances = Vec::new();
    for (place, (card, instance)) in units.into_iter().enumerate() {
        let here = shares.iter().filter(|s| unit(s) == (card, instance));
        let containers = here.map(|share| (share.container, share.used)).collect();
        uses.push((card, on_unit(demand, containers)));
        instances.extend(instance.map(|(start, profile)| {
            let busy = true;
            let instance = Instance {
                profile,
                start,
                busy,
            };
            (place, instance)
        }));
    }
    (uses, instances)
}
