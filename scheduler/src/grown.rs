//! Where room appeared: since refused pods were last looked at, and since a
//! filter call that is still being answered took its snapshot.
//!
//! Fed by: [`crate::books`]. Must not: know pods.

use std::collections::{BTreeSet, VecDeque};

/// Enlargements remembered one by one; a call that is older counts as having
/// missed one everywhere.
const REMEMBERED: usize = 1024;

/// One enlargement: the slot of a node, or everywhere.
pub type Where = Option<usize>;

/// The enlargements of the books.
#[derive(Debug, Default)]
pub struct Grown {
    count: u64,
    recent: VecDeque<Where>,
    everywhere: bool,
    pending: BTreeSet<usize>,
}

impl Grown {
    /// How many enlargements there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// One more.
    pub fn add(&mut self, at: Where) {
        self.count += 1;
        self.recent.push_back(at);
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
            self.look(None);
        } else {
            let first = self.recent.len() - missed;
            let missed: Vec<_> = self.recent.range(first..).copied().collect();
            for at in missed {
                self.look(at);
            }
        }
        missed > 0
    }

    /// Takes what is to be looked at, among this many slots.
    pub fn take(&mut self, slots: usize) -> Vec<usize> {
        let pending = std::mem::take(&mut self.pending);
        if std::mem::take(&mut self.everywhere) {
            return (0..slots).collect();
        }
        pending.into_iter().collect()
    }

    fn look(&mut self, at: Where) {
        match at {
            Some(slot) => drop(self.pending.insert(slot)),
            None => self.everywhere = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_call_missed_is_looked_at_again() {
        let mut grown = Grown::default();
        grown.add(Some(3));
        let seen = grown.count();
        assert_eq!(grown.take(9), [3]);
        assert!(!grown.again(seen));
        assert_eq!(grown.take(9), [0; 0]);
        grown.add(Some(5));
        grown.add(Some(5));
        assert_eq!(grown.take(9), [5]);
        assert!(grown.again(seen));
        assert_eq!(grown.take(9), [5]);
        grown.add(None);
        assert_eq!(grown.take(3), [0, 1, 2]);
        for _ in 0..2 * REMEMBERED {
            grown.add(Some(1));
        }
        assert_eq!(grown.take(3), [1]);
        assert!(grown.again(seen));
        assert_eq!(grown.take(3), [0, 1, 2]);
    }
}
