//! The books: who holds what on which card, and who is about to.
//!
//! A *reservation* is made by `reserve` before a Binding is sent; a *confirmed*
//! booking comes from the watch alone. Both take capacity.
//! Fed by: the scheduler's writer (reserve, cancel) and the watches (the rest).
//! Must not: free anything on a guess; an allocation that cannot be read takes
//! the whole node (fail closed).
//! A node's state is a function of what it published, of its bookings and of
//! the holds on it ([`NodeState::of`]), what a namespace uses one of its
//! bookings; `recompute` is these functions over everything.

mod holds;
mod quotas;
mod recompute;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::allocation::Allocation;
use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::fit::{self, Fit, Policies};
use crate::id::{Namespace, NodeName, PodUid};
use crate::invariant;
use crate::node::{NodeState, Published, Requests};
use crate::quota::Amount;
use crate::reason::{Reason, Refusal};
use crate::spaces::Spaces;
use crate::usage::{self, Uses};

pub use holds::Hold;
pub use recompute::Differences;

/// What a pod holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Known shares; none for a pod that uses only CPU and memory.
    Uses(Uses),
    /// An allocation that cannot be read: all of its node.
    Unreadable,
}

impl Held {
    /// No share at all.
    pub fn nothing() -> Self {
        Self::Uses(Uses::new())
    }
}

/// One pod's entry in the books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// Where.
    pub node: NodeName,
    /// Whose quotas it counts against.
    pub namespace: Namespace,
    /// What of its cards.
    pub held: Held,
    /// What of its CPU, of its memory and of its kubelet's seats.
    pub requests: Requests,
    /// Seen by the watch; otherwise reserved for a Binding on its way.
    pub confirmed: bool,
}

impl Booking {
    /// It takes a share of some card, or may.
    pub fn holds(&self) -> bool {
        !matches!(&self.held, Held::Uses(uses) if uses.is_empty())
    }
}

/// Why nothing was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReserved {
    /// Nothing fits now, or a quota has no room for it.
    Refused(Refusal),
    /// This pod has a booking already.
    Booked(NodeName),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    published: Option<Published>,
    pods: BTreeSet<PodUid>,
    /// Pods that a share of it is held for.
    holds: BTreeSet<PodUid>,
}

/// The books of all nodes and namespaces.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    cluster: Cluster,
    spaces: Spaces,
    entries: HashMap<NodeName, Entry>,
    bookings: HashMap<PodUid, Booking>,
    holds: HashMap<PodUid, Hold>,
}

impl Ledger {
    /// The nodes as they are now; a clone of it stays as it is.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What a node published.
    pub fn published(&self, name: &str) -> Option<&Published> {
        self.entries.get(name)?.published.as_ref()
    }

    /// The pod's booking.
    pub fn booking(&self, pod: &PodUid) -> Option<&Booking> {
        self.bookings.get(pod)
    }

    /// Every booking.
    pub fn bookings(&self) -> impl Iterator<Item = (&PodUid, &Booking)> {
        self.bookings.iter()
    }

    /// The pods booked on a node.
    pub fn pods_on(&self, name: &str) -> impl Iterator<Item = &PodUid> {
        self.entries.get(name).into_iter().flat_map(|e| &e.pods)
    }

    /// A node published this, or is gone (`None`).
    pub fn publish(&mut self, name: &NodeName, published: Option<Published>) {
        self.entries.entry(name.clone()).or_default().published = published;
        self.refresh(name);
    }

    /// May this node take this pod.
    pub fn fit(&self, name: &str, demand: &Demand, policies: &Policies) -> Result<Fit, Refusal> {
        fit_on(
            self.cluster.node(name).map(|node| &**node),
            demand,
            policies,
        )
    }

    /// Chooses cards on the current books and takes them, in one step, if the
    /// quotas of its namespace allow it.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        namespace: &Namespace,
        name: &NodeName,
        demand: &Demand,
        policies: &Policies,
    ) -> Result<Allocation, NotReserved> {
        if let Some(booking) = self.bookings.get(pod) {
            return Err(NotReserved::Booked(booking.node.clone()));
        }
        let state = self.seen_by(pod, name.as_str());
        let found = fit_on(state.as_deref(), demand, policies);
        let found = found.map_err(NotReserved::Refused)?;
        let amount = Amount::of(found.uses.iter().map(|(_, used)| used));
        let headroom = self.headroom(namespace.as_str());
        if let Some(over) = headroom.and_then(|headroom| headroom.over(amount)) {
            return Err(NotReserved::Refused(Refusal::over(over)));
        }
        let inventory = state.and_then(|node| node.inventory.clone());
        let inventory = inventory
            .ok_or_else(|| NotReserved::Refused(Refusal::of(Reason::NodeNotRegistered)))?;
        let allocation = found.allocation(name, &inventory, demand);
        let booking = Booking {
            node: name.clone(),
            namespace: namespace.clone(),
            held: Held::Uses(usage::effective(&allocation, demand.stages())),
            requests: demand.requests(),
            confirmed: false,
        };
        self.insert(pod, booking);
        debug_assert!(
            self.cluster.node(name.as_str()).is_some_and(|node| {
                let mut cards = found.uses.iter().map(|(card, _)| &node.cards[*card]);
                cards.all(invariant::within_capacity)
                    && (found.instances.is_empty() || invariant::instances_have_their_places(node))
            }),
            "a reservation passed a card's capacity"
        );
        Ok(allocation)
    }

    /// The watch shows the pod bound with this. Replaces whatever was booked,
    /// and returns it.
    pub fn confirm(
        &mut self,
        pod: &PodUid,
        namespace: &Namespace,
        node: &NodeName,
        held: Held,
        requests: impl Into<Requests>,
    ) -> Option<Booking> {
        let booking = Booking {
            node: node.clone(),
            namespace: namespace.clone(),
            held,
            requests: requests.into(),
            confirmed: true,
        };
        self.insert(pod, booking)
    }

    /// The pod ended: whatever it held is free.
    pub fn release(&mut self, pod: &PodUid) -> Option<Booking> {
        let booking = self.bookings.remove(pod)?;
        self.spaces.remove(&booking.namespace, &booking.held);
        if let Some(entry) = self.entries.get_mut(&booking.node) {
            entry.pods.remove(pod);
        }
        self.refresh(&booking.node);
        self.refresh_hold(pod);
        Some(booking)
    }

    /// The Binding definitely failed: frees a reservation, never a confirmed booking.
    pub fn cancel(&mut self, pod: &PodUid) -> Option<Booking> {
        match self.bookings.get(pod) {
            Some(booking) if !booking.confirmed => self.release(pod),
            _ => None,
        }
    }

    fn insert(&mut self, pod: &PodUid, mut booking: Booking) -> Option<Booking> {
        // One copy of a node's name serves all its pods.
        if let Some((name, _)) = self.entries.get_key_value(&booking.node) {
            booking.node = name.clone();
        }
        let old = match self.bookings.get(pod) {
            Some(old) if *old == booking => return None,
            Some(old) if old.node != booking.node => self.release(pod),
            Some(old) => {
                self.spaces.remove(&old.namespace, &old.held);
                self.bookings.remove(pod)
            }
            None => None,
        };
        booking.namespace = self.spaces.add(&booking.namespace, &booking.held);
        let node = booking.node.clone();
        let entry = self.entries.entry(node.clone()).or_default();
        entry.pods.insert(pod.clone());
        self.bookings.insert(pod.clone(), booking);
        self.refresh(&node);
        self.refresh_hold(pod);
        old
    }

    /// Brings one node's state up to date; forgets a node that published
    /// nothing, has no pods and is held for nobody.
    fn refresh(&mut self, name: &NodeName) {
        let Some(entry) = self.entries.get(name) else {
            return;
        };
        if entry.published.is_none() && entry.pods.is_empty() && entry.holds.is_empty() {
            self.entries.remove(name);
            self.cluster.put(name, None);
            return;
        }
        let state = self.state(entry, None);
        let old = self.cluster.node(name.as_str());
        if old.is_none_or(|old| **old != state) {
            self.cluster.put(name, Some(state));
        }
    }

    /// What was published, what is booked and what is held, but for what is
    /// held for `but`.
    fn state(&self, entry: &Entry, but: Option<&PodUid>) -> NodeState {
        let bookings = entry.pods.iter();
        let bookings = bookings.filter_map(|pod| Some((pod, self.bookings.get(pod)?)));
        let mut requested = Requests::default();
        let mut held = Vec::with_capacity(entry.pods.len());
        for (pod, booking) in bookings {
            requested.plus(&booking.requests);
            held.push((pod, &booking.held));
        }
        // Who is booked has taken what was held for it.
        let kept = entry.holds.iter().filter(|pod| Some(*pod) != but);
        let kept = kept.filter(|pod| !self.bookings.contains_key(*pod));
        for (pod, hold) in kept.filter_map(|pod| Some((pod, self.holds.get(pod)?))) {
            requested.seats.plus(&hold.seats);
            held.push((pod, &hold.held));
        }
        match &entry.published {
            Some(published) => NodeState::of(published, &held, requested),
            None => NodeState::of(&Published::default(), &held, requested),
        }
    }
}

/// May this node, if it is known, take this pod.
fn fit_on(node: Option<&NodeState>, demand: &Demand, policies: &Policies) -> Result<Fit, Refusal> {
    match node {
        Some(node) => fit::fit(node, demand, policies),
        None => Err(Refusal::of(Reason::NodeNotRegistered)),
    }
}
