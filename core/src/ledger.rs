//! The ledger: which pod holds what of which device.
//!
//! A pod has at most one entry, and every entry takes capacity. The scheduler assumes a share for a
//! pod that is to be bound, and forgets it; `reserve` makes the entry of a Binding that is about to
//! be sent; the watch alone confirms one. Nothing of a Binding is freed on a guess, and an unreadable
//! allocation takes the whole node (fail closed), unless anybody could have written it
//! ([`AllocatedUse::Unproven`]). A node's state is a function of its publication and its pods'
//! entries ([`NodeState::new`]), and so is a namespace's usage; `recompute` applies these functions to
//! everything.

mod recompute;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::allocation::Allocation;
use crate::cluster::Cluster;
use crate::demand::{Demand, Requests};
use crate::fit::{self, Fit};
use crate::id::{Namespace, NodeName, PodUid};
use crate::node::{self, NodePublication, NodeState};
use crate::quota::{Headroom, Namespaces, Quota};
use crate::refusal::{Reason, Refusal};
use crate::replicas::Replicas;
use crate::resize::{self, ResizeRefusal, ResizeRequest, Resized};
use crate::score::Policies;
use crate::typical::{Census, PodShape};
use crate::usage::{self, AllocatedUse, DeviceUses, Stage};

pub use recompute::Differences;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEntry {
    pub node: NodeName,
    /// The namespace whose quotas it is charged to.
    pub namespace: Namespace,
    /// What it uses of the node's devices.
    pub allocated: AllocatedUse,
    /// What it requests of the node's CPU, memory and kubelet replicas.
    pub requests: Requests,
    /// How certain it is that the pod gets it.
    pub phase: Phase,
    /// A resize that is being written.
    pub resizing: Option<Box<Resizing>>,
}

/// How certain it is that a pod gets what its entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is assumed: the scheduler forgets it if no Binding follows.
    Assumed(By),
    /// Its Binding is under way. Should that definitely fail, it is assumed again by the pod's gang or
    /// plan.
    Binding(Option<By>),
    /// The watch shows it.
    Bound,
}

/// Why a share is assumed for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Filter has named the node.
    Filter,
    /// The same for a member of a gang, whose Bindings wait for each other.
    Gang,
    /// A preemption plan, until its victims have ended. Quotas are not charged.
    Plan {
        /// They hold some of what is assumed.
        victims: Vec<PodUid>,
        /// The pod's annotation records the plan; otherwise only this process knows it.
        recorded: bool,
    },
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
    /// What a plan assumes for its preemptor. Its CPU and memory still belong to the victims.
    pub fn planned(
        node: NodeName,
        namespace: Namespace,
        (allocated, replicas): (AllocatedUse, Replicas),
        (victims, recorded): (Vec<PodUid>, bool),
    ) -> Self {
        Self {
            node,
            namespace,
            allocated,
            requests: Requests {
                replicas,
                ..Requests::default()
            },
            phase: Phase::Assumed(By::Plan { victims, recorded }),
            resizing: None,
        }
    }

    /// Whether it uses a share of a device, or may.
    pub fn uses_devices(&self) -> bool {
        self.allocated.uses().is_none_or(|uses| !uses.is_empty())
    }

    /// Whether both hold the same of the same node.
    pub fn holds_as(&self, other: &Self) -> bool {
        self.node == other.node
            && self.allocated == other.allocated
            && self.requests.replicas == other.requests.replicas
    }

    /// Whether the watch shows it.
    pub fn is_confirmed(&self) -> bool {
        self.phase == Phase::Bound
    }

    pub fn assumed_by(&self) -> Option<&By> {
        match &self.phase {
            Phase::Assumed(by) => Some(by),
            Phase::Binding(_) | Phase::Bound => None,
        }
    }

    /// Whether the quotas of its namespace are charged.
    fn is_charged(&self) -> bool {
        !matches!(self.phase, Phase::Assumed(By::Plan { .. }))
    }
}

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
    Refused(ResizeRefusal),
    /// The ledger does not show the pod as it is, or another resize of it is being written.
    Behind,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeEntry {
    published: Option<NodePublication>,
    pods: BTreeSet<PodUid>,
}

#[derive(Clone, Debug, Default)]
pub struct Ledger {
    cluster: Cluster,
    namespaces: Namespaces,
    entries: HashMap<NodeName, NodeEntry>,
    pod_entries: HashMap<PodUid, PodEntry>,
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

    pub fn published(&self, name: &str) -> Option<&NodePublication> {
        self.entries.get(name)?.published.as_ref()
    }

    /// The pod's entry, if it is bound or its Binding is under way.
    pub fn pod_entry(&self, pod: &PodUid) -> Option<&PodEntry> {
        let entry = self.pod_entries.get(pod);
        entry.filter(|entry| entry.assumed_by().is_none())
    }

    pub fn assumed(&self, pod: &PodUid) -> Option<&PodEntry> {
        let entry = self.pod_entries.get(pod);
        entry.filter(|entry| entry.assumed_by().is_some())
    }

    /// The entry of every pod that is bound or whose Binding is under way.
    pub fn pod_entries(&self) -> impl Iterator<Item = (&PodUid, &PodEntry)> {
        let entries = self.pod_entries.iter();
        entries.filter(|(_, entry)| entry.assumed_by().is_none())
    }

    pub fn assumptions(&self) -> impl Iterator<Item = (&PodUid, &PodEntry)> {
        let entries = self.pod_entries.iter();
        entries.filter(|(_, entry)| entry.assumed_by().is_some())
    }

    /// The entries on a node, in the order of the pods.
    pub fn on(&self, name: &str) -> impl Iterator<Item = (&PodUid, &PodEntry)> {
        let node = self.entries.get(name);
        let pods = node.into_iter().flat_map(|node| &node.pods);
        pods.filter_map(|pod| Some((pod, self.pod_entries.get(pod)?)))
    }

    /// The pods that are bound to a node, or are being bound.
    pub fn pods_on(&self, name: &str) -> impl Iterator<Item = (&PodUid, &PodEntry)> {
        let entries = self.on(name);
        entries.filter(|(_, entry)| entry.assumed_by().is_none())
    }

    /// Counts the pods with an entry on a node by shape, and what it has of each GPU model.
    pub fn count_pods(&self, name: &NodeName, census: &mut Census) {
        let node = self.cluster.node(name.as_str());
        if let Some(node) = node {
            node.models()
                .for_each(|(model, device)| census.balance.offer(model, device.available()));
        }
        for (_, entry) in self.pods_on(name.as_str()) {
            let host = entry.requests.host;
            if let (Some(node), Some(uses)) = (node, entry.allocated.uses()) {
                census
                    .balance
                    .ask(entry.requests.models.as_ref(), node.parts(uses));
            }
            if let Some(shape) = PodShape::new(&entry.allocated, host) {
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

    /// Chooses devices on the current ledger for a pod that is about to be bound, if the quotas of
    /// the namespace allow it. What was assumed for the pod is free.
    pub fn reserve(
        &mut self,
        pod: &PodUid,
        namespace: &Namespace,
        name: &NodeName,
        demand: &Demand,
        policies: &Policies,
    ) -> Result<Allocation, NotReserved> {
        if let Some(pod_entry) = self.pod_entry(pod) {
            return Err(NotReserved::AlreadyAllocated(pod_entry.node.clone()));
        }
        let (found, allocation) = self
            .choose(pod, namespace, name, demand, policies)
            .map_err(NotReserved::Refused)?;
        let assumed = self.assumed(pod).and_then(PodEntry::assumed_by).cloned();
        // A plan that is not recorded is not followed once its pod is being bound.
        let lasts = |by: &By| matches!(by, By::Gang | By::Plan { recorded: true, .. });
        let again = assumed.filter(lasts);
        let entry = chosen(name, namespace, demand, &allocation, Phase::Binding(again));
        self.insert(pod, entry);
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
        let not_registered = || Refusal::from(Reason::NodeNotRegistered);
        let node = self
            .node_for(pod, name.as_str())
            .ok_or_else(not_registered)?;
        let found = fit::fit(&node, demand, policies)?;
        let headroom = self.headroom_for(pod, namespace.as_str());
        if let Some(over) = headroom.and_then(|headroom| headroom.excess(found.amount())) {
            return Err(Refusal::quota_exceeded(over));
        }
        let inventory = node.inventory.as_ref().ok_or_else(not_registered)?;
        let allocation = found.allocation(name, inventory, demand);
        Ok((found, allocation))
    }

    /// Chooses devices on the current ledger for a pod that filter names this node for, and assumes
    /// them in place of what was assumed for it before, which is returned if it was something else. A
    /// plan's assumption stays as it is, and so does the entry of a pod that is bound, or being bound.
    pub fn assume(
        &mut self,
        pod: &PodUid,
        namespace: &Namespace,
        name: &NodeName,
        (demand, by): (&Demand, By),
        policies: &Policies,
    ) -> Result<Option<PodEntry>, Refusal> {
        if self.pod_entry(pod).is_some() {
            return Ok(None);
        }
        let (_, allocation) = self.choose(pod, namespace, name, demand, policies)?;
        let planned = |entry: &PodEntry| matches!(entry.assumed_by(), Some(By::Plan { .. }));
        if self.assumed(pod).is_some_and(planned) {
            return Ok(None);
        }
        let entry = chosen(name, namespace, demand, &allocation, Phase::Assumed(by));
        Ok(self.insert(pod, entry))
    }

    /// Assumes what a plan says ([`PodEntry::planned`]), unless the pod is bound, or being bound.
    /// Returns what was assumed for the pod before, if it was something else.
    pub fn assume_plan(&mut self, pod: &PodUid, planned: PodEntry) -> Option<PodEntry> {
        if self.pod_entry(pod).is_some() {
            return None;
        }
        self.insert(pod, planned)
    }

    pub fn forget(&mut self, pod: &PodUid) -> Option<PodEntry> {
        self.assumed(pod)?;
        self.release(pod)
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
        let old = self.pod_entries.get(pod).filter(|old| old.node == *node);
        let resizing = old.and_then(|old| old.resizing.clone());
        // The event may be older than the resize: what the resize reserves still counts.
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
            phase: Phase::Bound,
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
        let entry = self
            .pod_entry(pod)
            .filter(|entry| entry.resizing.is_none())
            .ok_or(NotResized::Behind)?;
        let watched = AllocatedUse::Known(resize::uses(allocation, stages));
        if entry.node != allocation.node || entry.allocated != watched {
            return Err(NotResized::Behind);
        }
        let node = self.entries.get(&entry.node).ok_or(NotResized::Behind)?;
        let state = self.state(node, None, Some(pod));
        let headroom = self
            .headroom(entry.namespace.as_str())
            .map(|headroom| headroom.without(&watched));
        let resized = resize::resize(allocation, from, request, stages, &state, headroom.as_ref())
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
        let resizing = entry
            .resizing
            .as_deref()
            .filter(|resizing| resizing.generation <= generation)?;
        let ended = PodEntry {
            allocated: resizing.watched.clone(),
            resizing: None,
            ..entry.clone()
        };
        self.insert(pod, ended)
    }

    /// The pod has finished or is gone: what it holds is free.
    pub fn release(&mut self, pod: &PodUid) -> Option<PodEntry> {
        let entry = self.take(pod)?;
        self.refresh(&entry.node);
        Some(entry)
    }

    /// The Binding definitely failed: what it took is free, unless the pod's gang or plan assumes it
    /// again. Returns the entry as it was.
    pub fn cancel(&mut self, pod: &PodUid) -> Option<PodEntry> {
        let entry = self.pod_entries.get(pod)?;
        match &entry.phase {
            Phase::Binding(Some(by)) => {
                let phase = Phase::Assumed(by.clone());
                let entry = PodEntry {
                    phase,
                    ..entry.clone()
                };
                self.insert(pod, entry)
            }
            Phase::Binding(None) => self.release(pod),
            Phase::Assumed(_) | Phase::Bound => None,
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

    /// What the quotas of a namespace leave for this pod: what is assumed for the pod itself counts
    /// as left. `None` without limits.
    pub fn headroom_for(&self, pod: &PodUid, namespace: &str) -> Option<Headroom> {
        let headroom = self.headroom(namespace)?;
        let assumed = self.assumed(pod).filter(|own| own.is_charged());
        let own = assumed.filter(|own| own.namespace.as_str() == namespace);
        Some(match own {
            Some(own) => headroom.without(&own.allocated),
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

    /// The slot of the node where a share is assumed for the pod, and the node's state without it.
    pub fn node_without_assumed(&self, pod: &PodUid) -> Option<(usize, NodeState)> {
        let assumed = self.assumed(pod)?;
        let slot = self.cluster.slot(assumed.node.as_str())?;
        let entry = self.entries.get(&assumed.node)?;
        Some((slot, self.state(entry, Some(pod), None)))
    }

    /// The node as this pod sees it.
    fn node_for(&self, pod: &PodUid, name: &str) -> Option<Arc<NodeState>> {
        match (self.node_without_assumed(pod), self.cluster.slot(name)) {
            (Some((slot, without)), Some(here)) if slot == here => Some(Arc::new(without)),
            _ => self.cluster.node(name).cloned(),
        }
    }

    /// Replaces the pod's entry; returns the old one if it was another.
    fn insert(&mut self, pod: &PodUid, mut new: PodEntry) -> Option<PodEntry> {
        // All pods share one copy of their node's name.
        if let Some((name, _)) = self.entries.get_key_value(&new.node) {
            new.node = name.clone();
        }
        if self.pod_entries.get(pod).is_some_and(|old| *old == new) {
            return None;
        }
        let old = self.take(pod);
        if new.is_charged() {
            new.namespace = self.namespaces.add(&new.namespace, &new.allocated);
        }
        let node = new.node.clone();
        let entry = self.entries.entry(node.clone()).or_default();
        entry.pods.insert(pod.clone());
        self.pod_entries.insert(pod.clone(), new);
        if let Some(old) = old.as_ref().filter(|old| old.node != node) {
            self.refresh(&old.node);
        }
        self.refresh(&node);
        old
    }

    /// Removes the pod's entry; the caller updates its node.
    fn take(&mut self, pod: &PodUid) -> Option<PodEntry> {
        let old = self.pod_entries.remove(pod)?;
        if old.is_charged() {
            self.namespaces.remove(&old.namespace, &old.allocated);
        }
        if let Some(entry) = self.entries.get_mut(&old.node) {
            entry.pods.remove(pod);
        }
        Some(old)
    }

    /// Updates one node's state; removes a node without publication and pods.
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
        let state = self.shown_state(entry);
        if entry.published.is_none() && entry.pods.is_empty() {
            self.entries.remove(name);
        }
        let old = self.cluster.node(name.as_str()).map(|old| &**old);
        if old != state.as_ref() {
            self.cluster.put(name, state);
        }
    }

    /// The node's state in the cluster. None for a node that does not exist, unless a pod has a
    /// share there: the cluster never forgets a name, and a pod may name any node.
    fn shown_state(&self, node: &NodeEntry) -> Option<NodeState> {
        let mut pods = node.pods.iter().filter_map(|pod| self.pod_entries.get(pod));
        let is_shown = node.published.is_some() || pods.any(PodEntry::uses_devices);
        is_shown.then(|| self.state(node, None, None))
    }

    /// The node's state from its publication and its pods. The pod `except` is left out; the pod
    /// `without` counts with what it requests, but without devices.
    fn state(
        &self,
        node: &NodeEntry,
        except: Option<&PodUid>,
        without: Option<&PodUid>,
    ) -> NodeState {
        let nothing = AllocatedUse::nothing();
        let mut requested = Requests::default();
        let mut allocated = Vec::with_capacity(node.pods.len());
        let mut plans = Vec::new();
        for pod in node.pods.iter().filter(|pod| Some(*pod) != except) {
            let Some(entry) = self.pod_entries.get(pod) else {
                continue;
            };
            requested.plus(&entry.requests);
            let counts = Some(pod) != without;
            allocated.push((pod, if counts { &entry.allocated } else { &nothing }));
            if let (Some(By::Plan { victims, .. }), Some(uses)) =
                (entry.assumed_by(), entry.allocated.uses())
            {
                plans.push((uses, victims));
            }
        }
        let mut state = match &node.published {
            Some(published) => NodeState::new(published, &allocated, requested),
            None => NodeState::new(&NodePublication::default(), &allocated, requested),
        };
        for (uses, victims) in plans {
            state.hand_over(uses, victims, &allocated);
        }
        state
    }
}

/// The entry of a pod with this allocation on this node.
fn chosen(
    name: &NodeName,
    namespace: &Namespace,
    demand: &Demand,
    allocation: &Allocation,
    phase: Phase,
) -> PodEntry {
    PodEntry {
        node: name.clone(),
        namespace: namespace.clone(),
        allocated: AllocatedUse::Known(usage::effective(allocation, demand.stages())),
        requests: demand.requests(),
        phase,
        resizing: None,
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

#[cfg(test)]
mod tests {
    use super::Ledger;
    use crate::tests::{gpu, ledger, published, uses};
    use crate::units::{HostResources, MilliCpu};
    use crate::usage::AllocatedUse;
    use crate::{Mib, NodeName, PodUid};

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

    #[test]
    fn nodes_that_only_pods_name_are_forgotten_with_these() {
        let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
        let host = HostResources {
            cpu: MilliCpu(500),
            ..HostResources::default()
        };
        let bind = |ledger: &mut Ledger, pod: &PodUid, node: &NodeName| {
            let nothing = AllocatedUse::nothing();
            ledger.confirm(pod, &"team".into(), node, nothing, host);
        };
        for number in 0..9 {
            let pod = PodUid::from(format!("p{number}"));
            bind(&mut ledger, &pod, &format!("made-up-{number}").into());
            assert!(ledger.is_current(&ledger.node_names()));
            ledger.release(&pod);
        }
        assert_eq!(ledger.cluster().slots(), 1);
        assert_eq!(ledger.node_names(), [NodeName::from("n")]);
        // A node may be shown after its pods.
        bind(&mut ledger, &"a".into(), &"late".into());
        ledger.publish(&"late".into(), Some(published(vec![])));
        let late = ledger.cluster().node("late").unwrap();
        assert_eq!(late.host.requested, host);
        assert!(ledger == ledger.recompute());
    }

    #[test]
    fn self_check_notices_what_is_wrong_and_mends_it() {
        let is_right =
            |ledger: &Ledger| ledger.is_current(&ledger.node_names()) && ledger.pods_are_current();
        let breaks: [fn(&mut Ledger); 4] = [
            |ledger| ledger.cluster.put(&"n".into(), None),
            |ledger| ledger.entries.get_mut("n").unwrap().pods.clear(),
            |ledger| drop(ledger.pod_entries.remove("a")),
            |ledger| drop(ledger.namespaces.add(&"team".into(), &uses("GPU-0", 1, 0))),
        ];
        for breaks in breaks {
            let mut ledger = ledger(vec![gpu(0, 1000, 9)]);
            let (used, host) = (uses("GPU-0", 300, 0), HostResources::default());
            ledger.confirm(&"a".into(), &"team".into(), &"n".into(), used, host);
            assert!(is_right(&ledger));
            breaks(&mut ledger);
            assert!(!is_right(&ledger));
            assert!(ledger.rebuild().count() > 0);
            assert!(is_right(&ledger));
        }
    }
}
