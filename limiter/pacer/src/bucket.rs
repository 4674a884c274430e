//! The bucket of a container on a card: one word that all its processes share, the moment at which
//! what was charged so far is paid for. Before that moment the bucket is in debt, after it in
//! credit; a charge moves it on by the time in which that much GPU time becomes free.
//!
//! One exchange of one word is a whole charge, so a process may die anywhere: it has charged its
//! launch or it has not. Nobody fills the bucket; time does.
//!
//! Fed by: the counters file's word. Must not: loop without bound, or believe a word that no
//! charge can have made.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::rule::Rate;

/// Nanoseconds of unused time that are kept for later: more would be a burst that others feel,
/// less is lost whenever a process is not scheduled for a while.
pub const BURST: u64 = 50_000_000;
/// A debt of more nanoseconds than this was not made by a launch of ours.
pub const FORGED: u64 = 600_000_000_000;
/// Exchanges that may fail because others charged meanwhile, before a charge is added blindly.
const TRIES: u32 = 64;

/// The word, wherever it lies.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a>(pub &'a AtomicU64);

/// The bucket is in debt until this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until(pub u64);

impl Bucket<'_> {
    /// Charges `cost` nanoseconds of GPU time, if the bucket is not in debt.
    pub fn take(self, now: u64, rate: Rate, cost: u64) -> Result<(), Until> {
        let mut found = self.0.load(Relaxed);
        for _ in 0..TRIES {
            let next = taken(found, now, rate, cost)?;
            match self.0.compare_exchange_weak(found, next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => found = other,
            }
        }
        self.0.fetch_add(rate.wall(cost), Relaxed);
        Ok(())
    }

    /// Corrects a charge of `charged` to what it turned out to be, `found`.
    pub fn settle(self, rate: Rate, charged: u64, found: u64) {
        if found >= charged {
            self.0.fetch_add(rate.wall(found - charged), Relaxed);
        } else {
            self.0.fetch_sub(rate.wall(charged - found), Relaxed);
        }
    }

    /// Lets so many nanoseconds pass unused: in them a launch waited for others of its container.
    pub fn pass(self, nanoseconds: u64) {
        self.0.fetch_add(nanoseconds.min(FORGED), Relaxed);
    }
}

/// The word after a charge, or until when there can be none.
fn taken(word: u64, now: u64, rate: Rate, cost: u64) -> Result<u64, Until> {
    let forged = word > now.saturating_add(FORGED);
    // A new bucket is empty.
    let paid = if forged || word == 0 {
        now
    } else {
        word.max(now.saturating_sub(BURST))
    };
    if paid > now {
        return Err(Until(paid));
    }
    // Never so far that the word would look forged.
    Ok((paid + rate.wall(cost).min(FORGED)).min(now + FORGED))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HALF: Rate = Rate::exactly(500_000);
    const NOW: u64 = 1 << 40;

    #[test]
    fn a_bucket_that_is_not_in_debt_gives_and_then_waits_until_it_is_paid() {
        let word = AtomicU64::new(NOW);
        let bucket = Bucket(&word);
        assert_eq!(bucket.take(NOW, HALF, 10), Ok(()));
        assert_eq!(bucket.take(NOW, HALF, 10), Err(Until(NOW + 20)));
        assert_eq!(bucket.take(NOW + 19, HALF, 10), Err(Until(NOW + 20)));
        assert_eq!(bucket.take(NOW + 20, HALF, 10), Ok(()));
    }

    #[test]
    fn unused_time_is_kept_for_a_while_only() {
        let word = AtomicU64::new(1);
        let mut given = 0;
        while Bucket(&word).take(NOW, HALF, 1_000_000).is_ok() {
            given += 1_000_000;
        }
        assert_eq!(given, BURST / 2 + 1_000_000, "and one on credit");
    }

    #[test]
    fn a_charge_that_was_wrong_is_corrected() {
        let word = AtomicU64::new(NOW);
        let bucket = Bucket(&word);
        bucket.take(NOW, HALF, 10).unwrap();
        bucket.settle(HALF, 10, 4);
        assert_eq!(word.load(Relaxed), NOW + 8);
        bucket.settle(HALF, 10, 16);
        assert_eq!(word.load(Relaxed), NOW + 20);
    }

    #[test]
    fn a_word_that_no_charge_can_have_made_blocks_nobody() {
        for word in [u64::MAX, NOW + FORGED + 1] {
            let word = AtomicU64::new(word);
            assert_eq!(Bucket(&word).take(NOW, HALF, 10), Ok(()));
            assert_eq!(word.load(Relaxed), NOW + 20);
        }
        let word = AtomicU64::new(3);
        Bucket(&word).settle(HALF, u64::MAX, 0);
        assert_eq!(Bucket(&word).take(NOW, HALF, 10), Ok(()));
    }

    #[test]
    fn a_long_kernel_with_a_small_share_made_a_word_that_looked_forged() {
        let word = AtomicU64::new(NOW);
        let tenth = Rate::exactly(100_000);
        assert_eq!(Bucket(&word).take(NOW, tenth, 61_000_000_000), Ok(()));
        assert!(Bucket(&word).take(NOW + 1, tenth, 10).is_err());
    }

    #[test]
    fn a_process_that_dies_before_or_after_the_exchange_leaves_a_whole_word() {
        // The exchange is the only write: what is there is the word before it or after it, and of
        // each the others go on as if nothing had happened.
        let after = taken(NOW, NOW, HALF, 10).unwrap();
        for left in [NOW, after] {
            let word = AtomicU64::new(left);
            let paid = left.max(NOW);
            assert_eq!(Bucket(&word).take(paid, HALF, 10), Ok(()));
            assert_eq!(word.load(Relaxed), paid + 20);
        }
    }

    #[test]
    fn four_threads_get_no_more_together_than_one() {
        let (word, given) = (AtomicU64::new(NOW), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for step in 0..50_000 {
                        if Bucket(&word).take(NOW + step, HALF, 7).is_ok() {
                            given.fetch_add(7, Relaxed);
                        }
                    }
                });
            }
        });
        let given = given.load(Relaxed);
        assert!(given <= 25_000 + 7, "{given} of 25000 in 50 microseconds");
        assert!(given >= 7, "{given}");
    }

    proptest! {
        #[test]
        fn whatever_is_asked_when_the_rate_holds(
            percent in 1_u32..100,
            asks in prop::collection::vec((0_u64..20_000_000, 0_u64..20_000_000), 1..200),
        ) {
            let (word, rate) = (AtomicU64::new(0), Rate::new(percent, 1_000_000));
            let (mut now, mut given, mut last) = (NOW, 0_u128, 0);
            for (pause, cost) in asks {
                now += pause;
                if Bucket(&word).take(now, rate, cost).is_ok() {
                    given += u128::from(cost);
                    last = cost;
                }
            }
            let time = u128::from(now - NOW + BURST);
            let most = time * u128::from(percent) / 100 + u128::from(last) + 1;
            prop_assert!(given <= most, "{} of {}", given, most);
        }

        #[test]
        fn who_asks_again_when_told_to_gets_all_of_its_rate(
            percent in 1_u32..100,
            costs in prop::collection::vec(1_u64..20_000_000, 1..200),
            late in 0_u64..50_000_000,
        ) {
            let (word, rate) = (AtomicU64::new(NOW), Rate::new(percent, 1_000_000));
            let (mut now, mut given) = (NOW, 0_u128);
            for cost in costs {
                if let Err(Until(when)) = Bucket(&word).take(now, rate, cost) {
                    now = when + late % (BURST / 2);
                    prop_assert_eq!(Bucket(&word).take(now, rate, cost), Ok(()));
                }
                given += u128::from(cost);
            }
            let owed = u128::from(now - NOW).saturating_sub(u128::from(BURST / 2));
            prop_assert!(given + 1 >= owed * u128::from(percent) / 100, "{} {}", given, owed);
        }
    }
}
