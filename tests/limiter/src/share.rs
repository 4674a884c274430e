//! How much of a simulated card's time each of several containers gets, by the simulator's exact
//! clock, window by window. All figures from here are simulated.
//!
//! Fed by: tests and benchmarks, which say who works how; `clients/work.c`.
//! Must not: tell the limiter anything that a host could not know.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use aliquot_gpusim::SimulatedMachine;
use aliquot_region::limits::Container as Rules;
use anyhow::{Result, ensure};

use crate::host::Host;
pub use crate::host::Role;
use crate::scene::{FIRST, device, machine};
use crate::starved::longest;
use crate::workers::Workers;
use crate::{Container, Way};

/// One container and what runs in it.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Percent of the card.
    pub cores: u32,
    /// Policy and priority.
    pub rules: Rules,
    /// Processes, all alike.
    pub processes: usize,
    /// Mode and kernels of `work.c`.
    pub work: Vec<String>,
    /// When it begins to work, and for how long; for the whole scene where none is said.
    pub shift: Option<[Duration; 2]>,
}

/// A tenant with one process, of low priority as most are.
pub fn tenant(cores: u32, work: &str) -> Tenant {
    Tenant {
        cores,
        rules: Rules {
            priority: 1,
            ..Rules::default()
        },
        processes: 1,
        work: work.split(' ').map(str::to_owned).collect(),
        shift: None,
    }
}

impl Tenant {
    /// The same with a priority: 0 high, 1 low.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.rules.priority = priority;
        self
    }

    /// The same with a policy: 0 default, 1 force, 2 disable.
    #[must_use]
    pub fn policy(mut self, policy: u32) -> Self {
        self.rules.policy = policy;
        self
    }

    /// The same, at work from a moment of the scene to another, in seconds.
    #[must_use]
    pub fn from_to(mut self, from: u64, to: u64) -> Self {
        self.shift = Some([from, to - from].map(Duration::from_secs));
        self
    }
}

/// What is looked at, and for how long.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// Way in; [`Way::Bare`] is the card without a limiter.
    pub way: Way,
    /// Who works.
    pub tenants: Vec<Tenant>,
    /// Before the first window.
    pub warm_up: Duration,
    /// One window.
    pub window: Duration,
    /// How many.
    pub windows: usize,
    /// Fields of the card ([`aliquot_gpusim::edit`]).
    pub card: &'a [(&'a str, &'a str)],
    /// Who speaks for the host.
    pub host: Role,
}

impl Scene<'_> {
    /// Windows of one second of a limited card, without a host.
    pub fn seconds(windows: usize, tenants: Vec<Tenant>) -> Self {
        Self {
            way: Way::Replacement,
            tenants,
            warm_up: Duration::from_millis(500),
            window: Duration::from_secs(1),
            windows,
            card: &[],
            host: Role::Silent,
        }
    }
}

/// What one tenant got.
#[derive(Clone, Debug)]
pub struct Got {
    /// Percent of the card, window by window.
    pub windows: Vec<f64>,
    /// Percent of each window that a thread of its, or of the host in this process, could have run
    /// and was given no processor.
    pub starved: Vec<f64>,
    /// Launches of all its processes.
    pub launches: u64,
}

impl Got {
    /// Percent of the card over all windows.
    pub fn mean(&self) -> f64 {
        mean(self.windows.iter().copied())
    }

    /// How far the windows were from `percent`, in points, on the mean.
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

    /// The middle one of the windows.
    pub fn median(&self) -> f64 {
        middle(self.windows.clone())
    }

    /// How many points the middle window is above `percent` of the card. What is missing while the
    /// machine kept the tenant from its turn is not missing: its share of that time, and no more.
    pub fn off(&self, percent: f64) -> f64 {
        let both = self.windows.iter().zip(&self.starved);
        let each = both.map(|(got, starved)| {
            let error = got - percent;
            let excused = starved * percent / 100.0;
            if error < 0.0 {
                (error + excused).min(0.0)
            } else {
                error
            }
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

/// Runs a scene: what each tenant got. Every call of every process must have succeeded.
pub fn run(scene: &Scene) -> Result<Vec<Got>> {
    let (room, machine) = machine();
    machine.set(FIRST, scene.card)?;
    let containers = containers(scene, &machine)?;
    let host = Host::new(&containers, scene.host)?;
    let mut workers = Workers::start(scene, &containers, room.path())?;
    let mut got = vec![
        Got {
            windows: Vec::new(),
            starved: Vec::new(),
            launches: 0
        };
        scene.tenants.len()
    ];
    workers.have_begun(scene, &machine, &host)?;
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
    host.leave()?;
    workers.are_told_to_end();
    for (got, children) in got.iter_mut().zip(workers.0.drain(..)) {
        for child in children {
            let output = child.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let words: Vec<&str> = said.split_whitespace().collect();
            let ["launches", launches, "failures", "0"] = words[..] else {
                anyhow::bail!("a client ended with {:?}: {said}", output.status);
            };
            got.launches += launches.parse::<u64>()?;
        }
    }
    Ok(got)
}

/// Plays until what it gave holds, three times at most: a machine that runs all tests at once may
/// take turns from all processes together, which the kernel counts for none of them.
///
/// # Panics
/// It never held; all that it gave is told.
#[track_caller]
pub fn holds_once_of_three<T: Debug>(
    what: &str,
    mut play: impl FnMut() -> T,
    holds: impl Fn(&T) -> bool,
) {
    let mut tries = Vec::new();
    for _ in 0..3 {
        let got = play();
        if holds(&got) {
            return;
        }
        tries.push(got);
    }
    panic!("{what}: {tries:?}");
}

/// A container for each tenant of a scene.
pub(crate) fn containers(scene: &Scene, machine: &SimulatedMachine) -> Result<Vec<Container>> {
    let tenants = scene.tenants.iter();
    tenants
        .map(|tenant| {
            let mut share = device(FIRST, 7000);
            share.cores = tenant.cores;
            Container::new(machine, scene.way, tenant.rules, &[share])
        })
        .collect()
}

/// Lets real time pass: what is measured here is what happens meanwhile.
pub(crate) fn pass(time: Duration) -> Result<()> {
    let (_sender, receiver) = channel::<()>();
    let ended = receiver.recv_timeout(time);
    ensure!(ended == Err(RecvTimeoutError::Timeout), "{ended:?}");
    Ok(())
}

/// Compiles `clients/work.c` into a folder.
pub(crate) fn compile(folder: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/work.c");
    let made = folder.join("work");
    let status = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&made)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .status()?;
    ensure!(status.success(), "cc failed");
    Ok(made)
}
