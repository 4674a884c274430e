//! What a thread may launch without a charge to the bucket, and how many launches it made since:
//! most launches of small kernels end here, on a cache line to which no other thread writes.
//!
//! A launch on this path uses no locked instruction. Two threads that share an entry may lose one
//! of two updates that happen within the same nanoseconds.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::bucket::MAX_DEBT;

/// Least nanoseconds of GPU time that are charged to the bucket at once.
pub const CHUNK: u64 = 1_000_000;
/// Launches after which one is measured, however little they cost.
pub const MEASURE_INTERVAL: u64 = 1024;

/// Launches before one that is measured, at most.
const OTHERS_FIRST: u64 = 16;
/// Nanoseconds below which a launch is measured on an idle device: others would be done before.
const TINY: u64 = 20_000;

/// Nanoseconds for which launches of other threads may be in progress after they were counted.
const OVERLAP_WINDOW: u64 = 50_000_000;

const THREADS: usize = 16;

#[derive(Debug, Default)]
#[repr(align(64))]
struct ThreadCredit {
    left: AtomicU64,
    /// Launches, and how many of them were reported.
    launches: AtomicU64,
    reported: AtomicU64,
    /// Launches of other threads when this one last charged the bucket, and when they were last found
    /// to be more.
    others: AtomicU64,
    others_seen: AtomicU64,
    /// Which of the next launches is to be measured, counted from 1; 0: none.
    measure_in: AtomicU64,
    /// The host's heartbeat when launches were last reported.
    heartbeat: AtomicU64,
}

impl ThreadCredit {
    /// Counts a launch; how many are not reported.
    #[inline]
    fn count(&self) -> u64 {
        let launches = self.launches.load(Relaxed) + 1;
        self.launches.store(launches, Relaxed);
        launches.wrapping_sub(self.reported.load(Relaxed))
    }
}

/// The credits of a process's threads for one device.
#[derive(Debug, Default)]
pub struct Credit([ThreadCredit; THREADS]);

impl Credit {
    /// Pays for a launch of thread `thread` (any number that mostly differs between threads); false
    /// if the bucket has to be charged or the launch to be measured.
    #[inline]
    pub fn spend(&self, thread: usize, cost: u64) -> bool {
        let credit = &self.0[thread % THREADS];
        let unreported = credit.count();
        let left = credit.left.load(Relaxed);
        let measure_in = credit.measure_in.load(Relaxed);
        if unreported >= MEASURE_INTERVAL || left < cost || measure_in == 1 {
            return false;
        }
        if measure_in > 1 {
            credit.measure_in.store(measure_in - 1, Relaxed);
        }
        credit.left.store(left - cost, Relaxed);
        true
    }

    /// Has a launch of this thread measured that comes after some others of this cost. If they take
    /// longer than it takes to launch them, they are still in progress: its events include no time
    /// in which the device waited for the program.
    pub fn measure_soon(&self, thread: usize, cost: u64) {
        let others = match cost {
            ..TINY => 1,
            _ => (CHUNK / 2 / cost).clamp(1, OTHERS_FIRST),
        };
        self.0[thread % THREADS].measure_in.store(others, Relaxed);
    }

    /// Records that `chunk` nanoseconds of work go to the device; `until` is the container's word
    /// of when all launched work is expected to be done. Whether other threads launch too: their work
    /// may come between the events of this one.
    pub fn begin_work(&self, thread: usize, until: &AtomicU64, (now, chunk): (u64, u64)) -> bool {
        let found = until.load(Relaxed);
        let before = if found > now.saturating_add(MAX_DEBT) {
            now
        } else {
            found
        };
        until.store(before.max(now).saturating_add(chunk), Relaxed);
        let credit = &self.0[thread % THREADS];
        credit.measure_in.store(0, Relaxed);
        let others = self.launches_of_others(thread);
        if credit.others.swap(others, Relaxed) != others {
            credit.others_seen.store(now, Relaxed);
        }
        let seen = credit.others_seen.load(Relaxed);
        seen != 0 && now < seen.saturating_add(OVERLAP_WINDOW)
    }

    fn launches_of_others(&self, thread: usize) -> u64 {
        let all = self.0.iter().enumerate();
        let others = all.filter(|(i, _)| *i != thread % THREADS);
        let launches = others.map(|(_, credit)| credit.launches.load(Relaxed));
        launches.fold(0, u64::wrapping_add)
    }

    /// Counts a launch that needs no credit; true when launches are to be reported: at each
    /// measurement interval, and at each heartbeat of the host, which so learns who is active.
    #[inline]
    pub fn count_launch(&self, thread: usize, heartbeat: u64) -> bool {
        let unreported = self.0[thread % THREADS].count();
        unreported >= MEASURE_INTERVAL || self.is_report_due(thread, heartbeat)
    }

    /// Whether the host's heartbeat changed since this thread last reported launches.
    #[inline]
    pub fn is_report_due(&self, thread: usize, heartbeat: u64) -> bool {
        self.0[thread % THREADS].heartbeat.load(Relaxed) != heartbeat
    }

    /// What to charge the bucket for a launch that the credit could not pay for; the rest becomes
    /// credit.
    pub fn chunk(&self, thread: usize, cost: u64) -> u64 {
        let left = self.0[thread % THREADS].left.load(Relaxed);
        if left >= cost { 0 } else { cost.max(CHUNK) }
    }

    /// Adds what was charged to the bucket, and pays for a launch from it.
    pub fn grant(&self, thread: usize, chunk: u64, cost: u64) {
        let credit = &self.0[thread % THREADS];
        let all = credit.left.load(Relaxed).saturating_add(chunk);
        credit.left.store(all.saturating_sub(cost), Relaxed);
    }

    /// Takes the launches that were not reported yet, to report them at this heartbeat.
    pub fn take_launches(&self, thread: usize, heartbeat: u64) -> u64 {
        let credit = &self.0[thread % THREADS];
        credit.heartbeat.store(heartbeat, Relaxed);
        let launches = credit.launches.load(Relaxed);
        launches.wrapping_sub(credit.reported.swap(launches, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_zero_cost_launches_at_interval() {
        let credit = Credit::default();
        credit.grant(0, CHUNK, 0);
        let passed = (0..MEASURE_INTERVAL).filter(|_| credit.spend(0, 0)).count();
        assert_eq!(passed as u64, MEASURE_INTERVAL - 1);
        assert_eq!(credit.chunk(0, 0), 0, "nothing is charged for it");
        credit.take_launches(0, 0);
        assert!(credit.spend(0, 0));
        credit.measure_soon(0, CHUNK / 2);
        assert!(!credit.spend(0, 0));
        credit.begin_work(0, &AtomicU64::new(0), (0, 0));
        assert!(credit.spend(0, 0), "once");
        assert!((0..MEASURE_INTERVAL).any(|_| credit.count_launch(1, 0)));
    }

    #[test]
    fn measures_small_launch_behind_others() {
        let credit = Credit::default();
        credit.grant(0, CHUNK, 0);
        for (cost, others) in [
            (3_000, 0),
            (20_000, OTHERS_FIRST - 1),
            (100_000, 4),
            (400_000, 0),
        ] {
            credit.measure_soon(0, cost);
            let passed = (0..100).take_while(|_| credit.spend(0, 0)).count();
            assert_eq!(passed as u64, others, "{cost}");
        }
    }
}
