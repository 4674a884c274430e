//! What is assumed for preemptors, and which pods are left to kube-scheduler's own preemption.

use std::collections::HashMap;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::ledger::{By, PodEntry};
use aliquot_core::usage::AllocatedUse;
use aliquot_k8s::event::PodRef;
use tokio::time::Instant;

use super::pending_pods::{PendingPod, RecordedPlan};
use super::{LedgerCache, State};

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
    /// Forgets what is assumed for a plan that is not written by now.
    pub fn forget_unwritten_plan(&self, uid: &PodUid) {
        let unwritten = |by: &By| {
            matches!(
                by,
                By::Plan {
                    recorded: false,
                    ..
                }
            )
        };
        self.lock().forget(uid, unwritten);
    }
}

impl State {
    /// The watch shows a pending pod: assumes what the plan in its annotation says.
    pub(super) fn observe_plan(&mut self, uid: &PodUid, waiting: &PendingPod) {
        let preemption = &waiting.preemption;
        match &preemption.plan {
            Some(RecordedPlan::Open(record)) if !preemption.never => {
                let victims = record.victims.iter().map(|one| one.uid.clone());
                let reserved = AllocatedUse::Known(record.reserved.clone());
                let planned = PodEntry::planned(
                    record.node.clone(),
                    waiting.pod.namespace.as_str().into(),
                    (reserved, waiting.demand.replicas()),
                    (victims.collect(), true),
                );
                self.assume_plan(uid, planned);
            }
            _ => self.forget(uid, |by| matches!(by, By::Plan { recorded: true, .. })),
        }
    }

    /// Assumes what a plan says; what was assumed for the pod before is free.
    pub(crate) fn assume_plan(&mut self, uid: &PodUid, planned: PodEntry) {
        if let Some(old) = self.ledger.assume_plan(uid, planned) {
            self.entry_freed(&old);
        }
    }

    /// The pod's Binding failed: the plan that the watch shows counts, which may have changed
    /// meanwhile.
    pub(super) fn restore_plan(&mut self, uid: &PodUid) {
        match self.pending.get(uid).cloned() {
            Some(waiting) => self.observe_plan(uid, &waiting),
            None => self.forget(uid, |by| matches!(by, By::Plan { .. })),
        }
    }

    /// The watch shows the pod bound or finished; `planned` where it still has a plan.
    pub(super) fn end_plan(&mut self, uid: &PodUid, planned: Option<Box<PodRef>>) {
        self.assumptions.end(uid);
        self.forget(uid, |_| true);
        let finished = &mut self.preemptions.finished;
        match planned {
            Some(pod) => drop(finished.insert(uid.clone(), *pod)),
            None => drop(finished.remove(uid)),
        }
    }

    /// kube-scheduler asks whether it may preempt for this pod: not where there is a plan of ours.
    /// Otherwise the pod is left to it from now on.
    pub(crate) fn leave_to_kube_scheduler(&mut self, uid: &PodUid, now: Instant) -> bool {
        let by = self.ledger.assumed(uid).and_then(PodEntry::assumed_by);
        let ours = matches!(by, Some(By::Plan { .. }));
        if !ours {
            let left = &mut self.preemptions.kube;
            left.retain(|_, until| *until > now);
            left.insert(uid.clone(), now + KUBE_SCHEDULER_TIME);
        }
        !ours
    }
}
