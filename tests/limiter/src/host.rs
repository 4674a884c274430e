//! The host of a scene: absent, alive with a fixed throttle flag, or the real arbiter with the
//! input that the monitor would give it: the shares, and twice a second NVML's utilisation of each
//! process, late and in whole percent. It never uses the simulator's exact clock.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use aliquot_gpusim::SimulatedMachine;
use aliquot_monitor::arbiter::measurements::Measurements;
use aliquot_monitor::arbiter::priority_cap::PriorityCap;
use aliquot_monitor::arbiter::runner::{self, Clocks};
use aliquot_monitor::arbiter::{Measurement, PERCENT};
use aliquot_monitor::managed_containers::{ManagedContainer, ManagedContainers};
use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_node_state::limits::EffectiveLimits;
use anyhow::{Result, anyhow, ensure};
use tokio::sync::watch;

use crate::TestContainer;
use crate::scene::{FIRST, wait};
use crate::workers::{START_TIMEOUT, ShareTenant, Workers};

/// Offsets of the words in the documented layout.
const HEARTBEAT: u64 = 24;
pub(crate) const THROTTLE_FLAG: u64 = 64 + 52;

/// Time between two checks whether all processes have started.
const START_POLL: Duration = Duration::from_millis(10);
/// Time between two polls of the driver by the monitor.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Writes what a host that died long ago leaves behind.
pub(crate) fn write_stale_flag(container: &TestContainer, flag: u32) -> Result<()> {
    if flag != 0 {
        let path = container.directory().join("limits");
        let page = OpenOptions::new().write(true).open(path)?;
        page.write_all_at(&flag.to_le_bytes(), THROTTLE_FLAG)?;
        page.write_all_at(&1_u64.to_le_bytes(), HEARTBEAT)?;
    }
    Ok(())
}

/// What the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRole {
    /// There is no host.
    Absent,
    /// Alive, with this throttle flag for every tenant from the beginning.
    Flag(u32),
    /// The arbiter runs.
    Arbiter,
    /// The same, and the driver does not report the use of processes.
    BlindArbiter,
    /// The arbiter runs with this cap, in percent, on the time that priority 0 may take from others.
    CappedArbiter(u64),
}

pub(crate) enum ScenarioHost {
    Absent,
    Flag(Vec<File>),
    Arbiter(RunningArbiter),
    BlindArbiter(RunningArbiter),
}

pub(crate) struct RunningArbiter {
    names: Vec<String>,
    measurements: watch::Sender<Arc<Measurements>>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl ScenarioHost {
    pub(crate) fn new(containers: &[TestContainer], role: HostRole) -> Result<Self> {
        let start = |cap| RunningArbiter::start(records(containers), cap);
        match role {
            HostRole::Absent => Ok(Self::Absent),
            HostRole::Flag(flag) => {
                let pages = containers.iter().map(|container| {
                    let path = container.directory().join("limits");
                    let page = OpenOptions::new().write(true).open(path)?;
                    page.write_all_at(&flag.to_le_bytes(), THROTTLE_FLAG)?;
                    Ok(page)
                });
                let host = Self::Flag(pages.collect::<Result<_>>()?);
                host.write_heartbeat()?;
                Ok(host)
            }
            HostRole::Arbiter => Ok(Self::Arbiter(start(PriorityCap::default()))),
            HostRole::BlindArbiter => Ok(Self::BlindArbiter(start(PriorityCap::default()))),
            HostRole::CappedArbiter(cap) => Ok(Self::Arbiter(start(PriorityCap(cap)))),
        }
    }

    /// Waits until every process that works for the whole scene has a context: the start of a
    /// container takes time that says nothing about a limiter.
    pub(crate) fn wait_until_started(
        &self,
        tenants: &[ShareTenant],
        machine: &SimulatedMachine,
        workers: &Workers,
    ) -> Result<()> {
        let all = tenants.iter().zip(&workers.0);
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
            self.write_heartbeat()?;
        }
    }

    /// Does the host's work for some time.
    pub(crate) fn run_for(
        &self,
        machine: &SimulatedMachine,
        workers: &Workers,
        time: Duration,
    ) -> Result<()> {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(POLL_INTERVAL);
            wait(step)?;
            left -= step;
            self.write_heartbeat()?;
            if let Self::Arbiter(arbiter) = self {
                arbiter.publish_usage(machine, workers)?;
            }
        }
        Ok(())
    }

    /// Clears all throttle flags and ends the host.
    pub(crate) fn clear_flags(self) -> Result<()> {
        match self {
            Self::Absent => {}
            Self::Flag(pages) => {
                for page in pages {
                    page.write_all_at(&0_u32.to_le_bytes(), THROTTLE_FLAG)?;
                }
            }
            Self::Arbiter(arbiter) | Self::BlindArbiter(arbiter) => {
                drop(arbiter.stop);
                let ended = arbiter.thread.join();
                ended.map_err(|_| anyhow!("the arbiter panicked"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn write_heartbeat(&self) -> Result<()> {
        let Self::Flag(pages) = self else {
            return Ok(());
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let now = u64::try_from(now.as_nanos())?.to_le_bytes();
        for page in pages {
            page.write_all_at(&now, HEARTBEAT)?;
        }
        Ok(())
    }
}

fn records(containers: &[TestContainer]) -> Vec<ManagedContainer> {
    let directories = containers.iter().map(TestContainer::directory);
    directories.map(container_record).collect()
}

/// The monitor's record of a container with this directory; the rest is on its limits page.
pub fn container_record(folder: PathBuf) -> ManagedContainer {
    ManagedContainer {
        id: folder.display().to_string(),
        pod: "pod".into(),
        namespace: String::new(),
        pod_name: String::new(),
        name: String::new(),
        devices: Vec::new(),
        effective: EffectiveLimits::default(),
        limited: true,
        directory: ContainerDirectory::new(folder),
    }
}

impl RunningArbiter {
    fn start(all: Vec<ManagedContainer>, cap: PriorityCap) -> Self {
        let names = all
            .iter()
            .map(|container_record| container_record.id.clone())
            .collect();
        let records = ManagedContainers {
            all,
            ..ManagedContainers::default()
        };
        let (_, records) = watch::channel(Arc::new(records));
        let (measurements, shown) = watch::channel(Arc::default());
        let (stop, stopped) = channel();
        Self {
            names,
            measurements,
            stop,
            thread: thread::spawn(move || runner::run(cap, records, shown, &stopped)),
        }
    }

    fn publish_usage(&self, machine: &SimulatedMachine, workers: &Workers) -> Result<()> {
        let holders = machine.process_usage_over(FIRST, POLL_INTERVAL)?;
        let at = Clocks::read().monotonic;
        let measurements = self.names.iter().zip(workers.pids()).map(|(name, pids)| {
            let own = holders.iter().filter(|holder| pids.contains(&holder.pid));
            let own: Vec<u32> = own.map(|holder| holder.utilisation).collect();
            let used = u64::from(own.iter().sum::<u32>()) * PERCENT;
            (
                name.clone(),
                vec![Some(Measurement {
                    used,
                    at,
                    is_late: false,
                    processes: u32::try_from(own.len()).unwrap_or(u32::MAX),
                })],
            )
        });
        self.measurements
            .send_replace(Arc::new(measurements.collect::<BTreeMap<_, _>>()));
        Ok(())
    }
}
