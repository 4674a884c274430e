//! The ledger behind one lock, with the pending pods, the claims and the policies beside it.
//!
//! The watches write it ([`crate::watches`], [`crate::quotas`]), and [`crate::bind`] reserves in
//! it. Nothing here awaits while it has a lock, and only the pod watch confirms a reservation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::allocation::Allocation;
use aliquot_core::decide::{self, NodeQuery, PendingPlacement, Ranked};
use aliquot_core::fit::{self, Policies};
use aliquot_core::inventory::{Inventory, RefusedPod};
use aliquot_core::ledger::{Differences, NotReserved};
use aliquot_core::memo::Memo;
use aliquot_core::quota::Headroom;
use aliquot_core::{
    Cluster, Demand, Ledger, Namespace, NodeName, PodUid, Reason, Refusal, Typical,
};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bound_pods::SharedBoundPods;
use crate::capacity_events::{CapacityEvent, CapacityEvents};
use crate::pending::PendingPod;
use crate::preempt::eligible::Preemptions;

/// The scheduler's state. One per process, shared.
#[derive(Debug, Default)]
pub struct LedgerCache {
    pub(crate) ledger: RwLock<Ledger>,
    pub(crate) pending_pods: Mutex<HashMap<PodUid, PendingPod>>,
    pub(crate) bound_pods: Arc<SharedBoundPods>,
    pub(crate) preemptions: Mutex<Preemptions>,
    memo: Mutex<Memo>,
    pub(crate) claims: Mutex<Claims>,
    pub(crate) capacity_notify: Notify,
    pub(crate) capacity_events: Mutex<CapacityEvents>,
    settings: pod::Settings,
    policies: RwLock<Arc<Policies>>,
}

impl LedgerCache {
    /// An empty cache that reads pods by these names and defaults, and places pods that choose no
    /// policy by `policies`.
    pub fn new(settings: pod::Settings, policies: Policies) -> Self {
        Self {
            settings,
            policies: RwLock::new(Arc::new(policies)),
            ..Self::default()
        }
    }

    /// The names and defaults by which pods are read.
    pub fn settings(&self) -> &pod::Settings {
        &self.settings
    }

    /// The policies of pods that choose none.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.read().clone()
    }

    /// Adopts these typical pods if they differ enough from the previous ones; whether they do.
    pub fn adopt(&self, typical: Typical) -> bool {
        let mut policies = self.policies.write();
        let differs = policies.typical.differs(&typical);
        if differs {
            Arc::make_mut(&mut policies).typical = Arc::new(typical);
        }
        differs
    }

    /// Reads the ledger; `read` must be quick and must not call the cache.
    pub fn read<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        read(&self.ledger.read())
    }

    /// The current state of the nodes.
    pub fn snapshot(&self) -> Cluster {
        self.read(|ledger| ledger.cluster().clone())
    }

    /// The current state of the nodes, and what the namespace's quotas leave.
    pub fn view(&self, namespace: &str) -> (Cluster, Option<Headroom>) {
        self.read(|ledger| (ledger.cluster().clone(), ledger.headroom(namespace)))
    }

    /// The named nodes that can take the pod, in the order of `names`, or why none can. `view` is
    /// that of the pod's namespace.
    pub fn fitting<'n, S: AsRef<str>>(
        &self,
        view: &(Cluster, Option<Headroom>),
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
    ) -> Result<Vec<Ranked<'n>>, Refusal> {
        let claims = self.claims.lock().others(pod, Instant::now());
        let own = self.read(|ledger| ledger.node_seen_by_preemptor(pod));
        let query = NodeQuery {
            cluster: &view.0,
            demand,
            policies: &self.policies(),
            pending: &claims,
            own_reservation: own.as_ref(),
            headroom: view.1.as_ref(),
        };
        decide::fitting(&query, &mut self.memo.lock(), names)
    }

    /// Those of the named nodes where a device that the pod pins is allocated to another pod.
    pub(crate) fn nodes_pinned_by_others<'n, S: AsRef<str>>(
        &self,
        cluster: &Cluster,
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
    ) -> Vec<&'n str> {
        let own = self.read(|ledger| ledger.node_seen_by_preemptor(pod));
        let query = NodeQuery {
            cluster,
            demand,
            policies: &self.policies(),
            pending: &[],
            own_reservation: own.as_ref(),
            headroom: None,
        };
        let reason = Reason::CardPinned;
        decide::refused_for(&query, &mut self.memo.lock(), names, reason)
    }

    /// Scores of 0 to 10 for the named nodes, in their order.
    pub fn ranks<'n, S: AsRef<str>>(
        &self,
        cluster: &Cluster,
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
    ) -> Vec<(&'n str, i64)> {
        let claims = self.claims.lock().others(pod, Instant::now());
        let own = self.read(|ledger| ledger.node_seen_by_preemptor(pod));
        let query = NodeQuery {
            cluster,
            demand,
            policies: &self.policies(),
            pending: &claims,
            own_reservation: own.as_ref(),
            headroom: None,
        };
        decide::ranks(&query, &mut self.memo.lock(), names)
    }

    /// Claims capacity on this node for the pod: it was reported to kube-scheduler as the best.
    pub fn claim(&self, cluster: &Cluster, pod: &Pod, demand: &Demand, node: &str) {
        let Some(slot) = cluster.slot(node) else {
            return;
        };
        let is_reserved = |ledger: &Ledger| {
            ledger
                .reservation_for(&pod::uid(pod))
                .is_some_and(|reservation| reservation.node.as_str() == node)
        };
        if self.read(is_reserved) {
            // A reservation is more than a claim.
            return;
        }
        let found = cluster
            .at(slot)
            .map(|state| fit::fit(state, demand, &self.policies()));
        if let Some(Ok(found)) = found {
            let claim = Claim {
                placement: PendingPlacement::of(slot, found, demand),
                namespace: pod::namespace(pod),
            };
            let old = self
                .claims
                .lock()
                .put(&pod::uid(pod), claim, Instant::now());
            if let Some(old) = old {
                self.claim_freed(&old);
            }
        }
    }

    /// Records that filter refused `pod` on the nodes in `waiting.offered`, decided when there had
    /// been `event_count` capacity events. Later events are applied to it again.
    pub fn refused(&self, pod: &PodUid, waiting: PendingPod, event_count: u64) {
        let mut all = self.pending_pods.lock();
        let before = all.get(pod).and_then(|known| known.refusals.as_ref());
        let refusals = waiting.refusals.clone().map(|one| one.after(before));
        let offered = waiting.offered.clone();
        let entry = all.entry(pod.clone()).or_insert(waiting);
        entry.refused = true;
        entry.offered = offered;
        entry.refusals = refusals;
        drop(all);
        self.end_claim(pod);
        if self.capacity_events.lock().replay_since(event_count) {
            self.capacity_notify.notify_one();
        }
    }

    /// The pod is deleted: it is pending no longer.
    pub fn remove_pending(&self, pod: &PodUid) {
        self.pending_pods.lock().remove(pod);
        self.release_reservation(pod);
        self.end_claim(pod);
    }

    /// The pod as the watch last showed it, if it is pending.
    pub fn pending_pod(&self, pod: &PodUid) -> Option<PendingPod> {
        self.pending_pods.lock().get(pod).cloned()
    }

    /// How many pods are pending, and how many of these filter refused.
    pub fn pending_counts(&self) -> (usize, usize) {
        let all = self.pending_pods.lock();
        (all.len(), all.values().filter(|w| w.refused).count())
    }

    /// Pods that the nodes' agents refused to start, with their node.
    pub fn refused_by_nodes(&self) -> Vec<(NodeName, RefusedPod)> {
        self.listed_by_nodes(|inventory| &inventory.refused)
    }

    /// Pods that must leave their unhealthy GPU, with their node.
    pub fn evicted_by_nodes(&self) -> Vec<(NodeName, RefusedPod)> {
        self.listed_by_nodes(|inventory| &inventory.evict)
    }

    fn listed_by_nodes(
        &self,
        list: fn(&Inventory) -> &Vec<RefusedPod>,
    ) -> Vec<(NodeName, RefusedPod)> {
        let mut listed = Vec::new();
        for (_, name, node) in self.snapshot().iter() {
            let found = node.inventory.as_deref().map(list);
            listed.extend(
                found
                    .into_iter()
                    .flatten()
                    .map(|pod| (name.clone(), pod.clone())),
            );
        }
        listed
    }

    /// Chooses devices for the pod by the current ledger and reserves them, if the namespace's
    /// quotas allow it.
    pub fn reserve(
        &self,
        pod: &PodUid,
        namespace: &Namespace,
        node: &NodeName,
        demand: &Demand,
    ) -> Result<Allocation, NotReserved> {
        let policies = self.policies();
        // Before it is reserved: counted twice, it would keep others from being requeued.
        let claimed = self.claims.lock().end(pod);
        let mut ledger = self.ledger.write();
        let reserved = ledger.reserve(pod, namespace, node, demand, &policies);
        let slot = ledger.cluster().slot(node.as_str());
        drop(ledger);
        // It did not take what it claimed, so another pod may.
        if let Some(claim) = claimed
            && (reserved.is_err() || Some(claim.placement.slot) != slot)
        {
            self.claim_freed(&claim);
        }
        reserved
    }

    /// Releases a reservation whose Binding definitely failed.
    pub fn cancel(&self, pod: &PodUid) {
        let freed = self.ledger.write().cancel(pod);
        if let Some(entry) = freed {
            self.allocation_freed(&entry);
        }
    }

    /// Compares the ledger with a recomputed one, adopts the latter where they differ, and returns
    /// the differences.
    pub fn recompute(&self) -> Differences {
        // A copy: the comparison takes a while.
        let running = self.read(Ledger::clone);
        if running.differences(&running.recompute()).count() == 0 {
            return Differences::default();
        }
        let mut ledger = self.ledger.write();
        let differences = ledger.rebuild();
        drop(ledger);
        self.add_capacity_event(CapacityEvent::Everywhere);
        differences
    }
}

/// How long a claim lasts at most.
pub const CLAIM_LIFETIME: Duration = Duration::from_secs(2);

/// The capacity that a pod is about to take: kube-scheduler was given the node as its best, or the
/// pod was requeued for it. A claim makes no node infeasible; it lowers the node's score for other
/// pods and keeps other refused pods from being requeued for the same capacity.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The node and its devices.
    pub placement: PendingPlacement,
    /// The namespace whose quotas it uses.
    pub namespace: Namespace,
}

/// One claim per pod.
#[derive(Debug, Default)]
pub struct Claims(HashMap<PodUid, (Claim, Instant)>);

impl Claims {
    /// Replaces the pod's claim. A different previous claim is returned: its capacity is free for
    /// others.
    #[must_use = "the capacity of the previous claim is free for other pods"]
    pub fn put(&mut self, pod: &PodUid, claim: Claim, now: Instant) -> Option<Claim> {
        let placement = claim.placement.clone();
        let old = self.0.insert(pod.clone(), (claim, now + CLAIM_LIFETIME));
        old.map(|(old, _)| old)
            .filter(|old| old.placement != placement)
    }

    /// Ends the pod's claim.
    pub fn end(&mut self, pod: &PodUid) -> Option<Claim> {
        self.0.remove(pod).map(|(claim, _)| claim)
    }

    /// The claims of all other pods that have not expired.
    pub fn others(&self, pod: &PodUid, now: Instant) -> Vec<PendingPlacement> {
        let others = self.0.iter().filter(|(uid, _)| *uid != pod);
        let alive = others.filter(|(_, (_, until))| *until > now);
        alive
            .map(|(_, (claim, _))| claim.placement.clone())
            .collect()
    }

    /// Removes the expired claims.
    pub fn expire(&mut self, now: Instant) -> Vec<Claim> {
        let expired = self.0.extract_if(|_, (_, until)| *until <= now);
        expired.map(|(_, (claim, _))| claim).collect()
    }

    /// When the next claim expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.0.values().map(|(_, until)| *until).min()
    }

    /// Every claim that has not expired.
    pub fn all(&self, now: Instant) -> Vec<Claim> {
        let alive = self.0.values().filter(|(_, until)| *until > now);
        alive.map(|(claim, _)| claim.clone()).collect()
    }
}

#[cfg(test)]
#[path = "ledger_cache_tests.rs"]
pub(crate) mod tests;
