//! Measures how long it takes until a tenant of low priority notices that one of high priority
//! started or stopped: by the throttle flag on its limits page and the simulator's exact clock. The
//! arbiter writes the flag; this module only reads it.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use aliquot_cluster::starvation::longest;
use aliquot_gpusim::SimulatedMachine;
use anyhow::Result;

use crate::host::{HostRole, ScenarioHost, THROTTLE_FLAG};
use crate::scene::{machine, wait};
use crate::share::{ShareScenario, containers};
use crate::workers::{Workers, tenant};

/// Time between two polls of the GPU.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time without progress after which a tenant counts as idle.
const IDLE_AFTER: Duration = Duration::from_millis(40);
/// Throttle flag: wait.
const WAIT: u32 = 1;

/// Runs a tenant of low priority that is always busy and one of high priority that starts and
/// stops, for `time`. Returns milliseconds, one figure for each change of the throttle flag: from the set
/// flag to the end of the last kernel of low priority, or from the cleared flag to the first, without the
/// time for which a thread of the tenant, or of the host in this process, was runnable but got no processor.
pub fn measure_latency(time: Duration) -> Result<Vec<f64>> {
    let (temp, machine) = machine();
    let tenants = vec![
        tenant(50, "sync k_ms_1").priority(1),
        tenant(50, "bursts k_ms_1").priority(0),
    ];
    let mut scene = ShareScenario::seconds(1, tenants);
    scene.warm_up = time;
    scene.host = HostRole::Arbiter;
    let containers = containers(&scene, &machine)?;
    let host = ScenarioHost::new(&containers, scene.host)?;
    let workers = scene.start_workers(&containers, temp.path())?;
    let page = File::open(containers[0].directory().join("limits"))?;
    let found = observe(&machine, &workers, &page, time);
    host.clear_flags()?;
    found
}

fn observe(
    machine: &SimulatedMachine,
    workers: &Workers,
    page: &File,
    time: Duration,
) -> Result<Vec<f64>> {
    let begun = Instant::now();
    // What the tenant of low priority has worked, and when it last made progress.
    let (mut busy, mut last) = (0.0, begun);
    let mut latency = Vec::new();
    let (mut flag, mut changed, mut is_measured) = (0, begun, true);
    let mut waits = workers.waits();
    let since = |later: Instant, earlier: Instant| {
        let passed = later.saturating_duration_since(earlier);
        1_000.0 * passed.as_secs_f64()
    };
    while begun.elapsed() < time {
        wait(POLL_INTERVAL)?;
        let now = workers.busy(machine)?;
        let mut flag_bytes = [0; 4];
        page.read_exact_at(&mut flag_bytes, THROTTLE_FLAG)?;
        let flag_bytes = u32::from_le_bytes(flag_bytes);
        if (flag_bytes == WAIT) != (flag == WAIT) {
            (changed, is_measured) = (Instant::now(), false);
            waits = workers.waits();
        }
        flag = flag_bytes;
        let is_running = now.busy[0] > busy;
        if is_running {
            (busy, last) = (now.busy[0], now.when);
        }
        let done = now.when.saturating_duration_since(changed) > 4 * IDLE_AFTER;
        let starved = || {
            let nanoseconds = longest(&waits[0], &workers.waits()[0]);
            1_000.0 * Duration::from_nanos(nanoseconds).as_secs_f64()
        };
        if !is_measured && flag == WAIT && done {
            is_measured = true;
            latency.push((since(last, changed) - starved()).max(0.0));
        } else if !is_measured && flag != WAIT && is_running {
            is_measured = true;
            latency.push((since(now.when, changed) - starved()).max(0.0));
        }
    }
    Ok(latency)
}

/// The figure that this percentage of the figures does not exceed.
pub fn percentile(figures: &[f64], percent: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(place).copied().unwrap_or(f64::INFINITY)
}
