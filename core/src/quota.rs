//! Limits on the GPU memory and compute of a namespace: what its pods hold,
//! what its quotas allow, and whether one more pod may come.
//!
//! Rule: each hard key `limits.<memory>` and `limits.<cores>` of each
//! `ResourceQuota` holds, all at once. A pod counts with its effective use of
//! [`crate::usage`], summed over its cards: count × memory and count × cores,
//! percentages resolved on the cards it was given (HAMi 4.9, without W9).
//! Fed by: [`crate::ledger`] with bookings, `aliquot-k8s` with quotas.
//! Must not: let a limit or a holding that cannot be read count as nothing.

use std::fmt;
use std::sync::Arc;

use crate::id::Namespace;
use crate::ledger::Held;
use crate::units::{Mib, Percent};
use crate::usage::Use;

/// What a limit is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limited {
    /// MiB of all cards together.
    Memory,
    /// Percent of compute of all cards together.
    Cores,
}

/// What one pod takes of all its cards together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Its memory.
    pub memory: Mib,
    /// Its compute.
    pub cores: Percent,
}

impl Amount {
    /// The sum of these effective uses, one for each card.
    pub fn of<'u>(uses: impl IntoIterator<Item = &'u Use>) -> Self {
        let uses = uses.into_iter();
        uses.fold(Self::default(), |sum, used| Self {
            memory: sum.memory + used.memory,
            cores: sum.cores + used.cores,
        })
    }

    fn on(self, what: Limited) -> u64 {
        match what {
            Limited::Memory => self.memory.0,
            Limited::Cores => self.cores.0.into(),
        }
    }
}

/// How much a limit allows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Most {
    /// This much; 0 allows nothing.
    Whole(u64),
    /// This text is no whole number: nothing, until somebody corrects it.
    Unreadable(Arc<str>),
}

impl Most {
    /// The number that it comes to.
    pub fn allowed(&self) -> u64 {
        match self {
            Self::Whole(most) => *most,
            Self::Unreadable(_) => 0,
        }
    }
}

/// One hard key of one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What it is on.
    pub on: Limited,
    /// The key as its author wrote it.
    pub key: Arc<str>,
    /// How much it allows.
    pub most: Most,
}

/// A `ResourceQuota`: those of its limits that are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Its name, unique in the namespace.
    pub name: Arc<str>,
    /// None for a quota on other things.
    pub limits: Vec<Limit>,
}

/// What the pods of a namespace hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    // Wide enough to take back exactly what was added, whatever was written.
    memory: u128,
    cores: u128,
    unreadable: u64,
    pods: u64,
}

impl Used {
    /// The sum on `what`; `None` while some pod's allocation cannot be read.
    pub fn on(&self, what: Limited) -> Option<u128> {
        let sum = match what {
            Limited::Memory => self.memory,
            Limited::Cores => self.cores,
        };
        (self.unreadable == 0).then_some(sum)
    }

    /// No pod is counted.
    pub fn is_empty(&self) -> bool {
        self.pods == 0
    }

    /// One pod more.
    pub fn add(&mut self, held: &Held) {
        let (amount, unreadable) = amount(held);
        self.memory += u128::from(amount.memory.0);
        self.cores += u128::from(amount.cores.0);
        self.unreadable += unreadable;
        self.pods += 1;
    }

    /// One pod, added before, less.
    pub fn remove(&mut self, held: &Held) {
        let (amount, unreadable) = amount(held);
        self.memory -= u128::from(amount.memory.0);
        self.cores -= u128::from(amount.cores.0);
        self.unreadable -= unreadable;
        self.pods -= 1;
    }
}

fn amount(held: &Held) -> (Amount, u64) {
    match held {
        Held::Uses(uses) => (Amount::of(uses.values()), 0),
        Held::Unreadable => (Amount::default(), 1),
    }
}

/// What the quotas of a namespace leave, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    namespace: Namespace,
    used: Used,
    quotas: Arc<[Quota]>,
    memory: u64,
    cores: u64,
}

impl Headroom {
    /// What is left when so much is used.
    pub fn new(namespace: Namespace, used: Used, quotas: Arc<[Quota]>) -> Self {
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

    /// No limit is passed by one more pod that takes this. What a pod does not
    /// take cannot be too much of it.
    pub fn allows(&self, asked: Amount) -> bool {
        asked.memory.0 <= self.memory && u64::from(asked.cores.0) <= self.cores
    }

    /// The first limit (memory before compute, then by the quotas' names) that
    /// one more pod that takes this would pass.
    pub fn over(&self, asked: Amount) -> Option<Over> {
        for on in [Limited::Memory, Limited::Cores] {
            let (asked, used) = (asked.on(on), self.used.on(on));
            for quota in self.quotas.iter() {
                let mut limits = quota.limits.iter().filter(|limit| limit.on == on);
                let passed = limits.find(|limit| asked > left(used, &limit.most));
                if let Some(limit) = passed {
                    return Some(Over {
                        on,
                        asked,
                        quota: quota.name.clone(),
                        key: limit.key.clone(),
                        namespace: self.namespace.clone(),
                        used,
                        most: limit.most.clone(),
                    });
                }
            }
        }
        None
    }

    /// One more pod is about to come.
    pub fn take(&mut self, amount: Amount) {
        self.used.memory += u128::from(amount.memory.0);
        self.used.cores += u128::from(amount.cores.0);
        self.settle();
    }

    fn settle(&mut self) {
        for quota in self.quotas.iter() {
            for limit in &quota.limits {
                let left = left(self.used.on(limit.on), &limit.most);
                let least = match limit.on {
                    Limited::Memory => &mut self.memory,
                    Limited::Cores => &mut self.cores,
                };
                *least = left.min(*least);
            }
        }
    }
}

fn left(used: Option<u128>, most: &Most) -> u64 {
    let used = used.unwrap_or(u128::MAX);
    let left = u128::from(most.allowed()).saturating_sub(used);
    u64::try_from(left).unwrap_or(u64::MAX)
}

/// A limit that a pod would pass. Shown as `namespace team-a:
/// limits.nvidia.com/gpumem used 9000, asked 3000, limit 10000 of quota team`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Over {
    /// What the limit is on.
    pub on: Limited,
    /// What the pod would take.
    pub asked: u64,
    /// The quota's name.
    pub quota: Arc<str>,
    /// Its hard key.
    pub key: Arc<str>,
    /// The namespace.
    pub namespace: Namespace,
    /// What its pods hold; `None` while an allocation of theirs cannot be read.
    pub used: Option<u128>,
    /// What the limit allows.
    pub most: Most,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {}: {} ", self.namespace, self.key)?;
        match self.used {
            Some(used) => write!(f, "used {used}")?,
            None => f.write_str("used unknown, an allocation cannot be read")?,
        }
        write!(f, ", asked {}, ", self.asked)?;
        match &self.most {
            Most::Whole(most) => write!(f, "limit {most} of quota {}", self.quota),
            Most::Unreadable(text) => {
                write!(f, "limit {text:?} of quota {}", self.quota)?;
                f.write_str(" cannot be read, accepted: a whole number")
            }
        }
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
