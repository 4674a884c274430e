//! Measures how much of a simulated GPU's time each of several containers gets, window by window,
//! by the simulator's exact clock. All figures from here are simulated. The limiter learns nothing
//! that a host could not know.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use aliquot_cluster::starvation::{Attempts, Measurement, Starved, longest};
use aliquot_gpusim::SimulatedMachine;
use anyhow::Result;

use crate::host::{HostRole, ScenarioHost};
use crate::scene::{FIRST, machine, share_of};
use crate::workers::{ShareTenant, Workers};
use crate::{InjectionMethod, TestContainer};

/// A scene to measure.
#[derive(Clone, Debug)]
pub struct ShareScenario<'a> {
    /// Injection method; [`InjectionMethod::NoLimiter`] measures the GPU without a limiter.
    pub method: InjectionMethod,
    /// The tenants.
    pub tenants: Vec<ShareTenant>,
    /// Time before the first window.
    pub warm_up: Duration,
    /// Length of a window.
    pub window: Duration,
    /// Number of windows.
    pub windows: usize,
    /// Fields of the GPU ([`aliquot_gpusim::edit`]).
    pub gpu_fields: &'a [(&'a str, &'a str)],
    /// What the host does.
    pub host: HostRole,
}

impl ShareScenario<'_> {
    /// Windows of one second on a limited GPU, without a host.
    pub fn seconds(windows: usize, tenants: Vec<ShareTenant>) -> Self {
        Self {
            method: InjectionMethod::Replacement,
            tenants,
            warm_up: Duration::from_millis(500),
            window: Duration::from_secs(1),
            windows,
            gpu_fields: &[],
            host: HostRole::Absent,
        }
    }

    pub(crate) fn start_workers(
        &self,
        containers: &[TestContainer],
        folder: &Path,
    ) -> Result<Workers> {
        let time = self.warm_up + self.window * u32::try_from(self.windows)?;
        Workers::start(&self.tenants, time, containers, folder)
    }
}

/// What one tenant got.
#[derive(Clone, Debug)]
pub struct TenantResult {
    /// Percent of the GPU, window by window.
    pub windows: Vec<f64>,
    /// Percent of each window for which a thread of the tenant, or of the host in this process, was
    /// runnable but got no processor.
    pub starved: Vec<f64>,
    /// Launches of all its processes.
    pub launches: u64,
    /// Median and 99th percentile of the microseconds from a launch to its end, of its last process;
    /// only in mode `sync`.
    pub latency: Option<[f64; 2]>,
}

impl TenantResult {
    /// Percent of the GPU over all windows.
    pub fn mean(&self) -> f64 {
        mean(self.windows.iter().copied())
    }

    /// Mean distance of the windows from `percent`, in points.
    pub fn error(&self, percent: u32) -> f64 {
        mean(
            self.windows
                .iter()
                .map(|got| (got - f64::from(percent)).abs()),
        )
    }

    /// What it got in percent of what it was permitted.
    pub fn throughput(&self, percent: u32) -> f64 {
        100.0 * self.mean() / f64::from(percent)
    }

    /// The median of the windows.
    pub fn median(&self) -> f64 {
        middle(self.windows.clone())
    }

    /// How many points the median window is above `percent` of the GPU. Time for which the machine
    /// gave the tenant no processor does not count as missing: its share of that time, and no more.
    pub fn deviation(&self, percent: f64) -> f64 {
        self.deviation_beside(percent, &[])
    }

    /// The same for a tenant that may borrow what these others, with what each is to get, leave
    /// unused: what the machine kept them from using does not count as too much.
    pub fn deviation_beside(&self, percent: f64, others: &[(&Self, f64)]) -> f64 {
        let each = self.windows.iter().enumerate().map(|(n, got)| {
            let error = got - percent;
            if error < 0.0 {
                let missing = self.starved[n] * percent / 100.0;
                return (error + missing).min(0.0);
            }
            let unused = others
                .iter()
                .map(|(of, to_get)| of.starved[n] * to_get / 100.0);
            (error - unused.sum::<f64>()).max(0.0)
        });
        middle(each.collect())
    }
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}

/// Runs a scene; what each tenant got. Every call of every process must have succeeded.
pub fn run(scene: &ShareScenario) -> Result<Vec<TenantResult>> {
    let (temp, machine) = machine();
    machine.set(FIRST, scene.gpu_fields)?;
    let containers = containers(scene, &machine)?;
    let host = ScenarioHost::new(&containers, scene.host)?;
    let mut workers = scene.start_workers(&containers, temp.path())?;
    let mut got = vec![
        TenantResult {
            windows: Vec::new(),
            starved: Vec::new(),
            launches: 0,
            latency: None,
        };
        scene.tenants.len()
    ];
    host.wait_until_started(&scene.tenants, &machine, &workers)?;
    host.run_for(&machine, &workers, scene.warm_up)?;
    let (mut last, mut waited) = (workers.busy(&machine)?, workers.waits());
    for _ in 0..scene.windows {
        host.run_for(&machine, &workers, scene.window)?;
        let now = workers.busy(&machine)?;
        let passed = now.when.duration_since(last.when).as_secs_f64();
        for ((got, now), last) in got.iter_mut().zip(&now.busy).zip(&last.busy) {
            got.windows.push(100.0 * (now - last) / passed);
        }
        let waits = workers.waits();
        for ((got, now), before) in got.iter_mut().zip(&waits).zip(&waited) {
            let wait = Duration::from_nanos(longest(before, now)).as_secs_f64();
            got.starved.push((100.0 * wait / passed).min(100.0));
        }
        (last, waited) = (now, waits);
    }
    host.clear_flags()?;
    workers.stop();
    for (got, children) in got.iter_mut().zip(workers.0.drain(..)) {
        for child in children {
            let output = child.wait_with_output()?;
            let reply = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut words: Vec<&str> = reply.split_whitespace().collect();
            if let ["median", median, "p99", p99, ..] = words[..] {
                got.latency = Some([median.parse()?, p99.parse()?]);
                words.drain(..4);
            }
            let ["launches", launches, "failures", "0"] = words[..] else {
                anyhow::bail!("a client ended with {:?}: {reply}", output.status);
            };
            got.launches += launches.parse::<u64>()?;
        }
    }
    Ok(got)
}

/// What a result says of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within all.
    Holds,
    /// Below one, or slower than one: a machine that gives no processor may be the cause.
    TooLittle,
    /// Above one: nothing excuses that.
    TooMuch,
}

impl Verdict {
    /// Of values, each with its lower and its upper bound.
    pub fn within(all: impl IntoIterator<Item = (f64, [f64; 2])>) -> Self {
        let mut verdict = Self::Holds;
        for (value, [least, most]) in all {
            if value > most {
                return Self::TooMuch;
            }
            if value < least {
                verdict = Self::TooLittle;
            }
        }
        verdict
    }

    /// Of figures of which only what is too little, or too slow, is looked for.
    pub fn enough(holds: bool) -> Self {
        if holds { Self::Holds } else { Self::TooLittle }
    }
}

/// Plays until a result is within its bounds. Only one that is too little is played again, and only
/// where processes on this machine had to wait for a processor.
///
/// # Panics
/// A result was too much, or too little without an excuse; the message has all results.
#[track_caller]
pub fn holds_unless_starved<T: Debug>(
    what: &str,
    play: impl FnMut() -> T,
    judge: impl Fn(&T) -> Verdict,
) {
    play_again(what, play, judge, |_, of_machine| of_machine);
}

/// The same of what tenants get, where one of them, or the host, had to wait for a processor.
///
/// # Panics
/// As above.
#[track_caller]
pub fn shares_hold_unless_starved(
    what: &str,
    play: impl FnMut() -> Vec<TenantResult>,
    judge: impl Fn(&Vec<TenantResult>) -> Verdict,
) {
    play_again(what, play, judge, |got, of_machine| {
        let each = got.iter().map(|one| mean(one.starved.iter().copied()));
        Starved {
            time: of_machine.of.mul_f64(each.fold(0.0, f64::max) / 100.0),
            ..of_machine
        }
    });
}

#[track_caller]
fn play_again<T: Debug>(
    what: &str,
    mut play: impl FnMut() -> T,
    judge: impl Fn(&T) -> Verdict,
    starved: impl Fn(&T, Starved) -> Starved,
) {
    let mut attempts = Attempts::new(what);
    loop {
        let measured = Measurement::of_machine();
        let got = play();
        match judge(&got) {
            Verdict::Holds => return,
            Verdict::TooMuch => panic!("{what}: too much: {got:?}"),
            Verdict::TooLittle => {
                let starved = starved(&got, measured.starved());
                let again = attempts.again(format!("{got:?}"), starved);
                again.unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}

/// A container for each tenant of a scene.
pub(crate) fn containers(
    scene: &ShareScenario,
    machine: &SimulatedMachine,
) -> Result<Vec<TestContainer>> {
    let tenants = scene.tenants.iter();
    tenants
        .map(|tenant| {
            let devices = [share_of(FIRST, 7000, tenant.cores)];
            TestContainer::new(machine, scene.method, tenant.limits, &devices)
        })
        .collect()
}
