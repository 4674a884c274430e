//! Limits on the GPU memory and compute of a namespace: what its pods use, what its quotas
//! allow, and whether one more pod fits.
//!
//! All hard keys `limits.` and `requests.` of memory and compute of all `ResourceQuota`s apply at
//! once. A pod is charged its effective use of [`crate::usage`], summed over its devices:
//! count × memory and count × cores, with percentages resolved on the allocated devices
//! (HAMi 4.9, without W9). Fails closed: an unreadable limit or allocation leaves nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::id::Namespace;
use crate::units::{Mib, Percent};
use crate::usage::{AllocatedUse, DeviceUse};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitedResource {
    /// MiB, summed over all devices.
    Memory,
    /// Percent of compute, summed over all devices.
    Cores,
}

/// What one pod uses of all its devices together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaAmount {
    pub memory: Mib,
    pub cores: Percent,
}

impl QuotaAmount {
    /// The sum of these effective uses, one for each device.
    pub fn sum<'u>(uses: impl IntoIterator<Item = &'u DeviceUse>) -> Self {
        let uses = uses.into_iter();
        uses.fold(Self::default(), |sum, used| Self {
            memory: sum.memory + used.memory,
            cores: sum.cores + used.cores,
        })
    }

    fn on(self, what: LimitedResource) -> u64 {
        match what {
            LimitedResource::Memory => self.memory.0,
            LimitedResource::Cores => self.cores.0.into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitValue {
    /// This much; 0 allows nothing.
    Number(u64),
    /// The text is not a whole number: allows nothing until it is corrected.
    Unreadable(Arc<str>),
}

impl LimitValue {
    /// The number that it amounts to.
    pub fn allowed(&self) -> u64 {
        match self {
            Self::Number(most) => *most,
            Self::Unreadable(_) => 0,
        }
    }
}

/// One hard key of one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub on: LimitedResource,
    pub key: Arc<str>,
    pub most: LimitValue,
    /// What Kubernetes counts under the key, once it has counted: not the number of GPUs, percentages
    /// or annotations, and nothing under `limits.`.
    pub counted: Option<u64>,
}

/// The limits of a `ResourceQuota` on GPU memory and compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    pub name: Arc<str>,
    /// Empty for a quota on other resources.
    pub limits: Vec<Limit>,
}

/// What the pods of a namespace use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsage {
    // Wide enough to subtract exactly what was added.
    memory: u128,
    cores: u128,
    unreadable: u64,
    pods: u64,
}

impl NamespaceUsage {
    /// The sum of `what`; `None` while the allocation of some pod is unreadable.
    pub fn on(&self, what: LimitedResource) -> Option<u128> {
        let sum = match what {
            LimitedResource::Memory => self.memory,
            LimitedResource::Cores => self.cores,
        };
        (self.unreadable == 0).then_some(sum)
    }

    pub fn is_empty(&self) -> bool {
        self.pods == 0
    }

    pub fn add(&mut self, allocated: &AllocatedUse) {
        let (amount, unreadable) = amount(allocated);
        self.memory += u128::from(amount.memory.0);
        self.cores += u128::from(amount.cores.0);
        self.unreadable += unreadable;
        self.pods += 1;
    }

    /// Removes a pod that was added.
    pub fn remove(&mut self, allocated: &AllocatedUse) {
        let (amount, unreadable) = amount(allocated);
        self.memory -= u128::from(amount.memory.0);
        self.cores -= u128::from(amount.cores.0);
        self.unreadable -= unreadable;
        self.pods -= 1;
    }
}

fn amount(allocated: &AllocatedUse) -> (QuotaAmount, u64) {
    match allocated.uses() {
        Some(uses) => (QuotaAmount::sum(uses.values()), 0),
        None => (QuotaAmount::default(), 1),
    }
}

/// What the quotas of a namespace leave at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    namespace: Namespace,
    used: NamespaceUsage,
    quotas: Arc<[Quota]>,
    memory: u64,
    cores: u64,
}

impl Headroom {
    pub fn new(namespace: Namespace, used: NamespaceUsage, quotas: Arc<[Quota]>) -> Self {
        let mut headroom = Self {
            namespace,
            used,
            quotas,
            memory: u64::MAX,
            cores: u64::MAX,
        };
        headroom.settle();
        headroom
    }

    /// Whether one more pod with this amount exceeds no limit. An amount of 0 never
    /// exceeds.
    pub fn allows(&self, asked: QuotaAmount) -> bool {
        asked.memory.0 <= self.memory && u64::from(asked.cores.0) <= self.cores
    }

    /// The first limit (memory before compute, then by quota name) that one more pod with
    /// this amount would exceed.
    pub fn excess(&self, asked: QuotaAmount) -> Option<QuotaExcess> {
        for on in [LimitedResource::Memory, LimitedResource::Cores] {
            let (asked, used) = (asked.on(on), self.used.on(on));
            for quota in self.quotas.iter() {
                let mut limits = quota.limits.iter().filter(|limit| limit.on == on);
                let passed = limits.find(|limit| asked > left(used, &limit.most));
                if let Some(limit) = passed {
                    return Some(QuotaExcess {
                        on,
                        asked,
                        quota: quota.name.clone(),
                        key: limit.key.clone(),
                        namespace: self.namespace.clone(),
                        used,
                        most: limit.most.clone(),
                        counted: limit.counted,
                    });
                }
            }
        }
        None
    }

    /// Adds the amount of a pod that is about to come.
    pub fn take(&mut self, amount: QuotaAmount) {
        self.used.memory += u128::from(amount.memory.0);
        self.used.cores += u128::from(amount.cores.0);
        self.settle();
    }

    /// What would be left without this pod, which is counted.
    #[must_use]
    pub fn without(mut self, allocated: &AllocatedUse) -> Self {
        self.used.remove(allocated);
        Self::new(self.namespace, self.used, self.quotas)
    }

    fn settle(&mut self) {
        for quota in self.quotas.iter() {
            for limit in &quota.limits {
                let left = left(self.used.on(limit.on), &limit.most);
                let least = match limit.on {
                    LimitedResource::Memory => &mut self.memory,
                    LimitedResource::Cores => &mut self.cores,
                };
                *least = left.min(*least);
            }
        }
    }
}

fn left(used: Option<u128>, most: &LimitValue) -> u64 {
    let used = used.unwrap_or(u128::MAX);
    let left = u128::from(most.allowed()).saturating_sub(used);
    u64::try_from(left).unwrap_or(u64::MAX)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NamespaceState {
    used: NamespaceUsage,
    /// Quotas with limits, by name.
    quotas: Arc<[Quota]>,
}

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
        // What Kubernetes counts is only shown.
        let limits = |quotas: &[Quota]| {
            let mut quotas = quotas.to_vec();
            let limits = quotas.iter_mut().flat_map(|quota| &mut quota.limits);
            limits.for_each(|limit| limit.counted = None);
            quotas
        };
        let changed = limits(&self.quotas) != limits(&quotas);
        if *self.quotas != *quotas {
            self.quotas = quotas.into();
        }
        changed
    }
}

/// A limit that a pod would exceed. Shown as `namespace team-a: limits.nvidia.com/gpumem
/// used 9000 (Kubernetes counts 6000), asked 3000, limit 10000 of quota team`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuotaExcess {
    pub on: LimitedResource,
    /// What the pod would use.
    pub asked: u64,
    pub quota: Arc<str>,
    pub key: Arc<str>,
    pub namespace: Namespace,
    /// What its pods use; `None` while one of their allocations is unreadable.
    pub used: Option<u128>,
    pub most: LimitValue,
    /// What Kubernetes counts, if that is known.
    pub counted: Option<u64>,
}

impl fmt::Display for QuotaExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {}: {} ", self.namespace, self.key)?;
        match self.used {
            Some(used) => write!(f, "used {used}")?,
            None => f.write_str("used unknown, an allocation cannot be read")?,
        }
        let counted = self.counted.filter(|one| self.used != Some((*one).into()));
        if let Some(counted) = counted {
            write!(f, " (Kubernetes counts {counted})")?;
        }
        write!(f, ", asked {}, ", self.asked)?;
        match &self.most {
            LimitValue::Number(most) => write!(f, "limit {most} of quota {}", self.quota),
            LimitValue::Unreadable(text) => {
                write!(f, "limit {text:?} of quota {}", self.quota)?;
                f.write_str(" is unreadable, expected: a whole number")
            }
        }
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
