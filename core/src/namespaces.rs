//! The namespaces in the ledger: what the pods of each are allocated, and its quotas.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::id::Namespace;
use crate::ledger::AllocatedUse;
use crate::quota::{Headroom, NamespaceUsage, Quota};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NamespaceState {
    used: NamespaceUsage,
    /// Quotas with limits, by name.
    quotas: Arc<[Quota]>,
}

/// All namespaces with a pod or a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(HashMap<Namespace, NamespaceState>);

impl Namespaces {
    /// Adds a pod. Returns the one copy of the namespace's name that all its pods share.
    pub fn add(&mut self, namespace: &Namespace, allocated: &AllocatedUse) -> Namespace {
        self.0
            .entry(namespace.clone())
            .or_default()
            .used
            .add(allocated);
        let known = self.0.get_key_value(namespace);
        known.map_or_else(|| namespace.clone(), |(name, _)| name.clone())
    }

    /// Removes a pod that was added with the same allocation.
    pub fn remove(&mut self, namespace: &Namespace, allocated: &AllocatedUse) {
        if let Some(state) = self.0.get_mut(namespace) {
            state.used.remove(allocated);
        }
        self.remove_if_empty(namespace);
    }

    /// Replaces the quota of this name; `None` removes it. Returns whether a limit changed.
    pub fn set(&mut self, namespace: &Namespace, name: &str, quota: Option<Quota>) -> bool {
        let state = self.0.entry(namespace.clone()).or_default();
        let others = state.quotas.iter().filter(|other| *other.name != *name);
        let all = others.cloned().chain(quota);
        let changed = state.set(all.collect());
        self.remove_if_empty(namespace);
        changed
    }

    /// Replaces all quotas of all namespaces; returns the namespaces where a limit changed.
    pub fn set_all(&mut self, mut quotas: BTreeMap<Namespace, Vec<Quota>>) -> Vec<Namespace> {
        for namespace in self.0.keys() {
            quotas.entry(namespace.clone()).or_default();
        }
        let changed = quotas.into_iter().filter_map(|(namespace, quotas)| {
            let state = self.0.entry(namespace.clone()).or_default();
            let changed = state.set(quotas);
            self.remove_if_empty(&namespace);
            changed.then_some(namespace)
        });
        changed.collect()
    }

    /// What the quotas of a namespace leave; `None` without limits.
    pub fn headroom(&self, namespace: &str) -> Option<Headroom> {
        let (name, state) = self.0.get_key_value(namespace)?;
        let quotas = state.quotas.clone();
        let limited = !quotas.is_empty();
        limited.then(|| Headroom::new(name.clone(), state.used, quotas))
    }

    /// Whether the namespace has a limit.
    pub fn has_quota(&self, namespace: &str) -> bool {
        let state = self.0.get(namespace);
        state.is_some_and(|state| !state.quotas.is_empty())
    }

    /// What is used in each namespace with a limit, and its quotas, by name.
    pub fn quotas(&self) -> BTreeMap<&Namespace, (NamespaceUsage, &[Quota])> {
        let limited = self.0.iter().filter(|(_, state)| !state.quotas.is_empty());
        let shown = limited.map(|(name, state)| (name, (state.used, &*state.quotas)));
        shown.collect()
    }

    /// The same quotas without pods.
    pub fn without_pods(&self) -> Self {
        let limited = self.0.iter().filter(|(_, state)| !state.quotas.is_empty());
        let emptied = limited.map(|(name, state)| {
            let quotas = state.quotas.clone();
            let used = NamespaceUsage::default();
            (name.clone(), NamespaceState { used, quotas })
        });
        Self(emptied.collect())
    }

    /// The namespaces in which the two differ.
    pub fn differences(&self, other: &Self) -> Vec<Namespace> {
        let names: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let differing = names
            .into_iter()
            .filter(|name| self.0.get(*name) != other.0.get(*name));
        differing.cloned().collect()
    }

    /// Removes a namespace without pods and limits.
    fn remove_if_empty(&mut self, namespace: &Namespace) {
        let state = self.0.get(namespace);
        if state.is_some_and(|state| state.used.is_empty() && state.quotas.is_empty()) {
            self.0.remove(namespace);
        }
    }
}

impl NamespaceState {
    fn set(&mut self, mut quotas: Vec<Quota>) -> bool {
        quotas.retain(|quota| !quota.limits.is_empty());
        quotas.sort_by(|a, b| a.name.cmp(&b.name));
        let changed = *self.quotas != *quotas;
        if changed {
            self.quotas = quotas.into();
        }
        changed
    }
}
