//! The running books: the ledger behind one lock, and the pods that wait.
//!
//! Fed by: the watches of pods and nodes (as [`Index`]), and by
//! [`crate::bind`], which reserves.
//! Must not: await, or let anything but the pod watch confirm a booking.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_core::allocation::Allocation;
use aliquot_core::inventory::{INVENTORY, Inventory, Refused};
use aliquot_core::ledger::{Booking, Held, NotReserved};
use aliquot_core::{Demand, Ledger, NodeName, PodUid, fit::Policies};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::waiting::{Waiting, waiting};

/// Where something became free since refused pods were last looked at.
#[derive(Debug, Default)]
struct Grown {
    everywhere: bool,
    nodes: BTreeSet<NodeName>,
}

/// The books. One per process, shared.
#[derive(Debug, Default)]
pub struct Books {
    ledger: RwLock<Ledger>,
    waiting: Mutex<HashMap<PodUid, Waiting>>,
    /// Counts every change that may let a refused pod fit.
    enlargements: AtomicU64,
    enlarged: Notify,
    grown: Mutex<Grown>,
    settings: pod::Settings,
}

impl Books {
    /// Empty books that read pods by these names and defaults.
    pub fn new(settings: pod::Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// How pods are read.
    pub fn settings(&self) -> &pod::Settings {
        &self.settings
    }

    /// Reads the ledger; `look` must be quick and must not call back.
    pub fn read<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&self.ledger.read())
    }

    /// A number that grows with every enlargement; see [`Self::refused`].
    pub fn enlargements(&self) -> u64 {
        self.enlargements.load(Ordering::Acquire)
    }

    /// Returns after something was freed or became available.
    pub async fn enlarged(&self) {
        self.enlarged.notified().await;
    }

    /// Remembers that filter refused `pod`, judged when the books had seen
    /// `enlargements`. If they have grown meanwhile, it is looked at again.
    pub fn refused(&self, pod: &PodUid, waiting: Waiting, enlargements: u64) {
        let mut all = self.waiting.lock();
        all.entry(pod.clone()).or_insert(waiting).refused = true;
        drop(all);
        if self.enlargements() != enlargements {
            self.grow(None);
        }
    }

    /// Takes the mark of refusal from those refused pods that fit where
    /// something became free, highest priority first, and returns them.
    pub fn wakeable(&self, policies: Policies) -> Vec<(PodUid, PodRef)> {
        let refused: Vec<_> = {
            let all = self.waiting.lock();
            let refused = all.iter().filter(|(_, w)| w.refused);
            refused.map(|(uid, w)| (uid.clone(), w.clone())).collect()
        };
        let grown = std::mem::take(&mut *self.grown.lock());
        let mut awake: Vec<_> = self.read(|ledger| {
            let nodes: Vec<_> = if grown.everywhere {
                ledger.nodes().map(|(name, _)| name).collect()
            } else {
                grown.nodes.iter().collect()
            };
            let fits = |w: &Waiting| {
                let mut nodes = nodes.iter();
                nodes.any(|name| ledger.fit(name.as_str(), &w.demand, policies).is_ok())
            };
            refused.into_iter().filter(|(_, w)| fits(w)).collect()
        });
        awake.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
        let mut all = self.waiting.lock();
        for (uid, _) in &awake {
            if let Some(waiting) = all.get_mut(uid) {
                waiting.refused = false;
            }
        }
        awake.into_iter().map(|(uid, w)| (uid, w.pod)).collect()
    }

    /// The pod could not be woken: it is looked at again.
    pub fn not_woken(&self, pod: &PodUid) {
        if let Some(waiting) = self.waiting.lock().get_mut(pod) {
            waiting.refused = true;
        }
        self.grow(None);
    }

    /// The pod is gone: it waits no longer.
    pub fn forget(&self, pod: &PodUid) {
        self.waiting.lock().remove(pod);
    }

    /// The pod as the watch last showed it, if it waits.
    pub fn waiting(&self, pod: &PodUid) -> Option<Waiting> {
        self.waiting.lock().get(pod).cloned()
    }

    /// How many pods wait, and how many of them are refused.
    pub fn waiting_counts(&self) -> (usize, usize) {
        let all = self.waiting.lock();
        (all.len(), all.values().filter(|w| w.refused).count())
    }

    /// Pods that the nodes' agents refused to start.
    pub fn refused_by_nodes(&self) -> Vec<Refused> {
        self.read(|ledger| {
            let inventories = ledger
                .nodes()
                .filter_map(|(_, node)| node.inventory.as_ref());
            inventories
                .flat_map(|inventory| inventory.refused.clone())
                .collect()
        })
    }

    /// Chooses cards for the pod on the current books and reserves them.
    pub fn reserve(
        &self,
        pod: &PodUid,
        node: &NodeName,
        demand: &Demand,
        policies: Policies,
    ) -> Result<Allocation, NotReserved> {
        self.ledger.write().reserve(pod, node, demand, policies)
    }

    /// Frees a reservation whose Binding definitely failed.
    pub fn cancel(&self, pod: &PodUid) {
        let freed = self.ledger.write().cancel(pod);
        if let Some(booking) = freed {
            self.grow(Some(booking.node));
        }
    }

    /// Adopts recomputed books; returns the nodes on which they differed.
    pub fn recompute(&self) -> Vec<NodeName> {
        let mut ledger = self.ledger.write();
        let fresh = ledger.recompute();
        let differences = ledger.differences(&fresh);
        *ledger = fresh;
        differences
    }

    /// Something became free on this node, or anywhere.
    fn grow(&self, node: Option<NodeName>) {
        let mut grown = self.grown.lock();
        match node {
            Some(node) => drop(grown.nodes.insert(node)),
            None => grown.everywhere = true,
        }
        drop(grown);
        self.enlargements.fetch_add(1, Ordering::AcqRel);
        self.enlarged.notify_one();
    }

    /// Books what the watch shows of a pod; the booking that ended by it.
    fn book(ledger: &mut Ledger, uid: &PodUid, pod: &Pod) -> Option<Booking> {
        if pod::ended(pod) {
            return ledger.release(uid);
        }
        match pod::held(pod) {
            Some((node, held)) => {
                if held == Held::Unreadable {
                    tracing::error!(pod = ?pod.metadata.name, %node, "allocation cannot be read; its node counts as full");
                }
                ledger.confirm(uid, &node, held);
                None
            }
            // Bound by somebody else: what we may have reserved will not be used.
            None if pod::node(pod).is_some() => ledger.release(uid),
            None => None,
        }
    }

    fn wait(&self, all: &mut HashMap<PodUid, Waiting>, uid: PodUid, pod: &Pod, refused: bool) {
        if pod::node(pod).is_some() || pod::ended(pod) {
            all.remove(&uid);
            return;
        }
        match pod::demand(pod, &self.settings) {
            Ok(demand) if demand.asks() => {
                let refused = all.get(&uid).map_or(refused, |w| w.refused);
                all.insert(uid, waiting(pod, demand, refused));
            }
            // A pod whose demand cannot be read is told so when it is filtered.
            Ok(_) | Err(_) => {
                all.remove(&uid);
            }
        }
    }
}

impl Index<Pod> for Books {
    fn apply(&self, pod: Pod) {
        let uid = pod::uid(&pod);
        let freed = Self::book(&mut self.ledger.write(), &uid, &pod);
        if let Some(booking) = freed {
            self.grow(Some(booking.node));
        }
        self.wait(&mut self.waiting.lock(), uid, &pod, false);
    }

    fn delete(&self, pod: Pod) {
        let uid = pod::uid(&pod);
        let freed = self.ledger.write().release(&uid);
        if let Some(booking) = freed {
            self.grow(Some(booking.node));
        }
        self.forget(&uid);
    }

    /// Confirmed bookings of pods that are not listed end. Reservations stay:
    /// a pod may be younger than the list; [`crate::audit`] looks after them.
    fn reset(&self, pods: Vec<Pod>) {
        let mut ledger = self.ledger.write();
        let listed: HashMap<_, _> = pods.iter().map(|pod| (pod::uid(pod), pod)).collect();
        let gone: Vec<_> = ledger
            .bookings()
            .filter(|(uid, booking)| booking.confirmed && !listed.contains_key(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            ledger.release(&uid);
        }
        for (uid, pod) in &listed {
            Self::book(&mut ledger, uid, pod);
        }
        drop(ledger);
        let mut all = self.waiting.lock();
        all.retain(|uid, _| listed.contains_key(uid));
        for (uid, pod) in listed {
            self.wait(&mut all, uid, pod, true);
        }
        drop(all);
        self.grow(None);
    }
}

impl Index<Node> for Books {
    fn apply(&self, node: Node) {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        let inventory = inventory(&node).map(Arc::new);
        let mut ledger = self.ledger.write();
        let known = ledger
            .node(name.as_str())
            .and_then(|n| n.inventory.as_ref());
        if known == inventory.as_ref() {
            return;
        }
        ledger.set_inventory(&name, inventory);
        drop(ledger);
        self.grow(Some(name));
    }

    fn delete(&self, node: Node) {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        self.ledger.write().set_inventory(&name, None);
    }

    fn reset(&self, nodes: Vec<Node>) {
        let mut ledger = self.ledger.write();
        let known: Vec<_> = ledger.nodes().map(|(name, _)| name.clone()).collect();
        for name in known {
            ledger.set_inventory(&name, None);
        }
        for node in nodes {
            let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
            ledger.set_inventory(&name, inventory(&node).map(Arc::new));
        }
        drop(ledger);
        self.grow(None);
    }
}

fn inventory(node: &Node) -> Option<Inventory> {
    let text = node.metadata.annotations.as_ref()?.get(INVENTORY)?;
    match Inventory::decode(text) {
        Ok(inventory) => Some(inventory),
        Err(error) => {
            tracing::error!(node = ?node.metadata.name, %error, "inventory cannot be read; the node takes no pods");
            None
        }
    }
}

#[cfg(test)]
#[path = "books_tests.rs"]
pub(crate) mod tests;
