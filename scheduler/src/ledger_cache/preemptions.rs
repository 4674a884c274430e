//! What is reserved for preemptors, and which pods are left to kube-scheduler's own preemption.

use std::collections::HashMap;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::ledger::{Purpose, Reservation};
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
                let reservation = Reservation {
                    node: record.node.clone(),
                    allocated: AllocatedUse::Known(record.reserved.clone()),
                    replicas: waiting.demand.replicas(),
                    purpose: Purpose::Preemption {
                        victims: record.victims.iter().map(|one| one.uid.clone()).collect(),
                        recorded: true,
                    },
                };
                self.ledger.write().put_reservation(uid, reservation);
            }
            _ if self.has_recorded_plan(uid) == Some(true) => {
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
        let mut ledger = self.ledger.write();
        let released = ledger.drop_reservation(uid);
        let entry = ledger.pod_entry(uid);
        // The pod took exactly what was reserved for it: nothing is freed.
        let taken = released.as_ref().is_some_and(|reservation| {
            entry.is_some_and(|entry| {
                entry.node == reservation.node && entry.allocated == reservation.allocated
            })
        });
        drop(ledger);
        if let Some(reservation) = released.filter(|_| !taken) {
            self.reservation_freed(&reservation);
        }
    }

    /// This reservation has ended.
    pub(super) fn reservation_freed(&self, reservation: &Reservation) {
        self.node_freed(&reservation.node);
        if let Purpose::Gang(namespace) = &reservation.purpose {
            self.quota_freed(namespace);
        }
    }

    /// Releases what is reserved for a plan that is not written by now.
    pub(crate) fn release_unwritten_reservation(&self, uid: &PodUid) {
        if self.has_recorded_plan(uid) == Some(false) {
            self.release_reservation(uid);
        }
    }

    /// Whether the pod's annotation records the plan of ours that reserves for it; `None` without one.
    fn has_recorded_plan(&self, uid: &PodUid) -> Option<bool> {
        self.read(|ledger| match ledger.reservation_for(uid)?.purpose {
            Purpose::Preemption { recorded, .. } => Some(recorded),
            Purpose::Gang(_) => None,
        })
    }

    /// kube-scheduler asks whether it may preempt for this pod: not where there is a plan of ours.
    /// Otherwise the pod is left to it from now on.
    pub(crate) fn leave_to_kube_scheduler(&self, uid: &PodUid, now: Instant) -> bool {
        let mut preemptions = self.preemptions.lock();
        let ours = self.has_recorded_plan(uid).is_some();
        if !ours {
            preemptions.kube.retain(|_, until| *until > now);
            preemptions
                .kube
                .insert(uid.clone(), now + KUBE_SCHEDULER_TIME);
        }
        !ours
    }
}
