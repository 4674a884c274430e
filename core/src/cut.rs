//! Cards of a node that are cut as pods come: which instances are there, which of
//! them are held, and where the next one goes.
//!
//! Fed by: [`crate::node`], from the inventory and from what pods hold.
//! Must not: move or touch an instance that is held.

use crate::demand::Demand;
use crate::id::Namespace;
use crate::inventory::Gpu;
use crate::mig::place::on_card;
use crate::mig::published::{self, Mig, Placed, Reserved};
use crate::mig::{Geometry, Instance, is_resource_of};
use crate::node::NodeState;
use crate::reason::Reason;
use crate::units::{Mib, Percent};
use crate::usage::{Use, Uses};

/// One such card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The card's place on the node.
    pub card: usize,
    /// Its instances: those that are held, and those that are there and idle.
    pub all: Vec<Instance>,
    /// Somebody holds something of it that is no instance that it can have: then
    /// nobody knows what is free.
    pub unclear: bool,
}

/// Where an instance would go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// What the card could give less afterwards.
    pub(crate) loss: u32,
    pub(crate) instance: Instance,
}

impl Cut {
    /// The card with the instances that its agent found, none held.
    pub(crate) fn new(card: usize, found: &published::Cut) -> Self {
        let known = found.instances.iter().filter_map(|made| {
            Some(Instance {
                profile: found.geometry.find(&made.profile)?,
                start: made.start,
                busy: false,
            })
        });
        Self {
            card,
            all: known.collect(),
            unclear: false,
        }
    }

    /// Somebody holds this instance; `None` for something that is none.
    pub(crate) fn hold(&mut self, geometry: &Geometry, held: Option<&Placed>) {
        match held.and_then(|held| geometry.instance(held)) {
            Some(instance) => self.put(instance),
            None => self.unclear = true,
        }
    }

    /// This instance is held.
    pub(crate) fn put(&mut self, instance: Instance) {
        let same =
            |one: &&mut Instance| (one.profile, one.start) == (instance.profile, instance.start);
        match self.all.iter_mut().find(same) {
            Some(one) => one.busy = true,
            None => self.all.push(instance),
        }
    }

    /// Which memory slices are free, and where the instances of this resource may
    /// start, for people; `None` for a resource of no profile of the card.
    pub(crate) fn told(&self, geometry: &Geometry, resource: &str) -> Option<String> {
        let profile = &geometry.profiles()[profile_of(geometry, resource)?];
        let held: Vec<Instance> = self.all.iter().copied().filter(|one| one.busy).collect();
        let (free, _) = geometry.left(&held);
        let bits = (0..16_u8).filter(|bit| free & (1 << bit) != 0);
        let list = |numbers: &mut dyn Iterator<Item = u8>| {
            let texts: Vec<String> = numbers.map(|number| number.to_string()).collect();
            texts.join(", ")
        };
        let free = match list(&mut { bits }) {
            none if none.is_empty() => "no slice is free".to_owned(),
            some => format!("free slices: {some}"),
        };
        let starts = list(&mut profile.starts.iter().copied());
        let (name, size) = (&profile.name, profile.size);
        Some(format!("{free}; {name} takes {size} from {starts}"))
    }

    /// No two of the instances that are held overlap, and there are no more of
    /// them than the card can have.
    pub fn is_legal(&self, geometry: &Geometry) -> bool {
        let held: Vec<Instance> = self.all.iter().copied().filter(|one| one.busy).collect();
        (0..held.len()).all(|at| {
            let mut starts = geometry.starts(held[at].profile, &held[..at]);
            starts.any(|start| start == held[at].start)
        })
    }

    /// The best place for one more instance under this resource beside `more` of
    /// the same pod, at a start that its rules allow: one that is kept for it, else
    /// one that is kept for nobody.
    pub(crate) fn offer(
        &self,
        gpu: &Gpu,
        found: &published::Cut,
        resource: &str,
        more: &[Instance],
        demand: &Demand,
    ) -> Result<Offer, Reason> {
        let geometry = &found.geometry;
        let Some(profile) = profile_of(geometry, resource) else {
            return Err(Reason::CardMigProfileMismatch);
        };
        if self.unclear {
            return Err(Reason::ExclusiveDeviceAllocateConflict);
        }
        let wanted = &geometry.profiles()[profile];
        let rules = &demand.rules;
        let allowed = |start: u8| rules.allow_instance(gpu, found, &wanted.name, start);
        if !wanted.starts.iter().any(|start| allowed(*start)) {
            return Err(Reason::CardUuidMismatch);
        }
        let mut all = self.clone();
        for instance in more {
            all.put(*instance);
        }
        let mut beside = all.clone();
        beside.keep(found, &demand.namespace);
        let own = |start: u8| {
            let here =
                |kept: &&Reserved| (&kept.place.profile, kept.place.start) == (&wanted.name, start);
            let mut kept = found.reserved.iter().filter(here);
            allowed(start) && kept.any(|kept| kept.namespaces.contains(&demand.namespace))
        };
        let kept = on_card(geometry, &beside.all, profile, own).map(|(_, place)| (0, place));
        let best = kept.or_else(|| on_card(geometry, &beside.all, profile, allowed));
        if let Some((loss, place)) = best {
            let (profile, start) = (place.profile, place.start);
            let instance = Instance {
                profile,
                start,
                busy: true,
            };
            return Ok(Offer { loss, instance });
        }
        if on_card(geometry, &all.all, profile, allowed).is_some() {
            return Err(Reason::CardReserved);
        }
        all.all.retain(|one| one.busy);
        let (memory, compute) = geometry.left(&all.all);
        Err(if !rules.pins.is_empty() {
            Reason::CardPinned
        } else if memory.count_ones() < u32::from(wanted.size) {
            Reason::CardInsufficientMemory
        } else if compute < wanted.compute {
            Reason::CardInsufficientCore
        } else {
            Reason::CardMigNoPlacement
        })
    }

    /// What is kept for others than pods of this namespace counts as held; where
    /// somebody holds a part of it, nothing of it is left to keep.
    fn keep(&mut self, found: &published::Cut, namespace: &Namespace) {
        let geometry = &found.geometry;
        let others = found.reserved.iter();
        for kept in others.filter(|kept| !kept.namespaces.contains(namespace)) {
            let Some(place) = geometry.instance(&kept.place) else {
                continue;
            };
            let slices = |one: &Instance| geometry.profiles()[one.profile].slices(one.start);
            let mut held = self.all.iter().filter(|one| one.busy);
            if held.all(|one| slices(one) & slices(&place) == 0) {
                self.put(place);
            }
        }
    }
}

/// Somebody who holds this has what the pod's pins name, or a part of it.
pub fn in_the_way(node: &NodeState, demand: &Demand, held: &Uses) -> bool {
    let gpus = node.inventory.iter().flat_map(|inventory| &inventory.gpus);
    let mut meant = gpus.flat_map(|gpu| demand.rules.pins.iter().map(move |pin| (gpu, pin)));
    meant.any(|(gpu, pin)| {
        let Some(found) = gpu.mig.as_ref().and_then(Mig::dynamic) else {
            return pin.may_be(gpu) && held.contains_key(&gpu.uuid);
        };
        let profiles = found.geometry.profiles();
        let wanted = profiles.iter().flat_map(|profile| {
            let named = demand.resources.iter();
            let mut asked = named.filter(|name| is_resource_of(name, &profile.name));
            let starts = profile.starts.iter().filter(|start| {
                let name = &profile.name;
                pin.allows(gpu, found, name, **start)
            });
            let starts = if asked.next().is_some() {
                Some(starts)
            } else {
                None
            };
            starts
                .into_iter()
                .flatten()
                .map(|start| profile.slices(*start))
        });
        let wanted = wanted.fold(0, |all, slices| all | slices);
        held.keys().filter_map(Placed::of).any(|(card, placed)| {
            let profile = profiles.iter().find(|p| p.name == placed.profile);
            let slices = profile.map_or(u16::MAX, |profile| profile.slices(placed.start));
            card == gpu.uuid.as_str() && slices & wanted != 0
        })
    })
}

/// The profile whose instances this resource is.
pub(crate) fn profile_of(geometry: &Geometry, resource: &str) -> Option<usize> {
    let mut profiles = geometry.profiles().iter();
    profiles.position(|profile| is_resource_of(resource, &profile.name))
}

/// What an instance takes of its card: its memory, and its part of the compute.
pub(crate) fn use_of(geometry: &Geometry, profile: usize) -> Use {
    let found = &geometry.profiles()[profile];
    let part = 100 * u32::from(found.compute) / u32::from(geometry.compute().max(1));
    Use::of(found.memory, Percent(part.min(100)))
}

/// The memory of the largest instance that could be made now.
pub(crate) fn largest(cut: &Cut, geometry: &Geometry) -> Option<Mib> {
    let held: Vec<Instance> = cut.all.iter().copied().filter(|one| one.busy).collect();
    let able = (0..geometry.profiles().len())
        .filter(|profile| !cut.unclear && geometry.starts(*profile, &held).next().is_some());
    able.map(|profile| geometry.profiles()[profile].memory)
        .max()
}
