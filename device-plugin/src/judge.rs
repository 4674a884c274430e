//! The first `PreStartContainer` of a pod: may it have what its annotation says?
//!
//! Fed by: the watched pod, the node's inventory, the accepted shares.
//! Must not: be asked again for an accepted pod; read anything itself. A
//! refusal's text is read by the user in the pod's event: it says what to do.

use std::collections::BTreeMap;
use std::fmt;

use aliquot_core::inventory::{Health, Mode};
use aliquot_core::ledger::Held;
use aliquot_core::seen::Units;
use aliquot_core::usage::Use;
use aliquot_core::{
    Allocation, Gpu, GpuUuid, Grant, Inventory, Mib, NodeName, Percent, PodUid, Reason,
};

use crate::accepted::{Accepted, Container};
use crate::checkpoint::Entry;
use crate::environment::{Effective, NodeRules};
use crate::occupants;
use crate::pod::Pod;
use crate::units::{self, Arrangement};

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

/// Why a pod may not start, with what its user should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The API server has no such pod here.
    Unknown(PodUid),
    /// A static pod.
    Static(String),
    /// Bound past the scheduler.
    NoAllocation(String),
    /// The annotation cannot be read.
    Unreadable(String, String),
    /// Bound to another node than its allocation says.
    OtherNode(NodeName),
    /// The allocation has nothing for this container.
    NoShare(String),
    /// The kubelet gave another number of seats than the allocation has cards.
    Count {
        /// The container.
        container: String,
        /// Cards in its allocation.
        granted: usize,
        /// Seats in the checkpoint.
        held: usize,
    },
    /// The allocation names a card that is not here.
    NoCard(GpuUuid),
    /// Nobody knows what a pod of HAMi holds here.
    HamiUnreadable(PodUid),
    /// Nobody knows what a pod that was accepted here holds.
    ShareUnreadable(PodUid),
    /// The card is shared in another way than when the pod was bound.
    Shared {
        /// The card.
        gpu: GpuUuid,
        /// How it is shared now.
        mode: Mode,
        /// What the pod was given of it.
        given: (Mib, Percent),
    },
    /// The card is not usable.
    Sick(GpuUuid, String),
    /// The card is between two modes.
    Changing(GpuUuid, String),
    /// The card cannot carry this beside what was accepted before.
    Full {
        /// The card.
        gpu: GpuUuid,
        /// Why.
        reason: Reason,
        /// What the pod was given of it.
        wanted: Use,
        /// What others hold of it.
        held: Use,
        /// What it has.
        has: Box<Gpu>,
    },
}

const AGAIN: &str = "delete the pod and create it again with `schedulerName: aliquot-scheduler` and without `spec.nodeName`";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(uid) => write!(
                f,
                "the API server has no pod with uid {uid} on this node: a static pod cannot ask for a share of a GPU, because it does not pass the scheduler; run it as a Deployment or DaemonSet with `schedulerName: aliquot-scheduler`"
            ),
            Self::Static(pod) => write!(
                f,
                "{pod} is a static pod, which does not pass the scheduler and so cannot have a share of a GPU; run it as a Deployment or DaemonSet with `schedulerName: aliquot-scheduler`"
            ),
            Self::NoAllocation(pod) => write!(
                f,
                "{pod} was bound to this node without a share of a GPU (no annotation aliquot.dev/allocation): {AGAIN}"
            ),
            Self::Unreadable(pod, why) => write!(
                f,
                "the annotation aliquot.dev/allocation of {pod} cannot be used ({why}): {AGAIN}"
            ),
            Self::OtherNode(node) => write!(
                f,
                "the pod's allocation is for node {node}, but the pod is on another: {AGAIN}"
            ),
            Self::NoShare(container) => write!(
                f,
                "the pod's allocation has no share for container {container}: {AGAIN}"
            ),
            Self::Count {
                container,
                granted,
                held,
            } => write!(
                f,
                "container {container} was given {granted} GPU(s), but the kubelet reserved {held} seat(s) for it: {AGAIN}"
            ),
            Self::NoCard(gpu) => write!(
                f,
                "the pod was given {gpu}, which is not on this node any more: delete the pod and create it again"
            ),
            Self::HamiUnreadable(pod) => write!(
                f,
                "the pod with uid {pod} was placed here by HAMi, and its annotation hami.io/vgpu-devices-allocated cannot be read, so nobody knows what is free: ask your administrator to delete that pod"
            ),
            Self::ShareUnreadable(pod) => write!(
                f,
                "what the pod with uid {pod} was given here cannot be read back, neither from the agent's store nor from its annotation, so nobody knows what is free: ask your administrator to delete that pod"
            ),
            Self::Shared {
                gpu,
                mode: Mode::Timeslice,
                given: (memory, cores),
            } => write!(
                f,
                "the pod was given {memory} and {cores} compute of {gpu}, which is shared in turns now (timeslice) and keeps no amount for anybody: delete the pod and create it again"
            ),
            Self::Shared { gpu, .. } => write!(
                f,
                "the pod was given a turn of {gpu}, which is shared by amounts now: delete the pod and create it again"
            ),
            Self::Sick(gpu, why) => write!(
                f,
                "the pod was given {gpu}, which is not usable now ({why}): wait for the GPU to recover, or delete the pod and create it again"
            ),
            Self::Changing(gpu, how) => write!(
                f,
                "the pod was given {gpu}, which {how}: delete the pod and create it again"
            ),
            Self::Full {
                gpu,
                reason,
                wanted,
                held,
                has,
            } => write!(
                f,
                "{gpu} cannot carry this pod ({reason}): it needs {} with {} compute, others hold {} of {} with {} compute in {} of {} seats: delete the pod and create it again",
                wanted.memory,
                wanted.cores,
                held.memory,
                has.scaled,
                held.cores,
                held.seats,
                has.seats
            ),
        }
    }
}

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
    let allocation = Allocation::decode(text)
        .map_err(|error| Refusal::Unreadable(pod.full_name(), error.to_string()))?;
    if allocation.node != *facts.node {
        return Err(Refusal::OtherNode(allocation.node));
    }
    holders_have_their_share(facts, &allocation)?;
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
    let held: BTreeMap<&PodUid, Held> = facts
        .others
        .iter()
        .map(|other| (&other.pod, Held::Uses(other.uses().clone())))
        .collect();
    let mut held: Vec<(&PodUid, &Held)> = held.iter().map(|(pod, held)| (*pod, held)).collect();
    held.extend(facts.hamis.iter().map(|(pod, held)| (pod, held)));
    if let Some((pod, _)) = held.iter().find(|(_, held)| **held == Held::Unreadable) {
        return Err(Refusal::HamiUnreadable((*pod).clone()));
    }
    let damaged = || facts.damaged.iter();
    if let Some((pod, _)) = damaged().find(|(_, held)| *held == Held::Unreadable) {
        return Err(Refusal::ShareUnreadable(pod.clone()));
    }
    held.extend(damaged().map(|(pod, held)| (pod, held)));
    // What was bound before a card was cordoned may start on it.
    let mut open = inventory.clone();
    for gpu in &mut open.gpus {
        gpu.cordon = None;
    }
    let known = Units::of(&open, &[], &held);
    for (gpu, wanted) in accepted.uses().clone() {
        let Some((place, full)) = known.carries(inventory, &gpu, &wanted) else {
            return Err(Refusal::NoCard(gpu));
        };
        let (has, card) = (&inventory.gpus[place], &known.cards[place]);
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
