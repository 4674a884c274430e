//! The processes that work for the tenants of a scene: started together, sampled by the simulator's
//! exact clock, and stopped at the end of the scene.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use aliquot_cluster::starvation::{Waits, waits};
use aliquot_gpusim::SimulatedMachine;
use aliquot_region::limits::ContainerLimits;
use anyhow::Result;

use crate::TestContainer;
use crate::scene::{FIRST, compile_work};

/// One container and what runs in it.
#[derive(Clone, Debug)]
pub struct ShareTenant {
    /// Percent of the GPU.
    pub cores: u32,
    /// Policy and priority.
    pub limits: ContainerLimits,
    /// Number of processes, all alike.
    pub processes: usize,
    /// Mode and kernels of `work.c`.
    pub work: Vec<String>,
    /// When it starts to work and for how long; `None`: for the whole scene.
    pub active: Option<[Duration; 2]>,
}

/// A tenant with one process, of low priority as most are.
pub fn tenant(cores: u32, work: &str) -> ShareTenant {
    ShareTenant {
        cores,
        limits: ContainerLimits {
            priority: 1,
            ..ContainerLimits::default()
        },
        processes: 1,
        work: work.split(' ').map(str::to_owned).collect(),
        active: None,
    }
}

impl ShareTenant {
    /// The same with a priority: 0 high, 1 low.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.limits.priority = priority;
        self
    }

    /// The same with a policy: 0 default, 1 force, 2 disable.
    #[must_use]
    pub fn policy(mut self, policy: u32) -> Self {
        self.limits.policy = policy;
        self
    }

    /// The same, working from one second of the scene to another.
    #[must_use]
    pub fn from_to(mut self, from: u64, to: u64) -> Self {
        self.active = Some([from, to - from].map(Duration::from_secs));
        self
    }
}

/// The processes of each tenant.
#[derive(Default)]
pub(crate) struct Workers(pub(crate) Vec<Vec<Child>>);

/// Longest wait for all processes to start, even on a busy machine.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Seconds that each tenant's work ran, at a moment.
pub(crate) struct Busy {
    pub(crate) when: Instant,
    pub(crate) busy: Vec<f64>,
}

/// A sample that took longer is not of one moment and is repeated, at most this often.
const MAX_READ_TIME: Duration = Duration::from_millis(1);
const MAX_READS: u32 = 50;

impl Workers {
    /// Starts all tenants, for so long.
    pub(crate) fn start(
        tenants: &[ShareTenant],
        time: Duration,
        containers: &[TestContainer],
        folder: &Path,
    ) -> Result<Self> {
        let client = compile_work(folder)?;
        let whole = [Duration::ZERO, time + START_TIMEOUT];
        let mut workers = Self::default();
        for (tenant, container) in tenants.iter().zip(containers) {
            let shift = tenant.active.unwrap_or(whole);
            let [later, mut seconds] = shift.map(|time| time.as_secs_f64().to_string());
            if tenant.active.is_none() {
                seconds.push('i');
            }
            let mut words = vec!["sh", "-c", "sleep $0; exec \"$@\"", &later];
            words.extend([client.as_str(), tenant.work[0].as_str(), &seconds]);
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

    /// Stops the processes that work for the whole scene.
    pub(crate) fn stop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            drop(child.stdin.take());
        }
    }

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
