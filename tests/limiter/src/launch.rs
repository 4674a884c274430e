//! The cost of calls with the limiter and without it, on the simulated driver: launches and
//! allocations in CPU time, and program starts in time. The sides alternate, so that no comparison is
//! between different times.

use anyhow::{Result, ensure};

use crate::scene::{FIRST, compile_work, container_of, machine, share_of};
use crate::{InjectionMethod, host};

/// A kernel that takes no time, so that only the launch itself counts.
const KERNEL: &str = "k_ns_0";

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSide {
    /// [`InjectionMethod::NoLimiter`]: no limiter.
    pub method: InjectionMethod,
    /// Percent of the GPU; 0: no limit.
    pub cores: u32,
    /// The throttle flag that a host left which died long ago; 0: none.
    pub stale_flag: u32,
}

/// Nanoseconds of CPU time for a launch on each side, the lower quartile of `rounds`, with `threads` (1 or
/// 4) that launch at once.
pub fn nanoseconds(sides: &[LaunchSide], threads: usize, rounds: usize) -> Result<Vec<f64>> {
    let mode = if threads == 4 { "tick4" } else { "tick" };
    let mut all = measured(sides, rounds, &[mode, "300000", KERNEL])?;
    let lower = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 4]
    };
    Ok(all.iter_mut().map(lower).collect())
}

/// Nanoseconds of CPU time for an allocation and its free beside `live` others, on each side.
pub fn allocation(sides: &[LaunchSide], live: u32, rounds: usize) -> Result<Vec<f64>> {
    fastest(sides, rounds, &["live", &live.to_string(), KERNEL])
}

/// Microseconds to run a program that does not use a GPU, on each side.
pub fn start(sides: &[LaunchSide], rounds: usize) -> Result<Vec<f64>> {
    fastest(sides, rounds, &["spawn", "500", "/bin/true"])
}

/// Microseconds until `count` programs that start at once and call `cuInit` have ended, on each
/// side.
pub fn storm(sides: &[LaunchSide], count: u32, rounds: usize) -> Result<Vec<f64>> {
    let count = count.to_string();
    fastest(sides, rounds, &["storm", &count, SELF, "init", "0", KERNEL])
}

/// Placeholder for the client's own path.
const SELF: &str = "SELF";

/// The least of what the client prints in a mode.
fn fastest(sides: &[LaunchSide], rounds: usize, mode: &[&str]) -> Result<Vec<f64>> {
    let all = measured(sides, rounds, mode)?;
    let least = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    Ok(all.into_iter().map(least).collect())
}

/// What the client prints in a mode in each round, on each side in turn.
fn measured(sides: &[LaunchSide], rounds: usize, mode: &[&str]) -> Result<Vec<Vec<f64>>> {
    let mut all = vec![Vec::new(); sides.len()];
    for _ in 0..rounds {
        for (side, times) in sides.iter().zip(&mut all) {
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
            let arguments: Vec<&str> = output.split_whitespace().collect();
            let ["nanoseconds" | "microseconds", each, "failures", "0"] = arguments[..] else {
                anyhow::bail!("the client printed {output}");
            };
            times.push(each.parse()?);
        }
    }
    Ok(all)
}

fn run(side: LaunchSide, arguments: impl FnOnce(String) -> Vec<String>) -> Result<String> {
    let (temp, machine) = machine();
    let client = compile_work(temp.path())?;
    let devices = [share_of(FIRST, 7000, side.cores)];
    let container = container_of(&machine, side.method, &devices);
    host::write_stale_flag(&container, side.stale_flag)?;
    let arguments = arguments(client);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = container.command(&arguments).output()?;
    ensure!(
        output.status.success(),
        "{side:?} {arguments:?}: {output:?}"
    );
    let reply = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&reply).into_owned())
}
