//! The cost of launches around which no events can be set, because the driver refuses them: in
//! streams of green contexts, for example. Nothing in the process measures them, so they are charged
//! what the host measured of the container beyond its other launches, divided by their number.
//!
//! Until the host has measured something, and where it cannot, a launch is charged as an unknown one.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::cost::UNKNOWN_COST;

/// Nanoseconds over which launches are compared with the host's measurements, which are late and
/// come a few times a second.
const WINDOW: u64 = 2_000_000_000;
/// Bounds of the cost in nanoseconds.
const BOUNDS: (u64, u64) = (1_000, 2_000_000_000);
/// The cost changes by this factor at most in one window.
const MAX_STEP: u64 = 8;
/// Streams that are remembered.
const STREAMS: usize = 8;
/// Launches that may be in progress: what the host measures then belongs to what was launched.
const MAX_IN_PROGRESS: u64 = 4;

/// What is read at a launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyTimes {
    /// Nanoseconds of the monotonic clock.
    pub now: u64,
    /// Nanoseconds for which the container used the device, as far as the host measured; 0: it has
    /// measured nothing.
    pub measured: u64,
    /// Nanoseconds that all its launches were charged.
    pub charged: u64,
}

/// The cost of such launches of a process on one device. Nothing is locked: a lost update costs a
/// little accuracy.
#[derive(Debug, Default)]
pub struct UnmarkedCost {
    /// 0: unknown.
    cost: AtomicU64,
    /// Launches since the window began, and what they were charged.
    launches: AtomicU64,
    own: AtomicU64,
    /// What was read when the window began; 0: there is none.
    begun: AtomicU64,
    measured: AtomicU64,
    charged: AtomicU64,
    /// Streams in which no event could be set, plus one; the next place.
    streams: [AtomicU64; STREAMS],
    next: AtomicU64,
    /// Launches since such a stream was last seen idle.
    in_progress: AtomicU64,
}

impl UnmarkedCost {
    /// What a launch in such a stream is charged; `None` for streams in which events can be set, as
    /// far as known.
    pub fn of_stream(&self, stream: u64) -> Option<u64> {
        let is_same = |known: &AtomicU64| known.load(Relaxed) == stream.wrapping_add(1);
        self.streams.iter().any(is_same).then(|| self.cost())
    }

    fn cost(&self) -> u64 {
        match self.cost.load(Relaxed) {
            0 => UNKNOWN_COST,
            cost => cost,
        }
    }

    /// An event could be set in a stream.
    pub fn forget(&self, stream: u64) {
        for known in &self.streams {
            // It may have been replaced meanwhile: then another is forgotten, and found again.
            if known.load(Relaxed) == stream.wrapping_add(1) {
                known.store(0, Relaxed);
            }
        }
    }

    /// Whether so many launches are in progress that the next one waits until its stream is idle.
    pub fn is_queue_full(&self) -> bool {
        self.in_progress.load(Relaxed) >= MAX_IN_PROGRESS
    }

    /// A stream was idle.
    pub fn drained(&self) {
        self.in_progress.store(0, Relaxed);
    }

    /// Counts a launch in a stream in which no event could be set, which was charged `charged`.
    pub fn count(&self, stream: u64, charged: u64, times: BusyTimes) {
        if self.of_stream(stream).is_none() {
            let next = usize::try_from(self.next.fetch_add(1, Relaxed)).unwrap_or(0);
            self.streams[next % STREAMS].store(stream.wrapping_add(1), Relaxed);
        }
        self.in_progress.fetch_add(1, Relaxed);
        self.launches.fetch_add(1, Relaxed);
        self.own.fetch_add(charged, Relaxed);
        let begun = self.begun.load(Relaxed);
        if begun == 0 {
            self.begin_window(times);
        } else if times.now.saturating_sub(begun) >= WINDOW {
            let measured = times.measured.saturating_sub(self.measured.load(Relaxed));
            let all = times.charged.saturating_sub(self.charged.load(Relaxed));
            self.learn(measured, all);
            self.begin_window(times);
        }
    }

    fn begin_window(&self, times: BusyTimes) {
        self.launches.store(0, Relaxed);
        self.own.store(0, Relaxed);
        self.measured.store(times.measured, Relaxed);
        self.charged.store(times.charged, Relaxed);
        self.begun.store(times.now.max(1), Relaxed);
    }

    /// Learns from a window in which the host measured so many nanoseconds of the container and all
    /// its launches were charged `all`.
    fn learn(&self, measured: u64, all: u64) {
        let launches = self.launches.load(Relaxed);
        // Nothing measured is nothing known.
        if measured == 0 || launches == 0 {
            return;
        }
        let others = all.saturating_sub(self.own.load(Relaxed));
        let each = measured.saturating_sub(others) / launches;
        let cost = self.cost();
        let each = each.clamp(cost / MAX_STEP, cost.saturating_mul(MAX_STEP));
        self.cost.store(each.clamp(BOUNDS.0, BOUNDS.1), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: u64 = 5;

    /// The cost after so many seconds with launches at this rate per second, of which each takes
    /// `took` nanoseconds, beside others that take `others` per second. The host is late, and
    /// measures every half second, if at all.
    fn learnt(seconds: u64, rate: u64, took: u64, others: u64, host: bool) -> u64 {
        let unmarked = UnmarkedCost::default();
        let mut times = BusyTimes::default();
        for launch in 0..seconds * rate {
            times.now = 1 + launch * 1_000_000_000 / rate;
            let seen = times.now / 500_000_000 * 500_000_000;
            let busy = seen * rate / 1_000_000_000 * took + others * (seen / 1_000_000_000);
            times.measured = if host { busy } else { 0 };
            let charged = unmarked.of_stream(STREAM).unwrap_or(UNKNOWN_COST);
            times.charged += charged + others / rate;
            unmarked.count(STREAM, charged, times);
        }
        unmarked.of_stream(STREAM).expect("a known stream")
    }

    #[test]
    fn charges_unmarked_launches_what_host_measures() {
        for (rate, took, others) in [
            (4, 200_000_000, 0),
            (1_000, 100_000, 0),
            (10_000, 3_000, 0),
            (100, 5_000_000, 300_000_000),
        ] {
            let cost = learnt(20, rate, took, others, true);
            let right = took / 2..=took * 3 / 2;
            assert!(right.contains(&cost), "{cost} of {took}, {rate} a second");
        }
        // The host measures nothing.
        assert_eq!(learnt(20, 100, 5_000_000, 0, false), UNKNOWN_COST);
    }

    #[test]
    fn forgets_stream_in_which_event_was_set() {
        let unmarked = UnmarkedCost::default();
        assert_eq!(unmarked.of_stream(0), None);
        for stream in [0, STREAM] {
            unmarked.count(stream, UNKNOWN_COST, BusyTimes::default());
            assert_eq!(unmarked.of_stream(stream), Some(UNKNOWN_COST));
        }
        unmarked.forget(0);
        assert_eq!(unmarked.of_stream(0), None);
        assert_eq!(unmarked.of_stream(STREAM), Some(UNKNOWN_COST));
        for stream in 100..200 {
            unmarked.count(stream, UNKNOWN_COST, BusyTimes::default());
        }
        assert_eq!(unmarked.of_stream(STREAM), None, "of many, the last");
    }

    #[test]
    fn bounds_unmarked_launches_in_progress() {
        let unmarked = UnmarkedCost::default();
        for _ in 0..3 {
            let launch = || unmarked.count(STREAM, UNKNOWN_COST, BusyTimes::default());
            let launched = (0..20).take_while(|_| !unmarked.is_queue_full());
            assert_eq!(launched.map(|_| launch()).count(), 4);
            unmarked.drained();
        }
    }

    #[test]
    fn bounds_change_of_unmarked_cost() {
        let unmarked = UnmarkedCost::default();
        let count = |now, measured| {
            let times = BusyTimes {
                now,
                measured,
                charged: 0,
            };
            unmarked.count(STREAM, 0, times);
            unmarked.of_stream(STREAM)
        };
        count(1, 1);
        let most = Some(UNKNOWN_COST * MAX_STEP);
        assert_eq!(count(1 + WINDOW, u64::MAX / 2), most);
        // The host's word went back: it began again.
        assert_eq!(count(1 + 2 * WINDOW, 7), most);
        assert_eq!(count(1 + 3 * WINDOW, 8), Some(UNKNOWN_COST));
    }
}
