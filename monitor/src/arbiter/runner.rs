//! Runs the arbiter: every 20 ms it reads the launch counters of all containers, calls [`decide`],
//! and writes the decisions to the limits pages, where the limiter reads them at each launch. It
//! never calls the driver, and a corrupt file of one tenant does not affect another.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use aliquot_node_state::limits::UtilizationPolicy;
use aliquot_region::host::{LaunchCounters, LaunchReader};
use aliquot_region::limits::{self, LimitsError, UNCONTROLLED};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tracing::warn;

use super::measurements::Measurements;
use super::priority_cap::PriorityCap;
use super::{ArbiterState, Measurement, TenantDecision, TenantSample, decide};
use crate::managed_containers::{ContainersReceiver, ManagedContainer, ManagedContainers};

pub const TICK: Duration = Duration::from_millis(20);
/// A counters file is reopened after this, in nanoseconds: it may have been replaced.
const REOPEN: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub struct Arbiter {
    containers: Vec<ArbitratedContainer>,
    state: ArbiterState,
}

#[derive(Debug)]
struct ArbitratedContainer {
    id: String,
    counters_path: PathBuf,
    page: limits::HostLimitsPage,
    devices: Vec<String>,
    launch_reader: Option<LaunchReader>,
    opened_at: u64,
    counters: Vec<LaunchCounters>,
    measured: Vec<Option<Measurement>>,
}

/// The time by two clocks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// The monotonic clock, which the limiter reads too.
    pub monotonic: u64,
    pub epoch: u64,
}

impl Clocks {
    pub fn read() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            let part = |part: i64| u64::try_from(part).unwrap_or(0);
            part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
        };
        Self {
            monotonic: read(ClockId::Monotonic),
            epoch: read(ClockId::Realtime),
        }
    }
}

/// Arbitrates until the other end of `stop` is dropped.
pub fn run(
    priority_cap: PriorityCap,
    mut containers: ContainersReceiver,
    mut measurements: watch::Receiver<Arc<Measurements>>,
    stop: &Receiver<()>,
) {
    let mut arbiter = Arbiter::new(priority_cap);
    arbiter.set_containers(&Arc::clone(&containers.borrow_and_update()));
    let mut next = Instant::now();
    loop {
        if containers.has_changed().unwrap_or(false) {
            arbiter.set_containers(&Arc::clone(&containers.borrow_and_update()));
        }
        if measurements.has_changed().unwrap_or(false) {
            arbiter.set_measurements(&Arc::clone(&measurements.borrow_and_update()));
        }
        arbiter.tick(Clocks::read());
        // Missed ticks are skipped.
        next = (next + TICK).max(Instant::now());
        let wait = next.saturating_duration_since(Instant::now());
        if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return arbiter.release();
        }
    }
}

impl Arbiter {
    pub fn new(priority_cap: PriorityCap) -> Self {
        Self {
            state: ArbiterState::new(priority_cap),
            ..Self::default()
        }
    }

    pub fn set_containers(&mut self, containers: &ManagedContainers) {
        let limited: BTreeMap<&str, &ManagedContainer> = containers
            .all
            .iter()
            .filter(|container| container.limited || container.effective.uncontrolled)
            .map(|container| (container.id.as_str(), container))
            .collect();
        self.containers
            .retain(|one| limited.contains_key(one.id.as_str()));
        for (id, container) in limited {
            if self.containers.iter().any(|one| one.id == id) {
                continue;
            }
            match ArbitratedContainer::open(container) {
                Ok(opened) => self.containers.push(opened),
                Err(error) => {
                    warn!(container = container.id, %error, "cannot open the limits page: the compute of this container is not arbitrated");
                }
            }
        }
    }

    pub fn set_measurements(&mut self, measurements: &Measurements) {
        for container in &mut self.containers {
            let new = measurements.get(&container.id).into_iter().flatten();
            // The driver may take fewer samples than we do: the last one counts until the next.
            for (measured, new) in container.measured.iter_mut().zip(new) {
                *measured = new.or(*measured);
            }
        }
    }

    pub fn tick(&mut self, now: Clocks) {
        for container in &mut self.containers {
            container.read_counters(now.monotonic);
        }
        let containers = self.containers.iter();
        let samples: Vec<_> = containers.flat_map(ArbitratedContainer::samples).collect();
        let decisions = decide(&samples, &mut self.state, now.monotonic);
        let mut rest = decisions.as_slice();
        for container in &self.containers {
            let (own, others) = rest.split_at(container.devices.len());
            container.write(own, now.epoch);
            rest = others;
        }
    }

    /// Clears every throttle flag; until another arbiter runs, the limiter enforces the plain shares.
    pub fn release(&self) {
        for container in &self.containers {
            container.write(&vec![TenantDecision::default(); container.devices.len()], 0);
        }
    }
}

impl ArbitratedContainer {
    fn open(container: &ManagedContainer) -> Result<Self, LimitsError> {
        let page = limits::HostLimitsPage::open(&container.directory.limits())?;
        let devices: Vec<String> = page.uuids().collect();
        Ok(Self {
            id: container.id.clone(),
            counters_path: container.directory.counters(),
            measured: vec![None; devices.len()],
            devices,
            page,
            launch_reader: None,
            opened_at: 0,
            counters: Vec::new(),
        })
    }

    /// Reads the launch counters; none if the file is corrupt.
    fn read_counters(&mut self, now: u64) {
        if now.saturating_sub(self.opened_at) >= REOPEN {
            self.opened_at = now;
            self.launch_reader = LaunchReader::open(&self.counters_path, self.devices.len()).ok();
        }
        self.counters.clear();
        match self.launch_reader.as_mut().map(LaunchReader::read) {
            Some(Ok(counters)) => self.counters.extend_from_slice(counters),
            Some(Err(_)) => self.launch_reader = None,
            None => {}
        }
    }

    fn samples(&self) -> impl Iterator<Item = TenantSample<'_>> {
        let page = self.page.page();
        let policy = if page.flags() & UNCONTROLLED == 0 {
            UtilizationPolicy::from_word(page.policy())
        } else {
            UtilizationPolicy::Disable
        };
        self.devices
            .iter()
            .enumerate()
            .map(move |(i, device)| TenantSample {
                container: &self.id,
                device,
                high_priority: page.priority() == 0,
                policy,
                cores: page.cores(i),
                cores_limit: page.cores_limit(i),
                counters: self.counters.get(i).copied(),
                measured: self.measured.get(i).copied().flatten(),
            })
    }

    fn write(&self, decisions: &[TenantDecision], epoch: u64) {
        for (i, decision) in decisions.iter().enumerate() {
            self.page.set_rate_correction(i, decision.rate_correction);
            self.page.set_tenants(i, decision.tenants);
            self.page
                .set_others(i, decision.others, decision.others_time);
            self.page.set_throttle_flag(i, decision.throttle as u32);
        }
        self.page.set_heartbeat(epoch);
    }
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
