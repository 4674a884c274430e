//! For how long tenants of low priority may wait for those of high priority: at most a part of each
//! ten seconds, which the administrator sets. Only time counts in which one of them is active: high
//! priority takes nothing from tenants that want nothing.

use std::collections::VecDeque;

/// The time of which the cap is a part, in nanoseconds. It ends now.
const WINDOW: u64 = 10_000_000_000;

/// The part of a device's time for which tenants of low priority may wait, in percent. 100, the
/// default: no cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityCap(pub u64);

impl Default for PriorityCap {
    fn default() -> Self {
        Self(100)
    }
}

impl PriorityCap {
    /// Whether they may wait, after so many nanoseconds of waiting in the window.
    fn allows(self, waited: u64) -> bool {
        self.0 >= 100 || waited * 100 < self.0 * WINDOW
    }
}

/// For how long the tenants of low priority on one device waited.
#[derive(Debug, Default)]
pub struct PriorityWaits {
    /// Begin and end of each wait in the window, in order.
    waits: VecDeque<[u64; 2]>,
    /// The last of them goes on.
    waiting: bool,
}

impl PriorityWaits {
    /// Whether tenants of low priority wait from now on; `high_active` and `low_active`: a tenant of
    /// this priority is active.
    pub fn update(
        &mut self,
        cap: PriorityCap,
        high_active: bool,
        low_active: bool,
        now: u64,
    ) -> bool {
        if let Some(last) = self.waits.back_mut().filter(|_| self.waiting) {
            last[1] = now;
        }
        let start = now.saturating_sub(WINDOW);
        while self.waits.front().is_some_and(|[_, end]| *end <= start) {
            self.waits.pop_front();
        }
        let each = self.waits.iter();
        let waited = each.map(|[begin, end]| end - (*begin).max(start)).sum();
        let must_wait = high_active && cap.allows(waited);
        let counts = must_wait && low_active;
        if counts && !self.waiting {
            self.waits.push_back([now, now]);
        }
        self.waiting = counts;
        must_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 20_000_000;
    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_000 * SECOND;
    /// Ticks in the window.
    const TICKS: usize = 500;

    /// Whether tenants of low priority wait in each tick, if a tenant of high and one of low priority
    /// are active in these ticks.
    fn play(cap: u64, ticks: usize, active: impl Fn(usize) -> [bool; 2]) -> Vec<bool> {
        let mut waits = PriorityWaits::default();
        let decide = |(tick, now)| {
            let [high, low] = active(tick);
            waits.update(PriorityCap(cap), high, low, now)
        };
        let times = (0..).map(|i| START + i * TICK);
        (0..ticks).zip(times).map(decide).collect()
    }

    fn count(waits: &[bool]) -> usize {
        waits.iter().filter(|waits| **waits).count()
    }

    #[test]
    fn caps_wait_for_high_priority_in_any_ten_seconds() {
        type Active = fn(usize) -> bool;
        let high: [Active; 4] = [
            |_| true,
            |tick| tick % 10 < 5,
            |tick| tick / 150 % 2 == 0,
            |tick| tick * tick % 7 < 3,
        ];
        for (pattern, high) in high.into_iter().enumerate() {
            for cap in [0, 1, 20, 50, 99] {
                let waits = play(cap, 6 * TICKS, |tick| [high(tick), true]);
                let most = usize::try_from(cap).unwrap() * TICKS / 100;
                let worst = waits.windows(TICKS).map(count).max();
                assert!(worst <= Some(most), "{pattern}, {cap}: {worst:?}");
                // High priority gets most of what the cap leaves it, whenever it is active.
                let needed = (0..6 * TICKS).filter(|tick| high(*tick)).count();
                let least = (6 * most).min(needed) * 8 / 10;
                assert!(count(&waits) >= least, "{pattern}, {cap}");
            }
            let waits = play(100, 6 * TICKS, |tick| [high(tick), true]);
            assert!((0..6 * TICKS).all(|tick| waits[tick] == high(tick)));
        }
    }

    #[test]
    fn counts_no_wait_while_low_priority_is_idle() {
        // Of low priority, one is active from the twentieth second on.
        let waits = play(30, 4 * TICKS, |tick| [true, tick >= 2 * TICKS]);
        assert_eq!(count(&waits[..2 * TICKS]), 2 * TICKS);
        let begun = &waits[2 * TICKS..];
        assert_eq!(count(&begun[..150]), 150);
        assert_eq!(count(&begun[150..TICKS]), 0);
    }

    #[test]
    fn counts_waiting_time_between_late_decisions() {
        let mut waits = PriorityWaits::default();
        let mut waits_at = |seconds| {
            let now = START + seconds * SECOND;
            waits.update(PriorityCap(50), true, true, now)
        };
        assert_eq!([0, 4, 7, 11].map(&mut waits_at), [true, true, false, false]);
        // Of the last ten seconds they waited two.
        assert!(waits_at(15));
        assert_eq!(waits.waits.len(), 2);
    }
}
