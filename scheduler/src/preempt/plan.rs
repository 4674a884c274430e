//! Prepares a plan up to the point where it may be written: victims chosen, capacity reserved in
//! the ledger, and every eviction tried with dryRun. Nothing in the API server changes.

use std::collections::{HashMap, HashSet};

use aliquot_core::PodUid;
use aliquot_core::preemption::{NoPlan, PreemptionRecord};
use aliquot_k8s::event::EventNote;
use tokio::time::Instant;

use super::candidates::{self, ExcludedPods};
use super::{ActivePlans, PendingPreemptor, Preemptor, unix};
use crate::ledger_cache::bound_pods::BoundPod;
use crate::ledger_cache::pending_pods::PendingPod;
use crate::pod_client::EvictionOutcome;

/// Plans tried in a row; each failed one finds a pod that a disruption budget protects.
const ATTEMPTS: usize = 8;

impl Preemptor {
    /// A plan whose capacity is reserved and whose evictions are allowed.
    pub(super) async fn prepare(
        &self,
        uid: &PodUid,
        waiting: &PendingPod,
        active: &ActivePlans,
    ) -> Result<PreemptionRecord, NoPlan> {
        let mut protected = HashSet::new();
        for _ in 0..ATTEMPTS {
            let records: Vec<_> = active.lock().values().cloned().collect();
            let (preemptor, id, pending) = (self.clone(), uid.clone(), waiting.clone());
            let protected_now = protected.clone();
            // That may take a second.
            let planned = tokio::task::spawn_blocking(move || {
                let victims = records.iter().flat_map(|record| &record.victims);
                let excluded = ExcludedPods {
                    terminating: victims.map(|victim| &victim.uid).collect(),
                    protected: protected_now,
                };
                let now = unix();
                let plan = candidates::plan(&preemptor.cache, &id, &pending, &excluded, now)?;
                candidates::reserve(&preemptor.cache, &id, &pending, &plan, &excluded, now)
            });
            let planned = planned.await.unwrap_or(Err(NoPlan::NoNode))?;
            // The ledger changed meanwhile: plan again.
            let Some(record) = planned else { continue };
            match self.try_evictions(&record).await {
                Ok(()) => return Ok(record),
                Err(Some(pod)) => {
                    self.cache.forget_unwritten_plan(uid);
                    protected.insert(pod);
                }
                Err(None) => {
                    self.cache.forget_unwritten_plan(uid);
                    return Err(NoPlan::Terminating);
                }
            }
        }
        Err(NoPlan::Budgets)
    }

    /// Tries all evictions; the error is the victim that is protected, or none where that is
    /// unknown.
    async fn try_evictions(&self, record: &PreemptionRecord) -> Result<(), Option<PodUid>> {
        for victim in &record.victims {
            let bound_pod = self.cache.lock().bound_pods.get(&victim.uid).cloned();
            let Some(BoundPod { pod, .. }) = bound_pod else {
                continue;
            };
            match self.pods.evict(&pod, true).await {
                EvictionOutcome::Accepted | EvictionOutcome::Gone => {}
                EvictionOutcome::Protected(why) => {
                    tracing::warn!(
                        pod = pod.name,
                        why,
                        "a disruption budget protects the victim"
                    );
                    return Err(Some(victim.uid.clone()));
                }
                EvictionOutcome::Failed(error) => {
                    tracing::warn!(pod = pod.name, error, "cannot try the eviction");
                    return Err(None);
                }
            }
        }
        Ok(())
    }

    /// Reports why there is no plan, once for each reason, and sets the time of the next attempt.
    pub(super) fn retry_later(
        &self,
        uid: &PodUid,
        waiting: &PendingPod,
        why: NoPlan,
        preemptors: &mut HashMap<PodUid, PendingPreemptor>,
    ) {
        let Some(preemptor) = preemptors.get_mut(uid) else {
            return;
        };
        if matches!(why, NoPlan::Terminating | NoPlan::Fits) {
            preemptor.due = Instant::now() + preemptor.pause;
            return;
        }
        preemptor.postpone();
        if preemptor.reported.replace(why) != Some(why) {
            tracing::info!(pod = waiting.pod.name, why = why.text(), "not preempting");
            self.events.send(EventNote {
                pod: waiting.pod.clone(),
                warning: false,
                reason: "NotPreempting",
                action: "Preempting",
                text: format!("Not preempting any pod: {}", why.text()),
            });
        }
    }
}
