//! Cards of a node that are cut as pods come: which instances are there, which of
//! them are held, and where the next one goes.
//!
//! Fed by: [`crate::node`], from the inventory and from what pods hold.
//! Must not: move or touch an instance that is held.

use crate::inventory::Gpu;
use crate::mig::place::on_card;
use crate::mig::published::{self, Placed};
use crate::mig::{Geometry, Instance, is_resource_of};
use crate::pin::Pin;
use crate::reason::Reason;
use crate::units::{Mib, Percent};
use crate::usage::Use;

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
        let known = held.and_then(|held| {
            let profile = geometry.find(&held.profile)?;
            let starts = &geometry.profiles()[profile].starts;
            let start = held.start;
            starts.contains(&start).then_some(Instance {
                profile,
                start,
                busy: true,
            })
        });
        match known {
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
    /// the same pod, at a start that its pins allow.
    pub(crate) fn offer(
        &self,
        gpu: &Gpu,
        found: &published::Cut,
        resource: &str,
        more: &[Instance],
        pins: &[Pin],
    ) -> Result<Offer, Reason> {
        let geometry = &found.geometry;
        let Some(profile) = profile_of(geometry, resource) else {
            return Err(Reason::CardMigProfileMismatch);
        };
        if self.unclear {
            return Err(Reason::ExclusiveDeviceAllocateConflict);
        }
        let wanted = &geometry.profiles()[profile];
        let allowed = |start: u8| {
            let mut pins = pins.iter();
            pins.len() == 0 || pins.any(|pin| pin.allows(gpu, found, &wanted.name, start))
        };
        if !wanted.starts.iter().any(|start| allowed(*start)) {
            return Err(Reason::CardUuidMismatch);
        }
        let mut all = self.clone();
        for instance in more {
            all.put(*instance);
        }
        if let Some((loss, place)) = on_card(geometry, &all.all, profile, allowed) {
            let (profile, start) = (place.profile, place.start);
            let instance = Instance {
                profile,
                start,
                busy: true,
            };
            return Ok(Offer { loss, instance });
        }
        all.all.retain(|one| one.busy);
        let (memory, compute) = geometry.left(&all.all);
        Err(if !pins.is_empty() {
            Reason::CardPinned
        } else if memory < u32::from(wanted.size) {
            Reason::CardInsufficientMemory
        } else if compute < wanted.compute {
            Reason::CardInsufficientCore
        } else {
            Reason::CardMigNoPlacement
        })
    }
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
