//! A tenant's rate against what the driver measures: corrected slowly until both agree, and a
//! stop for who passes its allowance whatever its rate is, because it wrote its own bucket or
//! found a way around the library.
//!
//! What is used is added up against what was allowed in the same time. The driver tells late, by a
//! time that nobody knows: there is one sum for each lateness that may be ([`LATE`]), and who is
//! above by all of them has no excuse. So somebody whose allowance has just fallen is above by
//! some of them only, and who always takes more than it may by all, however its allowance swings.
//!
//! Fed by: the driver's measures, late and in whole percent, a few in a second or fewer. Must not:
//! push up who does not want more, or stop somebody for a measure that is a little off.

use super::allowed::Allowed;
use super::{Measured, PERCENT, Ppm, WHOLE};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Over which measures are averaged.
const AVERAGE: u64 = 2 * SECOND;
/// Part of an error that is corrected in a second: one in so many.
const GAIN: u64 = 5;
/// Bounds of the correction, in millionths.
const BOUNDS: (u64, u64) = (500_000, 2_000_000);
/// Time of the card that may be used beyond the allowance before that is stopped, and by somebody
/// who was stopped before.
const TOO_MUCH: i64 = 500_000_000;
const TOO_MUCH_AGAIN: i64 = TOO_MUCH / 2;
/// No more of it is remembered: who heeds no gate uses more and more until it ends.
const MOST: i64 = 6 * TOO_MUCH;
/// For so long what is measured may still be of another allowance.
const SETTLE: u64 = 2 * SECOND;
/// So much later than it was used the driver may tell of it.
const LATE: [u64; 5] = [0, SETTLE / 4, SETTLE / 2, SETTLE / 4 * 3, SETTLE];
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
    /// What its rate is held to; 0: it is not.
    allowed: Ppm,
    /// From when on measures are of this allowance.
    settled: u64,
    /// Since when it wants more.
    hungry: Option<u64>,
    /// What it was allowed of late.
    past: Allowed,
    /// Nanoseconds of the card used beyond the allowance, for each lateness; below 0: left unused.
    beyond: [i64; LATE.len()],
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
            past: Allowed::default(),
            beyond: [0; LATE.len()],
            above: false,
            watched_until: 0,
        }
    }
}

impl Level {
    /// Its rate is not held to this allowance: nothing limits it, or it waits for others. What is
    /// measured says nothing of its rate, and counts all the same.
    pub fn rest(&mut self, measured: Option<Measured>, allowed: Ppm, now: u64) {
        self.allowed = 0;
        self.past.note(allowed, now);
        if let Some((found, passed)) = self.newer(measured) {
            self.watch(found, passed, None, now);
        }
    }

    /// It used so much more than it may that it must wait.
    pub fn is_above(&self) -> bool {
        self.above
    }

    /// It was stopped a short time ago: it gets its share and is lent nothing.
    pub fn is_watched(&self, now: u64) -> bool {
        now < self.watched_until
    }

    /// The word for the limits page.
    pub fn trim(&self, allowed: Ppm, share: Ppm) -> u32 {
        let trim = u128::from(allowed) * u128::from(self.correction) / u128::from(share.max(1));
        u32::try_from(trim).unwrap_or(u32::MAX)
    }

    /// Takes the driver's newest measure, if it is new, of a tenant whose rate is held to its
    /// allowance.
    pub fn look(&mut self, measured: Option<Measured>, allowed: Ppm, claim: Claim, now: u64) {
        self.past.note(allowed, now);
        if self.allowed.abs_diff(allowed) > allowed / 8 {
            self.used = allowed;
            self.settled = now + SETTLE;
        }
        self.allowed = allowed;
        self.hungry = claim.wants_more.then(|| self.hungry.unwrap_or(now));
        if let Some((found, passed)) = self.newer(measured) {
            self.watch(found, passed, Some(claim.used), now);
            if now >= self.settled {
                self.correct(found, passed, now);
            }
        } else if self.above && now >= self.seen + SILENCE {
            // Who was stopped uses nothing of a card that is idle, and comes back to its allowance.
            let passed = (now - self.seen).min(SILENCE);
            self.seen = now;
            self.watch(0, passed, Some(claim.used), now);
        }
    }

    /// The measure, and for how long it stands, if it was not seen before.
    fn newer(&mut self, measured: Option<Measured>) -> Option<(Ppm, u64)> {
        let measured = measured.filter(|one| one.at > self.seen)?;
        let passed = (measured.at - self.seen).min(SECOND);
        self.seen = measured.at;
        Some((measured.used.min(WHOLE), passed))
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
    /// is measured, nothing is let pass. `said`: what it says that it uses; `None`: it need not.
    fn watch(&mut self, found: Ppm, passed: u64, said: Option<Ppm>, now: u64) {
        let watched = self.is_watched(now);
        let contradicted = said.is_some_and(|said| found > 2 * said + 10 * PERCENT);
        let least = if watched { -TOO_MUCH } else { 0 };
        let time = |part: u64| i64::try_from(part).unwrap_or(i64::MAX);
        for (beyond, late) in self.beyond.iter_mut().zip(LATE) {
            let to = self.seen.saturating_sub(late);
            let allowed = self.past.between(to.saturating_sub(passed), to);
            let margin = if watched || contradicted {
                0
            } else {
                allowed / 16 + PERCENT * passed / WHOLE
            };
            let more = time(found * passed / WHOLE) - time(allowed + margin);
            *beyond = (*beyond + more).clamp(least, MOST);
        }
        let most = match (self.above, watched) {
            (true, _) => 0,
            (false, true) => TOO_MUCH_AGAIN,
            (false, false) => TOO_MUCH,
        };
        self.above = self.beyond.iter().all(|beyond| *beyond > most);
        if self.above && said.is_some() {
            self.watched_until = now + WATCHED;
        }
    }
}

#[cfg(test)]
#[path = "level_tests.rs"]
mod tests;
