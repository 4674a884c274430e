//! Prepares a plan up to the point where it may be written: victims chosen, capacity reserved in
//! the ledger, and every eviction tried with dryRun. Nothing in the API server changes.

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_core::preemption::{NoPlan, PreemptionRecord};
use aliquot_k8s::event::EventNote;
use tokio::time::Instant;

use super::candidates::{self, ExcludedPods};
use super::{ActivePlans, PendingPreemptor, Preemptor, unix};
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::bound_pods::BoundPod;
use crate::ledger_cache::pending_pods::PendingPod;
use crate::pod_client::EvictionOutcome;

/// Plans tried in a row; each failed one finds a pod that a disruption budget protects.
const ATTEMPTS: usize = 8;

/// Chooses victims for a refused pod and reserves what it will take once they have ended, until its
/// Binding or [`LedgerCache::forget_unwritten_plan`]. The victims of the plans `others` end anyway,
/// and `protected` pods are not evicted. `None` if the ledger has changed meanwhile.
pub fn reserve_plan(
    cache: &LedgerCache,
    uid: &PodUid,
    waiting: &PendingPod,
    (others, protected): (&[Arc<PreemptionRecord>], &[PodUid]),
    now: i64,
) -> Result<Option<PreemptionRecord>, NoPlan> {
    let victims = others.iter().flat_map(|record| &record.victims);
    let excluded = ExcludedPods {
        terminating: victims.map(|victim| &victim.uid).collect(),
        protected,
    };
    let plan = candidates::plan(cache, uid, waiting, &excluded, now)?;
    candidates::reserve(cache, uid, waiting, &plan, &excluded, now)
}

impl Preemptor {
    /// A plan whose capacity is reserved and whose evictions are allowed.
    pub(super) async fn prepare(
        &self,
        uid: &PodUid,
        waiting: &PendingPod,
        active: &ActivePlans,
    ) -> Result<PreemptionRecord, NoPlan> {
        let mut protected: Vec<PodUid> = Vec::new();
        for _ in 0..ATTEMPTS {
            let records: Vec<_> = active.lock().values().cloned().collect();
            let (cache, id, pending) = (self.cache.clone(), uid.clone(), waiting.clone());
            let protected_now = protected.clone();
            // That may take a second.
            let planned = tokio::task::spawn_blocking(move || {
                let excluded = (&records[..], &protected_now[..]);
                reserve_plan(&cache, &id, &pending, excluded, unix())
            });
            let planned = planned.await.unwrap_or(Err(NoPlan::NoNode))?;
            // The ledger changed meanwhile: plan again.
            let Some(record) = planned else { continue };
            match self.try_evictions(&record).await {
                Ok(()) => return Ok(record),
                Err(Some(pod)) => {
                    self.cache.forget_unwritten_plan(uid);
                    protected.push(pod);
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
