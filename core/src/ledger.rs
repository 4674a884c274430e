//! The ledger: what is allocated to which pod on which device, and what is reserved.
//!
//! `reserve` makes an entry before a Binding is sent; the watch alone confirms it. Both
//! take capacity. Nothing is freed on a guess, and an unreadable allocation takes the whole
//! node (fail closed), unless anybody could have written it ([`AllocatedUse::Unproven`]).
//! A node's state is a function of its publication, its pods' entries and its reservations
//! for preemptors ([`NodeState::of`]), and a namespace's usage is a function of its pods'
//! entries; `recompute` applies these functions to everything.

mod recompute;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::allocation::Allocation;
use crate::cluster::Cluster;
use crate::demand::{Demand, Requests};
use crate::fit::{self, Fit};
use crate::id::{Namespace, NodeName, PodUid};
use crate::node::{self, NodePublication, NodeState};
use crate::quota::{Headroom, Namespaces, Quota, QuotaAmount};
use crate::refusal::{Reason, Refusal};
use crate::replicas::Replicas;
use crate::resize::{self, ResizeRefusal, ResizeRequest, Resized};
use crate::score::Policies;
use crate::typical::{Census, PodShape};
use crate::usage::{self, AllocatedUse, DeviceUses, Stage};

pub use recompute::Differences;

/// One pod's entry in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEntry {
    /// The node.
    pub node: NodeName,
    /// The namespace whose quotas it is charged to.
    pub namespace: Namespace,
    /// What it uses of the node's devices.
    pub allocated: AllocatedUse,
    /// What it requests of the node's CPU, memory and kubelet replicas.
    pub requests: Requests,
    /// Confirmed by the watch; otherwise reserved for a Binding under way.
    pub confirmed: bool,
    /// A resize that is being written.
    pub resizing: Option<Box<Resizing>>,
}

/// What is reserved for a resize until the watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resizing {
    /// Its number ([`crate::resize::ResizeStatus::generation`]).
    pub generation: u64,
    /// What the pod may use then.
    reserved: DeviceUses,
    /// What the watch shows.
    watched: AllocatedUse,
}

impl PodEntry {
    /// Whether it uses a share of a device, or may.
    pub fn uses_devices(&self) -> bool {
        self.allocated.uses().is_none_or(|uses| !uses.is_empty())
    }
}

/// A share that is reserved for a pod that has no entry yet. It takes capacity from every
/// other pod, until that pod has an entry on any node; should the entry be cancelled, it
/// counts again, for a gang's member as what the entry took. The scheduler makes and removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The node.
    pub node: NodeName,
    /// What is reserved of its devices.
    pub allocated: AllocatedUse,
    /// What is reserved of its kubelet's replicas.
    pub replicas: Replicas,
    /// What the pod waits for.
    pub purpose: Purpose,
}

/// What a pod with a reservation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The end of its victims, by a plan.
    Preemption {
        /// They hold some of what is reserved.
        victims: Vec<PodUid>,
        /// The pod's annotation records the plan; otherwise only this process knows it.
        recorded: bool,
    },
    /// The Bindings of its gang. Charged to the quotas of this namespace.
    Gang(Namespace),
}

/// Why nothing was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReserved {
    /// No device fits now, or a quota is exceeded.
    Refused(Refusal),
    /// The pod has an entry already, on this node.
    AlreadyAllocated(NodeName),
}

/// Why nothing was reserved for a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotResized {
    /// It does not fit.
    Refused(ResizeRefusal),
    /// The ledger does not show the pod as it is, or another resize of it is being written.
    Behind,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeEntry {
    published: Option<NodePublication>,
    pods: BTreeSet<PodUid>,
    /// Pods with a reservation on the node.
    reservations: BTreeSet<PodUid>,
}

/// The ledger of all nodes and namespaces.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    cluster: Cluster,
    namespaces: Namespaces,
    entries: HashMap<NodeName, NodeEntry>,
    pod_entries: HashMap<PodUid, PodEntry>,
    reservations: HashMap<PodUid, Reservation>,
    /// During [`Self::together`], the nodes whose state is to be updated.
    outdated: Option<BTreeSet<NodeName>>,
}

impl Ledger {
    /// Applies these changes, and then updates each node that they concern once. Until then
    /// [`Self::cluster`] is as before.
    pub fn together<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.outdated = Some(BTreeSet::new());
        let changed = change(self);
        for name in self.outdated.take().unwrap_or_default() {
            self.refresh(&name);
        }
        changed
    }

    /// The nodes; a clone is a snapshot.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What a node published.
    pub fn published(&self, name: &str) -> Option<&NodePublication> {
        self.entries.get(name)?.published.as_ref()
    }

    /// The pod's entry.
    pub fn pod_entry(&self, pod: &PodUid) -> Option<&PodEntry> {
        self.pod_entries.get(pod)
    }

    /// Every pod's entry.
    pub fn pod_entries(&self) -> impl Iterator<Item = (&PodUid, &PodEntry)> {
        self.pod_entries.iter()
    }

    /// The pods with an entry on a node.
    pub fn pods_on(&self, name: &str) -> impl Iterator<Item = &PodUid> {
        self.entries.get(name).into_iter().flat_map(|e| &e.pods)
    }

    /// Counts the pods with an entry on a node by shape, and what it has of each GPU model.
    pub fn count_pods(&self, name: &NodeName, census: &mut Census) {
        let pods = self.pods_on(name.as_str());
        let node = self.cluster.node(name.as_str());
        if let Some(node) = node {
            node.models()
                .for_each(|(model, device)| census.balance.offer(model, device.available()));
        }
        for entry in pods.filter_map(|pod| self.pod_entry(pod)) {
            let host = entry.requests.host;
            if let (Some(node), Some(uses)) = (node, entry.allocated.uses()) {
                census
                    .balance
                    .ask(entry.requests.models.as_ref(), node.parts(uses));
            }
            if let Some(shape) = PodShape::of(&entry.allocated, host) {
                census.add(shape, host.memory);
            }
        }
    }

    /// Whether the pod's allocation counts on its node ([`NodePublication::counts`]).
    pub fn counts(&self, pod: &PodUid, entry: &PodEntry) -> bool {
        let published = self.published(entry.node.as_str());
        published.is_some_and(|published| published.counts(pod, &entry.allocated))
    }

    /// The pods with an unreadable allocation, each of which makes its node full.
    pub fn unreadable(&self) -> impl Iterator<Item = (&PodUid, &PodEntry)> {
        let unreadable = |(pod, entry): &(&PodUid, &PodEntry)| {
            entry.allocated.uses().is_none() && self.counts(pod, entry)
        };
        self.pod_entries().filter(unreadable)
    }

    /// Records what a node published; `None` for a removed node.
    pub fn publish(&mut self, name: &NodeName, published: Option<NodePublication>) {
        self.entries.entry(name.clone()).or_default().published = published;
        self.refresh(name);
    }

    /// Whether this node can take this pod.
    pub fn fit(&self, name: &str, demand: &Demand, policies: &Policies) -> Result<Fit, Refusal> {
        fit_on(
            self.cluster.node(name).map(|node| &**node),
            demand,
            policies,
        )
    }

    /// Chooses devices on the current ledger and allocates them in one step, if the quotas
    /// of the namespace allow it.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        namespace: &Namespace,
        name: &NodeName,
        demand: &Demand,
        policies: &Policies,
    ) -> Result<Allocation, NotReserved> {
        if let Some(pod_entry) = self.pod_entries.get(pod) {
            return Err(NotReserved::AlreadyAllocated(pod_entry.node.clone()));
        }
        let (found, allocation) = self
            .choose(pod, namespace, name, demand, policies)
            .map_err(NotReserved::Refused)?;
        let pod_entry = PodEntry {
            node: name.clone(),
            namespace: namespace.clone(),
            allocated: AllocatedUse::Known(usage::effective(&allocation, demand.stages())),
            requests: demand.requests(),
            confirmed: false,
            resizing: None,
        };
        self.insert(pod, pod_entry.clone());
        if let Some(gang @ Purpose::Gang(_)) = self.reservations.get(pod).map(|own| &own.purpose) {
            // Others may take what the pod leaves of it: should the entry be cancelled, what it
            // took is free, and nothing else surely is.
            let taken = Reservation {
                node: name.clone(),
                allocated: pod_entry.allocated,
                replicas: pod_entry.requests.replicas,
                purpose: gang.clone(),
            };
            self.put_reservation(pod, taken);
        }
        debug_assert!(
            self.cluster.node(name.as_str()).is_some_and(|node| {
                let mut devices = found.uses.iter().map(|(device, _)| &node.devices[*device]);
                devices.all(node::within_capacity)
                    && (found.instances.is_empty() || node::mig_placements_are_consistent(node))
            }),
            "a reservation exceeds a device's capacity"
        );
        Ok(allocation)
    }

    /// The devices of this node that the pod would get now, if the quotas of its namespace
    /// allow it.
    fn choose(
        &self,
        pod: &PodUid,
        namespace: &Namespace,
        name: &NodeName,
        demand: &Demand,
        policies: &Policies,
    ) -> Result<(Fit, Allocation), Refusal> {
        let state = self.node_for(pod, name.as_str());
        let found = fit_on(state.as_deref(), demand, policies)?;
        let amount = QuotaAmount::of(found.uses.iter().map(|(_, used)| used));
        let headroom = self.headroom_for(pod, namespace.as_str());
        if let Some(over) = headroom.and_then(|headroom| headroom.excess(amount)) {
            return Err(Refusal::quota_exceeded(over));
        }
        let inventory = state.and_then(|node| node.inventory.clone());
        let inventory = inventory.ok_or_else(|| Refusal::of(Reason::NodeNotRegistered))?;
        let allocation = found.allocation(name, &inventory, demand);
        Ok((found, allocation))
    }

    /// Chooses devices on the current ledger for a member of a gang and reserves them until its
    /// Binding, in place of what was reserved for it before. A plan's reservation stays as it is,
    /// and a pod with an entry needs none.
    pub fn reserve_for_gang(
        &mut self,
        pod: &PodUid,
        namespace: &Namespace,
        name: &NodeName,
        demand: &Demand,
        policies: &Policies,
    ) -> Result<(), Refusal> {
        if self.pod_entries.contains_key(pod) {
            return Ok(());
        }
        let (_, allocation) = self.choose(pod, namespace, name, demand, policies)?;
        let planned = |own: &Reservation| matches!(own.purpose, Purpose::Preemption { .. });
        if !self.reservation_for(pod).is_some_and(planned) {
            let reservation = Reservation {
                node: name.clone(),
                allocated: AllocatedUse::Known(usage::effective(&allocation, demand.stages())),
                replicas: demand.replicas(),
                purpose: Purpose::Gang(namespace.clone()),
            };
            self.put_reservation(pod, reservation);
        }
        Ok(())
    }

    /// The watch shows the pod bound with this allocation. Replaces the pod's entry and
    /// returns the old one.
    pub fn confirm(
        &mut self,
        pod: &PodUid,
        namespace: &Namespace,
        node: &NodeName,
        allocated: AllocatedUse,
        requests: impl Into<Requests>,
    ) -> Option<PodEntry> {
        let resizing = self.pod_entries.get(pod).filter(|old| old.node == *node);
        let resizing = resizing.and_then(|old| old.resizing.clone());
        // An event from before the resize takes nothing from it.
        let (allocated, resizing) = match resizing {
            Some(mut resizing) => {
                resizing.watched = allocated;
                (resizing.counted(), Some(resizing))
            }
            None => (allocated, None),
        };
        let pod_entry = PodEntry {
            node: node.clone(),
            namespace: namespace.clone(),
            allocated,
            requests: requests.into(),
            confirmed: true,
            resizing,
        };
        self.insert(pod, pod_entry)
    }

    /// Decides on a resize and reserves what it takes, until [`Self::end_resize`]. `allocation` is
    /// that of the pod, `from` its share before a resize that is under way.
    pub fn reserve_resize(
        &mut self,
        pod: &PodUid,
        generation: u64,
        (allocation, from): (&Allocation, &Allocation),
        request: &ResizeRequest,
        stages: &[(String, Stage)],
    ) -> Result<Resized, NotResized> {
        let known = self
            .pod_entries
            .get(pod)
            .filter(|entry| entry.resizing.is_none());
        let entry = known.ok_or(NotResized::Behind)?;
        let watched = AllocatedUse::Known(resize::uses(allocation, stages));
        if entry.node != allocation.node || entry.allocated != watched {
            return Err(NotResized::Behind);
        }
        let node = self.entries.get(&entry.node).ok_or(NotResized::Behind)?;
        let node = self.state(node, None, Some(pod));
        let headroom = self.headroom(entry.namespace.as_str());
        let headroom = headroom.map(|headroom| headroom.without(&watched));
        let resized = resize::resize(allocation, from, request, stages, &node, headroom.as_ref())
            .map_err(NotResized::Refused)?;
        let resizing = Resizing {
            generation,
            reserved: resize::uses(&resized.allocation, stages),
            watched,
        };
        let entry = PodEntry {
            allocated: resizing.counted(),
            resizing: Some(Box::new(resizing)),
            ..entry.clone()
        };
        self.insert(pod, entry);
        Ok(resized)
    }

    /// The watch shows a resize of this number or a later one, or the resize of this number is
    /// definitely not written: only what the watch shows counts. Returns the entry as it was.
    pub fn end_resize(&mut self, pod: &PodUid, generation: u64) -> Option<PodEntry> {
        let entry = self.pod_entries.get(pod)?;
        let resizing = entry.resizing.as_deref();
        let resizing = resizing.filter(|resizing| resizing.generation <= generation)?;
        let entry = PodEntry {
            allocated: resizing.watched.clone(),
            resizing: None,
            ..entry.clone()
        };
        self.insert(pod, entry)
    }

    /// The pod has finished or is gone: its allocation is free.
    pub fn release(&mut self, pod: &PodUid) -> Option<PodEntry> {
        let pod_entry = self.pod_entries.remove(pod)?;
        self.namespaces
            .remove(&pod_entry.namespace, &pod_entry.allocated);
        self.charge_reservation(pod);
        if let Some(entry) = self.entries.get_mut(&pod_entry.node) {
            entry.pods.remove(pod);
        }
        self.refresh(&pod_entry.node);
        self.refresh_reservation(pod);
        Some(pod_entry)
    }

    /// The Binding definitely failed: removes a reserved entry, never a confirmed one.
    pub fn cancel(&mut self, pod: &PodUid) -> Option<PodEntry> {
        match self.pod_entries.get(pod) {
            Some(pod_entry) if !pod_entry.confirmed => self.release(pod),
            _ => None,
        }
    }

    /// What the pods of each namespace use, and its quotas.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// What the quotas of a namespace leave; `None` without limits.
    pub fn headroom(&self, namespace: &str) -> Option<Headroom> {
        self.namespaces.headroom(namespace)
    }

    /// What the quotas of a namespace leave for this pod: what is reserved for the pod itself
    /// counts as left. `None` without limits.
    pub fn headroom_for(&self, pod: &PodUid, namespace: &str) -> Option<Headroom> {
        let headroom = self.headroom(namespace)?;
        let own = self.charged_reservation(pod);
        let own = own.filter(|(charged, _)| charged.as_str() == namespace);
        Some(match own {
            Some((_, allocated)) => headroom.without(allocated),
            None => headroom,
        })
    }

    /// Sets or removes (`None`) this quota of a namespace. Returns whether a limit changed.
    pub fn set_quota(&mut self, namespace: &Namespace, name: &str, quota: Option<Quota>) -> bool {
        self.namespaces.set(namespace, name, quota)
    }

    /// Replaces all quotas; returns the namespaces where a limit changed.
    pub fn set_quotas(&mut self, all: BTreeMap<Namespace, Vec<Quota>>) -> Vec<Namespace> {
        self.namespaces.set_all(all)
    }

    /// Reserves this for the pod in place of an earlier reservation.
    pub fn put_reservation(&mut self, pod: &PodUid, reservation: Reservation) {
        if let Some(old) = self.reservations.get_mut(pod) {
            let same = (&old.node, &old.allocated, &old.replicas)
                == (
                    &reservation.node,
                    &reservation.allocated,
                    &reservation.replicas,
                );
            let same_purpose = match (&old.purpose, &reservation.purpose) {
                (Purpose::Preemption { victims, .. }, Purpose::Preemption { victims: new, .. }) => {
                    victims == new
                }
                (old, new) => old == new,
            };
            if same && same_purpose {
                old.purpose = reservation.purpose;
                return;
            }
            self.drop_reservation(pod);
        }
        let node = reservation.node.clone();
        let entry = self.entries.entry(node.clone()).or_default();
        entry.reservations.insert(pod.clone());
        self.reservations.insert(pod.clone(), reservation);
        self.charge_reservation(pod);
        self.refresh(&node);
    }

    /// Removes the pod's reservation and returns it.
    pub fn drop_reservation(&mut self, pod: &PodUid) -> Option<Reservation> {
        self.discharge_reservation(pod);
        let reservation = self.reservations.remove(pod)?;
        if let Some(entry) = self.entries.get_mut(&reservation.node) {
            entry.reservations.remove(pod);
        }
        self.refresh(&reservation.node);
        Some(reservation)
    }

    /// The pod's reservation.
    pub fn reservation_for(&self, pod: &PodUid) -> Option<&Reservation> {
        self.reservations.get(pod)
    }

    /// Every reservation.
    pub fn reservations(&self) -> impl Iterator<Item = (&PodUid, &Reservation)> {
        self.reservations.iter()
    }

    /// The pods with a reservation on a node.
    pub fn reservations_on(&self, name: &str) -> impl Iterator<Item = &PodUid> {
        self.entries
            .get(name)
            .into_iter()
            .flat_map(|e| &e.reservations)
    }

    /// The slot of the node with the pod's reservation, and the node's state without that
    /// reservation.
    pub fn node_seen_by_preemptor(&self, pod: &PodUid) -> Option<(usize, NodeState)> {
        let reservation = self.reservations.get(pod)?;
        let slot = self.cluster.slot(reservation.node.as_str())?;
        let entry = self.entries.get(&reservation.node)?;
        Some((slot, self.state(entry, Some(pod), None)))
    }

    /// The node as this pod sees it.
    fn node_for(&self, pod: &PodUid, name: &str) -> Option<Arc<NodeState>> {
        match (self.node_seen_by_preemptor(pod), self.cluster.slot(name)) {
            (Some((slot, node_seen_by_preemptor)), Some(here)) if slot == here => {
                Some(Arc::new(node_seen_by_preemptor))
            }
            _ => self.cluster.node(name).cloned(),
        }
    }

    /// The namespace that is charged for the pod's reservation, and what it is charged; `None`
    /// also once the pod has an entry.
    fn charged_reservation(&self, pod: &PodUid) -> Option<(&Namespace, &AllocatedUse)> {
        let reservation = self.reservations.get(pod)?;
        let Purpose::Gang(namespace) = &reservation.purpose else {
            return None;
        };
        let allocated = &reservation.allocated;
        (!self.pod_entries.contains_key(pod)).then_some((namespace, allocated))
    }

    fn charge_reservation(&mut self, pod: &PodUid) {
        if let Some((namespace, allocated)) = self.charged_reservation(pod) {
            let (namespace, allocated) = (namespace.clone(), allocated.clone());
            self.namespaces.add(&namespace, &allocated);
        }
    }

    fn discharge_reservation(&mut self, pod: &PodUid) {
        if let Some((namespace, allocated)) = self.charged_reservation(pod) {
            let (namespace, allocated) = (namespace.clone(), allocated.clone());
            self.namespaces.remove(&namespace, &allocated);
        }
    }

    /// The pod gained or lost an entry, so its reservation counts no longer, or again.
    fn refresh_reservation(&mut self, pod: &PodUid) {
        if let Some(reservation) = self.reservations.get(pod) {
            let node = reservation.node.clone();
            self.refresh(&node);
        }
    }

    fn insert(&mut self, pod: &PodUid, mut pod_entry: PodEntry) -> Option<PodEntry> {
        // All pods share one copy of their node's name.
        if let Some((name, _)) = self.entries.get_key_value(&pod_entry.node) {
            pod_entry.node = name.clone();
        }
        let old = match self.pod_entries.get(pod) {
            Some(old) if *old == pod_entry => return None,
            Some(old) if old.node != pod_entry.node => self.release(pod),
            Some(old) => {
                self.namespaces.remove(&old.namespace, &old.allocated);
                let old = self.pod_entries.remove(pod);
                self.charge_reservation(pod);
                old
            }
            None => None,
        };
        self.discharge_reservation(pod);
        pod_entry.namespace = self
            .namespaces
            .add(&pod_entry.namespace, &pod_entry.allocated);
        let node = pod_entry.node.clone();
        let entry = self.entries.entry(node.clone()).or_default();
        entry.pods.insert(pod.clone());
        self.pod_entries.insert(pod.clone(), pod_entry);
        self.refresh(&node);
        self.refresh_reservation(pod);
        old
    }

    /// Updates one node's state; removes a node without publication, pods and reservations.
    fn refresh(&mut self, name: &NodeName) {
        if let Some(outdated) = &mut self.outdated {
            if !outdated.contains(name) {
                outdated.insert(name.clone());
            }
            return;
        }
        let Some(entry) = self.entries.get(name) else {
            return;
        };
        if entry.published.is_none() && entry.pods.is_empty() && entry.reservations.is_empty() {
            self.entries.remove(name);
            self.cluster.put(name, None);
            return;
        }
        let state = self.state(entry, None, None);
        let old = self.cluster.node(name.as_str());
        if old.is_none_or(|old| **old != state) {
            self.cluster.put(name, Some(state));
        }
    }

    /// The node's state from its publication, its pods and its reservations except that of `except`.
    /// Nothing of it is allocated to `without`.
    fn state(
        &self,
        entry: &NodeEntry,
        except: Option<&PodUid>,
        without: Option<&PodUid>,
    ) -> NodeState {
        let nothing = AllocatedUse::nothing();
        let pod_entries = entry.pods.iter();
        let pod_entries = pod_entries.filter_map(|pod| Some((pod, self.pod_entries.get(pod)?)));
        let mut requested = Requests::default();
        let mut allocated = Vec::with_capacity(entry.pods.len());
        for (pod, pod_entry) in pod_entries {
            requested.plus(&pod_entry.requests);
            let counts = Some(pod) != without;
            allocated.push((
                pod,
                if counts {
                    &pod_entry.allocated
                } else {
                    &nothing
                },
            ));
        }
        // A pod with an entry has taken what was reserved for it.
        let reserved = entry.reservations.iter().filter(|pod| Some(*pod) != except);
        let reserved = reserved.filter(|pod| !self.pod_entries.contains_key(*pod));
        let reserved = reserved.filter_map(|pod| Some((pod, self.reservations.get(pod)?)));
        let reserved: Vec<_> = reserved.collect();
        for (pod, reservation) in &reserved {
            requested.replicas.plus(&reservation.replicas);
            allocated.push((*pod, &reservation.allocated));
        }
        let mut state = match &entry.published {
            Some(published) => NodeState::of(published, &allocated, requested),
            None => NodeState::of(&NodePublication::default(), &allocated, requested),
        };
        for (_, reservation) in reserved {
            if let (Purpose::Preemption { victims, .. }, Some(uses)) =
                (&reservation.purpose, reservation.allocated.uses())
            {
                state.hand_over(uses, victims, &allocated);
            }
        }
        state
    }
}

impl Resizing {
    /// The pod may use what the watch shows, and what is reserved.
    fn counted(&self) -> AllocatedUse {
        match &self.watched {
            AllocatedUse::Known(watched) => AllocatedUse::Known(watched.or(&self.reserved)),
            unreadable => unreadable.clone(),
        }
    }
}

/// Whether this node, if it is known, can take this pod.
fn fit_on(node: Option<&NodeState>, demand: &Demand, policies: &Policies) -> Result<Fit, Refusal> {
    match node {
        Some(node) => fit::fit(node, demand, policies),
        None => Err(Refusal::of(Reason::NodeNotRegistered)),
    }
}

#[cfg(test)]
mod tests {
    use crate::Mib;
    use crate::tests::{gpu, ledger, uses};
    use crate::units::HostResources;

    #[test]
    fn updates_a_node_once_for_changes_made_together() {
        let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
        let before = ledger.cluster().version(0);
        ledger.together(|ledger| {
            for pod in ["a", "b", "c"] {
                let (used, host) = (uses("GPU-0", 300, 0), HostResources::default());
                ledger.confirm(&pod.into(), &"team".into(), &"n".into(), used, host);
            }
            ledger.release(&"a".into());
        });
        assert_eq!(ledger.cluster().version(0), before + 1);
        let node = ledger.cluster().at(0).unwrap();
        assert_eq!(node.devices[0].allocated.used.memory, Mib(600));
        assert!(ledger == ledger.recompute());
    }
}
