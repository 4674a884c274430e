//! Where room appeared: since refused pods were last looked at, and since a
//! filter call that is still being answered took its snapshot.
//!
//! Fed by: [`crate::books`]. Must not: know pods.

use std::collections::{BTreeSet, VecDeque};

use aliquot_core::Namespace;

/// Enlargements remembered one by one; a call that is older counts as having
/// missed one everywhere.
const REMEMBERED: usize = 1024;

/// One enlargement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// Of the node in this slot, for the pods of all namespaces.
    Slot(usize),
    /// Of what its quotas leave to this namespace, on all nodes.
    Namespace(Namespace),
    /// Anything.
    Everywhere,
}

/// What is to be looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// These nodes, for all pods.
    pub slots: Vec<usize>,
    /// All nodes, for the pods of these namespaces.
    pub namespaces: BTreeSet<Namespace>,
}

impl Places {
    /// Nothing is to be looked at.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.namespaces.is_empty()
    }
}

/// The enlargements of the books.
#[derive(Debug, Default)]
pub struct Grown {
    count: u64,
    recent: VecDeque<Where>,
    everywhere: bool,
    pending: BTreeSet<usize>,
    namespaces: BTreeSet<Namespace>,
}

impl Grown {
    /// How many enlargements there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// One more.
    pub fn add(&mut self, at: Where) {
        self.count += 1;
        self.recent.push_back(at.clone());
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
        self.look(at);
    }

    /// What came after the first `count` is to be looked at again. `false` when
    /// nothing did.
    pub fn again(&mut self, count: u64) -> bool {
        let missed = usize::try_from(self.count - count).unwrap_or(usize::MAX);
        if missed > self.recent.len() {
            self.look(Where::Everywhere);
        } else {
            let first = self.recent.len() - missed;
            let missed: Vec<_> = self.recent.range(first..).cloned().collect();
            for at in missed {
                self.look(at);
            }
        }
        missed > 0
    }

    /// Takes what is to be looked at, among this many slots.
    pub fn take(&mut self, slots: usize) -> Places {
        let pending = std::mem::take(&mut self.pending);
        let namespaces = std::mem::take(&mut self.namespaces);
        if std::mem::take(&mut self.everywhere) {
            return Places {
                slots: (0..slots).collect(),
                namespaces: BTreeSet::new(),
            };
        }
        Places {
            slots: pending.into_iter().collect(),
            namespaces,
        }
    }

    fn look(&mut self, at: Where) {
        match at {
            Where::Slot(slot) => drop(self.pending.insert(slot)),
            Where::Namespace(namespace) => drop(self.namespaces.insert(namespace)),
            Where::Everywhere => self.everywhere = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_call_missed_is_looked_at_again() {
        let mut grown = Grown::default();
        grown.add(Where::Slot(3));
        let seen = grown.count();
        assert_eq!(grown.take(9).slots, [3]);
        assert!(!grown.again(seen));
        assert_eq!(grown.take(9).slots, [0; 0]);
        grown.add(Where::Slot(5));
        grown.add(Where::Slot(5));
        assert_eq!(grown.take(9).slots, [5]);
        assert!(grown.again(seen));
        assert_eq!(grown.take(9).slots, [5]);
        grown.add(Where::Everywhere);
        assert_eq!(grown.take(3).slots, [0, 1, 2]);
        for _ in 0..2 * REMEMBERED {
            grown.add(Where::Slot(1));
        }
        assert_eq!(grown.take(3).slots, [1]);
        assert!(grown.again(seen));
        assert_eq!(grown.take(3).slots, [0, 1, 2]);
        grown.add(Where::Namespace("team".into()));
        let places = grown.take(3);
        assert_eq!(places.slots, [0; 0]);
        assert_eq!(places.namespaces, ["team".into()].into());
        assert!(grown.take(3).is_empty());
    }
}
