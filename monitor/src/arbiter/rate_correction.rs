//! Corrects a tenant's rate slowly until the driver measures its allowance, and stops a tenant that
//! exceeds its allowance whatever its rate, because it forged its bucket or bypasses the limiter.
//!
//! Use is summed up against the allowance of the same time. The driver reports with an unknown delay:
//! there is one sum for each possible delay ([`DELAYS`]), and only a tenant above by all of them is
//! stopped. So a tenant whose allowance has just fallen is above by some of them only, and one that
//! always takes too much by all, however its allowance changes.
//!
//! The rate is multiplied by what the tenant was charged for each nanosecond that the driver measured,
//! whatever it demands: beside busy neighbours its launches may be charged too much, or too little
//! where their marks cost more than they do. Measurements are late, in whole percent, at most a few per
//! second, and where kernels are long, all or nothing: a ratio within their spread corrects nothing.

use std::collections::VecDeque;

use super::{FULL_DEVICE, Measurement, PERCENT, Ppm};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// The period over which measurements and charges are averaged.
const AVERAGE: u64 = 8 * SECOND;
/// The least time over which they are compared.
const KNOWN: u64 = 4 * SECOND;
/// The whole percents of a process are this much too low on average.
const ROUNDING: Ppm = PERCENT / 2;
/// A ratio that differs from one by less than the inverse of this is no error.
const DEAD_BAND: u64 = 32;
/// The most that counts as charged, in devices.
const MAX_CHARGED: u64 = 64;
/// Bounds of the correction, in millionths. The lower one is for launches that cannot be measured, which
/// are charged a millisecond each.
const BOUNDS: (u64, u64) = (20_000, 4_000_000);
/// Device time in excess of the allowance before a tenant is stopped, and the same for a tenant that
/// was stopped before.
const MAX_EXCESS: i64 = 500_000_000;
const MAX_EXCESS_WATCHED: i64 = MAX_EXCESS / 2;
/// The cap of the excess: a tenant that ignores its throttle flag would accumulate it without bound.
const EXCESS_CAP: i64 = 6 * MAX_EXCESS;
/// For how long a measurement may belong to an earlier allowance: the driver's longest delay.
const LONGEST: u64 = 2 * SECOND;
/// The possible delays of the driver's measurements.
const DELAYS: [u64; 5] = [0, LONGEST / 4, LONGEST / 2, LONGEST / 4 * 3, LONGEST];
/// If the driver reports nothing for a device for so long, nobody works there: it lists those who do.
const SILENCE: u64 = 2 * SECOND;
/// How long allowances are retained, in nanoseconds: more than the driver's delay.
const RETENTION: u64 = 5_000_000_000;
/// How long a tenant that was stopped has no margin.
const WATCH_PERIOD: u64 = 60 * SECOND;

#[derive(Debug, Default)]
pub struct RateCorrection {
    /// The time of the last measurement, and of the first of those that are averaged.
    seen: u64,
    since: u64,
    /// Averages of the measurements, of how far each is from that, and of what was charged.
    used: Ppm,
    spread: Ppm,
    charged: Ppm,
    /// Processes of the last measurement.
    processes: u64,
    /// What was charged for each nanosecond that was used, in millionths; `None`: not known.
    correction: Option<Ppm>,
    /// What was charged in all when the last measurement was made, in nanoseconds.
    charged_before: u64,
    /// The same at the decisions of the last second, with their times, in order.
    charges: VecDeque<(u64, u64)>,
    allowances: AllowanceHistory,
    /// Device time used in excess of the allowance, in nanoseconds, for each delay; below 0: unused.
    excess: [i64; DELAYS.len()],
    stopped: bool,
    watched_until: u64,
}

impl RateCorrection {
    /// Adds a sample in which its rate is not limited by this allowance: it is unlimited, or waits. The
    /// measurement does not correct its rate, but counts as use.
    pub fn unlimited_sample(&mut self, measured: Option<Measurement>, allowed: Ppm, now: u64) {
        self.allowances.note(allowed, now);
        (self.used, self.since) = (0, 0);
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

    /// What the driver measures, on average.
    pub fn used(&self) -> Ppm {
        self.used
    }

    /// The most that this may be: the driver rounds down for each process.
    pub fn most_used(&self) -> Ppm {
        // Those that are idle are not rounded.
        self.used + (PERCENT * self.processes).min(self.used)
    }

    /// The rate correction for the limits page, by which a share becomes this limit.
    pub fn factor(&self, limit: Ppm, share: Ppm) -> u32 {
        let correction = self.correction.unwrap_or(FULL_DEVICE);
        let factor = u128::from(limit) * u128::from(correction) / u128::from(share.max(1));
        u32::try_from(factor).unwrap_or(u32::MAX)
    }

    /// The average charge for each nanosecond that was used; `None`: the measurements do not show that
    /// it is not one.
    fn ratio(&self) -> Option<Ppm> {
        // Those that are idle are not rounded.
        let rounding = (ROUNDING * self.processes).min(self.used / 2);
        let used = self.used + rounding.max(ROUNDING);
        let margin = (self.spread / 2).max(used / DEAD_BAND) + ROUNDING;
        let ratio = (self.charged * FULL_DEVICE / used).clamp(BOUNDS.0, BOUNDS.1);
        (self.charged.abs_diff(used) > margin).then_some(ratio)
    }

    /// Adds a sample in which its rate is limited by its allowance. `charged`: nanoseconds in all.
    pub fn update(&mut self, measured: Option<Measurement>, allowed: Ppm, charged: u64, now: u64) {
        self.allowances.note(allowed, now);
        let seen = self.seen;
        let newer = self.newer(measured);
        // A measurement covers a second at most, however long ago the one before was.
        let a_second_ago = self.charged_a_second_ago(charged, now);
        let before = self.charged_before.max(a_second_ago);
        if self.seen > seen {
            self.charged_before = charged;
        }
        if let Some((found, passed)) = newer {
            // The counters are the tenant's.
            let scaled = charged.saturating_sub(before).min(MAX_CHARGED * passed) * FULL_DEVICE;
            let reported = scaled / passed.max(1);
            self.add_excess(found, passed, Some(reported), now);
            self.average(found, reported, passed);
        } else if self.stopped && now >= self.seen + SILENCE {
            // A stopped tenant uses nothing of an idle device, and returns to its allowance.
            let passed = (now - self.seen).min(SILENCE);
            self.seen = now;
            self.add_excess(0, passed, Some(0), now);
        }
    }

    fn average(&mut self, found: Ppm, reported: Ppm, passed: u64) {
        if self.since == 0 {
            self.since = self.seen;
            return;
        }
        // The first ones all count alike.
        let period = (self.seen - self.since).clamp(passed, AVERAGE);
        let average =
            |before: Ppm, found: Ppm| (before * (period - passed) + found * passed) / period;
        self.spread = average(self.spread, found.abs_diff(self.used));
        self.used = average(self.used, found);
        self.charged = average(self.charged, reported);
        if self.seen >= self.since + KNOWN {
            let (before, ratio) = (self.correction.unwrap_or(FULL_DEVICE), self.ratio());
            let towards = ratio.unwrap_or(FULL_DEVICE);
            // Up slowly: measurements are late. So is what a ratio was found for forgotten.
            let slowly = (before * (AVERAGE - passed) + towards * passed) / AVERAGE;
            self.correction = Some(ratio.map_or(slowly, |ratio| ratio.min(slowly)));
        }
    }

    /// What had been charged in all a second before `now`, when it is `charged`.
    fn charged_a_second_ago(&mut self, charged: u64, now: u64) -> u64 {
        self.charges.push_back((now, charged));
        let is_old = |(at, _): &(u64, u64)| at + SECOND <= now;
        while self.charges.get(1).is_some_and(is_old) {
            self.charges.pop_front();
        }
        self.charges.front().map_or(charged, |(_, then)| *then)
    }

    /// The measurement and the time that it covers, if it is new. A late one covers none, and the next
    /// covers none of its time.
    fn newer(&mut self, measured: Option<Measurement>) -> Option<(Ppm, u64)> {
        let measured = measured.filter(|one| one.at > self.seen)?;
        let passed = (measured.at - self.seen).min(SECOND);
        self.seen = measured.at;
        self.processes = measured.processes.into();
        (!measured.is_late).then_some((measured.used.min(FULL_DEVICE), passed))
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
