//! The processes that work for the tenants of a scene: started together, looked at by the
//! simulator's exact clock, and told to end.
//!
//! Fed by: [`crate::share`] and [`crate::gate`]; `clients/work.c`. Must not: outlive their scene.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result, ensure};

use crate::Container;
use crate::host::Host;
use crate::scene::FIRST;
use crate::share::{Scene, compile, pass};
use crate::starved::{Waits, waits};

/// The processes of each tenant.
#[derive(Default)]
pub(crate) struct Workers(pub(crate) Vec<Vec<Child>>);

/// Longest wait for all processes to have begun, on a machine that does other work, too.
const BEGUN: Duration = Duration::from_secs(30);
/// Between two looks whether they have.
const SOON: Duration = Duration::from_millis(10);

/// Seconds that each tenant's work ran, at a moment.
pub(crate) struct Busy {
    pub(crate) when: Instant,
    pub(crate) busy: Vec<f64>,
}

/// A look that took longer is not of one moment; so often is it tried again.
const MOMENT: Duration = Duration::from_millis(1);
const LOOKS: u32 = 50;

impl Workers {
    /// Lets all tenants begin.
    pub(crate) fn start(scene: &Scene, containers: &[Container], room: &Path) -> Result<Self> {
        let client = compile(room)?;
        let client = client.to_str().context("a path of text")?;
        let time = scene.warm_up + scene.window * u32::try_from(scene.windows)?;
        let whole = [Duration::ZERO, time + BEGUN];
        let mut workers = Self::default();
        for (tenant, container) in scene.tenants.iter().zip(containers) {
            let shift = tenant.shift.unwrap_or(whole);
            let [later, mut seconds] = shift.map(|time| time.as_secs_f64().to_string());
            if tenant.shift.is_none() {
                seconds.push('i');
            }
            let mut words = vec!["sh", "-c", "sleep $0; exec \"$@\"", &later];
            words.extend([client, tenant.work[0].as_str(), &seconds]);
            words.extend(tenant.work[1..].iter().map(String::as_str));
            let start = || {
                let mut command = container.command(&words);
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
            };
            let started: std::io::Result<Vec<Child>> =
                (0..tenant.processes).map(|_| start()).collect();
            workers.0.push(started?);
        }
        Ok(workers)
    }

    /// Waits until every process that works for the whole scene has a context: a container takes
    /// its time to start, and that says nothing of a limiter.
    pub(crate) fn have_begun(
        &self,
        scene: &Scene,
        machine: &SimulatedMachine,
        host: &Host,
    ) -> Result<()> {
        let all = scene.tenants.iter().zip(&self.0);
        let whole: Vec<u32> = all
            .filter(|(tenant, _)| tenant.shift.is_none())
            .flat_map(|(_, children)| children.iter().map(Child::id))
            .collect();
        let begun = Instant::now();
        loop {
            let holders = machine.holders(FIRST)?;
            let works = |pid: &&u32| {
                let mut own = holders.iter().filter(|holder| holder.pid == **pid);
                own.any(|holder| holder.contexts > 0)
            };
            let working = whole.iter().filter(works).count();
            if working == whole.len() {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < BEGUN,
                "{working} of {} have begun",
                whole.len()
            );
            pass(SOON)?;
            host.beat()?;
        }
    }

    /// Those that work for the whole scene end now.
    pub(crate) fn are_told_to_end(&mut self) {
        for child in self.0.iter_mut().flatten() {
            drop(child.stdin.take());
        }
    }

    /// Process ids of each tenant.
    pub(crate) fn pids(&self) -> impl Iterator<Item = Vec<u32>> {
        let tenants = self.0.iter();
        tenants.map(|children| children.iter().map(Child::id).collect())
    }

    /// What the threads of each tenant, and ours, waited for a processor.
    pub(crate) fn waits(&self) -> Vec<Waits> {
        let with_ours = |own: Vec<u32>| waits(own.into_iter().chain([std::process::id()]));
        self.pids().map(with_ours).collect()
    }

    pub(crate) fn busy(&self, machine: &SimulatedMachine) -> Result<Busy> {
        let mut looks = 0;
        let (when, holders) = loop {
            let before = Instant::now();
            let holders = machine.holders(FIRST)?;
            looks += 1;
            let took = before.elapsed();
            if took < MOMENT || looks == LOOKS {
                break (before + took, holders);
            }
        };
        let of = |child: &Child| {
            let found = holders.iter().find(|holder| holder.pid == child.id());
            found.map_or(0, |holder| holder.busy)
        };
        let busy = self.0.iter().map(|children| {
            let busy = children.iter().map(of).sum();
            Duration::from_nanos(busy).as_secs_f64()
        });
        Ok(Busy {
            when,
            busy: busy.collect(),
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
