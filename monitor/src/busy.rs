//! How busy each process kept its card, by the driver's newest samples.
//!
//! Fed by: the driver, which takes a sample every sixth of a second to every second, by product,
//! and lists in it who worked. Must not: show somebody idle because there was no sample since the
//! last look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aliquot_nvml::Share;

/// A card without a sample for so long is idle.
const IDLE: Duration = Duration::from_secs(2);

/// A second of the driver's clock, which is the time of day.
const SECOND: u64 = 1_000_000;

/// The newest sample of each card.
#[derive(Debug, Default)]
pub struct Samples {
    cards: BTreeMap<String, Sample>,
    /// The time of day when it was last told.
    clock: u64,
}

#[derive(Debug)]
struct Sample {
    /// By the driver's clock.
    at: u64,
    /// The newest one by a clock that went back since; 0: it never did.
    astray: u64,
    /// By ours.
    seen: Instant,
    /// Percent of the card, by process.
    busy: BTreeMap<u32, u32>,
}

impl Samples {
    /// Tells the time of day. Where it went back, samples that were taken say nothing of which are
    /// new.
    pub fn clock(&mut self, now: SystemTime) {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        if now < self.clock {
            for sample in self.cards.values_mut() {
                sample.astray = sample.astray.max(sample.at);
                sample.at = sample.at.min(now.saturating_sub(SECOND));
            }
        }
        self.clock = now;
    }

    /// From when on samples of a card are new, by the driver's clock.
    pub fn since(&self, card: &str) -> u64 {
        self.cards.get(card).map_or(0, |sample| sample.at)
    }

    /// Takes what is new of a card at `now`; whether anything is.
    pub fn take(&mut self, card: &str, found: &[Share], now: Instant) -> bool {
        let astray = self.cards.get(card).map_or(0, |sample| sample.astray);
        // Those of before the clock went back are still told.
        let future = self.clock.saturating_add(SECOND);
        let found = || {
            let all = found.iter();
            all.filter(|one| one.at <= future || one.at > astray)
        };
        let Some(at) = found().map(|one| one.at).max() else {
            return false;
        };
        let sample = Sample {
            at: at.max(self.since(card)),
            astray,
            seen: now,
            busy: found().map(|one| (one.pid, one.busy)).collect(),
        };
        self.cards.insert(card.to_owned(), sample);
        true
    }

    /// Percent of a card that each process took at `now`.
    pub fn busy(&self, card: &str, now: Instant) -> impl Iterator<Item = (u32, u32)> {
        let sample = self.cards.get(card);
        let fresh = sample.filter(|sample| now.saturating_duration_since(sample.seen) < IDLE);
        let all = fresh.into_iter().flat_map(|sample| &sample.busy);
        all.map(|(pid, busy)| (*pid, *busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of the processes after each look, half a second apart; a look finds samples
    /// of processes 1, 2, …, or no new one.
    fn check(looks: &[&[u32]], expected: &[&[(u32, u32)]]) {
        let mut samples = Samples::default();
        let begun = Instant::now();
        for (i, (look, expected)) in (0_u32..).zip(looks.iter().zip(expected)) {
            let now = begun + i * Duration::from_millis(500);
            let found: Vec<Share> = (1..)
                .zip(look.iter())
                .map(|(pid, busy)| Share {
                    pid,
                    busy: *busy,
                    at: u64::from(i) + 7,
                })
                .collect();
            assert_eq!(samples.take("GPU-a", &found, now), !found.is_empty());
            let busy: Vec<_> = samples.busy("GPU-a", now).collect();
            assert_eq!(busy, *expected, "look {i}");
            assert!(samples.busy("GPU-b", now).next().is_none());
        }
    }

    #[test]
    fn a_share_at_full_load_was_idle_in_every_look_between_two_samples() {
        let full: &[(u32, u32)] = &[(1, 99)];
        check(&[&[99], &[], &[99], &[], &[]], &[full; 5]);
    }

    #[test]
    fn who_is_not_in_the_newest_sample_did_not_work() {
        check(&[&[60, 40], &[70]], &[&[(1, 60), (2, 40)], &[(1, 70)]]);
    }

    #[test]
    fn a_card_without_samples_is_idle_after_two_seconds() {
        let busy: &[(u32, u32)] = &[(1, 50)];
        check(
            &[&[50], &[], &[], &[], &[], &[]],
            &[busy, busy, busy, busy, &[], &[]],
        );
    }

    #[test]
    fn only_what_is_new_is_asked_for() {
        let mut samples = Samples::default();
        let at = |at| Share {
            pid: 1,
            busy: 1,
            at,
        };
        assert_eq!(samples.since("GPU-a"), 0);
        samples.take("GPU-a", &[at(5), at(9), at(7)], Instant::now());
        assert_eq!((samples.since("GPU-a"), samples.since("GPU-b")), (9, 0));
        samples.take("GPU-a", &[], Instant::now());
        assert_eq!(samples.since("GPU-a"), 9);
    }

    #[test]
    fn a_clock_that_went_back_silenced_the_driver_for_as_long_as_it_went_back() {
        let begun = Instant::now();
        let day = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let at = |seconds: u64, busy| Share {
            pid: 1,
            busy,
            at: seconds * SECOND,
        };
        let mut samples = Samples::default();
        let mut look = |now: u64, found: &[Share], expected: (bool, Option<u32>)| {
            samples.clock(day(now));
            let since = samples.since("GPU-a");
            let new: Vec<Share> = found.iter().filter(|one| one.at > since).copied().collect();
            let taken = samples.take("GPU-a", &new, begun);
            let busy = samples.busy("GPU-a", begun).next().map(|(_, busy)| busy);
            assert_eq!((taken, busy), expected, "at {now}");
        };
        look(10_000, &[at(9_999, 10)], (true, Some(10)));
        // An hour back; what the driver took before is still in its list.
        look(6_400, &[at(9_999, 10)], (false, Some(10)));
        look(6_402, &[at(9_999, 10), at(6_401, 20)], (true, Some(20)));
        look(6_403, &[at(9_999, 10), at(6_401, 20)], (false, Some(20)));
        look(6_404, &[at(6_401, 20), at(6_403, 30)], (true, Some(30)));
        // The same hour once more.
        look(10_001, &[at(10_000, 40)], (true, Some(40)));
    }
}
