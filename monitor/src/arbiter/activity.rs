//! Whether a tenant is active on a device, how much of it it uses, and whether it demands more, from
//! two successive samples of its counters. Implausible counters are ignored.

use super::{FULL_DEVICE, Measurement, PERCENT, Ppm, TenantSample, ThrottleFlag};
use aliquot_region::host::LaunchCounters;

const MILLISECOND: u64 = 1_000_000;
/// Minimum time for which a tenant is active after a launch.
pub const MIN_ACTIVE: u64 = 100 * MILLISECOND;
/// Maximum time without a sign of work: a program does not launch during long kernels.
pub const MAX_ACTIVE: u64 = 2_000 * MILLISECOND;
/// A debt or an end of work further in the future than this is forged.
pub const AHEAD: u64 = 10_000 * MILLISECOND;
/// For how long a tenant demands more after it had to wait.
const DEMAND_HOLD: u64 = 100 * MILLISECOND;
/// The period over which use is averaged, and the same for comparison with the driver's measurements.
const AVERAGE: u64 = 250 * MILLISECOND;
const LONG_AVERAGE: u64 = 2_000 * MILLISECOND;
/// No tenant has more processes with work on one device, and none more than the driver lists.
const MAX_RUNNING: u64 = 64;
/// Fixed point of processes with work, and the period over which what they take is averaged.
const ONE_PROCESS: u64 = 256;
const TAKEN_AVERAGE: u64 = 200 * MILLISECOND;
/// Use measured by the driver that counts as work, whatever the counters say.
const WORK_THRESHOLD: Ppm = 2 * PERCENT;

#[derive(Debug, Default)]
pub struct Activity {
    counters: Option<LaunchCounters>,
    sampled_at: u64,
    /// The last sign of work; 0: none.
    last_sign: u64,
    /// Recent time between signs of work.
    gap: u64,
    demand_until: u64,
    /// What it uses of the device, by its counters, if it is limited.
    pub used: Ppm,
    /// The same, over about as long as the driver's measurements are averaged.
    average_used: Ppm,
    /// The part of the time for which its launches wait on the device for other tenants.
    contended: Ppm,
    /// Nanoseconds that it was charged so far, by its counters.
    pub charged: u64,
    running: u64,
    /// Nanoseconds between the last two samples; 0: there was one.
    passed: u64,
    /// The part of the device's time that others take from a process of it with work, on average, and
    /// the time so far.
    taken: Ppm,
    taken_time: u64,
    /// A launch is running, waiting, or was a moment ago.
    pub active: bool,
    pub demands_more: bool,
}

impl Activity {
    /// Its processes with work on the device.
    pub fn running(&self) -> u64 {
        if self.active { self.running } else { 0 }
    }

    /// Adds what `others` processes of other tenants with work took from it since the last sample. While
    /// it has no work they take nothing, and are less often at work than beside it.
    pub fn update_others(&mut self, others: u64) {
        if self.passed == 0 || self.running() == 0 {
            return;
        }
        let taken = FULL_DEVICE * others / (others + 1);
        self.taken = average(self.taken, taken, TAKEN_AVERAGE, self.passed);
        self.taken_time += self.passed * others / (others + 1);
    }

    /// What others lately took, as a number of processes that always have work, in parts of
    /// [`ONE_PROCESS`]; and the nanoseconds that they took from a process with work so far.
    pub fn others(&self) -> (u64, u64) {
        (
            ONE_PROCESS * self.taken / (FULL_DEVICE - self.taken),
            self.taken_time,
        )
    }

    /// Adds a sample of a tenant that had this throttle flag until now. A waiting tenant stays active,
    /// or becomes so; an unlimited one has no counters of its use.
    pub fn update(&mut self, sample: &TenantSample, throttle: ThrottleFlag, now: u64) {
        let waiting = throttle == ThrottleFlag::Wait;
        let Some(counters) = sample.counters else {
            (self.counters, self.running, self.passed) = (None, 0, 0);
            self.demands_more = true;
            let works =
                |found: Measurement| found.used >= WORK_THRESHOLD && now < found.at + MAX_ACTIVE;
            self.active = sample.measured.is_some_and(works);
            return;
        };
        let moments = [counters.debt, counters.until].map(|moment| plausible(moment, now));
        let last = self.counters.replace(counters);
        let passed = now.saturating_sub(self.sampled_at).max(1);
        self.sampled_at = now;
        match last {
            None => {
                self.passed = 0;
                let ago = now.saturating_sub(counters.last);
                let has_begun = counters.last > 0 && counters.last <= now && ago < MIN_ACTIVE;
                self.last_sign = if has_begun { now } else { 0 };
            }
            Some(last) => {
                if (last.launches, last.last) != (counters.launches, counters.last) {
                    self.sign(now);
                }
                if last.waited != counters.waited {
                    self.demand_until = now + DEMAND_HOLD;
                }
                let more = counters.busy.wrapping_sub(last.busy);
                // A correction of the counters is not use.
                let increase = if more > AHEAD { 0 } else { more };
                self.charged = self.charged.saturating_add(increase);
                self.average(increase.saturating_mul(FULL_DEVICE) / passed, passed);
                // Launches of a tenant without a limit are not measured.
                let listed = sample.measured.map_or(MAX_RUNNING, |found| {
                    u64::from(found.processes).clamp(1, MAX_RUNNING)
                });
                self.running = match sample.share() {
                    Some(_) => counters.running.min(listed),
                    None => u64::from(self.active),
                };
                self.passed = passed;
                let waited = counters.contended.wrapping_sub(last.contended);
                let contended = waited.min(AHEAD) * FULL_DEVICE / passed;
                self.contended = average(self.contended, contended, LONG_AVERAGE, passed);
            }
        }
        if moments[0] > now || throttle == ThrottleFlag::Unlimited {
            self.demand_until = self.demand_until.max(now + DEMAND_HOLD);
        }
        // What a program would use without others that waits for its work before it launches more.
        let used = self.average_used.min(FULL_DEVICE);
        let own_time = FULL_DEVICE - self.contended.min(FULL_DEVICE - used);
        let wants = used * FULL_DEVICE / own_time.max(1);
        let lacks = |share| wants > share && used < share;
        let is_slowed = sample.share().is_some_and(lacks);
        self.demands_more = waiting || is_slowed || now < self.demand_until;
        let hold = (2 * self.gap).clamp(MIN_ACTIVE, MAX_ACTIVE);
        let has_signed = self.last_sign > 0 && now < self.last_sign + hold;
        // No sign of work for longer than the driver's delay: forged counters, or a very long kernel.
        let unreported = sample.measured.is_some_and(|found| {
            let quiet = found.at > self.last_sign + MAX_ACTIVE && now < found.at + MAX_ACTIVE;
            found.used >= WORK_THRESHOLD && quiet
        });
        let has_work = has_signed || unreported || moments.iter().any(|moment| *moment > now);
        self.active = has_work || (waiting && self.active);
        if waiting && self.active {
            // When it may launch again it gets a moment to do so.
            self.last_sign = now;
        }
    }

    fn sign(&mut self, now: u64) {
        let gap = now.saturating_sub(self.last_sign);
        if self.last_sign > 0 && gap < MAX_ACTIVE {
            self.gap = gap.max(self.gap - self.gap / 8);
        }
        self.last_sign = now;
    }

    fn average(&mut self, found: Ppm, passed: u64) {
        self.used = average(self.used, found, AVERAGE, passed);
        self.average_used = average(self.average_used, found, LONG_AVERAGE, passed);
    }
}

/// A value averaged over a period, after `passed` of it in which it was `found`.
fn average(before: Ppm, found: Ppm, period: u64, passed: u64) -> Ppm {
    let parts = period.div_ceil(passed).max(1);
    (before * (parts - 1) + found) / parts
}

/// The time, or 0 if no launch can have written it.
fn plausible(moment: u64, now: u64) -> u64 {
    if moment > now.saturating_add(AHEAD) {
        0
    } else {
        moment
    }
}
