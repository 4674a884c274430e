//! What a call costs with the limiter before the simulated driver and without it: launches and
//! allocations in CPU time, launches in instructions where callgrind is at hand, and starts of
//! programs in time.
//!
//! Fed by: benchmarks; `clients/work.c`. Must not: compare runs of different times;
//! the sides take turns.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::scene::{FIRST, device, machine};
use crate::share::compile;
use crate::{Container, Way, host};

/// A kernel that takes no time, so that the launch itself is what is seen.
const KERNEL: &str = "k_ns_0";

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// [`Way::Bare`]: no limiter.
    pub way: Way,
    /// Percent of the card; 0: no limit.
    pub cores: u32,
    /// The gate word that a host left which died long ago; 0: none.
    pub gate: u32,
}

/// Nanoseconds of CPU time for a launch on each side, the fastest of `rounds`, with `threads`
/// (1 or 4) that launch at once.
pub fn nanoseconds(sides: &[Side], threads: usize, rounds: usize) -> Result<Vec<f64>> {
    let mode = if threads == 4 { "tick4" } else { "tick" };
    fastest(sides, rounds, &[mode, "300000", KERNEL])
}

/// Nanoseconds of CPU time for a launch of a library's kernel on each side.
pub fn of_library(sides: &[Side], rounds: usize) -> Result<Vec<f64>> {
    fastest(sides, rounds, &["tickl", "300000", KERNEL])
}

/// Nanoseconds of CPU time for an allocation and its end beside `live` others, on each side.
pub fn allocation(sides: &[Side], live: u32, rounds: usize) -> Result<Vec<f64>> {
    fastest(sides, rounds, &["live", &live.to_string(), KERNEL])
}

/// Microseconds of the run of a program on each side: one that has nothing to do with a card, and
/// one that only calls `cuInit`.
pub fn start(sides: &[Side], with_driver: bool, rounds: usize) -> Result<Vec<f64>> {
    if with_driver {
        fastest(sides, rounds, &["spawn", "200", SELF, "init", "0", KERNEL])
    } else {
        fastest(sides, rounds, &["spawn", "500", "/bin/true"])
    }
}

/// Microseconds until `count` programs that call `cuInit` and begin at once have ended, on each
/// side.
pub fn storm(sides: &[Side], count: u32, rounds: usize) -> Result<Vec<f64>> {
    let count = count.to_string();
    fastest(sides, rounds, &["storm", &count, SELF, "init", "0", KERNEL])
}

/// Stands for the client's own path.
const SELF: &str = "SELF";

/// What the client says in a mode, the least of `rounds`, on each side in turn.
fn fastest(sides: &[Side], rounds: usize, mode: &[&str]) -> Result<Vec<f64>> {
    let mut least = vec![f64::INFINITY; sides.len()];
    for _ in 0..rounds {
        for (side, least) in sides.iter().zip(&mut least) {
            let output = run(*side, |client| {
                let own = |word: &&str| {
                    if *word == SELF {
                        client.clone()
                    } else {
                        (*word).into()
                    }
                };
                [client.clone()]
                    .into_iter()
                    .chain(mode.iter().map(own))
                    .collect()
            })?;
            let words: Vec<&str> = output.split_whitespace().collect();
            let ["nanoseconds" | "microseconds", each, "failures", "0"] = words[..] else {
                anyhow::bail!("the client said {output}");
            };
            *least = least.min(each.parse()?);
        }
    }
    Ok(least)
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
        collected(&said)
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

/// Instructions and system calls of a program that only calls `cuInit`, on each side; `None` where
/// there is no valgrind, or no strace.
pub fn init(sides: &[Side]) -> Result<[Option<Vec<f64>>; 2]> {
    let all = |tool: &[&str], count: fn(&str) -> Result<f64>| {
        if Command::new(tool[0]).arg("--version").output().is_err() {
            return Ok(None);
        }
        let found = sides.iter().map(|side| {
            let said = run(*side, |client| {
                let words = tool.iter().copied().map(str::to_owned);
                let program = [client, "init".into(), "0".into(), KERNEL.into()];
                words.chain(program).collect()
            })?;
            count(&said)
        });
        found.collect::<Result<Vec<f64>>>().map(Some)
    };
    let tool = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
    ];
    let instructions = all(&tool, collected)?;
    // One line for each call on stderr.
    let calls = all(&["strace"], |said| {
        let lines = said.lines().filter(|line| line.contains(") = "));
        Ok(f64::from(u32::try_from(lines.count())?))
    })?;
    Ok([instructions, calls])
}

/// What callgrind says that it collected.
fn collected(said: &str) -> Result<f64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let number = line.context("callgrind says what it collected")?.1;
    Ok(number.trim().parse()?)
}

fn run(side: Side, words: impl FnOnce(String) -> Vec<String>) -> Result<String> {
    let (room, machine) = machine();
    let client = compile(room.path())?;
    let mut share = device(FIRST, 7000);
    share.cores = side.cores;
    let container = Container::new(&machine, side.way, crate::scene::RULES, &[share])?;
    host::died(&container, side.gate)?;
    let words = words(client.display().to_string());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = container.command(&words).output()?;
    ensure!(output.status.success(), "{side:?} {words:?}: {output:?}");
    let said = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&said).into_owned())
}
