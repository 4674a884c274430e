//! What of this node's cards can be booked: whole cards and MIG instances, each with its seats
//! under a resource name.
//!
//! Fed by: the driver's facts and the mode that each card has now. Must not: ask the driver,
//! or show a card whose mode is not known.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::{self, Gpu, Health};
use aliquot_core::{GpuUuid, Percent};
use aliquot_nvml as nvml;
use aliquot_profiles::{Defaults, Mode, Reserve};

use crate::inventory::Node;
use crate::modes::{exclusive, mig, mps, timeslice, vgpu};
use crate::proto::v1beta1::{Device, TopologyInfo};
use crate::proto::{HEALTHY, UNHEALTHY};
use crate::reserve;
use crate::seat::{Ids, MAX_ID};
use crate::topology;

/// Seats that living pods hold, by resource.
pub type Held = BTreeMap<String, Ids>;

/// How the node's cards are shared now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// The resource of cards that have no name of their own.
    pub usual: String,
    /// How each card is shared. One that is not here is not offered.
    pub cards: BTreeMap<GpuUuid, Stand>,
}

/// How one card is shared now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The mode, nothing left open.
    pub mode: Mode,
    /// Why it takes no new share.
    pub cordon: Option<String>,
    /// Its mode is being taken back or made: nobody may start on it.
    pub switching: bool,
    /// What of it only some namespaces are given.
    pub reserve: Vec<Reserve>,
}

impl Stand {
    /// A card that takes shares.
    pub fn open(mode: Mode) -> Self {
        Self {
            mode,
            cordon: None,
            switching: false,
            reserve: Vec::new(),
        }
    }
}

impl Arrangement {
    /// vgpu on all cards: what a node does whose owner configured nothing.
    pub fn built_in(facts: &nvml::Inventory, usual: &str, defaults: &Defaults) -> Self {
        let mode = Mode::Vgpu(aliquot_profiles::mode::Vgpu::default()).filled(defaults);
        let stand = |card: &nvml::CardFacts| (card.uuid.as_str().into(), Stand::open(mode.clone()));
        Self {
            usual: usual.to_owned(),
            cards: facts.cards.iter().map(stand).collect(),
        }
    }
}

/// Seats of a unit under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The resource.
    pub resource: String,
    /// The numbers of the seats, `<unit uuid>::<number>`.
    pub numbers: Vec<u32>,
}

/// The units of all cards, by index of their card.
pub fn units(
    facts: &nvml::Inventory,
    health: &[nvml::CardHealth],
    arrangement: &Arrangement,
) -> Vec<Gpu> {
    let cards = facts.cards.iter().filter_map(|card| {
        let stand = arrangement.cards.get(&GpuUuid::from(card.uuid.as_str()))?;
        Some((card, stand))
    });
    let units = cards.flat_map(|(card, stand)| {
        let mut whole = whole(card, health, &arrangement.usual);
        whole.cordon.clone_from(&stand.cordon);
        let mut units = match &stand.mode {
            Mode::Vgpu(vgpu) => vec![vgpu::unit(whole, card, vgpu)],
            Mode::Exclusive(settings) => vec![exclusive::unit(whole, settings)],
            Mode::Timeslice(settings) => vec![timeslice::unit(whole, settings)],
            Mode::Mps(settings) => vec![mps::unit(whole, settings)],
            Mode::Mig(settings) => mig::units(&whole, card, health, settings),
            Mode::Unmanaged => Vec::new(),
        };
        reserve::keep(&mut units, &stand.reserve);
        units
    });
    units.collect()
}

/// A whole card before its mode says how many may be on it.
fn whole(card: &nvml::CardFacts, health: &[nvml::CardHealth], usual: &str) -> Gpu {
    let health = health_of(&card.uuid, health).unwrap_or(Health::Ok);
    let links = card.links.iter();
    Gpu {
        uuid: card.uuid.as_str().into(),
        index: card.index,
        model: card.model.clone(),
        memory: card.memory,
        scaled: card.memory,
        cores: Percent::WHOLE,
        seats: 0,
        mode: inventory::Mode::Unknown,
        resource: usual.to_owned(),
        numa: card.numa,
        health,
        links: links
            .map(|(uuid, score)| (uuid.as_str().into(), *score))
            .collect(),
        mig: None,
        cordon: None,
        even: None,
        strict: false,
        reserved: Vec::new(),
    }
}

/// What was read of a card's or an instance's health.
pub(crate) fn health_of(uuid: &str, health: &[nvml::CardHealth]) -> Option<Health> {
    let found = health.iter().find(|one| one.uuid == uuid)?;
    Some(match &found.health {
        nvml::Health::Ok => Health::Ok,
        nvml::Health::Lost(_) => Health::Sick("lost".to_owned()),
        nvml::Health::RecoveryAsked(action) => Health::Sick(format!("recovery {action}")),
        nvml::Health::Xid(code) => Health::Sick(format!("xid {code}")),
    })
}

/// Under which names a unit has which seats. A mode that we do not serve has none.
pub fn offers(unit: &Gpu) -> Vec<Offer> {
    match unit.mode {
        inventory::Mode::Unknown => Vec::new(),
        inventory::Mode::Mig => mig::offers(unit),
        _ => vec![Offer {
            resource: unit.resource.clone(),
            numbers: (0..unit.seats).collect(),
        }],
    }
}

/// The resources that the kubelet must know: those of the units, and those that living pods
/// still hold seats of.
pub fn resources(node: &Node) -> BTreeSet<String> {
    let offered = node.inventory.gpus.iter().flat_map(offers);
    let offered = offered.map(|offer| offer.resource);
    let held = node.held.iter().filter(|(_, ids)| !ids.is_empty());
    offered
        .chain(held.map(|(resource, _)| resource.clone()))
        .collect()
}

/// The seats of a resource to show the kubelet. One whose id would be too long for it is left
/// out. A sick card's free seats are unhealthy. What living pods hold is healthy, whatever
/// became of its card, and stays until they end: else the kubelet would count its pods against
/// the seats of other cards. One that is held under another name, which its card had before, is
/// not offered under this one too. A node that the agent leaves has none.
pub fn seats(node: &Node, resource: &str) -> Vec<Device> {
    if node.leaving_node {
        return Vec::new();
    }
    let nothing = Ids::new();
    let held = node.held.get(resource).unwrap_or(&nothing);
    let policy = node.inventory.topology_policy.as_str();
    let mut seats = Vec::new();
    let mut offered = BTreeSet::new();
    for gpu in &node.inventory.gpus {
        for offer in offers(gpu).iter().filter(|o| o.resource == resource) {
            for &number in &offer.numbers {
                let id = format!("{}::{number}", gpu.uuid);
                // A card that is cut as pods come has the same numbers under several names.
                if gpu.mode != inventory::Mode::Mig && is_held_elsewhere(node, resource, &id) {
                    continue;
                }
                let healthy = gpu.health == Health::Ok || held.contains(&id);
                offered.insert(id.clone());
                seats.push(device(id, healthy, topology::of_seat(gpu, policy)));
            }
        }
    }
    let kept = held.iter().filter(|id| !offered.contains(*id));
    seats.extend(kept.map(|id| device(id.clone(), true, None)));
    seats.retain(|seat| seat.id.len() <= MAX_ID);
    seats
}

fn is_held_elsewhere(node: &Node, resource: &str, id: &str) -> bool {
    let mut others = node.held.iter().filter(|(name, _)| *name != resource);
    others.any(|(_, ids)| ids.contains(id))
}

/// Living pods hold seats that are not offered any more.
pub fn beyond_offers(node: &Node) -> bool {
    let mut offered: BTreeMap<String, Ids> = BTreeMap::new();
    for gpu in &node.inventory.gpus {
        for offer in offers(gpu) {
            let ids = offer
                .numbers
                .iter()
                .map(|number| format!("{}::{number}", gpu.uuid));
            offered.entry(offer.resource).or_default().extend(ids);
        }
    }
    let nothing = Ids::new();
    let mut held = node.held.iter();
    held.any(|(resource, ids)| !ids.is_subset(offered.get(resource).unwrap_or(&nothing)))
}

fn device(id: String, healthy: bool, topology: Option<TopologyInfo>) -> Device {
    Device {
        id,
        health: if healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology,
    }
}

#[cfg(test)]
#[path = "units_tests.rs"]
mod tests;
