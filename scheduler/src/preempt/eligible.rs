//! Which pods may preempt now, and which of them have a plan.

use std::sync::Arc;

use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::{NodeName, PodUid};
use tokio::time::Instant;

use super::unix;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::{PendingPod, RecordedPlan};

/// Pending pods with an open plan.
pub(super) fn open_plans(cache: &LedgerCache) -> Vec<(PodUid, Arc<PreemptionRecord>)> {
    let all = cache.pending.pods.lock();
    let planned = all
        .iter()
        .filter_map(|(uid, waiting)| match &waiting.preemption {
            p if p.never => None,
            p => match &p.plan {
                Some(RecordedPlan::Open(record)) => Some((uid.clone(), record.clone())),
                _ => None,
            },
        });
    planned.collect()
}

/// Refused pods that may preempt and for which kube-scheduler does not, highest priority first.
pub(super) fn preemptors(cache: &LedgerCache, now: Instant) -> Vec<(PodUid, PendingPod)> {
    let seconds = unix();
    // One lock at a time: the watches take them in another order.
    let bound_pods = cache.bound_pods.0.read();
    let kube: Vec<NodeName> = bound_pods.kube_nodes().cloned().collect();
    let lowest = bound_pods.lowest();
    drop(bound_pods);
    let cluster = cache.snapshot();
    let busy = |waiting: &PendingPod| {
        let nominated = &waiting.preemption.nominated_last;
        kube.iter().any(|node| {
            let slot = cluster.slot(node.as_str());
            Some(node) == nominated.as_ref()
                || slot.is_some_and(|slot| waiting.offered.contains(slot))
        })
    };
    let all = cache.pending.pods.lock();
    let mut able: Vec<_> = all
        .iter()
        .filter(|(_, waiting)| {
            let p = &waiting.preemption;
            waiting.refused
                && p.unschedulable
                && !p.never
                && p.next_attempt(seconds).is_some()
                && p.nominated.is_none()
                && lowest.is_some_and(|lowest| lowest < waiting.priority)
                && !busy(waiting)
        })
        .map(|(uid, waiting)| (uid.clone(), waiting.clone()))
        .collect();
    drop(all);
    let kube = |uid: &PodUid| cache.preemptions.lock().is_left_to_kube_scheduler(uid, now);
    able.retain(|(uid, _)| !kube(uid));
    able.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    able
}
