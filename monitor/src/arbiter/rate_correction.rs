//! Corrects a tenant's rate slowly until the driver measures its allowance, and stops a tenant that
//! exceeds its allowance whatever its rate, because it forged its bucket or bypasses the limiter.
//!
//! Use is summed up against the allowance of the same time. The driver reports with an unknown delay:
//! there is one sum for each possible delay ([`DELAYS`]), and only a tenant above by all of them is
//! stopped. So a tenant whose allowance has just fallen is above by some of them only, and one that
//! always takes too much by all, however its allowance changes.
//!
//! Measurements are late, in whole percent, and at most a few per second. A rate never rises without
//! demand, and a small error of measurement stops nobody. It rises only for a tenant that was charged
//! for more than the driver measured: one that uses less than it may because the device is saturated
//! is charged for what it uses, and a higher rate would take from others. An error within the spread
//! of the measurements corrects nothing.

use std::collections::VecDeque;

use super::{FULL_DEVICE, Measurement, PERCENT, Ppm};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// The period over which measurements are averaged.
const AVERAGE: u64 = 2 * SECOND;
/// The same for their spread: a driver reports a part of the time, and where kernels are long, all or
/// nothing.
const SPREAD_AVERAGE: u64 = 4 * SECOND;
/// Whole percents are this much too low on average.
const ROUNDING: Ppm = PERCENT / 2;
/// The fraction of an error that is corrected per second: one in so many.
const GAIN: u64 = 5;
/// Bounds of the correction, in millionths.
const BOUNDS: (u64, u64) = (500_000, 2_000_000);
/// Device time in excess of the allowance before a tenant is stopped, and the same for a tenant that
/// was stopped before.
const MAX_EXCESS: i64 = 500_000_000;
const MAX_EXCESS_WATCHED: i64 = MAX_EXCESS / 2;
/// The cap of the excess: a tenant that ignores its throttle flag would accumulate it without bound.
const EXCESS_CAP: i64 = 6 * MAX_EXCESS;
/// For so long a measurement may belong to an earlier allowance.
const SETTLE: u64 = 2 * SECOND;
/// The possible delays of the driver's measurements.
const DELAYS: [u64; 5] = [0, SETTLE / 4, SETTLE / 2, SETTLE / 4 * 3, SETTLE];
/// If the driver reports nothing for a device for so long, nobody works there: it lists those who do.
const SILENCE: u64 = 2 * SECOND;
/// How long allowances are retained, in nanoseconds: more than the driver's delay.
const RETENTION: u64 = 5_000_000_000;
/// How long a tenant that was stopped has no margin.
const WATCH_PERIOD: u64 = 60 * SECOND;

/// What a tenant's counters report.
#[derive(Clone, Copy, Debug)]
pub struct ReportedUse {
    /// What it uses.
    pub used: Ppm,
    /// The same, averaged for as long as measurements are.
    pub average: Ppm,
    /// It demands more.
    pub demands_more: bool,
}

/// The rate correction of one tenant on one device.
#[derive(Debug)]
pub struct RateCorrection {
    /// The factor of the rate, in millionths.
    correction: u64,
    /// The time of the last measurement.
    seen: u64,
    used: Ppm,
    /// How far a measurement is from that on average.
    spread: Ppm,
    /// The allowance that limits its rate; 0: none.
    allowed: Ppm,
    /// The same without what a saturated device loses.
    limit: Ppm,
    /// When measurements belong to this allowance.
    settled: u64,
    /// Since when it demands more.
    demands_more_since: Option<u64>,
    /// Its recent allowances.
    allowances: AllowanceHistory,
    /// Device time used in excess of the allowance, in nanoseconds, for each delay; below 0: unused.
    excess: [i64; DELAYS.len()],
    stopped: bool,
    watched_until: u64,
}

impl Default for RateCorrection {
    fn default() -> Self {
        Self {
            correction: FULL_DEVICE,
            seen: 0,
            used: 0,
            spread: 0,
            allowed: 0,
            limit: 0,
            settled: 0,
            demands_more_since: None,
            allowances: AllowanceHistory::default(),
            excess: [0; DELAYS.len()],
            stopped: false,
            watched_until: 0,
        }
    }
}

impl RateCorrection {
    /// Adds a sample in which its rate is not limited by this allowance: it is unlimited, or waits. The
    /// measurement does not correct its rate, but counts as use.
    pub fn unlimited_sample(&mut self, measured: Option<Measurement>, allowed: Ppm, now: u64) {
        self.allowed = 0;
        self.allowances.note(allowed, now);
        if let Some((found, passed)) = self.newer(measured) {
            self.add_excess(found, passed, None, now);
        }
    }

    /// Whether it must wait because it used too much.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether it was stopped recently: then it gets its share and no loan.
    pub fn is_watched(&self, now: u64) -> bool {
        now < self.watched_until
    }

    /// The rate correction for the limits page, by which a share becomes this limit.
    pub fn factor(&self, limit: Ppm, share: Ppm) -> u32 {
        let factor = u128::from(limit) * u128::from(self.correction) / u128::from(share.max(1));
        u32::try_from(factor).unwrap_or(u32::MAX)
    }

    /// Adds a sample in which its rate is limited by its allowance, and to a limit below that on a
    /// saturated device.
    pub fn update(
        &mut self,
        measured: Option<Measurement>,
        [allowed, limit]: [Ppm; 2],
        reported: ReportedUse,
        now: u64,
    ) {
        self.limit = limit;
        self.allowances.note(allowed, now);
        if self.allowed.abs_diff(allowed) > allowed / 8 {
            (self.used, self.spread) = (allowed, 0);
            self.settled = now + SETTLE;
        }
        self.allowed = allowed;
        self.demands_more_since = reported
            .demands_more
            .then(|| self.demands_more_since.unwrap_or(now));
        if let Some((found, passed)) = self.newer(measured) {
            self.add_excess(found, passed, Some(reported.used), now);
            if now >= self.settled {
                self.correct(found, passed, reported.average, now);
            }
        } else if self.stopped && now >= self.seen + SILENCE {
            // A stopped tenant uses nothing of an idle device, and returns to its allowance.
            let passed = (now - self.seen).min(SILENCE);
            self.seen = now;
            self.add_excess(0, passed, Some(reported.used), now);
        }
    }

    /// The measurement and the time that it covers, if it is new.
    fn newer(&mut self, measured: Option<Measurement>) -> Option<(Ppm, u64)> {
        let measured = measured.filter(|one| one.at > self.seen)?;
        let passed = (measured.at - self.seen).min(SECOND);
        self.seen = measured.at;
        Some((measured.used.min(FULL_DEVICE), passed))
    }

    fn correct(&mut self, found: Ppm, passed: u64, reported: Ppm, now: u64) {
        let average = |before: Ppm, found: Ppm, period: u64| {
            (before * (period - passed) + found * passed) / period
        };
        // All measurements of the first seconds count alike.
        let known = (now - self.settled + passed).clamp(passed, SPREAD_AVERAGE);
        self.spread = average(self.spread, found.abs_diff(self.used), known);
        self.used = average(self.used, found, AVERAGE);
        if now < self.settled + AVERAGE {
            // The spread of a few measurements may be by chance.
            return;
        }
        let limit = self.limit.max(1);
        // What it used at least and at most, as far as the measurements say.
        let margin = self.spread * 3 / 4;
        let (least, most) = (self.used.saturating_sub(margin), self.used + margin);
        // What it was charged for each nanosecond that it used.
        let charged = |used| reported * FULL_DEVICE / (used + ROUNDING);
        let missing = limit.saturating_sub(most) * FULL_DEVICE / limit;
        let step = |error: u64| {
            let error = error.min(FULL_DEVICE);
            self.correction * error / FULL_DEVICE * passed / SECOND / GAIN
        };
        self.correction = match self.demands_more_since {
            _ if least > limit => {
                let excess = (least - limit) * FULL_DEVICE / limit;
                self.correction.saturating_sub(step(excess))
            }
            Some(since) if most < limit && now >= since + SETTLE => {
                let (more, less) = (
                    charged(most).saturating_sub(self.correction),
                    self.correction
                        .saturating_sub(charged(least).max(FULL_DEVICE)),
                );
                self.correction + step(more.min(missing)) - step(less)
            }
            // The measurement may be from before.
            Some(_) if most < limit => self.correction,
            // Back to no correction; slowly where the measurements only do not contradict it.
            Some(_) => (self.correction * 31 + FULL_DEVICE) / 32,
            None => (self.correction * 15 + FULL_DEVICE) / 16,
        };
        self.correction = self.correction.clamp(BOUNDS.0, BOUNDS.1);
    }

    /// Adds what was used in excess of the allowance. Measurements of an honest tenant may be a little
    /// off for long; a tenant that was stopped before, or that reports much less than is measured, has
    /// no margin. `reported`: the use by its counters; `None` if it has none.
    fn add_excess(&mut self, found: Ppm, passed: u64, reported: Option<Ppm>, now: u64) {
        let watched = self.is_watched(now);
        let contradicted = reported.is_some_and(|reported| found > 2 * reported + 10 * PERCENT);
        let least = if watched { -MAX_EXCESS } else { 0 };
        let time = |part: u64| i64::try_from(part).unwrap_or(i64::MAX);
        for (excess, delay) in self.excess.iter_mut().zip(DELAYS) {
            let to = self.seen.saturating_sub(delay);
            let allowed = self.allowances.between(to.saturating_sub(passed), to);
            let margin = if watched || contradicted {
                0
            } else {
                allowed / 16 + PERCENT * passed / FULL_DEVICE
            };
            let more = time(found * passed / FULL_DEVICE) - time(allowed + margin);
            *excess = (*excess + more).clamp(least, EXCESS_CAP);
        }
        let most = match (self.stopped, watched) {
            (true, _) => 0,
            (false, true) => MAX_EXCESS_WATCHED,
            (false, false) => MAX_EXCESS,
        };
        self.stopped = self.excess.iter().all(|excess| *excess > most);
        if self.stopped && reported.is_some() {
            self.watched_until = now + WATCH_PERIOD;
        }
    }
}

/// The allowances of a tenant over the last seconds with their start times, in order. Before the first
/// one: all of the device.
#[derive(Debug, Default)]
struct AllowanceHistory {
    marks: VecDeque<(u64, Ppm)>,
}

impl AllowanceHistory {
    /// Sets the allowance from `now` on.
    fn note(&mut self, allowed: Ppm, now: u64) {
        if self.marks.back().is_some_and(|(_, last)| *last == allowed) {
            return;
        }
        self.marks.push_back((now, allowed));
        // The first retained one began before the retention period, or is the first of all.
        while self
            .marks
            .get(1)
            .is_some_and(|(at, _)| *at + RETENTION < now)
        {
            self.marks.pop_front();
        }
    }

    /// Nanoseconds of the device's time that were allowed in this interval.
    fn between(&self, from: u64, to: u64) -> u64 {
        let (mut sum, mut end) = (0, to);
        for (since, allowed) in self.marks.iter().rev() {
            let begin = from.max(*since);
            if begin < end {
                sum += allowed * (end - begin) / FULL_DEVICE;
                end = begin;
            }
        }
        sum + end.saturating_sub(from)
    }
}

#[cfg(test)]
#[path = "rate_correction_tests.rs"]
mod tests;
