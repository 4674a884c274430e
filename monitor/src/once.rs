//! What goes wrong at look after look, to be said once until it is something else, or was over for
//! a while.
//!
//! Fed by: [`crate::act`], [`crate::look`]. Must not: count; every time counts in the metrics.

use std::collections::BTreeMap;

/// What was not said again in so many looks is over.
const OVER: u64 = 120;

/// What was said.
#[derive(Debug, Default)]
pub struct Once {
    /// By whom it is of: the text, and the look at which it came last.
    said: BTreeMap<String, (String, u64)>,
    looks: u64,
}

impl Once {
    /// A look begins.
    pub fn turn(&mut self) {
        self.looks += 1;
        let looks = self.looks;
        self.said.retain(|_, (_, last)| *last + OVER >= looks);
    }

    /// Whether this is to be said now.
    pub fn is_new(&mut self, of: &str, problem: &str) -> bool {
        let said = self
            .said
            .insert(of.to_owned(), (problem.to_owned(), self.looks));
        said.is_none_or(|(before, _)| before != problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_was_told_twice_a_second() {
        let mut once = Once::default();
        let said = |once: &mut Once, of: &str, problem: &str| {
            once.turn();
            once.is_new(of, problem)
        };
        assert!(said(&mut once, "evict.json", "no space left"));
        for _ in 0..1_000 {
            assert!(!said(&mut once, "evict.json", "no space left"));
        }
        assert!(said(&mut once, "processes", "no space left"), "of another");
        assert!(said(&mut once, "evict.json", "read-only"), "another");
        assert!(said(&mut once, "evict.json", "no space left"), "changed");
        for _ in 0..=OVER {
            once.turn();
        }
        assert!(once.said.is_empty(), "{once:?}");
        assert!(said(&mut once, "evict.json", "no space left"), "again");
    }
}
