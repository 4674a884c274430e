//! The CPU time of the arbiter while nobody works, without its start.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use aliquot_monitor::arbiter::priority_cap::PriorityCap;
use aliquot_monitor::arbiter::runner;
use aliquot_monitor::managed_containers::ManagedContainers;
use aliquot_region::counters;
use aliquot_region::limits::{ContainerLimits, page};
use anyhow::{Context as _, Result, anyhow};
use tokio::sync::watch;

use crate::host::container_record;
use crate::scene::{device, wait};

/// Percent of a core that it uses with so many shares on eight GPUs, over some time.
pub fn idle_cpu_percent(shares: usize, time: Duration) -> Result<f64> {
    let temp = tempfile::tempdir()?;
    let mut all = Vec::new();
    for i in 0..shares {
        let folder = temp.path().join(i.to_string());
        fs::create_dir_all(folder.join("counters"))?;
        let uuid = format!("GPU-{}", i % 8);
        let mut share = device(&uuid, 1000);
        share.cores = 10;
        fs::write(
            folder.join("limits"),
            page(ContainerLimits::default(), &[share])?,
        )?;
        let slots = folder.join("counters/slots");
        fs::write(&slots, counters::header())?;
        let file = fs::OpenOptions::new().write(true).open(slots)?;
        file.set_len(counters::SIZE)?;
        all.push(container_record(folder));
    }
    let containers = ManagedContainers {
        all,
        ..ManagedContainers::default()
    };
    let (_containers, containers) = watch::channel(Arc::new(containers));
    let (_measurements, measurements) = watch::channel(Arc::default());
    let (stop, stopped) = channel();
    let before = cpu_seconds()?;
    let cap = PriorityCap::default();
    let arbiter = thread::spawn(move || runner::run(cap, containers, measurements, &stopped));
    wait(time)?;
    let after = cpu_seconds()?;
    drop(stop);
    arbiter
        .join()
        .map_err(|_| anyhow!("the arbiter panicked"))?;
    Ok(100.0 * (after - before) / time.as_secs_f64())
}

/// CPU seconds of this process.
fn cpu_seconds() -> Result<f64> {
    let text = fs::read_dir("/proc/self/task")?
        .map(|task| Ok(fs::read_to_string(task?.path().join("schedstat"))?))
        .collect::<Result<Vec<String>>>()?;
    let nanoseconds = text.iter().map(|line| {
        let first = line.split_whitespace().next().context("a figure")?;
        Ok(first.parse::<u64>()?)
    });
    let sum: u64 = nanoseconds.collect::<Result<Vec<_>>>()?.iter().sum();
    Ok(Duration::from_nanos(sum).as_secs_f64())
}
