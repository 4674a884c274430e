//! What a share uses beyond what the library in its container counts.
//!
//! Fed by: two readings of the counters around one of the driver. Must not: charge what merely
//! moved while it was looked at, let a moment's difference raise the charge, or take off what was
//! charged before this monitor began before it knows better.

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
    steady: usize,
    /// What was charged when it was seen first.
    before: Option<u64>,
}

impl Overhead {
    /// The bytes to charge after one more look, where `charged` are: the least difference of the
    /// last steady ones, and at once all that nobody counts. Until there were so many, what was
    /// charged at first stays.
    pub fn after(&mut self, seen: Seen, charged: u64) -> u64 {
        let before = *self.before.get_or_insert(charged);
        if seen.is_steady() {
            self.last[self.next] = seen.held.saturating_sub(seen.after);
            self.next = (self.next + 1) % LOOKS;
            self.steady = (self.steady + 1).min(LOOKS);
        }
        if self.steady < LOOKS {
            return before.max(seen.loose);
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
        let mut check = |seen: Seen, expected: u64| assert_eq!(overhead.after(seen, 0), expected);
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
            overhead.after(steady(100, 90), 0);
        }
        let moving = Seen {
            held: 500,
            loose: 0,
            before: 90,
            after: 400,
        };
        for _ in 0..10 {
            assert_eq!(overhead.after(moving, 10), 10);
        }
    }

    #[test]
    fn what_nobody_counts_is_charged_at_once() {
        let mut overhead = Overhead::default();
        let loose = Seen {
            loose: 70,
            ..steady(100, 100)
        };
        assert_eq!(overhead.after(loose, 0), 70);
        assert_eq!(overhead.after(steady(100, 100), 70), 0);
    }

    #[test]
    fn a_monitor_that_began_again_took_off_what_was_charged_until_it_knew_better() {
        let check = |looks: &[(Seen, u64)]| {
            let (mut overhead, mut charged) = (Overhead::default(), 60);
            for (seen, expected) in looks {
                charged = overhead.after(*seen, charged);
                assert_eq!(charged, *expected, "{seen:?}");
            }
        };
        let still = steady(140, 80);
        let moving = Seen {
            before: 79,
            ..still
        };
        let less = steady(100, 80);
        let loose = Seen { loose: 90, ..still };
        check(&[(still, 60), (still, 60), (still, 60), (less, 20)]);
        check(&[
            (moving, 60),
            (less, 60),
            (moving, 60),
            (less, 60),
            (less, 20),
        ]);
        check(&[(loose, 90), (still, 60), (still, 60), (still, 60)]);
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
                let charged = overhead.after(Seen { held, loose, before, after }, 0);
                prop_assert!(charged <= most + loose);
            }
        }
    }
}
