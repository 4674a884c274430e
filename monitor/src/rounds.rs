//! One look after another: read, judge, carry out, show.
//!
//! Fed by: a clock. Must not: look again before the last look is carried out, or hang unsaid: a
//! driver may never answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aliquot_k8s::event::Notes;
use aliquot_k8s::watch::Freshness;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use crate::act::Actor;
use crate::arbiter::levels::levels;
use crate::arbiter::shell::Levels;
use crate::enforce::Enforcements;
use crate::figures::{Shown, Told};
use crate::judge::{Judge, Rules};
use crate::look::Looker;
use crate::pods::Pods;
use crate::seats::Seats;
use crate::settings::OnUnmanaged;

/// Between two looks: what is unmanaged is told at the second, within two seconds.
pub const LOOK: Duration = Duration::from_millis(500);

/// A look that takes longer is told; the driver has no deadline.
const LATE: Duration = Duration::from_secs(30);

/// What is told of looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// One ended.
    Ended,
    /// One has not for half a minute, or for another one.
    Late,
}

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

impl Policy {
    /// What holds of it. Until all pods of this node are known, nobody knows who is spared.
    fn until_listed(&self, listed: bool) -> OnUnmanaged {
        if listed {
            self.unmanaged
        } else {
            OnUnmanaged::Report
        }
    }
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
    /// Holds shares to their memory.
    pub enforcements: Enforcements,
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
    pub async fn run(self, looked: impl Fn(Looked), stop: CancellationToken) {
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
            let Ok(same) = watched(round, || looked(Looked::Late)).await else {
                tracing::error!("a look panicked; the monitor ends");
                stop.cancel();
                return;
            };
            rounds = same;
            looked(Looked::Ended);
        }
    }

    /// One look. Blocks.
    pub fn once(&mut self) {
        let begun = Instant::now();
        let (look, cards) = self.looker.look();
        self.seats_tx.send_replace(Arc::clone(&look.seats));
        let (pods, freshness) = &self.pods;
        let rules = Rules {
            unmanaged: self.policy.until_listed(freshness.listed().is_some()),
            spared: pods.in_namespaces(&self.policy.spared),
            tolerance: self.policy.tolerance,
            fresh: freshness.fault(tokio::time::Instant::now()).is_none(),
        };
        let outcome = self.judge.after(&look, &rules);
        let measured = levels(&look, &outcome, monotonic());
        self.levels_tx.send_replace(Arc::new(measured));
        for (at, problem) in &outcome.spoiled {
            let seat = &look.seats.all[*at];
            tracing::debug!(pod = seat.pod_name, problem, "a counters file says nothing");
        }
        self.actor.carry_out(&look, &outcome, &mut self.looker);
        let held = self.enforcements.hold(&look);
        self.shown.set(Told {
            node: self.node.clone(),
            look,
            cards,
            outcome,
            held,
            driver_limits: self.enforcements.offered(),
            pods: pods.all(),
            listed: freshness.listed().is_some(),
            done: self.actor.done.clone(),
            failures: self.looker.failures.clone(),
            dropped: self.notes.dropped(),
            took: begun.elapsed(),
            now: monotonic(),
            ended: SystemTime::now(),
        });
    }
}

/// What a look gives; `late` is called each time that it has not ended for another [`LATE`].
async fn watched<T>(look: impl Future<Output = T>, late: impl Fn()) -> T {
    let mut look = pin!(look);
    loop {
        if let Ok(found) = timeout(LATE, &mut look).await {
            return found;
        }
        tracing::error!("a look does not end: the driver does not answer");
        late();
    }
}

/// Nanoseconds of the clock that launches are noted by.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let number = |part: i64| u64::try_from(part).unwrap_or(0);
    number(now.tv_sec) * 1_000_000_000 + number(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn before_the_pods_were_listed_the_processes_of_spared_ones_were_ended() {
        for unmanaged in [OnUnmanaged::Kill, OnUnmanaged::Evict, OnUnmanaged::Report] {
            let policy = Policy {
                unmanaged,
                spared: Vec::new(),
                tolerance: 0,
            };
            assert_eq!(policy.until_listed(false), OnUnmanaged::Report);
            assert_eq!(policy.until_listed(true), unmanaged);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_never_answers_was_told_nowhere() {
        let check = async |expected: u32| {
            let (answer, answered) = tokio::sync::oneshot::channel();
            let (answer, late) = (Cell::new(Some(answer)), Cell::new(0));
            let begun = tokio::time::Instant::now();
            let told = || {
                late.set(late.get() + 1);
                if late.get() == expected {
                    answer.take().expect("once").send(()).expect("it waits");
                }
            };
            watched(answered, told).await.expect("answered");
            assert_eq!((late.get(), begun.elapsed()), (expected, expected * LATE));
        };
        check(1).await;
        check(100).await;
        let looked = watched(std::future::ready(7), || panic!("it is in time")).await;
        assert_eq!(looked, 7);
    }
}
