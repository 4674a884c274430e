//! The namespaces of the books: what the pods of each hold, and its quotas.
//!
//! Fed by: [`crate::ledger`], with every booking that comes and goes.
//! Must not: judge; that is [`crate::quota::Headroom`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::id::Namespace;
use crate::ledger::Held;
use crate::quota::{Headroom, Quota, Used};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Space {
    used: Used,
    /// Those with limits, by name.
    quotas: Arc<[Quota]>,
}

/// All namespaces that have a pod or a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spaces(HashMap<Namespace, Space>);

impl Spaces {
    /// A pod came. Returns the one copy of the namespace's name that serves all
    /// its pods.
    pub fn add(&mut self, namespace: &Namespace, held: &Held) -> Namespace {
        self.0.entry(namespace.clone()).or_default().used.add(held);
        let known = self.0.get_key_value(namespace);
        known.map_or_else(|| namespace.clone(), |(name, _)| name.clone())
    }

    /// A pod, added before with the same, went.
    pub fn remove(&mut self, namespace: &Namespace, held: &Held) {
        if let Some(space) = self.0.get_mut(namespace) {
            space.used.remove(held);
        }
        self.tidy(namespace);
    }

    /// Replaces the quota of this name; `None` when it is gone. Whether that
    /// changed a limit.
    pub fn set(&mut self, namespace: &Namespace, name: &str, quota: Option<Quota>) -> bool {
        let space = self.0.entry(namespace.clone()).or_default();
        let others = space.quotas.iter().filter(|other| *other.name != *name);
        let all = others.cloned().chain(quota);
        let changed = space.set(all.collect());
        self.tidy(namespace);
        changed
    }

    /// Replaces all quotas of all namespaces; those where that changed a limit.
    pub fn set_all(&mut self, mut quotas: BTreeMap<Namespace, Vec<Quota>>) -> Vec<Namespace> {
        for namespace in self.0.keys() {
            quotas.entry(namespace.clone()).or_default();
        }
        let changed = quotas.into_iter().filter_map(|(namespace, quotas)| {
            let space = self.0.entry(namespace.clone()).or_default();
            let changed = space.set(quotas);
            self.tidy(&namespace);
            changed.then_some(namespace)
        });
        changed.collect()
    }

    /// What the quotas of a namespace leave; `None` where nothing is limited.
    pub fn headroom(&self, namespace: &str) -> Option<Headroom> {
        let (name, space) = self.0.get_key_value(namespace)?;
        let quotas = space.quotas.clone();
        let limited = !quotas.is_empty();
        limited.then(|| Headroom::new(name.clone(), space.used, quotas))
    }

    /// The namespace has a limit.
    pub fn limited(&self, namespace: &str) -> bool {
        let space = self.0.get(namespace);
        space.is_some_and(|space| !space.quotas.is_empty())
    }

    /// What is used in each namespace that has a limit, and its quotas; by name.
    pub fn quotas(&self) -> BTreeMap<&Namespace, (Used, &[Quota])> {
        let limited = self.0.iter().filter(|(_, space)| !space.quotas.is_empty());
        let shown = limited.map(|(name, space)| (name, (space.used, &*space.quotas)));
        shown.collect()
    }

    /// The same quotas, and no pods.
    pub fn without_pods(&self) -> Self {
        let limited = self.0.iter().filter(|(_, space)| !space.quotas.is_empty());
        let emptied = limited.map(|(name, space)| {
            let quotas = space.quotas.clone();
            let used = Used::default();
            (name.clone(), Space { used, quotas })
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

    /// Forgets a namespace without pods and limits.
    fn tidy(&mut self, namespace: &Namespace) {
        let space = self.0.get(namespace);
        if space.is_some_and(|space| space.used.is_empty() && space.quotas.is_empty()) {
            self.0.remove(namespace);
        }
    }
}

impl Space {
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
