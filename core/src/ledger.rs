//! The books: who holds what on which card, and who is about to.
//!
//! A *reservation* is made by `reserve` before a Binding is sent; a *confirmed*
//! booking comes from the watch alone. Both take capacity.
//! Fed by: the scheduler's writer (reserve, cancel) and the watches (the rest).
//! Must not: free anything on a guess; an allocation that cannot be read takes
//! the whole node (fail closed).
//! Sums are a function of inventory and bookings ([`sums_of`]); `recompute` is
//! that function over everything.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::allocation::Allocation;
use crate::demand::Demand;
use crate::fit::{self, Fit, NodeState, Policies, Sums};
use crate::id::{NodeName, PodUid};
use crate::invariant;
use crate::inventory::Inventory;
use crate::reason::{Reason, Refusal};
use crate::usage::{self, Use, Uses};

/// What a pod holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Known shares.
    Uses(Uses),
    /// An allocation that cannot be read: all of its node.
    Unreadable,
}

/// One pod's entry in the books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// Where.
    pub node: NodeName,
    /// What.
    pub held: Held,
    /// Seen by the watch; otherwise reserved for a Binding on its way.
    pub confirmed: bool,
}

/// Why nothing was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReserved {
    /// Nothing fits now.
    Refused(Refusal),
    /// This pod has a booking already.
    Booked(NodeName),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    state: NodeState,
    pods: BTreeSet<PodUid>,
}

/// The books of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    nodes: HashMap<NodeName, Entry>,
    bookings: HashMap<PodUid, Booking>,
}

impl Ledger {
    /// The node as the books see it; `None` when nothing is known of it.
    pub fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.get(name).map(|entry| &entry.state)
    }

    /// Every node of which something is known.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeState)> {
        self.nodes.iter().map(|(name, entry)| (name, &entry.state))
    }

    /// The pod's booking.
    pub fn booking(&self, pod: &PodUid) -> Option<&Booking> {
        self.bookings.get(pod)
    }

    /// Every booking.
    pub fn bookings(&self) -> impl Iterator<Item = (&PodUid, &Booking)> {
        self.bookings.iter()
    }

    /// A node published an inventory, or took it back (`None`).
    pub fn set_inventory(&mut self, name: &NodeName, inventory: Option<Arc<Inventory>>) {
        self.nodes.entry(name.clone()).or_default().state.inventory = inventory;
        self.refresh(name);
    }

    /// May this node take this pod.
    pub fn fit(&self, name: &str, demand: &Demand, policies: Policies) -> Result<Fit, Refusal> {
        match self.node(name) {
            Some(node) => fit::fit(node, demand, policies),
            None => Err(Refusal::of(Reason::NodeNotRegistered)),
        }
    }

    /// Chooses cards on the current books and takes them, in one step.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        name: &NodeName,
        demand: &Demand,
        policies: Policies,
    ) -> Result<Allocation, NotReserved> {
        if let Some(booking) = self.bookings.get(pod) {
            return Err(NotReserved::Booked(booking.node.clone()));
        }
        let found = self.fit(name.as_str(), demand, policies);
        let found = found.map_err(NotReserved::Refused)?;
        let inventory = self.node(name.as_str()).and_then(|n| n.inventory.clone());
        let inventory = inventory
            .ok_or_else(|| NotReserved::Refused(Refusal::of(Reason::NodeNotRegistered)))?;
        let allocation = found.allocation(name, &inventory, demand);
        let uses = usage::effective(&allocation, demand.stages());
        let touched: Vec<_> = uses.keys().cloned().collect();
        self.insert(
            pod,
            Booking {
                node: name.clone(),
                held: Held::Uses(uses),
                confirmed: false,
            },
        );
        debug_assert!(
            self.node(name.as_str()).is_some_and(|node| {
                let mut cards = inventory.gpus.iter().zip(&node.sums);
                cards.all(|(gpu, sums)| {
                    !touched.contains(&gpu.uuid) || invariant::within_capacity(gpu, sums)
                })
            }),
            "a reservation passed a card's capacity"
        );
        Ok(allocation)
    }

    /// The watch shows the pod bound with this. Replaces whatever was booked.
    pub fn confirm(&mut self, pod: &PodUid, node: &NodeName, held: Held) {
        self.insert(
            pod,
            Booking {
                node: node.clone(),
                held,
                confirmed: true,
            },
        );
    }

    /// The pod ended: whatever it held is free.
    pub fn release(&mut self, pod: &PodUid) -> Option<Booking> {
        let booking = self.bookings.remove(pod)?;
        if let Some(entry) = self.nodes.get_mut(&booking.node) {
            entry.pods.remove(pod);
        }
        self.refresh(&booking.node);
        Some(booking)
    }

    /// The Binding definitely failed: frees a reservation, never a confirmed booking.
    pub fn cancel(&mut self, pod: &PodUid) -> Option<Booking> {
        match self.bookings.get(pod) {
            Some(booking) if !booking.confirmed => self.release(pod),
            _ => None,
        }
    }

    /// The books made anew from inventories and bookings.
    pub fn recompute(&self) -> Self {
        let mut fresh = Self::default();
        for (name, entry) in &self.nodes {
            fresh.set_inventory(name, entry.state.inventory.clone());
        }
        for (pod, booking) in &self.bookings {
            fresh.insert(pod, booking.clone());
        }
        fresh
    }

    /// Names of nodes on which the running books differ from recomputed ones.
    pub fn differences(&self, other: &Self) -> Vec<NodeName> {
        let names: BTreeSet<_> = self.nodes.keys().chain(other.nodes.keys()).collect();
        names
            .into_iter()
            .filter(|name| self.nodes.get(*name) != other.nodes.get(*name))
            .cloned()
            .collect()
    }

    fn insert(&mut self, pod: &PodUid, booking: Booking) {
        if self
            .bookings
            .get(pod)
            .is_some_and(|old| old.node != booking.node)
        {
            self.release(pod);
        }
        let node = booking.node.clone();
        let entry = self.nodes.entry(node.clone()).or_default();
        entry.pods.insert(pod.clone());
        self.bookings.insert(pod.clone(), booking);
        self.refresh(&node);
    }

    /// Brings one node's sums up to date; forgets a node with neither
    /// inventory nor pods.
    fn refresh(&mut self, name: &NodeName) {
        let Some(entry) = self.nodes.get_mut(name) else {
            return;
        };
        if entry.state.inventory.is_none() && entry.pods.is_empty() {
            self.nodes.remove(name);
            return;
        }
        let held: Vec<_> = entry
            .pods
            .iter()
            .filter_map(|pod| Some((pod, &self.bookings.get(pod)?.held)))
            .collect();
        entry.state.unreadable = held.iter().any(|(_, held)| **held == Held::Unreadable);
        entry.state.sums = match &entry.state.inventory {
            Some(inventory) => sums_of(inventory, &held),
            None => Vec::new(),
        };
    }
}

/// What the pods hold of each card, with lingering shares of pods that the
/// books no longer know. A share of a card that the inventory lacks counts
/// again when the card comes back.
pub fn sums_of(inventory: &Inventory, held: &[(&PodUid, &Held)]) -> Vec<Sums> {
    let mut sums = vec![Sums::default(); inventory.gpus.len()];
    let mut add = |uuid, used: Use| {
        if let Some(card) = inventory.gpus.iter().position(|gpu| gpu.uuid == uuid) {
            sums[card].used = sums[card].used.with(used);
            sums[card].pods += 1;
        }
    };
    for (_, held) in held {
        if let Held::Uses(uses) = held {
            for (uuid, used) in uses {
                add(uuid.clone(), *used);
            }
        }
    }
    for left in &inventory.lingering {
        if !held.iter().any(|(pod, _)| **pod == left.pod) {
            add(left.gpu.clone(), Use::of(left.memory, left.cores));
        }
    }
    sums
}
