//! The allowances of a tenant on a device over the last seconds.

use std::collections::VecDeque;

use super::{FULL_DEVICE, Ppm};

/// How long allowances are retained, in nanoseconds: more than the driver's delay.
const RETENTION: u64 = 5_000_000_000;

/// Allowances with their start times, in order. Before the first one: all of the device.
#[derive(Debug, Default)]
pub struct AllowanceHistory {
    marks: VecDeque<(u64, Ppm)>,
}

impl AllowanceHistory {
    /// Sets the allowance from `now` on.
    pub fn note(&mut self, allowed: Ppm, now: u64) {
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
    pub fn between(&self, from: u64, to: u64) -> u64 {
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
mod tests {
    use super::*;
    use crate::arbiter::PERCENT;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn sums_allowance_over_any_interval() {
        let mut allowed = AllowanceHistory::default();
        let check = |allowed: &AllowanceHistory, from: u64, to: u64, expected: u64| {
            let found = allowed.between(from * SECOND / 10, to * SECOND / 10);
            assert_eq!(found, expected * SECOND / 100, "{from} to {to}");
        };
        check(&allowed, 0, 20, 200);
        allowed.note(30 * PERCENT, SECOND);
        allowed.note(30 * PERCENT, 2 * SECOND);
        allowed.note(50 * PERCENT, 3 * SECOND);
        check(&allowed, 0, 10, 100);
        check(&allowed, 5, 15, 65);
        check(&allowed, 10, 30, 60);
        check(&allowed, 5, 40, 50 + 60 + 50);
        check(&allowed, 35, 40, 25);
        check(&allowed, 40, 40, 0);
        check(&allowed, 40, 30, 0);
    }

    #[test]
    fn discards_old_allowances() {
        let mut allowed = AllowanceHistory::default();
        for step in 0..1_000 {
            allowed.note((20 + step % 2) * PERCENT, step * SECOND / 50);
        }
        assert!(allowed.marks.len() < 260, "{}", allowed.marks.len());
        let sum = allowed.between(16 * SECOND, 18 * SECOND);
        assert_eq!(sum, 41 * SECOND / 100);
    }
}
