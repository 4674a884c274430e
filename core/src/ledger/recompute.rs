//! The self-check of the books: made anew, compared, adopted where they differ.
//!
//! Fed by: the running books. Must not: take anything from their sums; only
//! what was published, booked and held counts.

use std::collections::BTreeSet;

use super::{Entry, Ledger};
use crate::id::{Namespace, NodeName};

/// Where two books differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// In what is known of these nodes.
    pub nodes: Vec<NodeName>,
    /// In what these namespaces use, or in their quotas.
    pub namespaces: Vec<Namespace>,
}

impl Differences {
    /// How many places.
    pub fn count(&self) -> usize {
        self.nodes.len() + self.namespaces.len()
    }
}

impl Ledger {
    /// The books made anew from what was published, booked and held. The state
    /// of each node is made once, whatever lies on it.
    pub fn recompute(&self) -> Self {
        let mut fresh = Self {
            spaces: self.spaces.without_pods(),
            bookings: self.bookings.clone(),
            holds: self.holds.clone(),
            ..Self::default()
        };
        for (name, entry) in &self.entries {
            let published = entry.published.clone();
            let entry = Entry {
                published,
                ..Entry::default()
            };
            fresh.entries.insert(name.clone(), entry);
        }
        for (pod, booking) in &self.bookings {
            let entry = fresh.entries.entry(booking.node.clone()).or_default();
            entry.pods.insert(pod.clone());
            fresh.spaces.add(&booking.namespace, &booking.held);
        }
        for (pod, hold) in &self.holds {
            let entry = fresh.entries.entry(hold.node.clone()).or_default();
            entry.holds.insert(pod.clone());
        }
        let names: Vec<_> = fresh.entries.keys().cloned().collect();
        for name in names {
            fresh.refresh(&name);
        }
        fresh
    }

    /// Makes the state of every node and namespace anew from what was published
    /// and booked; returns where that changed something.
    pub fn rebuild(&mut self) -> Differences {
        let fresh = self.recompute();
        let differences = self.differences(&fresh);
        self.entries = fresh.entries;
        self.spaces = fresh.spaces;
        for name in &differences.nodes {
            let state = fresh.cluster.node(name.as_str());
            self.cluster.put(name, state.map(|state| (**state).clone()));
        }
        differences
    }

    /// Where the running books differ from recomputed ones.
    pub fn differences(&self, other: &Self) -> Differences {
        let names: BTreeSet<_> = self.entries.keys().chain(other.entries.keys()).collect();
        let same = |name: &NodeName| {
            self.entries.get(name) == other.entries.get(name)
                && self.cluster.node(name.as_str()) == other.cluster.node(name.as_str())
        };
        let differing = names.into_iter().filter(|name| !same(name));
        Differences {
            nodes: differing.cloned().collect(),
            namespaces: self.spaces.differences(&other.spaces),
        }
    }
}

impl PartialEq for Ledger {
    /// Equal in content, whatever way it came about.
    fn eq(&self, other: &Self) -> bool {
        self.bookings == other.bookings
            && self.holds == other.holds
            && self.differences(other).count() == 0
    }
}
