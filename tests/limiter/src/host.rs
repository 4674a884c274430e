//! The host of a scene: nobody, somebody who says one gate word, or the arbiter itself, told what
//! the monitor would tell it: the shares, and twice a second NVML's utilisation of each process,
//! late and in whole percent.
//!
//! Fed by: [`crate::share`]. Must not: use the simulator's exact clock.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use aliquot_gpusim::SimulatedMachine;
use aliquot_monitor::arbiter::shell::{self, Levels, Now};
use aliquot_monitor::arbiter::{Measured, PERCENT};
use aliquot_monitor::seats::{Effective, Seat, Seats};
use anyhow::{Result, anyhow};
use tokio::sync::watch;

use crate::Container;
use crate::scene::FIRST;
use crate::share::pass;
use crate::workers::Workers;

/// Where words lie, as the documented layout says.
const HEARTBEAT: u64 = 24;
pub(crate) const GATE: u64 = 64 + 52;

/// Between two looks of the monitor at the driver.
const LOOK: Duration = Duration::from_millis(500);

/// What a host leaves that died long ago.
pub(crate) fn died(container: &Container, gate: u32) -> Result<()> {
    if gate != 0 {
        let path = container.directory().join("limits");
        let page = OpenOptions::new().write(true).open(path)?;
        page.write_all_at(&gate.to_le_bytes(), GATE)?;
        page.write_all_at(&1_u64.to_le_bytes(), HEARTBEAT)?;
    }
    Ok(())
}

/// Who speaks for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nobody.
    Silent,
    /// Somebody alive whose gate word is this for every tenant from the beginning.
    Says(u32),
    /// A host that died long ago and left this gate word to every tenant.
    Left(u32),
    /// The arbiter.
    Arbiter,
}

pub(crate) enum Host {
    Silent,
    Says(Vec<File>),
    Arbiter(Arbiter),
}

pub(crate) struct Arbiter {
    names: Vec<String>,
    levels: watch::Sender<Arc<Levels>>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Host {
    pub(crate) fn new(containers: &[Container], role: Role) -> Result<Self> {
        match role {
            Role::Silent => Ok(Self::Silent),
            Role::Says(gate) => {
                let pages = containers.iter().map(|container| {
                    let path = container.directory().join("limits");
                    let page = OpenOptions::new().write(true).open(path)?;
                    page.write_all_at(&gate.to_le_bytes(), GATE)?;
                    Ok(page)
                });
                let host = Self::Says(pages.collect::<Result<_>>()?);
                host.beat()?;
                Ok(host)
            }
            Role::Left(gate) => {
                for container in containers {
                    died(container, gate)?;
                }
                Ok(Self::Silent)
            }
            Role::Arbiter => {
                let seats = containers
                    .iter()
                    .map(|container| seat(container.directory()));
                Ok(Self::Arbiter(Arbiter::start(seats.collect())))
            }
        }
    }

    /// Is there while time passes.
    pub(crate) fn run_for(
        &self,
        machine: &SimulatedMachine,
        workers: &Workers,
        time: Duration,
    ) -> Result<()> {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(LOOK);
            pass(step)?;
            left -= step;
            self.beat()?;
            if let Self::Arbiter(arbiter) = self {
                arbiter.tell(machine, workers)?;
            }
        }
        Ok(())
    }

    /// Opens all gates.
    pub(crate) fn leave(self) -> Result<()> {
        match self {
            Self::Silent => {}
            Self::Says(pages) => {
                for page in pages {
                    page.write_all_at(&0_u32.to_le_bytes(), GATE)?;
                }
            }
            Self::Arbiter(arbiter) => {
                drop(arbiter.stop);
                let ended = arbiter.thread.join();
                ended.map_err(|_| anyhow!("the arbiter panicked"))?;
            }
        }
        Ok(())
    }

    /// Says that it lives.
    pub(crate) fn beat(&self) -> Result<()> {
        let Self::Says(pages) = self else {
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

/// What the monitor lists of a container whose directory this is; the rest is on its page.
pub(crate) fn seat(folder: PathBuf) -> Seat {
    Seat {
        name: folder.display().to_string(),
        pod: "pod".into(),
        namespace: String::new(),
        pod_name: String::new(),
        container: String::new(),
        devices: Vec::new(),
        priority: 0,
        effective: Effective::default(),
        limited: true,
        folder,
    }
}

impl Arbiter {
    fn start(all: Vec<Seat>) -> Self {
        let names = all.iter().map(|seat| seat.name.clone()).collect();
        let seats = Seats {
            all,
            ..Seats::default()
        };
        let (_, seats) = watch::channel(Arc::new(seats));
        let (levels, shown) = watch::channel(Arc::default());
        let (stop, stopped) = channel();
        Self {
            names,
            levels,
            stop,
            thread: thread::spawn(move || shell::run(seats, shown, &stopped)),
        }
    }

    fn tell(&self, machine: &SimulatedMachine, workers: &Workers) -> Result<()> {
        let holders = machine.holders(FIRST)?;
        let at = Now::read().monotonic;
        let levels = self.names.iter().zip(workers.pids()).map(|(name, pids)| {
            let own = holders.iter().filter(|holder| pids.contains(&holder.pid));
            let percent: u32 = own.map(|holder| holder.utilisation).sum();
            let used = u64::from(percent) * PERCENT;
            (name.clone(), vec![Some(Measured { used, at })])
        });
        self.levels
            .send_replace(Arc::new(levels.collect::<BTreeMap<_, _>>()));
        Ok(())
    }
}
