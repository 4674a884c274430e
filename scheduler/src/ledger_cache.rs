//! The ledger behind one lock, with the pending and the bound pods and the policies beside it.
//!
//! The watches write it (`watches`), and [`crate::bind`] reserves in it. Nothing here awaits
//! while it has a lock, and only the pod watch confirms a reservation.

pub mod bound_pods;
pub mod gangs;
pub mod pending_pods;
mod preemptions;
pub mod resizes;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::allocation::Allocation;
use aliquot_core::decide::{self, Memo, NodeQuery, PendingPlacement};
use aliquot_core::fit;
use aliquot_core::ledger::{Differences, NotReserved, NotResized, PodEntry};
use aliquot_core::quota::Headroom;
use aliquot_core::resize::{ResizeRequest, Resized};
use aliquot_core::score::Policies;
use aliquot_core::{
    Cluster, Demand, Ledger, Namespace, NodeName, PodUid, Reason, Refusal, Stage, Typical,
};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::ticks::Ticks;
use bound_pods::SharedBoundPods;
use gangs::Gangs;
use pending_pods::{CapacityEvent, Claim, PendingPod, PendingPods};
use preemptions::Preemptions;
use resizes::Resizes;

/// Interval of comparing the ledger with a recomputed one.
const SELF_CHECK: Duration = Duration::from_secs(10);

/// The scheduler's state. One per process, shared.
#[derive(Debug, Default)]
pub struct LedgerCache {
    pub(crate) ledger: RwLock<Ledger>,
    /// The pending pods.
    pub pending: PendingPods,
    pub(crate) bound_pods: Arc<SharedBoundPods>,
    pub(crate) preemptions: Mutex<Preemptions>,
    pub(crate) gangs: Gangs,
    pub(crate) resizes: Resizes,
    memo: Mutex<Memo>,
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

    /// The current state of the nodes, and what the namespace's quotas leave for the pod.
    pub fn view(&self, pod: &PodUid, namespace: &str) -> (Cluster, Option<Headroom>) {
        self.read(|ledger| {
            let headroom = ledger.headroom_for(pod, namespace);
            (ledger.cluster().clone(), headroom)
        })
    }

    /// The best `most` of the named nodes that can take the pod, best first, or why none can.
    /// `view` is that of the pod's namespace.
    pub fn best<'n, S: AsRef<str>>(
        &self,
        view: &(Cluster, Option<Headroom>),
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
        most: usize,
    ) -> Result<Vec<&'n str>, Refusal> {
        let claims = self.pending.claims_of_others(pod);
        let own = self.read(|ledger| ledger.node_seen_by_preemptor(pod));
        let query = NodeQuery {
            cluster: &view.0,
            demand,
            policies: &self.policies(),
            pending: &claims,
            own_reservation: own.as_ref(),
            headroom: view.1.as_ref(),
        };
        decide::best(&query, &mut self.memo.lock(), names, most)
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
        let claims = self.pending.claims_of_others(pod);
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
                offered: true,
            };
            self.put_claim(&pod::uid(pod), claim, Instant::now());
        }
    }

    /// Replaces the pod's claim. What it claimed before, if something else, is free for others.
    pub(crate) fn put_claim(&self, pod: &PodUid, claim: Claim, now: Instant) {
        let old = self.pending.claims.lock().put(pod, claim, now);
        if let Some(old) = old {
            self.claim_freed(&old);
        }
    }

    /// Records that filter refused `pod` on the nodes in `waiting.offered`, decided when there had
    /// been `event_count` capacity events. Later events are applied to it again.
    pub fn refused(&self, pod: &PodUid, waiting: PendingPod, event_count: u64) {
        self.pending.refuse(pod, waiting);
        self.end_claim(pod);
        self.pending.replay_events_since(event_count);
    }

    /// The pod is deleted: it is pending no longer.
    pub fn remove_pending(&self, pod: &PodUid) {
        self.pending.pods.lock().remove(pod);
        self.release_reservation(pod);
        self.end_claim(pod);
    }

    /// Returns after a capacity event, or after a claim has expired.
    pub async fn capacity_changed(&self) {
        for expired in self.pending.changed().await {
            self.claim_freed(&expired);
        }
    }

    /// Ends the pod's claim: another pod may take what it claimed.
    pub(crate) fn end_claim(&self, pod: &PodUid) {
        let ended = self.pending.claims.lock().end(pod);
        if let Some(claim) = ended {
            self.claim_freed(&claim);
        }
    }

    /// This claim has ended.
    fn claim_freed(&self, claim: &Claim) {
        self.pending
            .add_event(CapacityEvent::Slot(claim.placement.slot));
        self.quota_freed(&claim.namespace);
    }

    /// This allocation or reservation has ended.
    pub(crate) fn allocation_freed(&self, entry: &PodEntry) {
        self.node_freed(&entry.node);
        if entry.uses_devices() {
            self.quota_freed(&entry.namespace);
        }
    }

    /// The namespace's quotas leave more than before, if it has any.
    fn quota_freed(&self, namespace: &Namespace) {
        if self.read(|ledger| ledger.namespaces().has_quota(namespace.as_str())) {
            self.pending
                .add_event(CapacityEvent::Namespace(namespace.clone()));
        }
    }

    /// Capacity was freed on this node.
    pub(crate) fn node_freed(&self, node: &NodeName) {
        let slot = self.read(|ledger| ledger.cluster().slot(node.as_str()));
        // An unknown node has no capacity.
        if let Some(slot) = slot {
            self.pending.add_event(CapacityEvent::Slot(slot));
        }
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
        let claimed = self.pending.claims.lock().end(pod);
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

    /// Decides on a resize and reserves what it takes ([`Ledger::reserve_resize`]).
    pub fn reserve_resize(
        &self,
        pod: &PodUid,
        generation: u64,
        shares: (&Allocation, &Allocation),
        request: &ResizeRequest,
        stages: &[(String, Stage)],
    ) -> Result<Resized, NotResized> {
        let mut ledger = self.ledger.write();
        ledger.reserve_resize(pod, generation, shares, request, stages)
    }

    /// A resize is definitely not written.
    pub fn end_resize(&self, pod: &PodUid, generation: u64) {
        let changed = self.ledger.write().end_resize(pod, generation);
        if let Some(entry) = changed {
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
        self.pending.add_event(CapacityEvent::Everywhere);
        differences
    }

    /// Recomputes the ledger at an interval until `stop`.
    pub async fn check_itself(self: Arc<Self>, metrics: Metrics, stop: CancellationToken) {
        let mut ticks = Ticks::every(SELF_CHECK, &stop);
        while ticks.next().await {
            let differences = self.recompute();
            if differences.count() > 0 {
                metrics
                    .self_check_differences
                    .inc_by(differences.count() as u64);
                tracing::error!(
                    ?differences,
                    "ledger differed from the recomputed one, adopting the latter"
                );
            }
        }
    }
}

#[cfg(test)]
#[path = "ledger_cache_tests.rs"]
pub(crate) mod tests;
