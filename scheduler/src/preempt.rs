//! Makes room for refused pods of high priority (design 6, Preemption).
//!
//! kube-scheduler's own preemption cannot see shares. A plan is begun one second
//! after a pod was found unschedulable, while kube-scheduler makes no room for it;
//! [`begin`] plans, holds and tries, [`follow`] writes the plan on the pod, has the
//! victims evicted and sees it to its end. One plan a pod, ever.
//! Fed by: the books. Must not: evict anybody before the plan is written.

mod begin;
mod follow;
pub mod verb;
mod view;
pub mod who;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_core::PodUid;
use aliquot_core::preemption::record::PREEMPTION;
use aliquot_core::preemption::{NoPlan, Record};
use aliquot_k8s::event::{Notes, PodRef};
use aliquot_k8s::watch::{self, Freshness};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bind::DEADLINE;
use crate::books::Books;
use crate::leader::Leader;
use crate::metrics::Metrics;
use crate::waiting::Waiting;

/// How often it is looked who may preempt, and how plans go.
const EVERY: Duration = Duration::from_millis(200);
/// kube-scheduler says within this time whether it makes room itself.
const AFTER: Duration = Duration::from_secs(1);
/// Pause before a pod without a plan is looked at again: doubles from the first
/// to the second.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));

/// What preemption works with: the books, a client that writes plans and evicts,
/// events, and who leads.
#[derive(Clone)]
pub struct Preemptor {
    books: Arc<Books>,
    client: Client,
    notes: Notes,
    leader: Leader,
    metrics: Metrics,
}

/// The plans that this process follows.
type Following = Arc<Mutex<HashMap<PodUid, Arc<Record>>>>;

/// Since when a pod could preempt, and what came of it.
#[derive(Debug)]
struct Since {
    due: Instant,
    pause: Duration,
    told: Option<NoPlan>,
}

/// What is kept from one round to the next.
#[derive(Default)]
struct Rounds {
    tasks: TaskTracker,
    following: Following,
    since: HashMap<PodUid, Since>,
    stop: CancellationToken,
}

impl Preemptor {
    /// Preemption on these books.
    pub fn new(
        books: &Arc<Books>,
        client: Client,
        notes: &Notes,
        leader: &Leader,
        metrics: &Metrics,
    ) -> Self {
        Self {
            books: books.clone(),
            client,
            notes: notes.clone(),
            leader: leader.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Runs until `stop`. While the disruption budgets are not known, nobody is
    /// evicted.
    pub async fn run(self, stop: CancellationToken) {
        let mut rounds = Rounds {
            stop: stop.clone(),
            ..Rounds::default()
        };
        let budgets = Freshness::default();
        let watched = watch::drive::<PodDisruptionBudget, PodDisruptionBudget>(
            Api::all(self.client.clone()),
            watcher::Config::default(),
            self.books.tenants.clone(),
            budgets.clone(),
            stop.clone(),
        );
        rounds.tasks.spawn(watched);
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let believed = budgets.fault(Instant::now()).is_none();
            if believed && self.leader.fault().is_none() {
                self.round(&mut rounds).await;
            }
        }
    }

    /// Begins what can be begun, and follows what a leader before began.
    async fn round(&self, rounds: &mut Rounds) {
        self.clean().await;
        for (uid, record) in self.books.planned() {
            self.spawn(rounds, uid, record, true);
        }
        let able = self.books.preemptors(Instant::now());
        for (uid, waiting) in due(&mut rounds.since, able, Instant::now()) {
            if rounds.following.lock().contains_key(&uid) {
                continue;
            }
            match self.begin(&uid, &waiting, &rounds.following).await {
                Ok(record) => self.spawn(rounds, uid, Arc::new(record), false),
                Err(why) => self.later(&uid, &waiting, why, &mut rounds.since),
            }
        }
    }

    /// Follows a plan, unless that is done already.
    fn spawn(&self, rounds: &Rounds, uid: PodUid, record: Arc<Record>, written: bool) {
        let mut all = rounds.following.lock();
        if all.contains_key(&uid) {
            return;
        }
        all.insert(uid.clone(), record.clone());
        drop(all);
        let (me, following) = (self.clone(), rounds.following.clone());
        let stop = rounds.stop.clone();
        rounds.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = me.follow(&uid, &record, written) => {}
            }
            // What was never written holds nothing.
            me.books.unhold_unwritten(&uid);
            following.lock().remove(&uid);
        });
    }

    /// Takes the plan from pods that are bound.
    async fn clean(&self) {
        let carried: Vec<_> = {
            let preemptions = self.books.preemptions.lock();
            let carried = preemptions.carried.iter();
            carried
                .map(|(uid, pod)| (uid.clone(), pod.clone()))
                .collect()
        };
        for (uid, pod) in carried {
            match self.annotate(&pod, None).await {
                Annotated::Unknown(error) => {
                    tracing::warn!(
                        pod = pod.name,
                        error,
                        "its plan is over, but not taken away"
                    );
                }
                Annotated::Done | Annotated::Never(_) => {
                    self.books.preemptions.lock().carried.remove(&uid);
                }
            }
        }
    }

    /// Writes the plan on its pod, or takes it away.
    async fn annotate(&self, pod: &PodRef, text: Option<&str>) -> Annotated {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": {PREEMPTION: text}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = api.patch_metadata(&pod.name, &params, &patch);
        match timeout(DEADLINE, call).await {
            Ok(Ok(_)) => Annotated::Done,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                408 | 429 | 500.. => Annotated::Unknown(status.message),
                _ => Annotated::Never(status.message),
            },
            Ok(Err(error)) => Annotated::Unknown(error.to_string()),
            Err(elapsed) => Annotated::Unknown(elapsed.to_string()),
        }
    }
}

/// What became of a patch of the annotation.
#[derive(Debug)]
enum Annotated {
    Done,
    /// Refused, or the pod is gone.
    Never(String),
    Unknown(String),
}

/// Those of `able` whose time has come; keeps `since` to those still able.
fn due(
    since: &mut HashMap<PodUid, Since>,
    able: Vec<(PodUid, Waiting)>,
    now: Instant,
) -> Vec<(PodUid, Waiting)> {
    since.retain(|uid, _| able.iter().any(|(other, _)| other == uid));
    let mut due = able;
    due.retain(|(uid, _)| {
        let first = || Since {
            due: now + AFTER,
            pause: AGAIN.0,
            told: None,
        };
        since.entry(uid.clone()).or_insert_with(first).due <= now
    });
    due
}

/// Seconds since 1970.
fn unix() -> i64 {
    let age = SystemTime::now().duration_since(UNIX_EPOCH);
    age.map_or(0, |age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX))
}
