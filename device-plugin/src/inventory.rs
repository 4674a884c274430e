//! What the node publishes: the driver's facts under the modes of its cards, and who holds what.
//!
//! Fed by: the driver, housekeeping (foreign, lingering), refusals.
//! Must not: ask the driver; write anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::inventory::{self, Foreign, Health, Inventory, Lingering, Refused, Scope};
use aliquot_core::{GpuUuid, Mib, PodUid, allocation};
use aliquot_nvml as nvml;
use tokio::sync::watch;

use crate::host::{Card, Part};
use crate::host_memory;
use crate::labels::Features;
use crate::runtime::choice::Looked;
use crate::sick::{Sick, Sickness};
use crate::units::{self, Arrangement, Held};
use crate::xid::Action;

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
    /// Seats that living pods hold.
    pub held: Held,
    /// How each card is shared.
    pub arrangement: Arrangement,
    /// Status, reason and message of the condition about the profile; `None`: nothing is
    /// configured.
    pub profile: Option<[String; 3]>,
    /// Resources that were offered once and are not now.
    pub vanished: BTreeSet<String>,
    /// What was found of the container runtime; `None`: nobody has looked yet, and until then no
    /// pod starts for the first time by CDI.
    pub runtime: Option<Looked>,
    /// The agent leaves the node: no seat is shown.
    pub leaving_node: bool,
    /// Pods that must leave a card whose mode changes.
    leaving: Vec<Refused>,
    /// Pods whose eviction the monitor asks for.
    strays: Vec<Refused>,
    /// The driver's facts.
    pub facts: nvml::Inventory,
    health: Vec<nvml::CardHealth>,
    /// Of the host's memory, what may stand in for each card's; `None`: all that is promised.
    host_reserve: Option<Mib>,
    /// Units whose MPS daemon does not serve, and why.
    down: BTreeMap<GpuUuid, String>,
}

/// What the node's profile makes of it.
#[derive(Clone, Debug)]
pub struct Course {
    /// How each card is shared.
    pub arrangement: Arrangement,
    /// Seats that living pods hold; `None`: as known before.
    pub held: Option<Held>,
    /// Pods that must leave a card whose mode changes.
    pub evict: Vec<Refused>,
    /// What the node's condition says.
    pub profile: Option<[String; 3]>,
    /// Resources that were offered once and are not now.
    pub vanished: BTreeSet<String>,
}

/// One value that all parts of the agent share: readers subscribe, writers
/// change their own field.
#[derive(Clone, Debug)]
pub struct Published(watch::Sender<Arc<Node>>);

impl Published {
    /// Starts with these cards and no holders.
    pub fn new(
        facts: nvml::Inventory,
        health: Vec<nvml::CardHealth>,
        arrangement: Arrangement,
    ) -> Self {
        let mut node = Node {
            inventory: Inventory {
                v: inventory::VERSION,
                reads: vec![allocation::VERSION],
                driver: facts.driver_version.clone(),
                topology_policy: "none".to_owned(),
                topology_scope: Scope::default(),
                gpus: Vec::new(),
                lingering: Vec::new(),
                foreign: Vec::new(),
                refused: Vec::new(),
                evict: Vec::new(),
            },
            cards: cards(&facts),
            sickness: Sickness::default(),
            features: Features::of(&facts),
            held: Held::new(),
            arrangement,
            profile: None,
            vanished: BTreeSet::new(),
            runtime: None,
            leaving_node: false,
            leaving: Vec::new(),
            strays: Vec::new(),
            facts,
            health,
            host_reserve: None,
            down: BTreeMap::new(),
        };
        node.settle();
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

    /// New facts from the driver, what follows from its sick cards, and which seats are held.
    pub fn cards(
        &self,
        facts: &nvml::Inventory,
        health: &[nvml::CardHealth],
        sickness: Sickness,
        held: Held,
    ) {
        self.change(|node| {
            node.inventory.driver.clone_from(&facts.driver_version);
            node.cards = cards(facts);
            node.sickness = sickness;
            node.features = Features::of(facts);
            node.held = held;
            facts.clone_into(&mut node.facts);
            health.clone_into(&mut node.health);
            node.settle();
        });
    }

    /// What the node's profile makes of it from now on.
    pub fn arrange(&self, course: Course) {
        self.change(|node| {
            node.arrangement = course.arrangement;
            if let Some(held) = course.held {
                node.held = held;
            }
            node.leaving = course.evict;
            node.profile = course.profile;
            node.vanished = course.vanished;
            node.settle();
        });
    }

    /// How much of the host's memory may stand in for each card's; `None`: all that is promised.
    pub fn host_reserve(&self, reserve: Option<Mib>) {
        self.change(|node| {
            node.host_reserve = reserve;
            node.settle();
        });
    }

    /// Pods whose eviction the monitor asks for.
    pub fn strays(&self, strays: Vec<Refused>) {
        self.change(|node| {
            node.strays = strays;
            node.settle();
        });
    }

    /// The kubelet's Topology Manager policy, and what it aligns together.
    pub fn topology(&self, policy: &str, scope: Scope) {
        self.change(|node| {
            policy.clone_into(&mut node.inventory.topology_policy);
            node.inventory.topology_scope = scope;
        });
    }

    /// What was found of the container runtime.
    pub fn runtime(&self, looked: Looked) {
        self.change(|node| node.runtime = Some(looked));
    }

    /// The agent leaves the node.
    pub fn leave(&self) {
        self.change(|node| node.leaving_node = true);
    }

    /// The units whose MPS daemon does not serve, and why.
    pub fn daemons(&self, down: BTreeMap<GpuUuid, String>) {
        self.change(|node| {
            node.down = down;
            node.settle();
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
        if self.get().inventory.refused.is_empty() {
            return;
        }
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

impl Node {
    /// Seats are shown to the kubelet, or shown healthy, only because a pod holds them.
    pub fn has_kept_seats(&self) -> bool {
        !self.sickness.cards.is_empty() || units::beyond_offers(self)
    }

    /// All that is out of service: sick cards, and units without their MPS daemon.
    pub fn out_of_service(&self) -> Vec<Sick> {
        let down = self.down.iter().map(|(unit, why)| Sick {
            gpu: unit.clone(),
            why: format!("the MPS daemon does not serve: {why}"),
            action: Action::RestartApplication,
        });
        self.sickness.cards.iter().cloned().chain(down).collect()
    }

    /// Every name that the driver has for a card or an instance here, with the unit that is booked
    /// for it: of an instance that is no unit of its own, its card.
    pub fn booked_as(&self) -> BTreeMap<GpuUuid, GpuUuid> {
        let mut names = BTreeMap::new();
        for card in &self.facts.cards {
            let whole = GpuUuid::from(card.uuid.as_str());
            for device in card.cut.instances.iter().flat_map(|one| &one.devices) {
                let own = GpuUuid::from(device.uuid.as_str());
                let unit = if self.inventory.gpu(&own).is_some() {
                    &own
                } else {
                    &whole
                };
                names.insert(device.current.as_str().into(), unit.clone());
                names.insert(own.clone(), unit.clone());
            }
            names.insert(whole.clone(), whole);
        }
        names
    }

    /// What follows from facts, health and arrangement.
    fn settle(&mut self) {
        self.inventory.gpus = units::units(&self.facts, &self.health, &self.arrangement);
        host_memory::keep(&mut self.inventory.gpus, self.host_reserve, &self.facts);
        for gpu in &mut self.inventory.gpus {
            if gpu.health == Health::Ok && self.down.contains_key(&gpu.uuid) {
                gpu.health = Health::Sick("mps daemon down".to_owned());
            }
        }
        if let Some(why) = &self.sickness.drained {
            for gpu in &mut self.inventory.gpus {
                gpu.cordon.get_or_insert_with(|| why.clone());
            }
        }
        let all = self.sickness.evict.iter().chain(&self.leaving);
        let mut evict: Vec<Refused> = Vec::new();
        for one in all.chain(&self.strays) {
            if evict.iter().all(|known| known.pod != one.pod) {
                evict.push(one.clone());
            }
        }
        self.inventory.evict = evict;
    }
}

fn cards(facts: &nvml::Inventory) -> BTreeMap<GpuUuid, Card> {
    let mut found = BTreeMap::new();
    for card in &facts.cards {
        let named = |uuid: &str, part| Card {
            uuid: uuid.into(),
            index: card.index,
            minor: card.minor,
            part,
        };
        let instances = card.cut.instances.iter();
        let parts = instances.filter_map(|one| {
            let device = one.device()?;
            Some(named(&device.uuid, Some(Part::of(one, device))))
        });
        let all = parts.chain([named(&card.uuid, None)]);
        found.extend(all.map(|card| (card.uuid.clone(), card)));
    }
    found
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
