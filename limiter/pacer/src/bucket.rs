//! The bucket of a container on a device: one word that all its processes share, the moment at
//! which everything charged so far is paid for. Before that moment the bucket is in debt, after it
//! in credit. A charge moves the moment on by the time in which that much GPU time becomes
//! available.
//!
//! One exchange of one word is a whole charge, so a process may die anywhere: it has charged its
//! launch or it has not. Nobody refills the bucket; time does. No loop is unbounded, and a word
//! that no charge can produce is ignored.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::rule::Rate;

/// Nanoseconds of unused time that may be used later: with more, other tenants would notice a
/// burst; with less, time would be lost whenever a process is not scheduled for a while. A launch
/// that takes longer at its rate may be late by that time: it waits for as long as others' launches
/// take.
pub const BURST: u64 = 50_000_000;
/// The longest burst, for long launches.
const MAX_BURST: u64 = 1_000_000_000;
/// Nanoseconds of GPU time that a bucket in debt gathers beside other tenants before it grants a
/// launch: a device that changes tenants for each short launch loses more time than it works.
const BATCH: u64 = 4_000_000;
/// The longest that a launch waits for such a batch.
const MAX_GATHER: u64 = 20_000_000;
/// Highest debt in nanoseconds that our launches can cause.
pub const MAX_DEBT: u64 = 600_000_000_000;
/// Exchanges that may fail because other processes charge at the same time, before a charge is
/// added unconditionally.
const MAX_ATTEMPTS: u32 = 64;

#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a>(pub &'a AtomicU64);

/// The bucket is in debt until this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until(pub u64);

impl Bucket<'_> {
    /// Charges `cost` nanoseconds of GPU time, if the bucket is not in debt.
    pub fn take(self, now: u64, rate: Rate, cost: u64) -> Result<(), Until> {
        let mut found = self.0.load(Relaxed);
        for _ in 0..MAX_ATTEMPTS {
            let next = charged_word(found, now, rate, cost)?;
            match self.0.compare_exchange_weak(found, next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => found = other,
            }
        }
        self.0.fetch_add(rate.wall_time(cost), Relaxed);
        Ok(())
    }

    /// Corrects a charge of `charged` to the measured cost `found`.
    pub fn correct_charge(self, rate: Rate, charged: u64, found: u64) {
        if found >= charged {
            self.0.fetch_add(rate.wall_time(found - charged), Relaxed);
        } else {
            self.0.fetch_sub(rate.wall_time(charged - found), Relaxed);
        }
    }

    /// Lets nanoseconds pass unused, in which a launch waited for other launches of its container.
    pub fn skip(self, nanoseconds: u64) {
        self.0.fetch_add(nanoseconds.min(MAX_DEBT), Relaxed);
    }
}

/// Nanoseconds after the end of its debt for which a bucket gathers credit, so that several launches
/// of this cost follow each other.
pub fn gather_time(rate: Rate, cost: u64) -> u64 {
    let each = rate.wall_time(cost).max(1);
    let more = BATCH.div_ceil(cost.max(1)).saturating_sub(1);
    more.min(MAX_GATHER / each) * each
}

/// The word after a charge, never so far that it becomes invalid; or until when none is possible.
fn charged_word(word: u64, now: u64, rate: Rate, cost: u64) -> Result<u64, Until> {
    let invalid = word > now.saturating_add(MAX_DEBT);
    let time = rate.wall_time(cost);
    // A new bucket is empty.
    let paid = if invalid || word == 0 {
        now
    } else {
        word.max(now.saturating_sub(time.clamp(BURST, MAX_BURST)))
    };
    if paid > now && rate != Rate::UNBOUNDED {
        return Err(Until(paid));
    }
    Ok((paid + time.min(MAX_DEBT)).min(now + MAX_DEBT))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1 << 40;

    #[test]
    fn ignores_word_that_no_charge_can_make() {
        let [half, tenth] = [50, 10].map(|percent| Rate::new(percent, 1_000_000));
        for word in [u64::MAX, NOW + MAX_DEBT + 1] {
            let word = AtomicU64::new(word);
            assert_eq!(Bucket(&word).take(NOW, half, 10), Ok(()));
            assert_eq!(word.load(Relaxed), NOW + 20);
        }
        let word = AtomicU64::new(3);
        Bucket(&word).correct_charge(half, u64::MAX, 0);
        assert_eq!(Bucket(&word).take(NOW, half, 10), Ok(()));
        // That of a long kernel at a small share is valid.
        let word = AtomicU64::new(NOW);
        assert_eq!(Bucket(&word).take(NOW, tenth, 61_000_000_000), Ok(()));
        assert!(Bucket(&word).take(NOW + 1, tenth, 10).is_err());
    }

    proptest! {
        #[test]
        fn never_gives_more_than_the_rate(
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
            let late = 20_000_000;
            let most = time * u128::from(percent) / 100 + u128::from(last) + late + 1;
            prop_assert!(given <= most, "{} of {}", given, most);
        }

        #[test]
        fn grants_full_rate_to_caller_that_retries_in_time(
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
