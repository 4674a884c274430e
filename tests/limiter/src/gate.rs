//! How long it takes until a tenant of low priority feels that one of high priority came or went:
//! by the gate word on its limits page, and by the simulator's exact clock.
//!
//! Fed by: tests and benchmarks. Must not: write to the page; the arbiter does.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use aliquot_gpusim::SimulatedMachine;
use anyhow::Result;

use crate::host::{GATE, Host, Role};
use crate::scene::machine;
use crate::share::{Scene, containers, pass, tenant};
use crate::starved::longest;
use crate::workers::Workers;

/// Between two looks at the card.
const LOOK: Duration = Duration::from_millis(1);
/// Of a card that does not work for a tenant.
const STILL: Duration = Duration::from_millis(40);
/// Gate word: wait.
const WAIT: u32 = 1;

/// Milliseconds, one figure for each time that the gate closed or opened; without the time for which
/// a thread of the tenant, or of the host here, could have run and was given no processor.
#[derive(Clone, Debug, Default)]
pub struct Felt {
    /// From the closed gate to the end of the last kernel of low priority.
    pub closed: Vec<f64>,
    /// From the open gate to the first kernel.
    pub opened: Vec<f64>,
    /// From the first kernel of high priority to the last of low priority.
    pub yielded: Vec<f64>,
}

/// One of low priority that is always busy, and one of high priority that comes and goes, for so
/// long.
pub fn felt(time: Duration) -> Result<Felt> {
    let (room, machine) = machine();
    let tenants = vec![
        tenant(50, "sync k_ms_1").priority(1),
        tenant(50, "bursts k_ms_1").priority(0),
    ];
    let mut scene = Scene::seconds(1, tenants);
    scene.warm_up = time;
    scene.host = Role::Arbiter;
    let containers = containers(&scene, &machine)?;
    let host = Host::new(&containers, scene.host)?;
    let workers = Workers::start(&scene, &containers, room.path())?;
    let page = File::open(containers[0].directory().join("limits"))?;
    let found = watch(&machine, &workers, &page, time);
    host.leave()?;
    found
}

/// When somebody's work was last seen to go on.
struct Moves {
    busy: f64,
    last: Instant,
}

impl Moves {
    /// Whether it went on since the last look.
    fn look(&mut self, busy: f64, when: Instant) -> bool {
        let moved = busy > self.busy;
        if moved {
            self.busy = busy;
            self.last = when;
        }
        moved
    }
}

fn watch(
    machine: &SimulatedMachine,
    workers: &Workers,
    page: &File,
    time: Duration,
) -> Result<Felt> {
    let begun = Instant::now();
    let moves = || Moves {
        busy: 0.0,
        last: begun,
    };
    let (mut low, mut high) = (moves(), moves());
    let mut felt = Felt::default();
    let (mut gate, mut changed, mut came, mut judged) = (0, begun, begun, true);
    let mut waits = workers.waits();
    let since = |later: Instant, earlier: Instant| {
        let passed = later.saturating_duration_since(earlier);
        1_000.0 * passed.as_secs_f64()
    };
    while begun.elapsed() < time {
        pass(LOOK)?;
        let now = workers.busy(machine)?;
        let mut word = [0; 4];
        page.read_exact_at(&mut word, GATE)?;
        let word = u32::from_le_bytes(word);
        if (word == WAIT) != (gate == WAIT) {
            (changed, judged) = (Instant::now(), false);
            waits = workers.waits();
        }
        gate = word;
        let rested = now.when.saturating_duration_since(high.last) > 5 * STILL;
        if high.look(now.busy[1], now.when) && rested {
            came = now.when;
        }
        let works = low.look(now.busy[0], now.when);
        let done = now.when.saturating_duration_since(changed) > 4 * STILL;
        let starved = || {
            let nanoseconds = longest(&waits[0], &workers.waits()[0]);
            1_000.0 * Duration::from_nanos(nanoseconds).as_secs_f64()
        };
        if !judged && gate == WAIT && done {
            judged = true;
            let starved = starved();
            felt.closed
                .push((since(low.last, changed) - starved).max(0.0));
            felt.yielded.push(since(low.last, came));
        } else if !judged && gate != WAIT && works {
            judged = true;
            felt.opened
                .push((since(now.when, changed) - starved()).max(0.0));
        }
    }
    Ok(felt)
}

/// The figure that this percentage of the figures does not pass.
pub fn percentile(figures: &[f64], percent: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(place).copied().unwrap_or(f64::INFINITY)
}
