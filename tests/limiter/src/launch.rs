//! What a launch costs the launching thread, with the limiter before the simulated driver and
//! without it: CPU time, and instructions where callgrind is at hand.
//!
//! Fed by: benchmarks; `clients/work.c` in mode `tick`. Must not: compare runs of different times;
//! the sides take turns.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::scene::{FIRST, device, machine};
use crate::share::compile;
use crate::{Container, Way};

/// A kernel that takes no time, so that the launch itself is what is seen.
const KERNEL: &str = "k_ns_0";

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// [`Way::Bare`]: no limiter.
    pub way: Way,
    /// Percent of the card; 0: no limit.
    pub cores: u32,
}

/// Nanoseconds of CPU time for a launch on each side, the fastest of `rounds`, with `threads`
/// (1 or 4) that launch at once.
pub fn nanoseconds(sides: &[Side], threads: usize, rounds: usize) -> Result<Vec<f64>> {
    let mut fastest = vec![f64::INFINITY; sides.len()];
    let mode = if threads == 4 { "tick4" } else { "tick" };
    for _ in 0..rounds {
        for (side, fastest) in sides.iter().zip(&mut fastest) {
            let output = run(*side, |client| {
                vec![client, mode.into(), "300000".into(), KERNEL.into()]
            })?;
            let words: Vec<&str> = output.split_whitespace().collect();
            let ["nanoseconds", each, "failures", "0"] = words[..] else {
                anyhow::bail!("the client said {output}");
            };
            *fastest = fastest.min(each.parse()?);
        }
    }
    Ok(fastest)
}

/// Instructions for a launch on each side; `None` where there is no valgrind.
pub fn instructions(sides: &[Side]) -> Result<Option<Vec<f64>>> {
    const LAUNCHES: [u32; 2] = [20_000, 120_000];
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Ok(None);
    }
    let count = |side: Side, launches: u32| {
        let said = run(side, |client| {
            let mut words: Vec<String> = ["valgrind", "--tool=callgrind"].map(Into::into).into();
            words.push("--callgrind-out-file=/dev/null".into());
            words.extend([client, "tick".into(), launches.to_string(), KERNEL.into()]);
            words
        })?;
        let line = said.lines().find_map(|line| line.split_once("Collected :"));
        let number = line.context("callgrind says what it collected")?.1;
        Ok::<f64, anyhow::Error>(number.trim().parse()?)
    };
    let found: Result<Vec<f64>> = sides
        .iter()
        .map(|side| {
            let [few, many] = LAUNCHES;
            Ok((count(*side, many)? - count(*side, few)?) / f64::from(many - few))
        })
        .collect();
    found.map(Some)
}

fn run(side: Side, words: impl FnOnce(String) -> Vec<String>) -> Result<String> {
    let (room, machine) = machine();
    let client = compile(room.path())?;
    let mut share = device(FIRST, 7000);
    share.cores = side.cores;
    let container = Container::new(&machine, side.way, crate::scene::RULES, &[share])?;
    let words = words(client.display().to_string());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = container.command(&words).output()?;
    ensure!(output.status.success(), "{side:?} {words:?}: {output:?}");
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said).into_owned())
}
