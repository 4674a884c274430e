//! What a share uses beyond what the library in its container counts.
//!
//! Fed by: two readings of the counters around one of the driver. Must not: charge what merely
//! moved while it was looked at, or let a moment's difference raise the charge.

/// Looks that a higher difference must be seen in before it is charged: a second and a half.
const LOOKS: usize = 3;

/// What was seen of one device of one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes that the driver says its processes hold, those with a slot.
    pub held: u64,
    /// Bytes of its processes without a slot, which nobody counts.
    pub loose: u64,
    /// Bytes that the slots of living processes said before the driver was asked.
    pub before: u64,
    /// The same after it.
    pub after: u64,
}

impl Seen {
    /// Bytes that all its processes hold.
    pub fn measured(&self) -> u64 {
        self.held.saturating_add(self.loose)
    }

    /// Nothing moved meanwhile.
    fn is_steady(&self) -> bool {
        self.before == self.after
    }
}

/// The charge of one device of one container, from look to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    last: [u64; LOOKS],
    next: usize,
}

impl Overhead {
    /// The bytes to charge after one more look: the least difference of the last steady ones, and
    /// at once all that nobody counts.
    pub fn after(&mut self, seen: Seen) -> u64 {
        if seen.is_steady() {
            self.last[self.next] = seen.held.saturating_sub(seen.after);
            self.next = (self.next + 1) % LOOKS;
        }
        let least = self.last.iter().copied().min().unwrap_or(0);
        least.saturating_add(seen.loose)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steady(held: u64, said: u64) -> Seen {
        Seen {
            held,
            loose: 0,
            before: said,
            after: said,
        }
    }

    #[test]
    fn a_difference_is_charged_when_it_lasts_and_let_go_at_once() {
        let mut overhead = Overhead::default();
        let mut check = |seen: Seen, expected: u64| assert_eq!(overhead.after(seen), expected);
        check(steady(100, 80), 0);
        check(steady(100, 80), 0);
        check(steady(130, 80), 20);
        check(steady(130, 80), 20);
        check(steady(130, 80), 50);
        check(steady(80, 80), 0);
        check(steady(70, 80), 0);
    }

    #[test]
    fn what_moved_while_it_was_looked_at_says_nothing() {
        let mut overhead = Overhead::default();
        for _ in 0..3 {
            overhead.after(steady(100, 90));
        }
        let moving = Seen {
            held: 500,
            loose: 0,
            before: 90,
            after: 400,
        };
        for _ in 0..10 {
            assert_eq!(overhead.after(moving), 10);
        }
    }

    #[test]
    fn what_nobody_counts_is_charged_at_once() {
        let mut overhead = Overhead::default();
        let loose = Seen {
            loose: 70,
            ..steady(100, 100)
        };
        assert_eq!(overhead.after(loose), 70);
        assert_eq!(overhead.after(steady(100, 100)), 0);
    }

    proptest! {
        #[test]
        fn no_more_is_charged_than_the_driver_says_is_held(
            looks in proptest::collection::vec((0_u64..100, 0_u64..100, 0_u64..100, 0_u64..50), 1..50)
        ) {
            let mut overhead = Overhead::default();
            let mut most = 0;
            for (held, before, after, loose) in looks {
                most = most.max(held.saturating_sub(after));
                let charged = overhead.after(Seen { held, loose, before, after });
                prop_assert!(charged <= most + loose);
            }
        }
    }
}
