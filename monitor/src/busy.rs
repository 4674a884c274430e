//! How busy each process kept its card, by the driver's newest samples.
//!
//! Fed by: the driver, which takes a sample every sixth of a second to every second, by product,
//! and lists in it who worked. Must not: show somebody idle because there was no sample since the
//! last look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_nvml::Share;

/// A card without a sample for so long is idle.
const IDLE: Duration = Duration::from_secs(2);

/// The newest sample of each card.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<String, Sample>);

#[derive(Debug)]
struct Sample {
    /// By the driver's clock.
    at: u64,
    /// By ours.
    seen: Instant,
    /// Percent of the card, by process.
    busy: BTreeMap<u32, u32>,
}

impl Samples {
    /// From when on samples of a card are new, by the driver's clock.
    pub fn since(&self, card: &str) -> u64 {
        self.0.get(card).map_or(0, |sample| sample.at)
    }

    /// Takes what is new of a card at `now`; whether anything is.
    pub fn take(&mut self, card: &str, found: &[Share], now: Instant) -> bool {
        let Some(at) = found.iter().map(|one| one.at).max() else {
            return false;
        };
        let sample = Sample {
            at: at.max(self.since(card)),
            seen: now,
            busy: found.iter().map(|one| (one.pid, one.busy)).collect(),
        };
        self.0.insert(card.to_owned(), sample);
        true
    }

    /// Percent of a card that each process took at `now`.
    pub fn busy(&self, card: &str, now: Instant) -> impl Iterator<Item = (u32, u32)> {
        let sample = self.0.get(card);
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
}
