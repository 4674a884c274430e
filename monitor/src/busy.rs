//! How much of its GPU each process used since the last reading. The driver samples every sixth of a
//! second to every second, by product, lists only processes that worked, and gives each a time stamp of
//! its own: a process without a new sample is idle once the newest sample of the GPU is later than its
//! own by the driver's period, which is at most the shortest time between two samples of one process.
//!
//! Some drivers list processes that have ended, and values above 100, which say nothing: a process
//! with such a value is taken to do what it did before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aliquot_nvml::ProcessUtilization;

/// A GPU without a sample for so long is idle.
const IDLE: Duration = Duration::from_secs(2);

const FULL: u32 = 100;

/// A second of the driver's clock, which is the time of day in microseconds: its longest period.
const SECOND: u64 = 1_000_000;
const SHORTEST_PERIOD: u64 = SECOND / 6;

#[derive(Debug, Default)]
pub struct UtilizationSamples {
    gpus: BTreeMap<String, GpuSamples>,
    /// The time of day at the last sample.
    time_of_day: u64,
}

#[derive(Debug)]
struct GpuSamples {
    /// The time of the newest, by the driver's clock.
    at: u64,
    /// When the newest was read, by the monotonic clock.
    seen: Instant,
    /// At least the driver's period.
    period: u64,
    processes: BTreeMap<u32, ProcessBusy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessBusy {
    pub percent: u32,
    /// It has no sample among those that were read last, but one of the driver's last period.
    pub is_late: bool,
    /// The time of the sample, by the driver's clock.
    at: u64,
}

impl UtilizationSamples {
    /// Sets the time of day. If it went back, earlier samples no longer tell which ones are new.
    pub fn set_clock(&mut self, now: SystemTime) {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        if time < self.time_of_day {
            for gpu in self.gpus.values_mut() {
                let past = |at: u64| at.min(time.saturating_sub(SECOND));
                gpu.at = past(gpu.at);
                for one in gpu.processes.values_mut() {
                    one.at = past(one.at);
                }
            }
        }
        self.time_of_day = time;
    }

    /// The time after which samples of a GPU are new, by the driver's clock.
    pub fn since(&self, gpu: &str) -> u64 {
        self.gpus.get(gpu).map_or(0, |sample| sample.at)
    }

    /// Adds new samples of a GPU at `now`, on which processes of these ids run; returns whether there
    /// are any.
    pub fn take(
        &mut self,
        gpu: &str,
        found: &[ProcessUtilization],
        runs: impl Fn(u32) -> bool,
        now: Instant,
    ) -> bool {
        // The driver still lists samples from before the clock was set back.
        let latest_valid = self.time_of_day.saturating_add(SECOND);
        let mut found: Vec<&ProcessUtilization> =
            found.iter().filter(|one| one.at <= latest_valid).collect();
        let Some(at) = found.iter().map(|one| one.at).max() else {
            return false;
        };
        let is_first = !self.gpus.contains_key(gpu);
        let samples = self.gpus.entry(gpu.to_owned()).or_insert(GpuSamples {
            at,
            seen: now,
            period: SECOND,
            processes: BTreeMap::new(),
        });
        (samples.at, samples.seen) = (samples.at.max(at), now);
        for one in samples.processes.values_mut() {
            one.is_late = true;
        }
        // The newest of a process counts, and one above 100 only where it has no other.
        found.sort_by_key(|one| (one.busy <= FULL, one.at));
        for one in found {
            let valid = (one.busy <= FULL).then_some(one.busy);
            let known = samples.processes.get(&one.pid);
            if let Some(before) = known.filter(|known| known.is_late && known.at < one.at) {
                let passed = (one.at - before.at).max(SHORTEST_PERIOD);
                samples.period = samples.period.min(passed);
            }
            if let Some(percent) = valid.or_else(|| known.map(|known| known.percent)) {
                let found = ProcessBusy {
                    percent,
                    is_late: false,
                    at: one.at,
                };
                samples.processes.insert(one.pid, found);
            }
        }
        let oldest = samples.at.saturating_sub(samples.period);
        // What the driver lists after the first time is of the time since the last.
        samples.processes.retain(|pid, one| {
            let is_listed = !one.is_late && !is_first;
            runs(*pid) && (is_listed || one.at > oldest)
        });
        true
    }

    /// How much of a GPU each process used at `now`.
    pub fn busy(&self, gpu: &str, now: Instant) -> impl Iterator<Item = (u32, ProcessBusy)> {
        let samples = self.gpus.get(gpu);
        let fresh = samples.filter(|gpu| now.saturating_duration_since(gpu.seen) < IDLE);
        let all = fresh.into_iter().flat_map(|gpu| &gpu.processes);
        all.map(|(pid, busy)| (*pid, *busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn used(pid: u32, busy: u32, at: u64) -> ProcessUtilization {
        ProcessUtilization { pid, busy, at }
    }

    fn percents(samples: &UtilizationSamples, now: Instant) -> Vec<(u32, u32)> {
        let all = samples.busy("GPU-a", now);
        all.map(|(pid, busy)| (pid, busy.percent)).collect()
    }

    /// Checks the use of the processes after each sample, half a second apart; a sample has those of
    /// processes 1, 2, …, or none.
    fn check(samples_of_processes: &[&[u32]], expected: &[&[(u32, u32)]]) {
        let mut samples = UtilizationSamples::default();
        samples.set_clock(UNIX_EPOCH + Duration::from_mins(1));
        let begun = Instant::now();
        for (i, (sample, expected)) in (0_u32..).zip(samples_of_processes.iter().zip(expected)) {
            let now = begun + i * Duration::from_millis(500);
            let all = (1..).zip(sample.iter());
            let found: Vec<ProcessUtilization> = all
                .map(|(pid, busy)| used(pid, *busy, (u64::from(i) + 7) * SECOND))
                .collect();
            let taken = samples.take("GPU-a", &found, |_| true, now);
            assert_eq!(taken, !found.is_empty());
            assert_eq!(percents(&samples, now), *expected, "sample {i}");
            assert!(samples.busy("GPU-b", now).next().is_none());
        }
    }

    #[test]
    fn keeps_utilization_between_driver_samples() {
        let full: &[(u32, u32)] = &[(1, 99)];
        check(&[&[99], &[], &[99], &[], &[]], &[full; 5]);
        // A process that has no sample in the last second is idle.
        check(&[&[60, 40], &[70]], &[&[(1, 60), (2, 40)], &[(1, 70)]]);
        // So is a GPU without samples for two seconds.
        let samples: [&[u32]; 6] = [&[99], &[], &[], &[], &[], &[]];
        check(&samples, &[full, full, full, full, &[], &[]]);
    }

    #[test]
    fn process_without_new_sample_is_late_for_a_period() {
        let mut samples = UtilizationSamples::default();
        samples.set_clock(UNIX_EPOCH + Duration::from_mins(1));
        let now = Instant::now();
        let mut take = |all: &[(u32, u32, u64)]| {
            let found = all
                .iter()
                .map(|(pid, busy, at)| used(*pid, *busy, at * 1_000));
            assert!(samples.take("GPU-a", &found.collect::<Vec<_>>(), |_| true, now));
            let all = samples.busy("GPU-a", now);
            all.map(|(pid, busy)| (pid, busy.percent, busy.is_late))
                .collect::<Vec<_>>()
        };
        // Process 3 worked long ago.
        let first = take(&[(1, 30, 5_000), (2, 60, 5_400), (3, 9, 1_000)]);
        assert_eq!(first, [(1, 30, false), (2, 60, false)]);
        assert_eq!(take(&[(1, 35, 6_000)]), [(1, 35, false), (2, 60, true)]);
        let second = take(&[(2, 70, 6_350), (2, 50, 6_400)]);
        assert_eq!(second, [(1, 35, true), (2, 50, false)]);
        assert_eq!(take(&[(1, 31, 7_500)]), [(1, 31, false)]);
        // A driver that samples process 1 twice a second would have sampled process 2, too.
        let both = take(&[(1, 30, 8_000), (2, 20, 7_900)]);
        assert_eq!(both, [(1, 30, false), (2, 20, false)]);
        assert_eq!(take(&[(1, 32, 8_450)]), [(1, 32, false)]);
        // Each process has a time stamp of its own.
        let apart = take(&[(1, 33, 9_000), (2, 20, 8_500)]);
        assert_eq!(apart, [(1, 33, false), (2, 20, false)]);
    }

    #[test]
    fn drops_samples_above_100_and_of_ended_processes() {
        let mut samples = UtilizationSamples::default();
        samples.set_clock(UNIX_EPOCH + Duration::from_mins(1));
        let now = Instant::now();
        let mut check_take = |all: &[(u32, u32)], expected: &[(u32, u32)]| {
            let all_found = (samples.since("GPU-a") + SECOND..).zip(all);
            let found: Vec<ProcessUtilization> = all_found
                .map(|(at, (pid, busy))| used(*pid, *busy, at))
                .collect();
            // Process 9 has ended.
            assert!(samples.take("GPU-a", &found, |pid| pid != 9, now));
            assert_eq!(percents(&samples, now), expected, "{all:?}");
        };
        check_take(&[(1, 101), (2, 40), (9, 50)], &[(2, 40)]);
        check_take(&[(1, 30), (2, 4000)], &[(1, 30), (2, 40)]);
        // It has a valid one besides.
        let both = [(1, 60), (1, 250), (2, 250), (2, 100)];
        check_take(&both, &[(1, 60), (2, 100)]);
        check_take(&[(9, 50)], &[]);
    }

    #[test]
    fn accepts_new_samples_after_clock_is_set_back() {
        let begun = Instant::now();
        let day = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let at = |seconds: u64, busy| used(1, busy, seconds * SECOND);
        let mut samples = UtilizationSamples::default();
        let mut check_at =
            |now: u64, found: &[ProcessUtilization], expected: (bool, Option<u32>)| {
                samples.set_clock(day(now));
                let since = samples.since("GPU-a");
                let new: Vec<ProcessUtilization> =
                    found.iter().filter(|one| one.at > since).copied().collect();
                let taken = samples.take("GPU-a", &new, |_| true, begun);
                let busy = percents(&samples, begun).first().map(|(_, busy)| *busy);
                assert_eq!((taken, busy), expected, "at {now}");
            };
        check_at(10_000, &[at(9_999, 10)], (true, Some(10)));
        // An hour back; the driver still lists its earlier samples.
        check_at(6_400, &[at(9_999, 10)], (false, Some(10)));
        check_at(6_402, &[at(9_999, 10), at(6_401, 20)], (true, Some(20)));
        check_at(6_403, &[at(9_999, 10), at(6_401, 20)], (false, Some(20)));
        check_at(6_404, &[at(6_401, 20), at(6_403, 30)], (true, Some(30)));
        // The same hour once more.
        check_at(10_001, &[at(10_000, 40)], (true, Some(40)));
    }
}
