//! Whether a tenant is active on a device, how much of it it uses, and whether it demands more, from
//! two successive samples of its counters. Implausible counters are ignored.

use super::{FULL_DEVICE, PERCENT, Ppm, TenantSample, ThrottleFlag};
use aliquot_region::host::LaunchCounters;

const MILLISECOND: u64 = 1_000_000;
/// Minimum time for which a tenant is active after a launch.
pub const MIN_ACTIVE: u64 = 100 * MILLISECOND;
/// Maximum time without a sign of work: a program does not launch during long kernels.
pub const MAX_ACTIVE: u64 = 2_000 * MILLISECOND;
/// A debt or an end of work further in the future than this is forged.
pub const AHEAD: u64 = 10_000 * MILLISECOND;
/// A tenant that had to wait demands more for so long.
const DEMAND_HOLD: u64 = 100 * MILLISECOND;
/// The period over which use is averaged.
const AVERAGE: u64 = 250 * MILLISECOND;
/// Use measured by the driver that counts as work, whatever the counters say.
const WORK_THRESHOLD: Ppm = 2 * PERCENT;

/// The activity of one tenant on one device.
#[derive(Debug, Default)]
pub struct Activity {
    counters: Option<LaunchCounters>,
    sampled_at: u64,
    /// The last sign of work; 0: none.
    last_sign: u64,
    /// Recent time between signs of work.
    gap: u64,
    demand_until: u64,
    used: Ppm,
    active: bool,
    demands_more: bool,
}

impl Activity {
    /// Whether a launch is running, waiting, or was a moment ago.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether it demands more than it uses.
    pub fn demands_more(&self) -> bool {
        self.demands_more
    }

    /// What it uses of the device, by its counters, if it is limited.
    pub fn used(&self) -> Ppm {
        self.used
    }

    /// Adds a sample of a tenant that had this throttle flag until now. A waiting tenant stays active,
    /// or becomes so; an unlimited one has no counters of its use.
    pub fn update(&mut self, sample: &TenantSample, throttle: ThrottleFlag, now: u64) {
        let waiting = throttle == ThrottleFlag::Wait;
        let Some(counters) = sample.counters else {
            self.counters = None;
            self.demands_more = true;
            self.active = sample
                .measured
                .is_some_and(|found| found.used >= WORK_THRESHOLD);
            return;
        };
        let moments = [counters.debt, counters.until].map(|moment| plausible(moment, now));
        let last = self.counters.replace(counters);
        let passed = now.saturating_sub(self.sampled_at).max(1);
        self.sampled_at = now;
        match last {
            None => {
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
                let increase = counters.busy.wrapping_sub(last.busy);
                // A correction of the counters is not use.
                let increase = if increase > AHEAD { 0 } else { increase };
                self.average(increase.saturating_mul(FULL_DEVICE) / passed, passed);
            }
        }
        if moments[0] > now || throttle == ThrottleFlag::Unlimited {
            self.demand_until = self.demand_until.max(now + DEMAND_HOLD);
        }
        self.demands_more = waiting || now < self.demand_until;
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
        let parts = AVERAGE.div_ceil(passed).max(1);
        self.used = (self.used * (parts - 1) + found) / parts;
    }
}

/// The time, or 0 if no launch can have written it.
fn plausible(moment: u64, now: u64) -> u64 {
    if moment > now.saturating_add(AHEAD) {
        0
    } else {
        moment
    }
}
