//! A tenant's rate against what the driver measures: corrected slowly until both agree, and a
//! stop for who passes its allowance whatever its rate is, because it wrote its own bucket or
//! found a way around the library.
//!
//! Fed by: the driver's measures, late and in whole percent, a few in a second or fewer. Must not:
//! push up who does not want more, or stop somebody for a measure that is a little off.

use super::{Measured, PERCENT, Ppm, WHOLE};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Over which measures are averaged.
const AVERAGE: u64 = 2 * SECOND;
/// Part of an error that is corrected in a second: one in so many.
const GAIN: u64 = 5;
/// Bounds of the correction, in millionths.
const BOUNDS: (u64, u64) = (500_000, 2_000_000);
/// Time of the card that may be used beyond the allowance before that is stopped.
const TOO_MUCH: i64 = 500_000_000;
/// For so long what is measured may still be of another allowance.
const SETTLE: u64 = 2 * SECOND;
/// A driver that tells nothing of the card for so long says that nobody works there: it lists who
/// does.
const SILENCE: u64 = 2 * SECOND;
/// How long somebody who was stopped is held to its allowance without a margin.
const WATCHED: u64 = 60 * SECOND;

/// What a tenant says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// What it uses.
    pub used: Ppm,
    /// It would use more.
    pub wants_more: bool,
}

/// The level of one tenant on one card.
#[derive(Debug)]
pub struct Level {
    /// Millionths by which the rate is corrected.
    correction: u64,
    /// The measure that was seen last, and when.
    seen: u64,
    used: Ppm,
    allowed: Ppm,
    /// From when on measures are of this allowance.
    settled: u64,
    /// Since when it wants more.
    hungry: Option<u64>,
    /// The most that was allowed in this time of [`SETTLE`], and in the one before.
    most: [Ppm; 2],
    turned: u64,
    /// Nanoseconds of the card used beyond the allowance; below 0: left unused.
    beyond: i64,
    above: bool,
    watched_until: u64,
}

impl Default for Level {
    fn default() -> Self {
        Self {
            correction: WHOLE,
            seen: 0,
            used: 0,
            allowed: 0,
            settled: 0,
            hungry: None,
            most: [WHOLE; 2],
            turned: 0,
            beyond: 0,
            above: false,
            watched_until: 0,
        }
    }
}

impl Level {
    /// Nothing limits it now, or it waits: what is measured says nothing of its rate.
    pub fn rest(&mut self) {
        self.allowed = 0;
        self.most = [WHOLE; 2];
        self.beyond = 0;
        self.above = false;
    }

    /// It used so much more than it may that it must wait.
    pub fn is_above(&self) -> bool {
        self.above
    }

    /// The word for the limits page.
    pub fn trim(&self, allowed: Ppm, share: Ppm) -> u32 {
        let trim = u128::from(allowed) * u128::from(self.correction) / u128::from(share.max(1));
        u32::try_from(trim).unwrap_or(u32::MAX)
    }

    /// Takes the driver's newest measure, if it is new.
    pub fn look(&mut self, measured: Option<Measured>, allowed: Ppm, claim: Claim, now: u64) {
        if now >= self.turned + SETTLE {
            self.most = [allowed, self.most[0]];
            self.turned = now;
        }
        self.most[0] = self.most[0].max(allowed);
        if self.allowed.abs_diff(allowed) > allowed / 8 {
            self.used = allowed;
            self.settled = now + SETTLE;
        }
        self.allowed = allowed;
        self.hungry = claim.wants_more.then(|| self.hungry.unwrap_or(now));
        let Some(measured) = measured.filter(|one| one.at > self.seen) else {
            self.silence(claim, now);
            return;
        };
        let passed = measured.at.saturating_sub(self.seen).min(SECOND);
        self.seen = measured.at;
        self.watch(measured.used, passed, claim.used, now);
        if now >= self.settled {
            self.correct(measured.used, passed, now);
        }
    }

    /// Who was stopped uses nothing of a card that is idle, and comes back to its allowance.
    fn silence(&mut self, claim: Claim, now: u64) {
        if self.above && now >= self.seen + SILENCE {
            let passed = now.saturating_sub(self.seen).min(SILENCE);
            self.seen = now;
            self.watch(0, passed, claim.used, now);
        }
    }

    fn correct(&mut self, found: Ppm, passed: u64, now: u64) {
        self.used = (self.used * (AVERAGE - passed) + found * passed) / AVERAGE;
        let (allowed, used) = (self.allowed.max(1), self.used);
        let error = (allowed.abs_diff(used) * WHOLE / allowed).min(WHOLE);
        let step = self.correction * error / WHOLE * passed / SECOND / GAIN;
        self.correction = match self.hungry {
            _ if used > allowed => self.correction.saturating_sub(step),
            // Towards nothing.
            None => (self.correction * 15 + WHOLE) / 16,
            Some(since) if now >= since + SETTLE => self.correction + step,
            // What is measured may be of the time before.
            Some(_) => self.correction,
        };
        self.correction = self.correction.clamp(BOUNDS.0, BOUNDS.1);
    }

    /// Adds up what was used beyond the allowance. Measures of an honest tenant may be a little
    /// off for long; of somebody who was stopped before, or who says that it uses much less than
    /// is measured, nothing is let pass.
    fn watch(&mut self, found: Ppm, passed: u64, said: Ppm, now: u64) {
        let most = self.most[0].max(self.most[1]);
        let watched = now < self.watched_until;
        let contradicted = found > 2 * said + 10 * PERCENT;
        let margin = if watched || contradicted {
            0
        } else {
            most / 16 + PERCENT
        };
        let least = if watched { -TOO_MUCH } else { 0 };
        let time = |part: Ppm| i64::try_from(part * passed / WHOLE).unwrap_or(i64::MAX);
        self.beyond = (self.beyond + time(found) - time(most + margin)).max(least);
        self.above = self.beyond > if self.above { 0 } else { TOO_MUCH };
        if self.above {
            self.watched_until = now + WATCHED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Ppm = 30 * PERCENT;

    fn claim(used: Ppm, wants_more: bool) -> Claim {
        Claim { used, wants_more }
    }

    /// Lets a tenant use `of` its rate for some seconds, measured `hertz` times in each; what it
    /// used of the card on average over the later half, in percent.
    fn run(hertz: u64, takes: impl Fn(&Level) -> Ppm) -> (Ppm, Level) {
        let mut level = Level::default();
        let (mut sum, mut count) = (0, 0);
        for step in 1..60 * hertz {
            let now = 100 * SECOND + step * SECOND / hertz;
            let used = if level.is_above() { 0 } else { takes(&level) };
            let measured = Measured { used, at: now };
            level.look(Some(measured), SHARE, claim(used, true), now);
            if step > 30 * hertz {
                sum += used;
                count += 1;
            }
        }
        (sum / count / PERCENT, level)
    }

    #[test]
    fn a_rate_is_corrected_until_the_measure_is_the_allowance() {
        for (hertz, factor) in [(1, 80), (4, 80), (4, 140), (1, 120)] {
            let rate =
                |level: &Level| Ppm::from(level.trim(SHARE, SHARE)) * 30 / 100 * factor / 100;
            let (got, level) = run(hertz, rate);
            assert!(
                (29..=31).contains(&got),
                "{hertz} {factor}: {got} {level:?}"
            );
            assert!(!level.is_above());
        }
    }

    #[test]
    fn who_takes_all_whatever_its_rate_is_gets_its_share() {
        for hertz in [1, 4] {
            let (got, level) = run(hertz, |_| WHOLE);
            assert!((27..=31).contains(&got), "{hertz}: {got} {level:?}");
        }
    }

    #[test]
    fn who_says_that_it_does_nothing_is_stopped_sooner() {
        let seconds = |said: Ppm| {
            let mut level = Level::default();
            (1..100).find(|second| {
                let now = (100 + second) * SECOND;
                let measured = Measured {
                    used: SHARE + 8 * PERCENT,
                    at: now,
                };
                level.look(Some(measured), SHARE, claim(said, true), now);
                level.is_above()
            })
        };
        assert_eq!((seconds(0), seconds(SHARE)), (Some(9), Some(12)));
        let mut level = Level::default();
        for second in 1..100 {
            let now = (100 + second) * SECOND;
            let measured = Measured {
                used: SHARE + 2 * PERCENT,
                at: now,
            };
            level.look(Some(measured), SHARE, claim(SHARE, true), now);
        }
        assert!(!level.is_above(), "two points may be the measure's fault");
    }

    #[test]
    fn who_lets_its_allowance_swing_is_watched_all_the_same() {
        let mut level = Level::default();
        let (mut used, mut stopped) = (0, 0);
        for step in 1..600 {
            let now = 100 * SECOND + step * SECOND / 10;
            let allowed = if step % 3 == 0 { SHARE } else { 2 * SHARE };
            let found = if level.is_above() { 0 } else { WHOLE };
            used += found / 600;
            stopped += u32::from(level.is_above());
            let measured = Measured {
                used: found,
                at: now,
            };
            level.look(Some(measured), allowed, claim(found, true), now);
        }
        assert!(stopped > 100 && used < 70 * PERCENT, "{used} {stopped}");
    }

    #[test]
    fn who_was_stopped_was_held_for_ever_on_a_card_that_went_idle() {
        let mut level = Level::default();
        let mut now = 100 * SECOND;
        while !level.is_above() {
            now += SECOND;
            let measured = Measured {
                used: WHOLE,
                at: now,
            };
            level.look(Some(measured), SHARE, claim(SHARE, true), now);
        }
        let last = Measured {
            used: WHOLE,
            at: now,
        };
        let stopped = now;
        while level.is_above() && now < stopped + 60 * SECOND {
            now += 20 * MILLISECOND;
            level.look(Some(last), SHARE, claim(0, true), now);
        }
        let seconds = (now - stopped) / SECOND;
        assert!((2..=8).contains(&seconds), "{seconds}: {level:?}");
    }

    #[test]
    fn what_is_measured_of_another_allowance_corrects_nothing() {
        // It was alone until now, and the driver tells late.
        let mut level = Level::default();
        level.rest();
        for step in 1..=3 {
            let now = 100 * SECOND + step * SECOND / 2;
            let measured = Measured {
                used: WHOLE,
                at: now,
            };
            level.look(Some(measured), SHARE, claim(SHARE, true), now);
        }
        assert_eq!(level.trim(SHARE, SHARE), 1_000_000);
        assert!(!level.is_above());
    }

    #[test]
    fn who_has_just_begun_is_not_pushed_up_by_a_measure_that_is_late() {
        let mut level = Level::default();
        let mut look = |second: u64, used, wants_more| {
            let at = (100 + second) * SECOND;
            level.look(
                Some(Measured { used, at }),
                SHARE,
                claim(used, wants_more),
                at,
            );
            level.trim(SHARE, SHARE)
        };
        for second in 1..10 {
            assert_eq!(look(second, 0, false), 1_000_000);
        }
        assert_eq!(look(10, 0, true), 1_000_000);
        assert_eq!(look(11, 0, true), 1_000_000);
        assert!(look(12, 0, true) > 1_000_000);
    }

    #[test]
    fn who_does_not_want_more_is_not_pushed_up() {
        let mut level = Level::default();
        for second in 1..60 {
            let measured = Measured {
                used: PERCENT,
                at: second * SECOND,
            };
            level.look(
                Some(measured),
                SHARE,
                claim(PERCENT, false),
                second * SECOND,
            );
        }
        assert_eq!(level.trim(SHARE, SHARE), 1_000_000);
        assert_eq!(level.trim(3 * SHARE, SHARE), 3_000_000, "what is lent");
    }
}
