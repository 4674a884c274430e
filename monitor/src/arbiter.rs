//! Decides who may use which device's compute now: for each tenant of each device its throttle flag,
//! its rate correction and the number of active tenants, every 20 ms, from the tenants' counters and
//! the driver's measurements.
//!
//! In this order, for each device:
//! 1. a tenant of low priority waits while one of high priority is active, unless the administrator's
//!    cap is reached ([`priority_cap`]);
//! 2. under policy `default` a tenant is unlimited if no other is active, or if it has high priority
//!    and none has low priority;
//! 3. limited tenants that demand more are lent what others leave ([`loans`]);
//! 4. rates are corrected until the driver measures the allowance, and a tenant that uses more than it
//!    was allowed in total, whatever its rate, is stopped by its throttle flag ([`rate_correction`]).
//!
//! A tenant can write its counters at will. They tell who is active and who demands more; a false
//! counter gains nothing that a true one would not, and lowers nobody's rate below its share.

pub mod activity;
pub mod loans;
pub mod measurements;
pub mod priority_cap;
pub mod rate_correction;
pub mod runner;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_node_state::limits::UtilizationPolicy;
use aliquot_region::host::LaunchCounters;

use activity::Activity;
use loans::LoanClaim;
use priority_cap::{PriorityCap, PriorityWaits};
use rate_correction::RateCorrection;

/// Millionths of a device's compute.
pub type Ppm = u64;
pub const FULL_DEVICE: Ppm = 1_000_000;
pub const PERCENT: Ppm = 10_000;
/// Measured use from which on a device has no time left but what it loses by switching.
const FULL: Ppm = 88 * PERCENT;

/// What the limiter does with launches, as on the limits page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ThrottleFlag {
    /// Limits their rate.
    #[default]
    Open = 0,
    /// Delays them.
    Wait = 1,
    /// Does not limit them.
    Unlimited = 2,
}

#[derive(Clone, Copy, Debug)]
pub struct TenantSample<'a> {
    pub container: &'a str,
    pub device: &'a str,
    pub high_priority: bool,
    pub policy: UtilizationPolicy,
    /// Percent of the device; 0 and 100: no limit.
    pub cores: u32,
    /// The most that it may be lent, in percent; 0: no maximum.
    pub cores_limit: u32,
    /// Its counters; `None` if they cannot be read.
    pub counters: Option<LaunchCounters>,
    /// What the driver measured, with a time by the clock of `now`.
    pub measured: Option<Measurement>,
}

impl TenantSample<'_> {
    /// Its share; `None` if it is not limited.
    fn share(&self) -> Option<Ppm> {
        let is_limited =
            (1..100).contains(&self.cores) && self.policy != UtilizationPolicy::Disable;
        is_limited.then(|| Ppm::from(self.cores) * PERCENT)
    }

    /// The most that it may use, with what is lent to it.
    fn most(&self) -> Ppm {
        match self.cores_limit {
            percent @ 1..100 => Ppm::from(percent) * PERCENT,
            _ => FULL_DEVICE,
        }
    }
}

/// Compute time of a tenant on a device, by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Part of the device's time.
    pub used: Ppm,
    /// When it was read, in nanoseconds.
    pub at: u64,
    /// The newest sample of one of its processes is older than those of others: what it used since
    /// then is not known.
    pub is_late: bool,
    pub processes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantDecision {
    pub throttle: ThrottleFlag,
    /// Its rate as a multiple of its share, in millionths; 0: no rate.
    pub rate_correction: u32,
    /// Active tenants on the device, including itself.
    pub tenants: u32,
    /// What other tenants lately took of the device, as a number of processes that always have work,
    /// in parts of 256.
    pub others: u32,
    /// The time that others took from a process with work so far, in nanoseconds.
    pub others_time: u64,
}

/// The state between decisions, in the order of the samples, which seldom changes.
#[derive(Debug, Default)]
pub struct ArbiterState {
    /// Container and device of each.
    order: Vec<(String, String)>,
    tenants: Vec<Tenant>,
    devices: BTreeMap<String, Device>,
    priority_cap: PriorityCap,
}

#[derive(Debug, Default)]
struct Device {
    members: Vec<usize>,
    priority_waits: PriorityWaits,
}

#[derive(Debug, Default)]
struct Tenant {
    activity: Activity,
    rate: RateCorrection,
    throttle: ThrottleFlag,
}

impl ArbiterState {
    pub fn new(priority_cap: PriorityCap) -> Self {
        Self {
            priority_cap,
            ..Self::default()
        }
    }

    /// Adds new tenants, and removes those without a sample.
    fn update_tenants(&mut self, samples: &[TenantSample]) {
        let before = self
            .order
            .iter()
            .map(|(container, device)| (container.as_str(), device.as_str()));
        if before.eq(samples.iter().map(|one| (one.container, one.device))) {
            return;
        }
        let order = std::mem::take(&mut self.order).into_iter();
        let mut known: BTreeMap<_, _> = order.zip(std::mem::take(&mut self.tenants)).collect();
        let devices: BTreeSet<&str> = samples.iter().map(|one| one.device).collect();
        self.devices
            .retain(|uuid, _| devices.contains(uuid.as_str()));
        for device in self.devices.values_mut() {
            device.members.clear();
        }
        for (i, sample) in samples.iter().enumerate() {
            let key = (sample.container.to_owned(), sample.device.to_owned());
            self.tenants.push(known.remove(&key).unwrap_or_default());
            self.order.push(key);
            let device = self.devices.entry(sample.device.to_owned()).or_default();
            device.members.push(i);
        }
    }
}

/// Decides for every sample, in their order, at `now` nanoseconds of the monotonic clock.
pub fn decide(samples: &[TenantSample], state: &mut ArbiterState, now: u64) -> Vec<TenantDecision> {
    state.update_tenants(samples);
    let mut decisions = vec![TenantDecision::default(); samples.len()];
    let cap = state.priority_cap;
    for device in state.devices.values_mut() {
        device.decide(samples, &mut state.tenants, &mut decisions, cap, now);
    }
    decisions
}

impl Device {
    fn decide(
        &mut self,
        samples: &[TenantSample],
        tenants: &mut [Tenant],
        decisions: &mut [TenantDecision],
        priority_cap: PriorityCap,
        now: u64,
    ) {
        let members = &self.members;
        for i in members {
            let tenant = &mut tenants[*i];
            tenant.activity.update(&samples[*i], tenant.throttle, now);
        }
        let high_priority = |i: &&usize| samples[**i].high_priority;
        let active = |i: &&usize| tenants[**i].activity.active;
        let high_active = members.iter().filter(high_priority).any(|i| active(&i));
        let low_present = !members.iter().all(|i| high_priority(&i));
        let low_active = members.iter().any(|i| !high_priority(&i) && active(&i));
        let low_waits = self
            .priority_waits
            .update(priority_cap, high_active, low_active, now);
        let yields = |sample: &TenantSample| low_waits && !sample.high_priority;
        let claims: Vec<LoanClaim> = members
            .iter()
            .map(|i| {
                let (sample, activity) = (&samples[*i], &tenants[*i].activity);
                let is_watched = tenants[*i].rate.is_watched(now);
                LoanClaim {
                    share: sample.share(),
                    active: activity.active && !yields(sample),
                    used: activity.used,
                    demands_more: activity.demands_more,
                    may_borrow: sample.policy == UtilizationPolicy::Default && !is_watched,
                    most: sample.most(),
                }
            })
            .collect();
        let active_count = claims.iter().filter(|one| one.active).count();
        let allowed = loans::allowances(&claims);
        // What unlimited tenants take is in neither sum.
        let wanted: Ppm = claims
            .iter()
            .zip(&allowed)
            .filter(|(one, _)| one.active && one.share.is_some())
            .map(|(_, allowed)| *allowed)
            .sum();
        let rates = || members.iter().map(|i| &tenants[*i].rate);
        let used: Ppm = rates().map(RateCorrection::used).sum();
        let most: Ppm = rates().map(RateCorrection::most_used).sum();
        let left = full_device(wanted, used, most);
        let activities = members.iter().map(|i| &tenants[*i].activity);
        let running: u64 = activities.map(Activity::running).sum();
        for ((i, claim), allowed) in members.iter().zip(&claims).zip(allowed) {
            let sample = &samples[*i];
            let others = active_count - usize::from(claim.active);
            let is_unlimited = (others == 0 || (sample.high_priority && !low_present))
                && sample.most() == FULL_DEVICE;
            let throttle = match sample.policy {
                _ if yields(sample) => ThrottleFlag::Wait,
                UtilizationPolicy::Default if is_unlimited => ThrottleFlag::Unlimited,
                _ => ThrottleFlag::Open,
            };
            let limit = allowed * left / FULL_DEVICE;
            let decision =
                tenants[*i].decision(sample, throttle, [allowed, limit], others > 0, now);
            let own = &mut tenants[*i].activity;
            own.update_others(running - own.running());
            let (with_work, others_time) = own.others();
            decisions[*i] = TenantDecision {
                tenants: u32::try_from(others + 1).unwrap_or(u32::MAX),
                others: u32::try_from(with_work).unwrap_or(u32::MAX),
                others_time,
                ..decision
            };
        }
    }
}

/// The part of each allowance that is left on a device where limited tenants may use `wanted` together
/// and `used` is measured of them, which may be `most`: all bear alike what a full device loses by
/// switching.
fn full_device(wanted: Ppm, used: Ppm, most: Ppm) -> Ppm {
    let left = most + 2 * PERCENT;
    if used < FULL || left >= wanted {
        return FULL_DEVICE;
    }
    left * FULL_DEVICE / wanted
}

impl Tenant {
    /// Its throttle flag and rate, of which it may use `allowed`.
    fn decision(
        &mut self,
        sample: &TenantSample,
        throttle: ThrottleFlag,
        [allowed, limit]: [Ppm; 2],
        has_others: bool,
        now: u64,
    ) -> TenantDecision {
        let limited = sample.share().filter(|_| throttle == ThrottleFlag::Open);
        let Some(share) = limited else {
            self.throttle = throttle;
            let is_free = throttle == ThrottleFlag::Unlimited || sample.share().is_none();
            let allowed = if is_free { FULL_DEVICE } else { allowed };
            self.rate.unlimited_sample(sample.measured, allowed, now);
            return TenantDecision {
                throttle,
                ..TenantDecision::default()
            };
        };
        let charged = self.activity.charged;
        self.rate.update(sample.measured, allowed, charged, now);
        if has_others && self.rate.is_stopped() {
            self.throttle = ThrottleFlag::Wait;
        } else {
            self.throttle = throttle;
        }
        TenantDecision {
            throttle: self.throttle,
            rate_correction: self.rate.factor(limit, share),
            ..TenantDecision::default()
        }
    }
}

#[cfg(test)]
#[path = "arbiter/inconsistency_tests.rs"]
mod inconsistency_tests;
#[cfg(test)]
#[path = "arbiter/tests.rs"]
mod tests;
