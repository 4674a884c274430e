//! The processes that work for the tenants of a scene: started together, sampled by the simulator's
//! exact clock, and stopped at the end of the scene.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result, ensure};

use crate::TestContainer;
use crate::cpu_wait::{Waits, waits};
use crate::host::ScenarioHost;
use crate::scene::FIRST;
use crate::share::{ShareScenario, compile, wait};

/// The processes of each tenant.
#[derive(Default)]
pub(crate) struct Workers(pub(crate) Vec<Vec<Child>>);

/// Longest wait for all processes to start, even on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks whether they have.
const START_POLL: Duration = Duration::from_millis(10);

/// Seconds that each tenant's work ran, at a moment.
pub(crate) struct Busy {
    pub(crate) when: Instant,
    pub(crate) busy: Vec<f64>,
}

/// A sample that took longer is not of one moment and is repeated, at most this often.
const MAX_READ_TIME: Duration = Duration::from_millis(1);
const MAX_READS: u32 = 50;

impl Workers {
    /// Starts all tenants.
    pub(crate) fn start(
        scene: &ShareScenario,
        containers: &[TestContainer],
        folder: &Path,
    ) -> Result<Self> {
        let client = compile(folder)?;
        let client = client.to_str().context("a path of text")?;
        let time = scene.warm_up + scene.window * u32::try_from(scene.windows)?;
        let whole = [Duration::ZERO, time + START_TIMEOUT];
        let mut workers = Self::default();
        for (tenant, container) in scene.tenants.iter().zip(containers) {
            let shift = tenant.active.unwrap_or(whole);
            let [later, mut seconds] = shift.map(|time| time.as_secs_f64().to_string());
            if tenant.active.is_none() {
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

    /// Waits until every process that works for the whole scene has a context: the start of a
    /// container takes time that says nothing about a limiter.
    pub(crate) fn wait_until_started(
        &self,
        scene: &ShareScenario,
        machine: &SimulatedMachine,
        host: &ScenarioHost,
    ) -> Result<()> {
        let all = scene.tenants.iter().zip(&self.0);
        let whole: Vec<u32> = all
            .filter(|(tenant, _)| tenant.active.is_none())
            .flat_map(|(_, children)| children.iter().map(Child::id))
            .collect();
        let begun = Instant::now();
        loop {
            let holders = machine.process_usage(FIRST)?;
            let works = |pid: &&u32| {
                let mut own = holders.iter().filter(|holder| holder.pid == **pid);
                own.any(|holder| holder.contexts > 0)
            };
            let working = whole.iter().filter(works).count();
            if working == whole.len() {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < START_TIMEOUT,
                "{working} of {} have begun",
                whole.len()
            );
            wait(START_POLL)?;
            host.write_heartbeat()?;
        }
    }

    /// Stops the processes that work for the whole scene.
    pub(crate) fn stop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            drop(child.stdin.take());
        }
    }

    /// Process ids of each tenant.
    pub(crate) fn pids(&self) -> impl Iterator<Item = Vec<u32>> {
        let tenants = self.0.iter();
        tenants.map(|children| children.iter().map(Child::id).collect())
    }

    /// What the threads of each tenant, and of this process, waited for a processor.
    pub(crate) fn waits(&self) -> Vec<Waits> {
        let with_ours = |own: Vec<u32>| waits(own.into_iter().chain([std::process::id()]));
        self.pids().map(with_ours).collect()
    }

    pub(crate) fn busy(&self, machine: &SimulatedMachine) -> Result<Busy> {
        let mut reads = 0;
        let (when, holders) = loop {
            let before = Instant::now();
            let holders = machine.process_usage(FIRST)?;
            reads += 1;
            let took = before.elapsed();
            if took < MAX_READ_TIME || reads == MAX_READS {
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
