//! What the node publishes: the driver's facts under the node's settings, and
//! the seats that follow from it.
//!
//! Fed by: the driver, housekeeping (foreign, lingering), refusals.
//! Must not: ask the driver; write anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::inventory::{self, Foreign, Gpu, Health, Inventory, Lingering, Mode, Refused};
use aliquot_core::{GpuUuid, Percent, PodUid, Scaling, allocation};
use aliquot_nvml as nvml;
use tokio::sync::watch;

use crate::host::Card;
use crate::labels::Features;
use crate::proto::v1beta1::Device;
use crate::proto::{HEALTHY, UNHEALTHY};
use crate::seat::{MAX_ID, Seat};
use crate::sick::Sickness;

/// How the node shares its cards.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Seats on each card.
    pub seats: u32,
    /// Memory that may be promised.
    pub scaling: Scaling,
    /// The resource of the seats.
    pub resource: String,
}

/// The node's cards and holders, as last known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What is published.
    pub inventory: Inventory,
    /// How the host names each card.
    pub cards: BTreeMap<GpuUuid, Card>,
    /// What follows from sick cards.
    pub sickness: Sickness,
    /// What the driver says of the physical cards, for labels.
    pub features: Features,
}

/// One value that all parts of the agent share: readers subscribe, writers
/// change their own field.
#[derive(Clone, Debug)]
pub struct Published(watch::Sender<Arc<Node>>);

impl Published {
    /// Starts with these cards and no holders.
    pub fn new(facts: &nvml::Inventory, health: &[nvml::CardHealth], sharing: &Sharing) -> Self {
        let node = Node {
            inventory: Inventory {
                v: inventory::VERSION,
                reads: vec![allocation::VERSION],
                driver: facts.driver_version.clone(),
                topology_policy: "none".to_owned(),
                gpus: gpus(facts, health, sharing),
                lingering: Vec::new(),
                foreign: Vec::new(),
                refused: Vec::new(),
                evict: Vec::new(),
            },
            cards: cards(facts),
            sickness: Sickness::default(),
            features: Features::of(facts),
        };
        Self(watch::Sender::new(Arc::new(node)))
    }

    /// The current value.
    pub fn get(&self) -> Arc<Node> {
        Arc::clone(&self.0.borrow())
    }

    /// Sees every change from now on.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Node>> {
        self.0.subscribe()
    }

    /// New facts from the driver, and what follows from its sick cards.
    pub fn cards(
        &self,
        facts: &nvml::Inventory,
        health: &[nvml::CardHealth],
        sharing: &Sharing,
        sickness: Sickness,
    ) {
        self.change(|node| {
            node.inventory.driver.clone_from(&facts.driver_version);
            node.inventory.gpus = gpus(facts, health, sharing);
            node.inventory.evict.clone_from(&sickness.evict);
            node.cards = cards(facts);
            node.sickness = sickness;
            node.features = Features::of(facts);
        });
    }

    /// New findings of housekeeping.
    pub fn holders(&self, foreign: Vec<Foreign>, lingering: Vec<Lingering>) {
        self.change(|node| {
            node.inventory.foreign = foreign;
            node.inventory.lingering = lingering;
        });
    }

    /// A pod was refused.
    pub fn refused(&self, refused: Refused) {
        self.change(|node| {
            let list = &mut node.inventory.refused;
            list.retain(|other| other.pod != refused.pod);
            list.push(refused);
            list.sort_by(|a, b| a.pod.cmp(&b.pod));
        });
    }

    /// Only these refused pods are still there and still refused.
    pub fn keep_refused(&self, keep: impl Fn(&PodUid) -> bool) {
        self.change(|node| node.inventory.refused.retain(|refused| keep(&refused.pod)));
    }

    fn change(&self, change: impl FnOnce(&mut Node)) {
        self.0.send_if_modified(|current| {
            let mut next = Node::clone(current);
            change(&mut next);
            let changed = next != **current;
            if changed {
                *current = Arc::new(next);
            }
            changed
        });
    }
}

fn gpus(facts: &nvml::Inventory, health: &[nvml::CardHealth], sharing: &Sharing) -> Vec<Gpu> {
    let health_of = |uuid: &str| {
        let found = health.iter().find(|card| card.uuid == uuid);
        found.map_or(Health::Ok, |card| match &card.health {
            nvml::Health::Ok => Health::Ok,
            nvml::Health::Lost(_) => Health::Sick("lost".to_owned()),
            nvml::Health::RecoveryAsked(action) => Health::Sick(format!("recovery {action}")),
            nvml::Health::Xid(code) => Health::Sick(format!("xid {code}")),
        })
    };
    let gpu = |card: &nvml::CardFacts| Gpu {
        uuid: card.uuid.as_str().into(),
        index: card.index,
        model: card.model.clone(),
        memory: card.memory,
        scaled: sharing.scaling.of(card.memory),
        cores: Percent::WHOLE,
        seats: sharing.seats,
        // A card cut into instances cannot be shared as a whole.
        mode: if card.mig.enabled {
            Mode::Unknown
        } else {
            Mode::Vgpu
        },
        resource: sharing.resource.clone(),
        numa: card.numa,
        health: health_of(&card.uuid),
        links: card
            .links
            .iter()
            .map(|(uuid, score)| (uuid.as_str().into(), *score))
            .collect(),
        mig: None,
        cordon: None,
        even: None,
        strict: false,
    };
    facts.cards.iter().map(gpu).collect()
}

fn cards(facts: &nvml::Inventory) -> BTreeMap<GpuUuid, Card> {
    let card = |card: &nvml::CardFacts| {
        let uuid = GpuUuid::from(card.uuid.as_str());
        let named = Card {
            uuid: uuid.clone(),
            index: card.index,
            minor: card.minor,
        };
        (uuid, named)
    };
    facts.cards.iter().map(card).collect()
}

/// The seats to show the kubelet. Cards in a mode that we do not serve, or whose
/// ids would be too long for the kubelet, have none. A sick card's free seats are unhealthy,
/// those that are held once their pods are gone: else the kubelet would count its
/// pods against the seats of the other cards.
pub fn seats(node: &Node) -> Vec<Device> {
    let gpus = node.inventory.gpus.iter();
    let served = gpus.filter(|gpu| gpu.mode == Mode::Vgpu);
    let seats = served.flat_map(|gpu| {
        (0..gpu.seats).map(move |number| {
            let seat = Seat {
                gpu: gpu.uuid.clone(),
                number,
            };
            let id = seat.to_string();
            let healthy = gpu.health == Health::Ok || node.sickness.held.contains(&id);
            Device {
                id,
                health: if healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
                topology: None,
            }
        })
    });
    seats.filter(|seat| seat.id.len() <= MAX_ID).collect()
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
