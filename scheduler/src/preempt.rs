//! Preempts pods for refused pods of higher priority.
//!
//! kube-scheduler's own preemption does not know shares. A plan is made one second after a pod was
//! found unschedulable, where kube-scheduler does not preempt for it. [`plan`] chooses the victims,
//! reserves their capacity and tries the evictions; [`execute`] writes the plan on the pod, evicts
//! the victims and follows the plan to its end. A pod has one plan at a time, and nobody is evicted
//! unless the watch shows it on the pod. See docs/guides/scheduling-policies.md.

pub(crate) mod candidates;
mod eligible;
mod execute;
mod plan;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::preemption::record::PREEMPTION;
use aliquot_core::preemption::{NoPlan, PreemptionRecord};
use aliquot_k8s::bare::Bare;
use aliquot_k8s::event::{EventSender, PodRef};
use aliquot_k8s::watch::{self, Freshness};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::PendingPod;
use crate::metrics::Metrics;
use crate::pod_client::{PodClient, WriteOutcome};
use crate::ticks::Ticks;

pub use plan::reserve_plan;

/// Interval of checking who may preempt, and of following plans.
const INTERVAL: Duration = Duration::from_millis(200);
/// kube-scheduler shows within this time whether it preempts itself.
const DELAY: Duration = Duration::from_secs(1);
/// Pause before the next attempt for a pod whose plan could not be made or written. It doubles from
/// the first value to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));

/// Preempts: with the ledger, a client that writes plans and evicts, events, and leadership.
#[derive(Clone)]
pub struct Preemptor {
    cache: Arc<LedgerCache>,
    pods: PodClient,
    events: EventSender,
    leader: Leader,
    metrics: Metrics,
}

/// The plans that this process executes.
type ActivePlans = Arc<Mutex<HashMap<PodUid, Arc<PreemptionRecord>>>>;

/// When a pod that may preempt is tried next, and the reason that was reported last.
#[derive(Debug)]
struct PendingPreemptor {
    due: Instant,
    pause: Duration,
    reported: Option<NoPlan>,
}

impl PendingPreemptor {
    /// Sets the time of the next attempt, after a pause that doubles.
    fn postpone(&mut self) {
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY.1);
    }
}

/// The state between two reconciliations.
#[derive(Default)]
struct PreemptionState {
    tasks: TaskTracker,
    active: ActivePlans,
    preemptors: HashMap<PodUid, PendingPreemptor>,
    stop: CancellationToken,
}

impl Preemptor {
    pub fn new(
        cache: &Arc<LedgerCache>,
        pods: PodClient,
        events: &EventSender,
        leader: &Leader,
        metrics: &Metrics,
    ) -> Self {
        Self {
            cache: cache.clone(),
            pods,
            events: events.clone(),
            leader: leader.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Runs until `stop`; `client` watches the disruption budgets, and nobody is evicted while they
    /// are not up to date.
    pub async fn run(self, client: Client, stop: CancellationToken) {
        let mut state = PreemptionState {
            stop: stop.clone(),
            ..PreemptionState::default()
        };
        let budgets = Freshness::default();
        let watched = watch::drive::<Bare<PodDisruptionBudget>, PodDisruptionBudget>(
            Api::all(client),
            None,
            self.cache.clone(),
            budgets.clone(),
            stop.clone(),
        );
        state.tasks.spawn(watched);
        let mut ticks = Ticks::every(INTERVAL, &stop);
        while ticks.next().await {
            let budgets_known = budgets.error(Instant::now()).is_none();
            if budgets_known && self.leader.leads() {
                self.reconcile(&mut state).await;
            }
        }
    }

    /// Makes new plans, and takes over the plans of a previous leader.
    async fn reconcile(&self, state: &mut PreemptionState) {
        self.remove_finished_plans().await;
        for (uid, record) in eligible::open_plans(&self.cache) {
            self.spawn(state, uid, record, true);
        }
        let able = eligible::preemptors(&self.cache, Instant::now());
        for (uid, waiting) in due(&mut state.preemptors, able, Instant::now()) {
            if state.active.lock().contains_key(&uid) {
                continue;
            }
            match self.prepare(&uid, &waiting, &state.active).await {
                Ok(record) => {
                    // For a plan that cannot be written: the pod of a written one is not tried again.
                    if let Some(preemptor) = state.preemptors.get_mut(&uid) {
                        preemptor.postpone();
                    }
                    self.spawn(state, uid, Arc::new(record), false);
                }
                Err(why) => self.retry_later(&uid, &waiting, why, &mut state.preemptors),
            }
        }
    }

    /// Executes a plan, unless a task does already.
    fn spawn(
        &self,
        state: &PreemptionState,
        uid: PodUid,
        record: Arc<PreemptionRecord>,
        written: bool,
    ) {
        let mut all = state.active.lock();
        if all.contains_key(&uid) {
            return;
        }
        all.insert(uid.clone(), record.clone());
        drop(all);
        let (preemptor, active) = (self.clone(), state.active.clone());
        let stop = state.stop.clone();
        state.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = preemptor.execute(&uid, &record, written) => {}
            }
            // A plan that was never written holds nothing.
            preemptor.cache.forget_unwritten_plan(&uid);
            active.lock().remove(&uid);
        });
    }

    /// Removes the plan's annotation from pods that are bound.
    async fn remove_finished_plans(&self) {
        let finished = self.cache.lock().preemptions.finished.clone();
        for (uid, pod) in finished {
            match self.annotate(&pod, None).await {
                WriteOutcome::Unknown(error) => {
                    tracing::warn!(
                        pod = pod.name,
                        error,
                        "cannot remove the finished preemption plan from the pod"
                    );
                }
                WriteOutcome::Written | WriteOutcome::NotWritten(_) => {
                    self.cache.lock().preemptions.finished.remove(&uid);
                }
            }
        }
    }

    /// Writes the plan on its pod, or removes it.
    async fn annotate(&self, pod: &PodRef, text: Option<&str>) -> WriteOutcome {
        WriteOutcome::from(self.pods.annotate(pod, PREEMPTION, text).await)
    }
}

/// Those of `able` that are due; removes those that are no longer able from `preemptors`.
fn due(
    preemptors: &mut HashMap<PodUid, PendingPreemptor>,
    able: Vec<(PodUid, Arc<PendingPod>)>,
    now: Instant,
) -> Vec<(PodUid, Arc<PendingPod>)> {
    preemptors.retain(|uid, _| able.iter().any(|(other, _)| other == uid));
    let mut due = able;
    due.retain(|(uid, _)| {
        let first = || PendingPreemptor {
            due: now + DELAY,
            pause: RETRY.0,
            reported: None,
        };
        preemptors.entry(uid.clone()).or_insert_with(first).due <= now
    });
    due
}

/// Seconds since 1970.
pub(crate) fn unix() -> i64 {
    Timestamp::now().as_second()
}
