//! The scheduler's state behind one lock: the ledger, the pending and the bound pods, and what is
//! known of them beside it.
//!
//! Filter decides and assumes under the lock (`assumed`), [`crate::bind`] reserves, and the watches
//! write what they show (`watches`). What takes long, as requeueing and preemption, decides on a
//! snapshot. Nothing here awaits while it has the lock, and only the pod watch confirms what was
//! reserved.

pub mod assumed;
pub mod bound_pods;
pub mod gangs;
pub mod pending_pods;
mod preemptions;
pub mod resizes;
mod watches;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::allocation::Allocation;
use aliquot_core::decide::{self, Memo, NodeQuery};
use aliquot_core::ledger::{By, Differences, NotReserved, NotResized, PodEntry};
use aliquot_core::resize::{ResizeRequest, Resized};
use aliquot_core::score::Policies;
use aliquot_core::{
    Cluster, Demand, Ledger, Namespace, NodeName, PodUid, Reason, Refusal, Stage, Typical,
};
use aliquot_k8s::pod;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::ticks::Ticks;
use assumed::{Assumptions, DeletedPods, FilteredPod};
use bound_pods::BoundPods;
use gangs::Gangs;
use pending_pods::{CapacityEvent, CapacityEvents, PendingPod};
use preemptions::Preemptions;
use resizes::Resizes;

/// Interval of comparing the ledger with a recomputed one.
const SELF_CHECK: Duration = Duration::from_secs(10);
/// Nodes that are compared under one lock.
const TOGETHER: usize = 64;

/// The scheduler's state. One per process, shared.
#[derive(Debug)]
pub struct LedgerCache {
    state: Mutex<State>,
    /// Notified after each capacity event.
    event_added: Arc<Notify>,
    /// Notified when a resize was added or changed.
    resize_changed: Arc<Notify>,
    /// Notified when a node has published its GPUs.
    node_joined: Arc<Notify>,
    settings: pod::Settings,
}

/// What the lock protects, and what filter does under it.
#[derive(Debug, Default)]
pub struct State {
    pub(crate) ledger: Ledger,
    /// The pods that request a share and are not bound.
    pub(crate) pending: HashMap<PodUid, Arc<PendingPod>>,
    pub(crate) events: CapacityEvents,
    pub(crate) bound_pods: BoundPods,
    pub(crate) preemptions: Preemptions,
    pub(crate) gangs: Gangs,
    pub(crate) resizes: Resizes,
    pub(crate) policies: Arc<Policies>,
    assumptions: Assumptions,
    deleted: DeletedPods,
    memo: Memo,
    node_joined: Arc<Notify>,
}

impl Default for LedgerCache {
    fn default() -> Self {
        Self::new(pod::Settings::default(), Policies::default())
    }
}

impl LedgerCache {
    /// An empty cache that reads pods by these names and defaults, and places pods that choose no
    /// policy by `policies`.
    pub fn new(settings: pod::Settings, policies: Policies) -> Self {
        let state = State {
            policies: Arc::new(policies),
            ..State::default()
        };
        Self {
            event_added: state.events.added.clone(),
            resize_changed: state.resizes.changed.clone(),
            node_joined: state.node_joined.clone(),
            state: Mutex::new(state),
            settings,
        }
    }

    /// The state; whoever has it does no IO.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The names and defaults by which pods are read.
    pub fn settings(&self) -> &pod::Settings {
        &self.settings
    }

    /// The policies of pods that choose none.
    pub fn policies(&self) -> Arc<Policies> {
        self.lock().policies.clone()
    }

    /// Adopts these typical pods if they differ enough from the previous ones, and returns whether
    /// they do.
    pub fn adopt(&self, typical: Typical) -> bool {
        let policies = &mut self.lock().policies;
        let differs = policies.typical.differs(&typical);
        if differs {
            Arc::make_mut(policies).typical = Arc::new(typical);
        }
        differs
    }

    /// Reads the ledger; `read` must be quick and must not call the cache.
    pub fn read<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        read(&self.lock().ledger)
    }

    /// The current state of the nodes.
    pub fn snapshot(&self) -> Cluster {
        self.lock().ledger.cluster().clone()
    }

    /// The pending pod, as the watch last showed it.
    pub fn pending(&self, pod: &PodUid) -> Option<Arc<PendingPod>> {
        self.lock().pending.get(pod).cloned()
    }

    /// How many pods are pending, and how many of these filter refused.
    pub fn pending_counts(&self) -> (usize, usize) {
        let pending = &self.lock().pending;
        let refused = pending.values().filter(|pod| pod.refused).count();
        (pending.len(), refused)
    }

    /// Chooses devices for the pod by the current ledger and reserves them for its Binding, if the
    /// namespace's quotas allow it.
    pub fn reserve(
        &self,
        pod: &PodUid,
        namespace: &Namespace,
        node: &NodeName,
        demand: &Demand,
    ) -> Result<Allocation, NotReserved> {
        let state = &mut *self.lock();
        let assumed = state.ledger.assumed(pod).cloned();
        let reserved = state
            .ledger
            .reserve(pod, namespace, node, demand, &state.policies);
        let taken = state.ledger.pod_entry(pod);
        let left = assumed.filter(|old| taken.is_some_and(|new| !new.holds_as(old)));
        if let Some(left) = left {
            state.entry_freed(&left);
        }
        reserved
    }

    /// Releases what was reserved for a Binding that definitely failed.
    pub fn cancel(&self, pod: &PodUid) {
        let mut state = self.lock();
        if let Some(entry) = state.ledger.cancel(pod) {
            state.entry_freed(&entry);
            state.restore_plan(pod);
        }
        // The time of its gang may have ended meanwhile.
        if !state.gangs.assumes(pod) {
            state.forget(pod, |by| *by == By::Gang);
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
        let mut state = self.lock();
        let ledger = &mut state.ledger;
        ledger.reserve_resize(pod, generation, shares, request, stages)
    }

    /// A resize is definitely not written.
    pub fn end_resize(&self, pod: &PodUid, generation: u64) {
        let mut state = self.lock();
        if let Some(entry) = state.ledger.end_resize(pod, generation) {
            state.entry_freed(&entry);
        }
    }

    /// Returns after a capacity event, when a node is due to be checked again, or when a claim is over.
    pub async fn capacity_changed(&self) {
        let next = self.lock().events.next_due();
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.event_added.notified() => {}
            () = due => self.lock().events.mark_due(Instant::now()),
        }
    }

    /// Returns when a resize was added or changed.
    pub async fn resize_changed(&self) {
        self.resize_changed.notified().await;
    }

    /// Returns when a node that had no GPUs has published some.
    pub async fn node_joined(&self) {
        self.node_joined.notified().await;
    }

    /// Compares the ledger with a recomputed one, adopts the latter where they differ, and returns
    /// the differences.
    pub fn recompute(&self) -> Differences {
        let names = self.read(Ledger::node_names);
        // Some nodes at a time, so that nothing waits for the lock meanwhile.
        let mut parts = names.chunks(TOGETHER);
        let same = parts.all(|names| self.read(|ledger| ledger.is_current(names)))
            && self.read(Ledger::pods_are_current);
        if same {
            return Differences::default();
        }
        let mut state = self.lock();
        let differences = state.ledger.rebuild();
        state.events.add(CapacityEvent::Everywhere);
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

impl State {
    /// The best `most` of the named nodes that can take the pod, best first, or why none can.
    pub fn best<'n, S: AsRef<str>>(
        &mut self,
        pod: FilteredPod<'_>,
        names: &'n [S],
        most: usize,
    ) -> Result<Vec<&'n str>, Refusal> {
        let own = self.ledger.node_without_assumed(pod.uid);
        let headroom = self.ledger.headroom_for(pod.uid, pod.namespace.as_str());
        let query = NodeQuery {
            cluster: self.ledger.cluster(),
            demand: pod.demand,
            policies: &self.policies,
            without_own: own.as_ref(),
            headroom: headroom.as_ref(),
        };
        decide::best(&query, &mut self.memo, names, most)
    }

    /// Scores of 0 to 10 for the named nodes, in their order.
    pub fn ranks<'n, S: AsRef<str>>(
        &mut self,
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
    ) -> Vec<(&'n str, i64)> {
        let own = self.ledger.node_without_assumed(pod);
        let query = NodeQuery {
            cluster: self.ledger.cluster(),
            demand,
            policies: &self.policies,
            without_own: own.as_ref(),
            headroom: None,
        };
        decide::ranks(&query, &mut self.memo, names)
    }

    /// Those of the named nodes where a device that the pod pins is allocated to another pod.
    pub(crate) fn nodes_pinned_by_others<'n, S: AsRef<str>>(
        &mut self,
        pod: FilteredPod<'_>,
        names: &'n [S],
    ) -> Vec<&'n str> {
        let own = self.ledger.node_without_assumed(pod.uid);
        let query = NodeQuery {
            cluster: self.ledger.cluster(),
            demand: pod.demand,
            policies: &self.policies,
            without_own: own.as_ref(),
            headroom: None,
        };
        decide::refused_for(&query, &mut self.memo, names, Reason::GpuPinned)
    }

    /// Records that filter refused `pod` on the nodes in `waiting.offered`.
    pub fn refuse(&mut self, pod: &PodUid, waiting: PendingPod) {
        self.forget(pod, |by| !matches!(by, By::Plan { .. }));
        if self.deleted.contains(pod) {
            return;
        }
        if let Some(gang) = &waiting.gang {
            self.gangs.refuse(gang, pod, Instant::now());
        }
        let before = self
            .pending
            .get(pod)
            .and_then(|known| known.refusals.as_ref());
        let refusals = waiting.refusals.clone().map(|one| one.after(before));
        let offered = waiting.offered.clone();
        let entry = self.pending.entry(pod.clone());
        let known = Arc::make_mut(entry.or_insert_with(|| Arc::new(waiting)));
        known.refused = true;
        known.offered = offered;
        known.refusals = refusals;
    }

    pub(crate) fn remove_pending(&mut self, pod: &PodUid) {
        let removed = self.pending.remove(pod);
        let gang = removed.as_ref().and_then(|pending| pending.gang.as_ref());
        self.end_assumption(pod, gang);
    }

    /// What this entry held is free.
    pub(crate) fn entry_freed(&mut self, entry: &PodEntry) {
        // An unknown node has no capacity.
        if let Some(slot) = self.ledger.cluster().slot(entry.node.as_str()) {
            self.events.add(CapacityEvent::Slot(slot));
        }
        if entry.uses_devices() {
            self.quota_freed(&entry.namespace);
        }
    }

    /// The namespace's quotas leave more than before, if it has any.
    fn quota_freed(&mut self, namespace: &Namespace) {
        if self.ledger.namespaces().has_quota(namespace.as_str()) {
            self.events.add(CapacityEvent::Namespace(namespace.clone()));
        }
    }
}

#[cfg(test)]
#[path = "ledger_cache_tests.rs"]
pub(crate) mod tests;
