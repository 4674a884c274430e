//! Calibration: each tenant's launches are measured undisturbed. The time between two events of a
//! launch contains what other tenants of the device did meanwhile; so now and then all wait, until
//! what is in progress has ended, and then one after the other has the device for itself until some
//! of its launches were measured.
//!
//! A calibration is short: the time of a few launches of each tenant, and of what was in progress. It
//! takes place on a device with tenants that were not measured yet, later seldom, and never while
//! tenants wait for one of high priority. A tenant whose counters report a launch in progress that never
//! ends, or that never launches, costs the others one bounded wait.

use aliquot_region::host::LaunchCounters;

use super::ThrottleFlag;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Time between two calibrations.
const INTERVAL: u64 = 20 * SECOND;
/// The same while a tenant was not measured yet.
const FIRST_INTERVAL: u64 = SECOND;
/// Calibrations take at most one part in so many of the time.
const MAX_PART: u64 = 25;
/// Work in progress that makes no progress for so long has none: its process ended, or does not
/// poll.
const STALLED: u64 = 1_500 * MILLISECOND;
/// The longest wait for work in progress.
const MAX_DRAIN: u64 = 3 * SECOND;
/// How long a tenant has the device without a launch that is measured.
const MAX_IDLE: u64 = 40 * MILLISECOND;
/// Launches of a tenant that are measured, and after how long fewer are enough.
const LAUNCHES: u64 = 4;
const LONG_ENOUGH: u64 = 10 * MILLISECOND;
/// How long a launch is waited for.
const MAX_EXCLUSIVE: u64 = 500 * MILLISECOND;

/// A tenant that may be measured.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// It is active, and has a limit.
    pub eligible: bool,
    /// Its counters.
    pub counters: Option<LaunchCounters>,
}

/// What is known of a tenant.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// Its launches in progress that will never end.
    stale: u64,
    /// It was measured in this or in an earlier calibration.
    is_measured: bool,
    /// It had the device for itself in this calibration.
    was_exclusive: bool,
}

/// The calibration of one device.
#[derive(Debug, Default)]
pub struct Calibration {
    members: Vec<Member>,
    phase: Phase,
    /// When it began, and when the last one ended.
    began: u64,
    ended: u64,
    /// The length of the last one.
    length: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// All wait until the work in progress has ended.
    Drain {
        since: u64,
        /// When it last made progress.
        progressed: u64,
        in_progress: u64,
    },
    /// One tenant has the device.
    Exclusive {
        member: usize,
        since: u64,
        undisturbed: u64,
    },
}

impl Calibration {
    /// Whether it is in progress: then decisions are due more often.
    pub fn in_progress(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// The throttle flag of each tenant, if a calibration is in progress. `allowed`: one may begin or
    /// go on.
    pub fn update(
        &mut self,
        candidates: &[Candidate],
        allowed: bool,
        now: u64,
    ) -> Option<Vec<ThrottleFlag>> {
        self.members.resize(candidates.len(), Member::default());
        let several = candidates
            .iter()
            .filter(|candidate| candidate.eligible)
            .count()
            > 1;
        if !allowed || !several {
            self.end(now);
            return None;
        }
        loop {
            match self.phase {
                Phase::Idle if self.is_due(candidates, now) => {
                    self.began = now;
                    for member in &mut self.members {
                        member.was_exclusive = false;
                    }
                    self.phase = Phase::Drain {
                        since: now,
                        progressed: now,
                        in_progress: u64::MAX,
                    };
                }
                Phase::Idle => return None,
                Phase::Drain {
                    since,
                    progressed,
                    in_progress,
                } => {
                    let left = self.work_in_progress(candidates);
                    let progressed = if left == in_progress { progressed } else { now };
                    let is_stalled = now >= progressed + STALLED || now >= since + MAX_DRAIN;
                    if left > 0 && !is_stalled {
                        self.phase = Phase::Drain {
                            since,
                            progressed,
                            in_progress: left,
                        };
                        return Some(vec![ThrottleFlag::Wait; candidates.len()]);
                    }
                    if is_stalled {
                        for (member, candidate) in self.members.iter_mut().zip(candidates) {
                            member.stale = candidate.counters.map_or(0, |one| one.in_progress);
                        }
                    }
                    match self.next(candidates) {
                        Some(member) => self.begin_exclusive(member, candidates, now),
                        None => self.end(now),
                    }
                }
                Phase::Exclusive {
                    member,
                    since,
                    undisturbed,
                } => {
                    let found = candidates[member].counters.unwrap_or_default();
                    let measured = found.undisturbed.wrapping_sub(undisturbed);
                    let is_long = now >= since + LONG_ENOUGH;
                    let is_measured = measured >= if is_long { 1 } else { LAUNCHES };
                    let limit = if found.in_progress > self.members[member].stale {
                        MAX_EXCLUSIVE
                    } else {
                        MAX_IDLE
                    };
                    if !is_measured && candidates[member].eligible && now < since + limit {
                        let mut flags = vec![ThrottleFlag::Wait; candidates.len()];
                        flags[member] = ThrottleFlag::Exclusive;
                        return Some(flags);
                    }
                    self.members[member].is_measured = true;
                    self.phase = Phase::Drain {
                        since: now,
                        progressed: now,
                        in_progress: u64::MAX,
                    };
                }
            }
        }
    }

    /// Tenants came or went: it ends, and the next one measures all again.
    pub fn forget_tenants(&mut self, now: u64) {
        self.members.clear();
        self.end(now);
    }

    fn is_due(&self, candidates: &[Candidate], now: u64) -> bool {
        let mut eligible = candidates
            .iter()
            .zip(&self.members)
            .filter(|one| one.0.eligible);
        let is_new = eligible.any(|(_, member)| !member.is_measured);
        let interval = if is_new { FIRST_INTERVAL } else { INTERVAL };
        now >= self.ended + interval.max(self.length * MAX_PART)
    }

    /// Measured launches of all tenants that may still end.
    fn work_in_progress(&mut self, candidates: &[Candidate]) -> u64 {
        let each = self
            .members
            .iter_mut()
            .zip(candidates)
            .map(|(member, candidate)| {
                let found = candidate.counters.map_or(0, |one| one.in_progress);
                member.stale = member.stale.min(found);
                found - member.stale
            });
        each.fold(0, u64::saturating_add)
    }

    fn next(&self, candidates: &[Candidate]) -> Option<usize> {
        let mut all = self.members.iter().zip(candidates);
        all.position(|(member, candidate)| !member.was_exclusive && candidate.eligible)
    }

    fn begin_exclusive(&mut self, member: usize, candidates: &[Candidate], now: u64) {
        self.members[member].was_exclusive = true;
        let found = candidates[member].counters.unwrap_or_default();
        self.phase = Phase::Exclusive {
            member,
            since: now,
            undisturbed: found.undisturbed,
        };
    }

    fn end(&mut self, now: u64) {
        if self.in_progress() {
            self.phase = Phase::Idle;
            self.ended = now;
            self.length = now.saturating_sub(self.began);
        }
    }
}

#[cfg(test)]
#[path = "calibration_tests.rs"]
mod tests;
