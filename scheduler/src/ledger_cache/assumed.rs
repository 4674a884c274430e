//! What filter assumes for pods, and when that is forgotten.
//!
//! kube-scheduler binds a pod right after filter has named a node for it, unless something fails in
//! between, which it does not report: what is assumed expires. To forget it too early is harmless,
//! because bind chooses again; a gang, whose members need each other, has deadlines of its own
//! ([`super::gangs`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::ledger::{By, PodEntry};
use aliquot_core::{Demand, Namespace, NodeName, PodUid, Refusal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gangs::GangName;
use super::pending_pods::PendingPod;
use super::{LedgerCache, State};
use crate::ticks::Ticks;

/// The longest from filter to the Binding. It is halved each time that the same pod lets it expire,
/// so that one that always fails blocks little.
const UNTIL_BINDING: Duration = Duration::from_secs(5);
/// The shortest such time.
const SHORTEST: Duration = Duration::from_millis(300);
/// The longest, while kube-scheduler nominates the node for the pod: since Kubernetes 1.35 it does so
/// before work that takes time, such as attaching a volume, and withdraws the nomination if that fails.
const NOMINATED: Duration = Duration::from_mins(10);
/// Interval of checking what has expired.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is known of a pod for which filter has assumed a share.
#[derive(Debug)]
struct Assumption {
    since: Instant,
    /// When it expires; `None` once it has.
    until: Option<Instant>,
    /// How often it has expired.
    lapses: u32,
}

/// When filter's assumptions expire.
#[derive(Debug, Default)]
pub(super) struct Assumptions(HashMap<PodUid, Assumption>);

impl Assumptions {
    /// Filter has assumed a share for the pod.
    fn begin(&mut self, pod: &PodUid, now: Instant) {
        let one = self.0.entry(pod.clone()).or_insert(Assumption {
            since: now,
            until: None,
            lapses: 0,
        });
        let divided = UNTIL_BINDING / (1 << one.lapses.min(8));
        one.since = now;
        one.until = Some(now + divided.max(SHORTEST));
    }

    /// The pod is bound, or gone.
    pub(super) fn end(&mut self, pod: &PodUid) {
        self.0.remove(pod);
    }

    /// Retains these pods, and those that the list may not have shown yet.
    pub(super) fn retain(&mut self, listed: impl Fn(&PodUid) -> bool) {
        self.0.retain(|pod, one| one.until.is_some() || listed(pod));
    }

    /// The pods whose time is over.
    fn due(&self, now: Instant) -> Vec<PodUid> {
        let due = self.0.iter().filter(|(_, one)| one.is_due(now));
        due.map(|(pod, _)| pod.clone()).collect()
    }

    /// Nothing is assumed for the pod any longer.
    fn stop(&mut self, pod: &PodUid) {
        if let Some(one) = self.0.get_mut(pod) {
            one.until = None;
        }
    }

    /// Whether the pod's time is over; it gets more while kube-scheduler is `nominating` its node.
    fn lapse(&mut self, pod: &PodUid, nominating: bool, now: Instant) -> bool {
        let Some(one) = self.0.get_mut(pod).filter(|one| one.is_due(now)) else {
            return false;
        };
        if nominating && now < one.since + NOMINATED {
            one.until = Some(now + UNTIL_BINDING);
            return false;
        }
        one.until = None;
        one.lapses += 1;
        true
    }
}

impl Assumption {
    fn is_due(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// How long after a pod's deletion kube-scheduler may call filter for it.
const AFTER_DELETION: Duration = Duration::from_mins(1);

/// Pods that were deleted a short time ago. Filter answers for them, and records nothing.
#[derive(Debug, Default)]
pub(super) struct DeletedPods(HashMap<PodUid, Instant>);

impl DeletedPods {
    pub(super) fn insert(&mut self, pod: &PodUid) {
        self.0.insert(pod.clone(), Instant::now());
    }

    pub(super) fn contains(&self, pod: &PodUid) -> bool {
        self.0.contains_key(pod)
    }

    fn expire(&mut self, now: Instant) {
        self.0.retain(|_, deleted| *deleted + AFTER_DELETION > now);
    }
}

#[derive(Clone, Copy, Debug)]
pub struct FilteredPod<'a> {
    pub uid: &'a PodUid,
    pub namespace: &'a Namespace,
    pub demand: &'a Demand,
    pub gang: Option<&'a GangName>,
}

impl LedgerCache {
    /// Forgets what is assumed for too long, at an interval until `stop`.
    pub async fn expire_until(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = Ticks::every(INTERVAL, &stop);
        while ticks.next().await {
            self.lock().expire(Instant::now());
        }
    }
}

impl State {
    /// Assumes a share for the pod on the first of these nodes that can take it, and returns the nodes
    /// from there on; for a member of a gang that node alone. What was assumed for the pod before is
    /// free.
    pub fn assume<'n>(
        &mut self,
        pod: FilteredPod<'_>,
        mut nodes: Vec<&'n str>,
    ) -> Result<Vec<&'n str>, Refusal> {
        let now = Instant::now();
        let by = pod.gang.map_or(By::Filter, |_| By::Gang);
        let mut refusal = Refusal::default();
        let found = nodes.iter().position(|node| {
            let (name, share) = (NodeName::from(*node), (pod.demand, by.clone()));
            let policies = &self.policies;
            match self
                .ledger
                .assume(pod.uid, pod.namespace, &name, share, policies)
            {
                Ok(None) => true,
                Ok(Some(old)) => {
                    self.entry_freed(&old);
                    true
                }
                Err(why) => {
                    refusal = why;
                    false
                }
            }
        });
        let Some(at) = found else {
            return Err(refusal);
        };
        nodes.drain(..at);
        match pod.gang {
            Some(gang) => {
                nodes.truncate(1);
                self.gangs.assume(gang, pod.uid, now);
            }
            None => self.assumptions.begin(pod.uid, now),
        }
        if self.deleted.contains(pod.uid) {
            self.end_assumption(pod.uid, pod.gang);
        }
        Ok(nodes)
    }

    /// After a list, the first filter call assumes shares for the pending members of gangs with bound
    /// ones: an earlier process may have ended between two Bindings of the gang.
    pub(crate) fn assume_for_unfinished_gangs(&mut self) {
        if !std::mem::take(&mut self.gangs.listed) {
            return;
        }
        let mut pending: Vec<(GangName, PodUid, Arc<PendingPod>)> = Vec::new();
        for (uid, one) in &self.pending {
            let known = self
                .ledger
                .pod_entry(uid)
                .or_else(|| self.ledger.assumed(uid));
            if let Some(gang) = one.gang.as_ref().filter(|gang| self.gangs.is_started(gang))
                && known.is_none()
            {
                pending.push((gang.clone(), uid.clone(), one.clone()));
            }
        }
        pending.sort_by(|(a, x, _), (b, y, _)| a.cmp(b).then_with(|| x.cmp(y)));
        for (gang, uid, waiting) in pending {
            let offered: Vec<NodeName> = self
                .ledger
                .cluster()
                .iter()
                .filter(|(slot, _, _)| waiting.offered.contains(*slot))
                .map(|(_, name, _)| name.clone())
                .collect();
            let names: Vec<&str> = offered.iter().map(NodeName::as_str).collect();
            let member = FilteredPod {
                uid: &uid,
                namespace: &gang.namespace,
                demand: &waiting.demand,
                gang: Some(&gang),
            };
            let best = self.best(member, &names, names.len());
            if best.and_then(|best| self.assume(member, best)).is_ok() {
                tracing::info!(
                    pod = waiting.pod.name,
                    namespace = waiting.pod.namespace,
                    gang = gang.name,
                    "assumed a share for a pending member of a gang with bound ones"
                );
                self.gangs.bind(&gang, Instant::now());
            }
        }
    }

    /// The pod is gone: nothing is assumed for it.
    pub(super) fn end_assumption(&mut self, pod: &PodUid, gang: Option<&GangName>) {
        if let Some(gang) = gang {
            self.gangs.observe(gang, pod, false);
        }
        self.assumptions.end(pod);
        self.forget(pod, |_| true);
    }

    /// Forgets what is assumed for the pod, if it is assumed for such a reason.
    pub(crate) fn forget(&mut self, pod: &PodUid, reason: impl Fn(&By) -> bool) {
        let by = self.ledger.assumed(pod).and_then(PodEntry::assumed_by);
        if by.is_some_and(reason)
            && let Some(entry) = self.ledger.forget(pod)
        {
            self.entry_freed(&entry);
        }
    }

    /// Forgets what is assumed for pods and gangs whose time is over.
    pub fn expire(&mut self, now: Instant) {
        for pod in self.assumptions.due(now) {
            let node = self
                .ledger
                .assumed(&pod)
                .filter(|entry| entry.assumed_by() == Some(&By::Filter))
                .map(|entry| entry.node.clone());
            let Some(node) = node else {
                self.assumptions.stop(&pod);
                continue;
            };
            let pending = self.pending.get(&pod);
            let nominating = pending.is_some_and(|one| one.preemption.nominated == Some(node));
            if self.assumptions.lapse(&pod, nominating, now) {
                self.forget(&pod, |by| *by == By::Filter);
            }
        }
        for member in self.gangs.expire(now) {
            self.forget(&member, |by| *by == By::Gang);
        }
        self.deleted.expire(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assumption_that_lapses_again_is_shorter() {
        let (mut all, pod) = (Assumptions::default(), PodUid::from("p"));
        let start = Instant::now();
        for expected in [5000, 2500, 1250, 625, 313, 300, 300] {
            all.begin(&pod, start);
            let until = start + Duration::from_millis(expected);
            let before = until - Duration::from_millis(1);
            assert!(all.due(before).is_empty(), "{expected}");
            assert_eq!(all.due(until), std::slice::from_ref(&pod), "{expected}");
            assert!(all.lapse(&pod, false, until));
            assert!(!all.lapse(&pod, false, until), "once");
        }
        all.end(&pod);
        all.begin(&pod, start);
        assert!(all.due(start + Duration::from_secs(4)).is_empty());
    }

    #[test]
    fn assumption_lasts_while_its_node_is_nominated() {
        let (mut all, pod) = (Assumptions::default(), PodUid::from("p"));
        let start = Instant::now();
        all.begin(&pod, start);
        let mut now = start;
        while now < start + NOMINATED - UNTIL_BINDING {
            now += UNTIL_BINDING;
            assert!(!all.lapse(&pod, true, now));
        }
        assert!(all.lapse(&pod, true, now + UNTIL_BINDING));
    }
}
