//! One look after another: read, judge, carry out, show.
//!
//! Fed by: a clock. Must not: look again before the last look is carried out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_k8s::event::Notes;
use aliquot_k8s::watch::Freshness;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::act::Actor;
use crate::arbiter::levels::levels;
use crate::arbiter::shell::Levels;
use crate::figures::{self, Shown, Told};
use crate::judge::{Judge, Rules};
use crate::look::Looker;
use crate::pods::Pods;
use crate::seats::Seats;
use crate::settings::OnUnmanaged;

/// Between two looks: what is unmanaged is told at the second, within two seconds.
pub const LOOK: Duration = Duration::from_millis(500);

/// What holds for every look.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What becomes of processes that nobody accounts for.
    pub unmanaged: OnUnmanaged,
    /// Namespaces whose are only reported.
    pub spared: Vec<String>,
    /// Bytes for each process that a container may pass its limit by.
    pub tolerance: u64,
}

/// All that looks need.
pub struct Rounds {
    /// The node's name.
    pub node: String,
    /// What holds.
    pub policy: Policy,
    /// Reads.
    pub looker: Looker,
    /// Keeps what is needed from look to look.
    pub judge: Judge,
    /// Carries out.
    pub actor: Actor,
    /// This node's pods, and whether all are known.
    pub pods: (Pods, Freshness),
    /// Where events go.
    pub notes: Notes,
    /// Where figures go.
    pub shown: Shown,
    /// Where the list of seats goes.
    pub seats_tx: watch::Sender<Arc<Seats>>,
    /// Where the driver's measures go.
    pub levels_tx: watch::Sender<Arc<Levels>>,
}

impl Rounds {
    /// Looks until `stop`; `looked` is told of each.
    pub async fn run(self, looked: impl Fn(), stop: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rounds = self;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let round = spawn_blocking(move || {
                rounds.once();
                rounds
            });
            let Ok(same) = round.await else {
                tracing::error!("a look panicked; the monitor ends");
                stop.cancel();
                return;
            };
            rounds = same;
            looked();
        }
    }

    /// One look. Blocks.
    pub fn once(&mut self) {
        let begun = Instant::now();
        let (look, cards) = self.looker.look();
        self.seats_tx.send_replace(Arc::clone(&look.seats));
        let (pods, freshness) = &self.pods;
        let rules = Rules {
            unmanaged: self.policy.unmanaged,
            spared: pods.in_namespaces(&self.policy.spared),
            tolerance: self.policy.tolerance,
        };
        let outcome = self.judge.after(&look, &rules);
        let measured = levels(&look, &outcome, monotonic());
        self.levels_tx.send_replace(Arc::new(measured));
        for (at, problem) in &outcome.spoiled {
            let seat = &look.seats.all[*at];
            tracing::debug!(pod = seat.pod_name, problem, "a counters file says nothing");
        }
        self.actor.carry_out(&look, &outcome, &mut self.looker);
        let told = Told {
            node: &self.node,
            look: &look,
            cards: &cards,
            outcome: &outcome,
            pods: &pods.all(),
            listed: freshness.listed().is_some(),
            done: &self.actor.done,
            failures: &self.looker.failures,
            dropped: self.notes.dropped(),
            took: begun.elapsed(),
            now: monotonic(),
        };
        self.shown.set(figures::samples(told));
    }
}

/// Nanoseconds of the clock that launches are noted by.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let number = |part: i64| u64::try_from(part).unwrap_or(0);
    number(now.tv_sec) * 1_000_000_000 + number(now.tv_nsec)
}
