//! The ledger's self-check: recomputes it from publications, entries and reservations
//! alone, compares, and adopts the result where it differs.

use std::collections::BTreeSet;

use super::{Ledger, NodeEntry};
use crate::id::{Namespace, NodeName};

/// Where two ledgers differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// The nodes whose states differ.
    pub nodes: Vec<NodeName>,
    /// The namespaces whose usage or quotas differ.
    pub namespaces: Vec<Namespace>,
}

impl Differences {
    /// The number of differences.
    pub fn count(&self) -> usize {
        self.nodes.len() + self.namespaces.len()
    }
}

impl Ledger {
    /// The ledger recomputed from what was published, allocated and reserved. The state of
    /// each node is made once.
    pub fn recompute(&self) -> Self {
        let mut fresh = Self {
            namespaces: self.namespaces.without_pods(),
            pod_entries: self.pod_entries.clone(),
            reservations: self.reservations.clone(),
            ..Self::default()
        };
        for (name, entry) in &self.entries {
            let published = entry.published.clone();
            let entry = NodeEntry {
                published,
                ..NodeEntry::default()
            };
            fresh.entries.insert(name.clone(), entry);
        }
        for (pod, pod_entry) in &self.pod_entries {
            let entry = fresh.entries.entry(pod_entry.node.clone()).or_default();
            entry.pods.insert(pod.clone());
            fresh
                .namespaces
                .add(&pod_entry.namespace, &pod_entry.allocated);
        }
        for (pod, reservation) in &self.reservations {
            let entry = fresh.entries.entry(reservation.node.clone()).or_default();
            entry.reservations.insert(pod.clone());
            fresh.charge_reservation(pod);
        }
        let names: Vec<_> = fresh.entries.keys().cloned().collect();
        for name in names {
            fresh.refresh(&name);
        }
        fresh
    }

    /// Recomputes the state of every node and namespace, and returns where that changed
    /// something.
    pub fn rebuild(&mut self) -> Differences {
        let fresh = self.recompute();
        let differences = self.differences(&fresh);
        self.entries = fresh.entries;
        self.namespaces = fresh.namespaces;
        for name in &differences.nodes {
            let state = fresh.cluster.node(name.as_str());
            self.cluster.put(name, state.map(|state| (**state).clone()));
        }
        differences
    }

    /// Where this ledger differs from another.
    pub fn differences(&self, other: &Self) -> Differences {
        let names: BTreeSet<_> = self.entries.keys().chain(other.entries.keys()).collect();
        let same = |name: &NodeName| {
            self.entries.get(name) == other.entries.get(name)
                && self.cluster.node(name.as_str()) == other.cluster.node(name.as_str())
        };
        let differing = names.into_iter().filter(|name| !same(name));
        Differences {
            nodes: differing.cloned().collect(),
            namespaces: self.namespaces.differences(&other.namespaces),
        }
    }
}

impl PartialEq for Ledger {
    /// Equal in content, however it came about.
    fn eq(&self, other: &Self) -> bool {
        self.pod_entries == other.pod_entries
            && self.reservations == other.reservations
            && self.differences(other).count() == 0
    }
}
