//! A stand-in for the host's arbiter: what it may see (NVML's utilisation of each process, late and
//! in whole percent) and what it may write (the measured words of each limits page).
//!
//! Fed by: [`crate::share`]. Must not: use the simulator's exact clock.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, SystemTime};

use aliquot_gpusim::SimulatedMachine;
use anyhow::Result;

use crate::Container;
use crate::scene::FIRST;
use crate::share::{Scene, Workers, pass};

/// Where the words lie, as the documented layout says.
const HEARTBEAT: u64 = 24;
const GATE: u64 = 64 + 52;
const TRIM: u64 = 64 + 56;
const TENANTS: u64 = 64 + 60;

/// Between two looks.
const STEP: Duration = Duration::from_millis(250);
/// Samples over which utilisation is averaged.
const MEMORY: f64 = 8.0;
/// Part of an error that a step corrects.
const GAIN: f64 = 0.05;

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

pub(crate) struct Host {
    pages: Vec<Page>,
    trims: bool,
    alive: bool,
}

struct Page {
    file: File,
    cores: f64,
    /// Percent, smoothed.
    used: f64,
    trim: f64,
}

impl Host {
    pub(crate) fn new(containers: &[Container], scene: &Scene) -> Result<Self> {
        let pages = containers.iter().zip(&scene.tenants);
        let pages: Result<Vec<Page>> = pages
            .map(|(container, tenant)| {
                let path = container.directory().join("limits");
                Ok(Page {
                    file: OpenOptions::new().write(true).open(path)?,
                    cores: f64::from(tenant.cores),
                    used: f64::from(tenant.cores),
                    trim: 1.0,
                })
            })
            .collect();
        let host = Self {
            pages: pages?,
            trims: scene.host,
            alive: scene.host || scene.gate.is_some(),
        };
        host.beat()?;
        for container in containers {
            died(container, scene.left)?;
        }
        if scene.left != 0 {
            return Ok(host);
        }
        for page in &host.pages {
            let gate = scene.gate.unwrap_or(0);
            page.file.write_all_at(&gate.to_le_bytes(), GATE)?;
        }
        Ok(host)
    }

    /// Is there while time passes.
    pub(crate) fn run_for(
        &mut self,
        machine: &SimulatedMachine,
        workers: &Workers,
        time: Duration,
    ) -> Result<()> {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(STEP);
            pass(step)?;
            left -= step;
            self.beat()?;
            if self.trims {
                self.look(machine, workers)?;
            }
        }
        Ok(())
    }

    /// Opens all gates.
    pub(crate) fn leave(&self) -> Result<()> {
        for page in &self.pages {
            page.file.write_all_at(&0_u32.to_le_bytes(), GATE)?;
        }
        Ok(())
    }

    fn beat(&self) -> Result<()> {
        if !self.alive {
            return Ok(());
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let now = u64::try_from(now.as_nanos())?.to_le_bytes();
        for page in &self.pages {
            page.file.write_all_at(&now, HEARTBEAT)?;
        }
        Ok(())
    }

    fn look(&mut self, machine: &SimulatedMachine, workers: &Workers) -> Result<()> {
        let holders = machine.holders(FIRST)?;
        let used: Vec<f64> = workers
            .pids()
            .map(|pids| {
                let own = holders.iter().filter(|holder| pids.contains(&holder.pid));
                f64::from(own.map(|holder| holder.utilisation).sum::<u32>())
            })
            .collect();
        let tenants = used.iter().filter(|used| **used > 0.0).count();
        let tenants = u32::try_from(tenants)?.to_le_bytes();
        for (page, used) in self.pages.iter_mut().zip(used) {
            page.used += (used - page.used) / MEMORY;
            let error = (page.cores - page.used) / page.cores.max(1.0);
            page.trim = (page.trim * (1.0 + GAIN * error)).clamp(0.5, 2.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between half and two millions"
            )]
            let trim = (page.trim * 1e6) as u32;
            page.file.write_all_at(&trim.to_le_bytes(), TRIM)?;
            page.file.write_all_at(&tenants, TENANTS)?;
        }
        Ok(())
    }
}
