//! The last hour of each GPU and share, without Prometheus: the answer of `GET /usage/history`. It has
//! a point for every half minute, with means of `sm` and `power`, and the highest memory and temperature,
//! of all samples since the point before. It is in memory only, begins with the monitor, and ends with the
//! share: 120 points of 48 bytes for each of at most 1,024 shares and the GPUs, 6 MiB.
//!
//! ```json
//! {"node": "n1", "times": [1790000000, 1790000030],
//!  "gpus": [{"gpu": "GPU-…", "memory": [30, 31], "sm": [1, 2], "temperature": [61, 61], "power": [9, 9]}],
//!  "shares": [{"gpu": "…", "device": "…", "namespace": "…", "pod": "…", "container": "…",
//!              "memory": [21], "sm": [2], "throttled": [0]}]}
//! ```
//!
//! The last value of each list is of the last time; a shorter list began later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use aliquot_core::measured::{NodeUsage, ShareName};
use aliquot_core::{GpuUuid, Mib, NodeName, Percent};
use serde::Serialize;

const INTERVAL: Duration = Duration::from_secs(30);
const POINTS: usize = 120;
/// Shares that are recorded; the newest ones beyond these are not.
const SHARES: usize = 1024;
/// The shortest time in which what launches waited is a percentage.
const SHORTEST: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct History {
    /// When the interval began whose point comes next.
    begun: Duration,
    times: VecDeque<u64>,
    gpus: BTreeMap<GpuUuid, Series>,
    shares: BTreeMap<ShareName, Series>,
}

/// The points of one GPU or share, and the samples since the last.
#[derive(Debug, Default)]
struct Series {
    points: VecDeque<Point>,
    open: Interval,
}

#[derive(Clone, Copy, Debug, Default)]
struct Point {
    memory: Option<Mib>,
    sm: Option<Percent>,
    temperature: Option<u32>,
    power: Option<u32>,
    throttled: Option<Percent>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    memory: Option<Mib>,
    temperature: Option<u32>,
    sm: Mean,
    power: Mean,
    /// The times of the first and the last sample, and how long launches had waited by then.
    waited: Option<[(Duration, Duration); 2]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: u64,
    count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryReport {
    pub node: NodeName,
    pub times: Vec<u64>,
    /// GPUs and MIG instances.
    pub gpus: Vec<GpuHistory>,
    pub shares: Vec<ShareHistory>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuHistory {
    pub gpu: GpuUuid,
    pub memory: Vec<Option<Mib>>,
    pub sm: Vec<Option<Percent>>,
    /// Degrees Celsius.
    pub temperature: Vec<Option<u32>>,
    /// Watts.
    pub power: Vec<Option<u32>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShareHistory {
    #[serde(flatten)]
    pub name: ShareName,
    pub memory: Vec<Option<Mib>>,
    pub sm: Vec<Option<Percent>>,
    pub throttled: Vec<Option<Percent>>,
}

impl History {
    /// Adds a sample taken at this time of a monotonic clock, and sets how much its shares are throttled:
    /// `waited` has for each how long its launches have waited so far, if that is known.
    pub fn add(&mut self, at: Duration, usage: &mut NodeUsage, waited: &[Option<Duration>]) {
        if self.times.is_empty() && self.begun.is_zero() {
            self.begun = at;
        }
        self.gpus
            .retain(|known, _| usage.gpus.iter().any(|one| one.gpu == *known));
        let names: BTreeSet<&ShareName> = usage.shares.iter().map(|one| &one.name).collect();
        self.shares.retain(|known, _| names.contains(known));
        for one in &usage.gpus {
            let open = &mut self.gpus.entry(one.gpu.clone()).or_default().open;
            open.add(one.memory, one.sm);
            open.temperature = open.temperature.max(one.temperature);
            open.power.add(one.power);
        }
        for (one, waited) in usage.shares.iter_mut().zip(waited) {
            if !self.shares.contains_key(&one.name) && self.shares.len() >= SHARES {
                continue;
            }
            let series = self.shares.entry(one.name.clone()).or_default();
            series.open.add(one.used.memory, one.used.sm);
            if let Some(waited) = waited {
                let now = (at, *waited);
                let first = series.open.waited.map_or(now, |[first, _]| first);
                series.open.waited = Some([first, now]);
            }
            let last = series.points.back().and_then(|point| point.throttled);
            one.used.throttled = series.open.throttled().or(last);
        }
        if at.saturating_sub(self.begun) >= INTERVAL {
            self.begun = at;
            push(&mut self.times, usage.taken_at);
            for series in self.gpus.values_mut().chain(self.shares.values_mut()) {
                series.close();
            }
        }
    }

    pub fn report(&self, node: &NodeName) -> HistoryReport {
        let gpus = self.gpus.iter().map(|(gpu, series)| GpuHistory {
            gpu: gpu.clone(),
            memory: series.column(|point| point.memory),
            sm: series.column(|point| point.sm),
            temperature: series.column(|point| point.temperature),
            power: series.column(|point| point.power),
        });
        let shares = self.shares.iter().map(|(name, series)| ShareHistory {
            name: name.clone(),
            memory: series.column(|point| point.memory),
            sm: series.column(|point| point.sm),
            throttled: series.column(|point| point.throttled),
        });
        HistoryReport {
            node: node.clone(),
            times: self.times.iter().copied().collect(),
            gpus: gpus.collect(),
            shares: shares.collect(),
        }
    }
}

impl Series {
    fn close(&mut self) {
        let open = std::mem::take(&mut self.open);
        // The next interval begins where this one ends, so that no wait is left out.
        self.open.waited = open.waited.map(|[_, last]| [last, last]);
        let point = Point {
            memory: open.memory,
            sm: open.sm.value().map(Percent),
            temperature: open.temperature,
            power: open.power.value(),
            throttled: open.throttled(),
        };
        push(&mut self.points, point);
    }

    fn column<T>(&self, value: impl Fn(&Point) -> T) -> Vec<T> {
        self.points.iter().map(value).collect()
    }
}

impl Interval {
    fn add(&mut self, memory: Option<Mib>, sm: Option<Percent>) {
        self.memory = self.memory.max(memory);
        self.sm.add(sm.map(|percent| percent.0));
    }

    fn throttled(&self) -> Option<Percent> {
        let [(since, before), (until, after)] = self.waited?;
        let length = until.saturating_sub(since);
        // The container was started again: its count began anew.
        let waited = after.checked_sub(before).unwrap_or(after);
        let whole = waited.as_millis() * 100 / length.as_millis().max(1);
        let percent = Percent(u32::try_from(whole).unwrap_or(u32::MAX));
        (length >= SHORTEST).then_some(percent)
    }
}

impl Mean {
    fn add(&mut self, value: Option<u32>) {
        if let Some(value) = value {
            self.sum += u64::from(value);
            self.count += 1;
        }
    }

    fn value(self) -> Option<u32> {
        let mean = self.sum.checked_div(self.count)?;
        u32::try_from(mean).ok()
    }
}

fn push<T>(points: &mut VecDeque<T>, point: T) {
    if points.len() == POINTS {
        points.pop_front();
    }
    points.push_back(point);
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_core::measured::{GpuUsage, Peak, ShareUsage, Used};

    /// What one GPU and these shares use at a second.
    fn usage(second: u64, shares: &[&str]) -> NodeUsage {
        let share = |pod: &&str| ShareUsage {
            name: ShareName {
                gpu: "GPU-a".into(),
                device: "GPU-a".into(),
                namespace: "d".to_owned(),
                pod: (*pod).to_owned(),
                container: "main".to_owned(),
            },
            limit: None,
            request: None,
            used: Used {
                memory: Some(Mib(second % 7)),
                sm: second.is_multiple_of(2).then_some(Percent(40)),
                throttled: None,
                processes: Some(1),
            },
            peak: Peak::default(),
        };
        NodeUsage {
            node: "n1".into(),
            taken_at: 1000 + second,
            gpus: vec![GpuUsage {
                gpu: "GPU-a".into(),
                memory: Some(Mib(second)),
                sm: Some(Percent(100 * u32::from(second.is_multiple_of(2)))),
                temperature: Some(60),
                power: None,
            }],
            shares: shares.iter().map(share).collect(),
        }
    }

    /// Adds a sample of this time; launches have waited a tenth of it, which is not known where an
    /// interval ends.
    fn add(history: &mut History, at: u64, second: u64, usage: &mut NodeUsage) {
        let waited = (!second.is_multiple_of(30)).then_some(Duration::from_millis(second * 100));
        let waited = vec![waited; usage.shares.len()];
        history.add(Duration::from_secs(at), usage, &waited);
    }

    fn after(seconds: u64, shares: impl Fn(u64) -> Vec<&'static str>) -> (History, NodeUsage) {
        let mut history = History::default();
        let mut last = usage(0, &[]);
        for second in 0..=seconds {
            last = usage(second, &shares(second));
            add(&mut history, second + 5000, second, &mut last);
        }
        (history, last)
    }

    #[test]
    fn has_one_point_for_each_half_minute_of_the_last_hour() {
        let (history, last) = after(2 * 3600, |_| vec!["p"]);
        let report = history.report(&"n1".into());
        assert_eq!(report.times.len(), 120);
        let expected: Vec<u64> = (1..=120).map(|at| 1000 + 3600 + at * 30).collect();
        assert_eq!(report.times, expected);
        let gpu = &report.gpus[0];
        assert_eq!(gpu.memory[0], Some(Mib(3630)), "the highest");
        assert!(gpu.sm.iter().all(|sm| *sm == Some(Percent(50))), "the mean");
        assert_eq!((gpu.temperature[5], gpu.power[5]), (Some(60), None));
        let share = &report.shares[0];
        assert_eq!(share.memory, [Some(Mib(6)); 120]);
        assert_eq!(share.sm, [Some(Percent(40)); 120], "unknown is not 0");
        assert_eq!(share.throttled, [Some(Percent(10)); 120]);
        assert_eq!(last.shares[0].used.throttled, Some(Percent(10)));
    }

    #[test]
    fn forgets_ended_shares_and_aligns_new_ones_at_the_end() {
        let (history, _) = after(90, |second| {
            if second < 50 {
                vec!["old"]
            } else {
                vec!["new"]
            }
        });
        let report = history.report(&"n1".into());
        let names: Vec<&str> = report.shares.iter().map(|one| &*one.name.pod).collect();
        assert_eq!((names, report.times.len()), (vec!["new"], 3));
        assert_eq!(report.shares[0].memory.len(), 2);
    }

    #[test]
    fn records_a_bounded_number_of_shares() {
        let mut history = History::default();
        let names: Vec<String> = (0..SHARES + 100).map(|at| format!("p{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for second in [0, 30] {
            add(&mut history, second + 1, second, &mut usage(second, &names));
        }
        assert_eq!(history.report(&"n1".into()).shares.len(), SHARES);
        assert!(size_of::<Point>() <= 48, "the bound that the module states");
    }
}
