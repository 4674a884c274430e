//! What is reserved for preemptors, and which pods are left to kube-scheduler's own preemption.

use std::collections::HashMap;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::ledger::PreemptionReservation;
use aliquot_core::usage::AllocatedUse;
use aliquot_k8s::event::PodRef;
use tokio::time::Instant;

use super::LedgerCache;
use super::pending_pods::{PendingPod, RecordedPlan};

/// How long a pod is left to kube-scheduler after it asked whether it may preempt: by then the
/// watch shows whether it did.
const KUBE_SCHEDULER_TIME: Duration = Duration::from_secs(5);

/// The state of preemptions that neither the ledger nor annotations have.
#[derive(Debug, Default)]
pub(crate) struct Preemptions {
    /// Pods left to kube-scheduler, until when.
    kube: HashMap<PodUid, Instant>,
    /// Bound pods that still have a plan in their annotation.
    pub(crate) finished: HashMap<PodUid, PodRef>,
}

impl Preemptions {
    pub(crate) fn is_left_to_kube_scheduler(&self, uid: &PodUid, now: Instant) -> bool {
        self.kube.get(uid).is_some_and(|until| *until > now)
    }
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

    /// Releases what is reserved for a plan that is not written by now.
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
