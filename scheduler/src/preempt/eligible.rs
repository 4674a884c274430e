//! Which pods may preempt now, and which of them have a plan.

use std::sync::Arc;

use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::{NodeName, PodUid};
use tokio::time::Instant;

use super::unix;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::{PendingPod, RecordedPlan};

pub(super) fn open_plans(cache: &LedgerCache) -> Vec<(PodUid, Arc<PreemptionRecord>)> {
    let all = &cache.lock().pending;
    let may = all.iter().filter(|(_, pod)| !pod.preemption.never);
    let planned = may.filter_map(|(uid, pod)| match &pod.preemption.plan {
        Some(RecordedPlan::Open(record)) => Some((uid.clone(), record.clone())),
        _ => None,
    });
    planned.collect()
}

/// Refused pods that may preempt and for which kube-scheduler does not, highest priority first.
pub(super) fn preemptors(cache: &LedgerCache, now: Instant) -> Vec<(PodUid, Arc<PendingPod>)> {
    let seconds = unix();
    let state = cache.lock();
    let Some(lowest) = state.bound_pods.lowest() else {
        return Vec::new();
    };
    let kube: Vec<&NodeName> = state.bound_pods.kube_nodes().collect();
    let cluster = state.ledger.cluster();
    let busy = |waiting: &PendingPod| {
        let nominated = waiting.preemption.nominated_last.as_ref();
        kube.iter().any(|node| {
            let slot = cluster.slot(node.as_str());
            Some(*node) == nominated || slot.is_some_and(|slot| waiting.offered.contains(slot))
        })
    };
    let all = state.pending.iter();
    let able = all.filter(|(uid, waiting)| {
        let p = &waiting.preemption;
        waiting.refused
            && p.unschedulable
            && !p.never
            && p.next_attempt(seconds).is_some()
            && p.nominated.is_none()
            && lowest < waiting.priority
            && !busy(waiting)
            && !state.preemptions.is_left_to_kube_scheduler(uid, now)
    });
    let mut able: Vec<_> = able
        .map(|(uid, waiting)| (uid.clone(), waiting.clone()))
        .collect();
    able.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    able
}
