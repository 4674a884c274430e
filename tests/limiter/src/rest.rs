//! What the arbiter costs while nobody works.
//!
//! Fed by: benchmarks. Must not: count what setting up costs.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use aliquot_monitor::arbiter::shell;
use aliquot_monitor::seats::Seats;
use aliquot_region::counters;
use aliquot_region::limits::{Container, page};
use anyhow::{Context as _, Result, anyhow};
use tokio::sync::watch;

use crate::host::seat;
use crate::scene::device;
use crate::share::pass;

/// Percent of a core that it takes with so many shares of eight cards, over so long.
pub fn at_rest(shares: usize, time: Duration) -> Result<f64> {
    let room = tempfile::tempdir()?;
    let mut all = Vec::new();
    for i in 0..shares {
        let folder = room.path().join(i.to_string());
        fs::create_dir_all(folder.join("counters"))?;
        let card = format!("GPU-{}", i % 8);
        let mut share = device(&card, 1000);
        share.cores = 10;
        fs::write(folder.join("limits"), page(Container::default(), &[share])?)?;
        let slots = folder.join("counters/slots");
        fs::write(&slots, counters::header())?;
        let file = fs::OpenOptions::new().write(true).open(slots)?;
        file.set_len(counters::SIZE)?;
        all.push(seat(folder));
    }
    let seats = Seats {
        all,
        ..Seats::default()
    };
    let (_seats, seats) = watch::channel(Arc::new(seats));
    let (_levels, levels) = watch::channel(Arc::default());
    let (stop, stopped) = channel();
    let before = spent()?;
    let arbiter = thread::spawn(move || shell::run(seats, levels, &stopped));
    pass(time)?;
    let after = spent()?;
    drop(stop);
    arbiter
        .join()
        .map_err(|_| anyhow!("the arbiter panicked"))?;
    Ok(100.0 * (after - before) / time.as_secs_f64())
}

/// CPU seconds of this process.
fn spent() -> Result<f64> {
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
