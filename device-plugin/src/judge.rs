//! The first `PreStartContainer` of a pod: may it have what its annotation says?
//!
//! Fed by: the watched pod, the node's inventory, the accepted shares.
//! Must not: be asked again for an accepted pod; read anything itself. A
//! refusal's text is read by the user in the pod's event: it says what to do.

use std::collections::BTreeSet;

use aliquot_core::inventory::{Health, Mode};
use aliquot_core::ledger::Held;
use aliquot_core::mig::published::Placed;
use aliquot_core::seen::Units;
use aliquot_core::{
    Allocation, Gpu, GpuUuid, Grant, Inventory, Mib, NodeName, Percent, PodUid, Reason,
};

use crate::accepted::{Accepted, Container};
use crate::checkpoint::Entry;
use crate::environment::{Effective, NodeRules};
use crate::modes::mps;
use crate::occupants;
use crate::pod::Pod;
use crate::units::{self, Arrangement};

/// The priority of pods that ask for none.
const LOW: u8 = 1;

/// What a decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// This node.
    pub node: &'a NodeName,
    /// What the node has, with its foreign and lingering holders.
    pub inventory: &'a Inventory,
    /// How its cards are shared.
    pub arrangement: &'a Arrangement,
    /// The node's rules for the environment.
    pub rules: NodeRules,
    /// The uid in the checkpoint.
    pub uid: &'a PodUid,
    /// The pod of that uid; `None` when the API server has none on this node.
    pub pod: Option<&'a Pod>,
    /// The checkpoint's entries for this pod and these seats.
    pub holders: &'a [&'a Entry],
    /// What pods that are still present were given before.
    pub others: &'a [&'a Accepted],
    /// What pods of HAMi that still run here hold.
    pub hamis: &'a [(PodUid, Held)],
    /// What pods hold whose accepted share cannot be read back, by what else is known of them.
    pub damaged: &'a [(PodUid, Held)],
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The share to store and to serve from now on.
    Accept(Box<Accepted>),
    /// Why not.
    Refuse(Refusal),
}

mod refusal;

pub use refusal::{ByEnv, Refusal};

/// Accepts or refuses. The same facts give the same answer.
pub fn judge(facts: Facts<'_>) -> Verdict {
    match accept(facts) {
        Ok(accepted) => Verdict::Accept(Box::new(accepted)),
        Err(refusal) => Verdict::Refuse(refusal),
    }
}

fn accept(facts: Facts<'_>) -> Result<Accepted, Refusal> {
    let pod = facts
        .pod
        .ok_or_else(|| Refusal::Unknown(facts.uid.clone()))?;
    if pod.mirror {
        return Err(Refusal::Static(pod.full_name()));
    }
    let text = pod.allocation.as_deref();
    let text = text.ok_or_else(|| Refusal::NoAllocation(pod.full_name()))?;
    let mut allocation = Allocation::decode(text)
        .map_err(|error| Refusal::Unreadable(pod.full_name(), error.to_string()))?;
    if allocation.node != *facts.node {
        return Err(Refusal::OtherNode(allocation.node));
    }
    if !facts.rules.may.set_priority {
        allocation.priority = allocation.priority.max(LOW);
    }
    holders_have_their_share(facts, &allocation)?;
    let shared = |unit: &GpuUuid| facts.inventory.gpu(unit).map(|unit| unit.mode);
    for container in &pod.containers {
        let grants = allocation.grants(&container.name).unwrap_or_default();
        if let Some(unit) = mps::beside_another(grants, shared) {
            return Err(Refusal::BesideMps(container.name.clone(), unit.clone()));
        }
    }
    let units = |name: &str| {
        let grants = allocation.grants(name).unwrap_or_default();
        let grants = grants.iter();
        grants.filter_map(|grant| facts.inventory.gpu(&grant.gpu))
    };
    let containers = pod.containers.iter().map(|container| Container {
        name: container.name.clone(),
        stage: container.stage,
        effective: Effective::of(
            &container.env,
            facts.rules,
            units(&container.name).any(|unit| unit.scaled > unit.memory),
        ),
    });
    let containers = containers.collect();
    let every = pod.containers.iter();
    let modes = every.flat_map(|container| units(&container.name));
    let modes = modes.map(|unit| (unit.uuid.clone(), unit.mode)).collect();
    let more = pod.containers.iter().flat_map(|c| units(&c.name));
    let more = more.filter(|unit| unit.scaled > unit.memory);
    let promised = more.map(|unit| (unit.uuid.clone(), unit.scaled)).collect();
    let mut accepted = Accepted::new(
        facts.uid.clone(),
        pod.namespace.clone(),
        pod.name.clone(),
        allocation,
        containers,
    );
    accepted.modes = modes;
    accepted.promised = promised;
    cards_can_carry(facts, &accepted)?;
    Ok(accepted)
}

fn holders_have_their_share(facts: Facts<'_>, allocation: &Allocation) -> Result<(), Refusal> {
    for holder in facts.holders {
        holder_has_its_share(holder, allocation)?;
    }
    Ok(())
}

/// The allocation names this container, with as many cards as it holds seats.
/// Asked again at every start: the kubelet may have handed out seats anew.
pub fn holder_has_its_share(holder: &Entry, allocation: &Allocation) -> Result<(), Refusal> {
    let grants = allocation.grants(&holder.container).unwrap_or_default();
    let of_it = grants.iter().filter(|g| g.resource == holder.resource);
    let granted = of_it.map(|grant| usize::try_from(grant.seats).unwrap_or(usize::MAX));
    let granted = granted.fold(0, usize::saturating_add);
    if granted == 0 {
        return Err(Refusal::NoShare(holder.container.clone()));
    }
    if granted != holder.ids.len() {
        return Err(Refusal::Count {
            container: holder.container.clone(),
            granted,
            held: holder.ids.len(),
        });
    }
    Ok(())
}

fn cards_can_carry(facts: Facts<'_>, accepted: &Accepted) -> Result<(), Refusal> {
    let inventory = facts.inventory;
    let known = |held: &Held| *held != Held::Unreadable;
    if let Some((pod, _)) = facts.hamis.iter().find(|(_, held)| !known(held)) {
        return Err(Refusal::HamiUnreadable(pod.clone()));
    }
    if let Some((pod, _)) = facts.damaged.iter().find(|(_, held)| !known(held)) {
        return Err(Refusal::ShareUnreadable(pod.clone()));
    }
    // Only what is on the cards that it wants matters: hundreds may be on others.
    let cards: BTreeSet<&str> = accepted.uses().keys().map(card).collect();
    let wanted = |unit: &GpuUuid| cards.contains(card(unit));
    let mut open = inventory.clone();
    open.gpus.retain(|gpu| wanted(&gpu.uuid));
    for gpu in &mut open.gpus {
        // What was bound before a card was cordoned may start on it.
        gpu.cordon = None;
    }
    let others = facts.others.iter().filter(|o| o.uses().keys().any(wanted));
    let others = others.map(|other| (&other.pod, Held::Uses(other.uses().clone())));
    let others: Vec<(&PodUid, Held)> = others.collect();
    let others = others.iter().map(|(pod, held)| (*pod, held));
    let more = facts.hamis.iter().chain(facts.damaged);
    let held: Vec<_> = others.chain(more.map(|(pod, held)| (pod, held))).collect();
    let known = Units::of(&open, &[], &held);
    for (gpu, wanted) in accepted.uses().clone() {
        let Some((place, full)) = known.carries(&open, &gpu, &wanted) else {
            return Err(Refusal::NoCard(gpu));
        };
        let (has, card) = (&open.gpus[place], &known.cards[place]);
        if let Health::Sick(why) = &has.health {
            return Err(Refusal::Sick(gpu, why.clone()));
        }
        let stand = facts.arrangement.cards.get(occupants::card_of(has));
        if let Some(stand) = stand.filter(|stand| stand.switching) {
            return Err(Refusal::Changing(
                gpu,
                stand.cordon.clone().unwrap_or_default(),
            ));
        }
        let grants = || accepted.allocation.all().flat_map(|(_, grants)| grants);
        let mut on_it = grants().filter(|grant| grant.unit() == gpu);
        if let Some(grant) = on_it.find(|grant| !keeps(has, grant)) {
            return Err(Refusal::Shared {
                gpu,
                mode: has.mode,
                given: (grant.memory, grant.cores),
            });
        }
        let offers = units::offers(has);
        let offered = |grant: &Grant| offers.iter().any(|offer| offer.resource == grant.resource);
        let other = !grants().all(|grant| grant.unit() != gpu || offered(grant));
        let other = other.then_some(Reason::CardTypeMismatch);
        if let Some(reason) = other.or(full) {
            return Err(Refusal::Full {
                gpu,
                reason,
                wanted,
                held: card.sums.used,
                has: Box::new(has.clone()),
            });
        }
    }
    Ok(())
}

/// The unit's name in the inventory: of an instance that is made as pods come, its card's.
fn card(unit: &GpuUuid) -> &str {
    Placed::of(unit).map_or(unit.as_str(), |(card, _)| card)
}

/// The unit, as it is shared now, holds what was granted: turns keep no amounts, and a turn names
/// none, so that it would be without a limit where there are some.
fn keeps(has: &Gpu, grant: &Grant) -> bool {
    let a_turn = (grant.memory, grant.cores) == (Mib(0), Percent(0));
    match has.mode {
        Mode::Timeslice => a_turn,
        Mode::Vgpu | Mode::Mps => !a_turn || has.even.is_some_and(|even| even.memory == Mib(0)),
        Mode::Exclusive | Mode::Mig | Mode::Unknown => true,
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
