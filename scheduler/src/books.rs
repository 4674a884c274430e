//! The running books: the ledger behind one lock, and the pods that wait.
//!
//! Fed by: the watches of pods and nodes (as [`Index`], in [`crate::feed`]),
//! and by [`crate::bind`], which reserves.
//! Must not: await, or let anything but the pod watch confirm a booking.

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::allocation::Allocation;
use aliquot_core::decide::{self, Question, Ranked, SoftNote};
use aliquot_core::fit::{self, Policies};
use aliquot_core::inventory::{Inventory, Refused};
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

use crate::claims::{Claim, Claims};
use crate::grown::{Grown, Where};
use crate::preempt::who::Preemptions;
use crate::tenants::Shared;
use crate::waiting::Waiting;

/// The books. One per process, shared.
#[derive(Debug, Default)]
pub struct Books {
    pub(crate) ledger: RwLock<Ledger>,
    pub(crate) waits: Mutex<HashMap<PodUid, Waiting>>,
    pub(crate) tenants: Arc<Shared>,
    pub(crate) preemptions: Mutex<Preemptions>,
    memo: Mutex<Memo>,
    pub(crate) claims: Mutex<Claims>,
    pub(crate) enlarged: Notify,
    pub(crate) grown: Mutex<Grown>,
    settings: pod::Settings,
    policies: RwLock<Arc<Policies>>,
}

impl Books {
    /// Empty books that read pods by these names and defaults and place those
    /// that choose no policy by `policies`.
    pub fn new(settings: pod::Settings, policies: Policies) -> Self {
        Self {
            settings,
            policies: RwLock::new(Arc::new(policies)),
            ..Self::default()
        }
    }

    /// How pods are read.
    pub fn settings(&self) -> &pod::Settings {
        &self.settings
    }

    /// How nodes and cards are chosen for pods that choose no policy.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.read().clone()
    }

    /// Takes these typical pods for the cluster's if they differ enough from
    /// those before; whether they did.
    pub fn adopt(&self, typical: Typical) -> bool {
        let mut policies = self.policies.write();
        let differs = policies.typical.differs(&typical);
        if differs {
            Arc::make_mut(&mut policies).typical = Arc::new(typical);
        }
        differs
    }

    /// Reads the ledger; `look` must be quick and must not call back.
    pub fn read<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&self.ledger.read())
    }

    /// The nodes as they are now.
    pub fn snapshot(&self) -> Cluster {
        self.read(|ledger| ledger.cluster().clone())
    }

    /// The nodes as they are now, and what the namespace's quotas leave.
    pub fn view(&self, namespace: &str) -> (Cluster, Option<Headroom>) {
        self.read(|ledger| (ledger.cluster().clone(), ledger.headroom(namespace)))
    }

    /// The named nodes that can take the pod, in the order of `names`, or why
    /// none can. `view` is that of the pod's namespace.
    pub fn fitting<'n, S: AsRef<str>>(
        &self,
        view: &(Cluster, Option<Headroom>),
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
    ) -> Result<Vec<Ranked<'n>>, Refusal> {
        let notes = self.claims.lock().others(pod, Instant::now());
        let own = self.read(|ledger| ledger.own(pod));
        let question = Question {
            cluster: &view.0,
            demand,
            policies: &self.policies(),
            notes: &notes,
            own: own.as_ref(),
            headroom: view.1.as_ref(),
        };
        decide::fitting(&question, &mut self.memo.lock(), names)
    }

    /// The named nodes of which some card is held by others than the pod, which names
    /// it, by name.
    pub(crate) fn pinned<'n, S: AsRef<str>>(
        &self,
        cluster: &Cluster,
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
    ) -> Vec<&'n str> {
        let own = self.read(|ledger| ledger.own(pod));
        let question = Question {
            cluster,
            demand,
            policies: &self.policies(),
            notes: &[],
            own: own.as_ref(),
            headroom: None,
        };
        let reason = Reason::CardPinned;
        decide::refused_for(&question, &mut self.memo.lock(), names, reason)
    }

    /// Ranks 0 to 10 for the named nodes, in their order.
    pub fn ranks<'n, S: AsRef<str>>(
        &self,
        cluster: &Cluster,
        pod: &PodUid,
        demand: &Demand,
        names: &'n [S],
    ) -> Vec<(&'n str, i64)> {
        let notes = self.claims.lock().others(pod, Instant::now());
        let own = self.read(|ledger| ledger.own(pod));
        let question = Question {
            cluster,
            demand,
            policies: &self.policies(),
            notes: &notes,
            own: own.as_ref(),
            headroom: None,
        };
        decide::ranks(&question, &mut self.memo.lock(), names)
    }

    /// Notes that the pod was told this node as its best.
    pub fn claim(&self, cluster: &Cluster, pod: &Pod, demand: &Demand, node: &str) {
        let Some(slot) = cluster.slot(node) else {
            return;
        };
        let held = |ledger: &Ledger| {
            ledger
                .held_for(&pod::uid(pod))
                .is_some_and(|h| h.node.as_str() == node)
        };
        if self.read(held) {
            // More than a note is kept for it there.
            return;
        }
        let found = cluster
            .at(slot)
            .map(|state| fit::fit(state, demand, &self.policies()));
        if let Some(Ok(found)) = found {
            let claim = Claim {
                note: SoftNote::of(slot, found, demand),
                namespace: pod::namespace(pod),
            };
            let old = self
                .claims
                .lock()
                .put(&pod::uid(pod), claim, Instant::now());
            if let Some(old) = old {
                self.grow_by(&old);
            }
        }
    }

    /// Remembers that filter refused `pod` on the nodes in `waiting.offered`,
    /// judged when the books had seen `enlargements`. Where they have grown
    /// meanwhile, it is looked at again.
    pub fn refused(&self, pod: &PodUid, waiting: Waiting, enlargements: u64) {
        let mut all = self.waits.lock();
        let before = all.get(pod).and_then(|known| known.told.as_ref());
        let told = waiting.told.clone().map(|told| told.after(before));
        let offered = waiting.offered.clone();
        let entry = all.entry(pod.clone()).or_insert(waiting);
        entry.refused = true;
        entry.offered = offered;
        entry.told = told;
        drop(all);
        self.unclaim(pod);
        if self.grown.lock().again(enlargements) {
            self.enlarged.notify_one();
        }
    }

    /// The pod is gone: it waits no longer.
    pub fn forget(&self, pod: &PodUid) {
        self.waits.lock().remove(pod);
        self.unhold(pod);
        self.unclaim(pod);
    }

    /// The pod as the watch last showed it, if it waits.
    pub fn waiting(&self, pod: &PodUid) -> Option<Waiting> {
        self.waits.lock().get(pod).cloned()
    }

    /// How many pods wait, and how many of them are refused.
    pub fn waiting_counts(&self) -> (usize, usize) {
        let all = self.waits.lock();
        (all.len(), all.values().filter(|w| w.refused).count())
    }

    /// Pods that the nodes' agents refused to start, with their node.
    pub fn refused_by_nodes(&self) -> Vec<(NodeName, Refused)> {
        self.named_by_nodes(|inventory| &inventory.refused)
    }

    /// Pods that must leave their sick card, with their node.
    pub fn evicted_by_nodes(&self) -> Vec<(NodeName, Refused)> {
        self.named_by_nodes(|inventory| &inventory.evict)
    }

    fn named_by_nodes(&self, list: fn(&Inventory) -> &Vec<Refused>) -> Vec<(NodeName, Refused)> {
        let mut named = Vec::new();
        for (_, name, node) in self.snapshot().iter() {
            let found = node.inventory.as_deref().map(list);
            named.extend(
                found
                    .into_iter()
                    .flatten()
                    .map(|pod| (name.clone(), pod.clone())),
            );
        }
        named
    }

    /// Chooses cards for the pod on the current books and reserves them, if the
    /// namespace's quotas allow it.
    pub fn reserve(
        &self,
        pod: &PodUid,
        namespace: &Namespace,
        node: &NodeName,
        demand: &Demand,
    ) -> Result<Allocation, NotReserved> {
        let policies = self.policies();
        // Before it is booked: counted twice, it would keep others asleep.
        let claimed = self.claims.lock().end(pod);
        let mut ledger = self.ledger.write();
        let reserved = ledger.reserve(pod, namespace, node, demand, &policies);
        let slot = ledger.cluster().slot(node.as_str());
        drop(ledger);
        // It did not take what it claimed: another may.
        if let Some(claim) = claimed
            && (reserved.is_err() || Some(claim.note.slot) != slot)
        {
            self.grow_by(&claim);
        }
        reserved
    }

    /// Frees a reservation whose Binding definitely failed.
    pub fn cancel(&self, pod: &PodUid) {
        let freed = self.ledger.write().cancel(pod);
        if let Some(booking) = freed {
            self.freed(&booking);
        }
    }

    /// Compares the books with recomputed ones, adopts those where they differ,
    /// and returns where they did.
    pub fn recompute(&self) -> Differences {
        // A copy: the comparison takes a while.
        let running = self.read(Ledger::clone);
        if running.differences(&running.recompute()).count() == 0 {
            return Differences::default();
        }
        let mut ledger = self.ledger.write();
        let differences = ledger.rebuild();
        drop(ledger);
        self.grow(Where::Everywhere);
        differences
    }
}

#[cfg(test)]
#[path = "books_tests.rs"]
pub(crate) mod tests;
