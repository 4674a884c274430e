//! An inventory's units as the books see them: compact, with what pods hold.
//!
//! Fed by: [`crate::node`] and the node's agent, with the same pods.
//! Must not: leave out a share that it cannot place; a card of which something
//! unknown is held gives nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cut::Cut;
use crate::id::{GpuUuid, PodUid};
use crate::inventory::{Gpu, Health, Inventory, Mode};
use crate::ledger::Held;
use crate::mig::published::{Mig, Placed};
use crate::node::{Card, Sums};
use crate::reason::Reason;
use crate::usage::Use;

/// The units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// In the inventory's order.
    pub cards: Vec<Card>,
    /// The resources that they are advertised under, without repetition.
    pub resources: Vec<Arc<str>>,
    /// Those that are cut as pods come.
    pub cuts: Vec<Cut>,
}

impl Units {
    /// The units of an inventory, with what these pods hold and with lingering
    /// shares of pods that are not among them. A share of a card that the inventory
    /// lacks counts again when the card comes back.
    pub fn of(inventory: &Inventory, cordoned: &[GpuUuid], pods: &[(&PodUid, &Held)]) -> Self {
        let mut units = Self {
            cards: Vec::with_capacity(inventory.gpus.len()),
            ..Self::default()
        };
        let mut places = BTreeMap::new();
        for (place, gpu) in inventory.gpus.iter().enumerate() {
            units.push(inventory, cordoned, gpu);
            places.insert(gpu.uuid.as_str(), place);
        }
        for (_, held) in pods {
            if let Held::Uses(uses) = held {
                for (unit, used) in uses {
                    units.add(inventory, &places, unit, *used);
                }
            }
        }
        for left in &inventory.lingering {
            if !pods.iter().any(|(pod, _)| **pod == left.pod) {
                units.add(inventory, &places, &left.gpu, left.used());
            }
        }
        units
    }

    fn push(&mut self, inventory: &Inventory, cordoned: &[GpuUuid], gpu: &Gpu) {
        let known = self.resources.iter().position(|n| **n == *gpu.resource);
        let resource = known.unwrap_or_else(|| {
            self.resources.push(gpu.resource.as_str().into());
            self.resources.len() - 1
        });
        let cut = gpu.mig.as_ref().and_then(Mig::dynamic);
        let cut = cut.filter(|_| gpu.mode == Mode::Mig);
        let closed = closed(inventory, cordoned, gpu);
        self.cards.push(Card {
            scaled: gpu.scaled,
            cores: gpu.cores,
            // As many instances as there are compute slices.
            seats: cut.map_or(gpu.seats, |cut| cut.geometry.compute().into()),
            numa: gpu.numa,
            mode: gpu.mode,
            strict: gpu.strict,
            resource: u8::try_from(resource).unwrap_or(u8::MAX),
            // Under more resources than a byte counts: nobody means that.
            closed: closed.or_else(|| (resource > 255).then_some(Reason::CardTypeMismatch)),
            sums: Sums::default(),
        });
        if let Some(cut) = cut {
            self.cuts.push(Cut::new(self.cards.len() - 1, cut));
        }
    }

    fn add(
        &mut self,
        inventory: &Inventory,
        places: &BTreeMap<&str, usize>,
        unit: &GpuUuid,
        used: Use,
    ) {
        let instance = Placed::of(unit);
        let card = instance.as_ref().map_or(unit.as_str(), |(card, _)| card);
        let Some(&place) = places.get(card) else {
            return;
        };
        self.cards[place].sums.add(used);
        if let Some(cut) = self.cuts.iter_mut().find(|cut| cut.card == place) {
            let found = inventory.gpus[place].mig.as_ref().and_then(Mig::dynamic);
            if let Some(found) = found {
                cut.hold(&found.geometry, instance.as_ref().map(|(_, placed)| placed));
            }
        }
    }

    /// Whether the unit of this name can carry this beside what these units carry:
    /// its place and why not; `None` for a unit that is not there.
    pub fn carries(
        &self,
        inventory: &Inventory,
        unit: &GpuUuid,
        used: &Use,
    ) -> Option<(usize, Option<Reason>)> {
        let instance = Placed::of(unit);
        let card = instance.as_ref().map_or(unit.as_str(), |(card, _)| card);
        let place = inventory
            .gpus
            .iter()
            .position(|g| g.uuid.as_str() == card)?;
        let Some((_, placed)) = instance else {
            return Some((place, self.cards[place].refuse(used)));
        };
        if let Some(closed) = self.cards[place].closed {
            return Some((place, Some(closed)));
        }
        let cut = self.cuts.iter().find(|cut| cut.card == place);
        let found = inventory.gpus[place].mig.as_ref().and_then(Mig::dynamic);
        let Some((cut, found)) = cut.zip(found) else {
            return Some((place, Some(Reason::CardModeMismatch)));
        };
        let mut more = cut.clone();
        more.hold(&found.geometry, Some(&placed));
        let legal = more.is_legal(&found.geometry) && !more.unclear;
        Some((place, (!legal).then_some(Reason::CardMigNoPlacement)))
    }
}

/// Why the unit takes no new share from anybody.
fn closed(inventory: &Inventory, cordoned: &[GpuUuid], gpu: &Gpu) -> Option<Reason> {
    let parent = gpu.mig.as_ref().and_then(Mig::part).map(|p| &p.parent);
    let is = |uuid: &GpuUuid| *uuid == gpu.uuid || Some(uuid) == parent;
    let unknown = match &gpu.mig {
        Some(Mig::Unknown(_)) => true,
        Some(Mig::Dynamic(_)) => gpu.mode != Mode::Mig,
        Some(Mig::Part(_)) | None => gpu.mode == Mode::Mig,
    };
    if gpu.health != Health::Ok {
        Some(Reason::CardNotHealth)
    } else if gpu.cordon.is_some() || cordoned.iter().any(is) {
        Some(Reason::CardCordoned)
    } else if unknown || gpu.mode == Mode::Unknown {
        Some(Reason::CardTypeMismatch)
    } else if inventory.foreign.iter().any(|foreign| is(&foreign.gpu)) {
        Some(Reason::CardHeldByForeignPod)
    } else {
        None
    }
}
