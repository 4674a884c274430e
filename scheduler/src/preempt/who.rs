//! Who may preempt now, for whom something is held, and for whom kube-scheduler
//! makes room.
//!
//! Fed by: the watches, through [`crate::feed`], and [`super::verb`].
//! Must not: plan, or send anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::ledger::{Held, Hold};
use aliquot_core::preemption::Record;
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::event::PodRef;
use tokio::time::Instant;

use crate::books::Books;
use crate::waiting::{Noted, Waiting};

/// After kube-scheduler was told that it may preempt for a pod, this long nobody
/// else does: by then the watch shows where it did.
const KUBE: Duration = Duration::from_secs(5);
/// Who preempts for whom, but for what the books and annotations say.
#[derive(Debug, Default)]
pub struct Preemptions {
    /// Pods for which kube-scheduler was told that it may preempt.
    kube: HashMap<PodUid, Instant>,
    /// Bound pods that still carry a plan.
    pub(super) carried: HashMap<PodUid, PodRef>,
}

impl Books {
    /// The watch shows a waiting pod: what its annotation says is held for it.
    pub(crate) fn plan_shown(&self, uid: &PodUid, waiting: &Waiting) {
        let preemption = &waiting.preemption;
        match &preemption.plan {
            Some(Noted::Open(record)) if !preemption.never => {
                let hold = Hold {
                    node: record.node.clone(),
                    held: Held::Uses(record.hold.clone()),
                    seats: waiting.demand.seats(),
                    written: true,
                };
                self.ledger.write().hold(uid, hold);
            }
            _ if self.read(|ledger| ledger.held_for(uid).is_some_and(|hold| hold.written)) => {
                self.unhold(uid);
            }
            _ => {}
        }
    }

    /// The watch shows it bound, or ended; named where it still carries a plan.
    pub(crate) fn plan_over(&self, uid: &PodUid, planned: Option<Box<PodRef>>) {
        self.unhold(uid);
        let mut preemptions = self.preemptions.lock();
        match planned {
            Some(pod) => drop(preemptions.carried.insert(uid.clone(), *pod)),
            None if preemptions.carried.is_empty() => {}
            None => drop(preemptions.carried.remove(uid)),
        }
    }

    /// Nothing is held for this pod any more.
    pub(crate) fn unhold(&self, uid: &PodUid) {
        if self.read(|ledger| ledger.held_for(uid).is_none()) {
            return;
        }
        let hold = self.ledger.write().unhold(uid);
        if let Some(hold) = hold {
            self.grow_on(&hold.node);
        }
    }

    /// Waiting pods with a plan that goes on.
    pub(crate) fn planned(&self) -> Vec<(PodUid, Arc<Record>)> {
        let all = self.waits.lock();
        let planned = all
            .iter()
            .filter_map(|(uid, waiting)| match &waiting.preemption {
                p if p.never => None,
                p => match &p.plan {
                    Some(Noted::Open(record)) => Some((uid.clone(), record.clone())),
                    _ => None,
                },
            });
        planned.collect()
    }

    /// Refused pods that may preempt, and for which kube-scheduler does not,
    /// highest priority first.
    pub(crate) fn preemptors(&self, now: Instant) -> Vec<(PodUid, Waiting)> {
        // One lock at a time: who feeds the books holds them in another order.
        let tenants = self.tenants.0.read();
        let kube: Vec<NodeName> = tenants.kube_nodes().cloned().collect();
        let lowest = tenants.lowest();
        drop(tenants);
        let cluster = self.snapshot();
        let busy = |waiting: &Waiting| {
            let nominated = &waiting.preemption.nominated_last;
            kube.iter().any(|node| {
                let slot = cluster.slot(node.as_str());
                Some(node) == nominated.as_ref()
                    || slot.is_some_and(|slot| waiting.offered.contains(slot))
            })
        };
        let all = self.waits.lock();
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
        let kube = |uid: &PodUid| self.preemptions.lock().kubes(uid, now);
        able.retain(|(uid, _)| !kube(uid));
        able.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
        able
    }

    /// Takes back what [`Self::hold_for`] held, unless it is written by now.
    pub(crate) fn unhold_unwritten(&self, uid: &PodUid) {
        if self.read(|ledger| ledger.held_for(uid).is_some_and(|hold| !hold.written)) {
            self.unhold(uid);
        }
    }

    /// kube-scheduler asks whether it may preempt for this pod: not where a plan
    /// of ours goes on; from now on it does.
    pub(crate) fn leave_to_kube(&self, uid: &PodUid, now: Instant) -> bool {
        let mut preemptions = self.preemptions.lock();
        let ours = self.read(|ledger| ledger.held_for(uid).is_some());
        if !ours {
            preemptions.kube.retain(|_, until| *until > now);
            preemptions.kube.insert(uid.clone(), now + KUBE);
        }
        !ours
    }
}

impl Preemptions {
    pub(super) fn kubes(&self, uid: &PodUid, now: Instant) -> bool {
        self.kube.get(uid).is_some_and(|until| *until > now)
    }
}
