//! Which pods may preempt now, which have a reservation, and for which kube-scheduler preempts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::ledger::{AllocatedUse, PreemptionReservation};
use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::event::PodRef;
use tokio::time::Instant;

use crate::ledger_cache::LedgerCache;
use crate::pending::{PendingPod, RecordedPlan};

/// How long a pod is left to kube-scheduler after it asked whether it may preempt: by then the
/// watch shows whether it did.
const KUBE_SCHEDULER_TIME: Duration = Duration::from_secs(5);

/// The state of preemptions that neither the ledger nor annotations have.
#[derive(Debug, Default)]
pub struct Preemptions {
    /// Pods left to kube-scheduler, until when.
    kube: HashMap<PodUid, Instant>,
    /// Bound pods that still have a plan in their annotation.
    pub(super) finished: HashMap<PodUid, PodRef>,
}

impl LedgerCache {
    /// The watch shows a pending pod: reserves what the plan in its annotation says.
    pub(crate) fn observe_plan(&self, uid: &PodUid, waiting: &PendingPod) {
        let preemption = &waiting.preemption;
        match &preemption.plan {
            Some(RecordedPlan::Open(record)) if !preemption.never => {
                let reservation = PreemptionReservation {
                    node: record.node.clone(),
                    allocated: AllocatedUse::Known(record.reserved.clone()),
                    replicas: waiting.demand.replicas(),
                    recorded: true,
                };
                self.ledger.write().reserve_for_preemptor(uid, reservation);
            }
            _ if self.read(|ledger| {
                ledger
                    .reservation_for(uid)
                    .is_some_and(|reservation| reservation.recorded)
            }) =>
            {
                self.release_reservation(uid);
            }
            _ => {}
        }
    }

    /// The watch shows the pod bound or finished; `planned` where it still has a plan.
    pub(crate) fn end_plan(&self, uid: &PodUid, planned: Option<Box<PodRef>>) {
        self.release_reservation(uid);
        let mut preemptions = self.preemptions.lock();
        match planned {
            Some(pod) => drop(preemptions.finished.insert(uid.clone(), *pod)),
            None if preemptions.finished.is_empty() => {}
            None => drop(preemptions.finished.remove(uid)),
        }
    }

    /// Releases what is reserved for this pod.
    pub(crate) fn release_reservation(&self, uid: &PodUid) {
        if self.read(|ledger| ledger.reservation_for(uid).is_none()) {
            return;
        }
        let released = self.ledger.write().drop_reservation(uid);
        if let Some(reservation) = released {
            self.node_freed(&reservation.node);
        }
    }

    /// Pending pods with an open plan.
    pub(crate) fn open_plans(&self) -> Vec<(PodUid, Arc<PreemptionRecord>)> {
        let all = self.pending_pods.lock();
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
    pub(crate) fn preemptors(&self, now: Instant) -> Vec<(PodUid, PendingPod)> {
        // One lock at a time: the watches take them in another order.
        let bound_pods = self.bound_pods.0.read();
        let kube: Vec<NodeName> = bound_pods.kube_nodes().cloned().collect();
        let lowest = bound_pods.lowest();
        drop(bound_pods);
        let cluster = self.snapshot();
        let busy = |waiting: &PendingPod| {
            let nominated = &waiting.preemption.nominated_last;
            kube.iter().any(|node| {
                let slot = cluster.slot(node.as_str());
                Some(node) == nominated.as_ref()
                    || slot.is_some_and(|slot| waiting.offered.contains(slot))
            })
        };
        let all = self.pending_pods.lock();
        let mut able: Vec<_> = all
            .iter()
            .filter(|(_, waiting)| {
                let p = &waiting.preemption;
                waiting.refused
                    && p.unschedulable
                    && !p.never
                    && p.plan.is_none()
                    && p.nominated.is_none()
                    && lowest.is_some_and(|lowest| lowest < waiting.priority)
                    && !busy(waiting)
            })
            .map(|(uid, waiting)| (uid.clone(), waiting.clone()))
            .collect();
        drop(all);
        let kube = |uid: &PodUid| self.preemptions.lock().is_left_to_kube_scheduler(uid, now);
        able.retain(|(uid, _)| !kube(uid));
        able.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
        able
    }

    /// Releases what [`Self::reserve_for_plan`] reserved, unless the plan is written by now.
    pub(crate) fn release_unwritten_reservation(&self, uid: &PodUid) {
        if self.read(|ledger| {
            ledger
                .reservation_for(uid)
                .is_some_and(|reservation| !reservation.recorded)
        }) {
            self.release_reservation(uid);
        }
    }

    /// kube-scheduler asks whether it may preempt for this pod: not where there is a plan of ours.
    /// Otherwise the pod is left to it from now on.
    pub(crate) fn leave_to_kube_scheduler(&self, uid: &PodUid, now: Instant) -> bool {
        let mut preemptions = self.preemptions.lock();
        let ours = self.read(|ledger| ledger.reservation_for(uid).is_some());
        if !ours {
            preemptions.kube.retain(|_, until| *until > now);
            preemptions
                .kube
                .insert(uid.clone(), now + KUBE_SCHEDULER_TIME);
        }
        !ours
    }
}

impl Preemptions {
    pub(super) fn is_left_to_kube_scheduler(&self, uid: &PodUid, now: Instant) -> bool {
        self.kube.get(uid).is_some_and(|until| *until > now)
    }
}
