//! Capacity events: since refused pods were last checked, and since a filter call that is still
//! being answered took its snapshot.

use std::collections::{BTreeSet, VecDeque};

use aliquot_core::Namespace;

/// Events that are remembered one by one; a call that is older counts as having missed one
/// everywhere.
const REMEMBERED: usize = 1024;

/// A change that may let a pending pod fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapacityEvent {
    /// The node in this slot has more capacity, for the pods of all namespaces.
    Slot(usize),
    /// The quotas of this namespace leave more, on all nodes.
    Namespace(Namespace),
    /// Anything may have changed.
    Everywhere,
}

/// Where refused pods have to be checked again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FreedCapacity {
    /// On these nodes, all pods.
    pub slots: Vec<usize>,
    /// On all nodes, the pods of these namespaces.
    pub namespaces: BTreeSet<Namespace>,
}

impl FreedCapacity {
    /// Nothing has to be checked.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.namespaces.is_empty()
    }
}

/// The capacity events of the ledger.
#[derive(Debug, Default)]
pub struct CapacityEvents {
    count: u64,
    recent: VecDeque<CapacityEvent>,
    everywhere: bool,
    slots: BTreeSet<usize>,
    namespaces: BTreeSet<Namespace>,
}

impl CapacityEvents {
    /// How many events there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds an event.
    pub fn add(&mut self, event: CapacityEvent) {
        self.count += 1;
        self.recent.push_back(event.clone());
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
        self.mark(event);
    }

    /// Marks everything after the first `count` events to be checked again. `false` when there was
    /// none.
    pub fn replay_since(&mut self, count: u64) -> bool {
        let missed = usize::try_from(self.count - count).unwrap_or(usize::MAX);
        if missed > self.recent.len() {
            self.mark(CapacityEvent::Everywhere);
        } else {
            let first = self.recent.len() - missed;
            let missed: Vec<_> = self.recent.range(first..).cloned().collect();
            for event in missed {
                self.mark(event);
            }
        }
        missed > 0
    }

    /// Takes what has to be checked, among this many slots.
    pub fn take(&mut self, slot_count: usize) -> FreedCapacity {
        let slots = std::mem::take(&mut self.slots);
        let namespaces = std::mem::take(&mut self.namespaces);
        if std::mem::take(&mut self.everywhere) {
            return FreedCapacity {
                slots: (0..slot_count).collect(),
                namespaces: BTreeSet::new(),
            };
        }
        FreedCapacity {
            slots: slots.into_iter().collect(),
            namespaces,
        }
    }

    fn mark(&mut self, event: CapacityEvent) {
        match event {
            CapacityEvent::Slot(slot) => drop(self.slots.insert(slot)),
            CapacityEvent::Namespace(namespace) => drop(self.namespaces.insert(namespace)),
            CapacityEvent::Everywhere => self.everywhere = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_only_events_that_a_call_missed() {
        let mut events = CapacityEvents::default();
        events.add(CapacityEvent::Slot(3));
        let count = events.count();
        assert_eq!(events.take(9).slots, [3]);
        assert!(!events.replay_since(count));
        assert_eq!(events.take(9).slots, [0; 0]);
        events.add(CapacityEvent::Slot(5));
        events.add(CapacityEvent::Slot(5));
        assert_eq!(events.take(9).slots, [5]);
        assert!(events.replay_since(count));
        assert_eq!(events.take(9).slots, [5]);
        events.add(CapacityEvent::Everywhere);
        assert_eq!(events.take(3).slots, [0, 1, 2]);
        for _ in 0..2 * REMEMBERED {
            events.add(CapacityEvent::Slot(1));
        }
        assert_eq!(events.take(3).slots, [1]);
        assert!(events.replay_since(count));
        assert_eq!(events.take(3).slots, [0, 1, 2]);
        events.add(CapacityEvent::Namespace("team".into()));
        let freed = events.take(3);
        assert_eq!(freed.slots, [0; 0]);
        assert_eq!(freed.namespaces, ["team".into()].into());
        assert!(events.take(3).is_empty());
    }
}
