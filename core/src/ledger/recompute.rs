//! The ledger's self-check: recomputes it from publications and entries alone, compares, and adopts
//! the result where it differs.

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
    pub fn count(&self) -> usize {
        self.nodes.len() + self.namespaces.len()
    }
}

impl Ledger {
    /// The ledger recomputed from what was published and what pods hold. The state of each node is
    /// made once.
    pub fn recompute(&self) -> Self {
        let mut fresh = Self {
            namespaces: self.namespaces.without_pods(),
            pod_entries: self.pod_entries.clone(),
            ..Self::default()
        };
        for (name, entry) in &self.entries {
            let empty = NodeEntry {
                published: entry.published.clone(),
                ..NodeEntry::default()
            };
            fresh.entries.insert(name.clone(), empty);
        }
        for (pod, pod_entry) in &self.pod_entries {
            let entry = fresh.entries.entry(pod_entry.node.clone()).or_default();
            entry.pods.insert(pod.clone());
            if pod_entry.is_charged() {
                let (namespace, allocated) = (&pod_entry.namespace, &pod_entry.allocated);
                fresh.namespaces.add(namespace, allocated);
            }
        }
        let names: Vec<_> = fresh.entries.keys().cloned().collect();
        for name in names {
            fresh.refresh(&name);
        }
        fresh
    }

    /// Every node that has published something, or has pods.
    pub fn node_names(&self) -> Vec<NodeName> {
        self.entries.keys().cloned().collect()
    }

    /// Whether the states of these nodes are those that their publications and pods make.
    pub fn is_current(&self, names: &[NodeName]) -> bool {
        names.iter().all(|name| {
            let entry = self.entries.get(name);
            let made = entry.and_then(|entry| self.shown_state(entry));
            made.as_ref() == self.cluster.node(name.as_str()).map(|state| &**state)
        })
    }

    /// Whether the usage of the namespaces is that of their pods, and each pod is on its node.
    pub fn pods_are_current(&self) -> bool {
        let mut namespaces = self.namespaces.without_pods();
        let mut on_nodes = 0;
        for (pod, entry) in &self.pod_entries {
            if entry.is_charged() {
                namespaces.add(&entry.namespace, &entry.allocated);
            }
            let node = self.entries.get(&entry.node);
            on_nodes += usize::from(node.is_some_and(|node| node.pods.contains(pod)));
        }
        let listed: usize = self.entries.values().map(|node| node.pods.len()).sum();
        let all = self.pod_entries.len();
        (on_nodes, listed) == (all, all) && namespaces == self.namespaces
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
        self.pod_entries == other.pod_entries && self.differences(other).count() == 0
    }
}
