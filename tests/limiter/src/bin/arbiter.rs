//! `arbiter FOLDER...`: runs the monitor's arbiter for container directories on a machine without
//! Kubernetes, until its input ends. Each line of the input states, in the order of the folders,
//! which percent of the GPU the processes of each container used. `tests/gpu/limited.sh` uses it; it
//! is not shipped.

use std::collections::BTreeMap;
use std::io::stdin;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use aliquot_limiter_tests::host::container_record;
use aliquot_monitor::arbiter::measurements::Measurements;
use aliquot_monitor::arbiter::priority_cap::PriorityCap;
use aliquot_monitor::arbiter::runner::{self, Clocks};
use aliquot_monitor::arbiter::{Measurement, PERCENT};
use aliquot_monitor::managed_containers::{ManagedContainer, ManagedContainers};
use anyhow::{Context as _, Result, anyhow, ensure};
use tokio::sync::watch;

fn main() -> Result<()> {
    let folders = std::env::args_os().skip(1).map(PathBuf::from);
    let all: Vec<ManagedContainer> = folders.map(container_record).collect();
    ensure!(!all.is_empty(), "usage: arbiter FOLDER...");
    let ids: Vec<String> = all.iter().map(|container| container.id.clone()).collect();
    let containers = ManagedContainers {
        all,
        ..ManagedContainers::default()
    };
    let (_, containers) = watch::channel(Arc::new(containers));
    let (measurements, shown) = watch::channel(Arc::<Measurements>::default());
    let (stop, stopped) = channel();
    let cap = PriorityCap::default();
    let arbiter = thread::spawn(move || runner::run(cap, containers, shown, &stopped));
    for line in stdin().lines() {
        measurements.send_replace(Arc::new(parse(&ids, &line?)?));
    }
    drop(stop);
    arbiter.join().map_err(|_| anyhow!("the arbiter panicked"))
}

/// The measurements that a line states.
fn parse(ids: &[String], line: &str) -> Result<Measurements> {
    let at = Clocks::read().monotonic;
    let words: Vec<&str> = line.split_whitespace().collect();
    ensure!(
        words.len() == ids.len(),
        "{line:?}; expected: percent for each of {} folders",
        ids.len()
    );
    let each = ids.iter().zip(words).map(|(id, word)| {
        let percent: u64 = word.parse().with_context(|| format!("percent: {word:?}"))?;
        let used = percent * PERCENT;
        Ok((
            id.clone(),
            vec![Some(Measurement {
                used,
                at,
                is_late: false,
                processes: u32::MAX,
            })],
        ))
    });
    each.collect::<Result<BTreeMap<_, _>>>()
}
