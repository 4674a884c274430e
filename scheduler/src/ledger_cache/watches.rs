//! Writes what the watches of pods, nodes and quotas show into the ledger.
//!
//! What is reserved is not released because a list lacks its pod: the pod may be younger than the
//! list ([`crate::bind`] asks the API server). A quota is removed only by its deletion or by a list
//! without it.

use std::collections::{BTreeMap, HashSet};
use std::mem;
use std::sync::Arc;

use aliquot_core::ledger::{By, PodEntry};
use aliquot_core::node::NodePublication;
use aliquot_core::preemption::record::PREEMPTION;
use aliquot_core::quota::{LimitValue, Quota};
use aliquot_core::usage::AllocatedUse;
use aliquot_core::{Ledger, Namespace, NodeName, PodUid, Requests};
use aliquot_k8s::disruption::Labels;
use aliquot_k8s::event::PodRef;
use aliquot_k8s::node::published;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use aliquot_k8s::{pod, quota, replicas};
use aliquot_serve::fail_point;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};

use super::bound_pods::{self, BoundPod};
use super::gangs::GangName;
use super::pending_pods::{CapacityEvent, PendingPod};
use super::resizes::ObservedResize;
use super::{LedgerCache, State};

/// The part of a pod that the ledger needs.
#[derive(Debug)]
pub struct ObservedPod {
    uid: PodUid,
    namespace: Namespace,
    gang: Option<GangName>,
    state: PodState,
}

#[derive(Debug)]
enum PodState {
    Finished,
    Bound {
        node: NodeName,
        allocated: AllocatedUse,
        requests: Requests,
        /// What preemption needs of it, if anything.
        bound_pod: Option<Box<BoundPod>>,
        /// It still has a preemption plan in its annotation.
        planned: Option<Box<PodRef>>,
        resize: Option<Box<ObservedResize>>,
    },
    Pending(Box<PendingPod>),
    /// Not bound, and being deleted: kube-scheduler does not schedule it any more.
    Terminating,
    /// Not bound, and without a request.
    Other,
}

fn observe(pod: &PodView, settings: &pod::Settings) -> ObservedPod {
    let uid = pod.uid();
    let state = if pod.is_finished() {
        PodState::Finished
    } else if let Some(node) = pod.node() {
        // Another scheduler bound a pod without an allocation: what we may have reserved elsewhere
        // will not be used.
        let allocated = pod::allocated(pod, settings)
            .map_or_else(AllocatedUse::nothing, |(_, allocated)| allocated);
        PodState::Bound {
            bound_pod: bound_pods::read(pod, &node, &allocated),
            planned: pod
                .annotation(PREEMPTION)
                .map(|_| Box::new(pod.reference())),
            requests: replicas::requests(pod, settings),
            resize: observe_resize(pod, &node),
            node,
            allocated,
        }
    } else if pod.is_terminating() {
        PodState::Terminating
    } else {
        match pod::demand(pod, settings) {
            Ok(demand) if demand.requests_gpu() && !pod::is_placeholder(pod) => {
                PodState::Pending(Box::new(PendingPod::read(pod, demand, false)))
            }
            // Filter reports an invalid demand.
            Ok(_) | Err(_) => PodState::Other,
        }
    };
    ObservedPod {
        uid,
        namespace: pod.namespace(),
        gang: GangName::read(pod),
        state,
    }
}

fn observe_resize(pod: &PodView, node: &NodeName) -> Option<Box<ObservedResize>> {
    match ObservedResize::read(pod, node) {
        Ok(observed) => observed.map(Box::new),
        Err(error) => {
            tracing::error!(pod = pod.name(), %error, "cannot read how far the pod's resize is; it is not resized");
            None
        }
    }
}

/// Records what the watch shows of a pod in the ledger, which takes its allocation and requests;
/// returns the entry that ended or changed.
fn record(ledger: &mut Ledger, observed: &mut ObservedPod) -> Option<PodEntry> {
    match &mut observed.state {
        PodState::Finished => ledger.release(&observed.uid),
        PodState::Bound {
            node,
            allocated,
            requests,
            resize,
            ..
        } => {
            if let Some(resize) = resize {
                ledger.end_resize(&observed.uid, resize.generation());
            }
            let (uid, namespace) = (&observed.uid, &observed.namespace);
            let allocated = mem::replace(allocated, AllocatedUse::nothing());
            let old = ledger.confirm(uid, namespace, node, allocated, mem::take(requests))?;
            let new = ledger.pod_entry(uid);
            new.is_none_or(|new| !new.holds_as(&old)).then_some(old)
        }
        PodState::Pending(_) | PodState::Terminating | PodState::Other => None,
    }
}

impl State {
    /// Records what the watch shows of a pod in the ledger.
    fn record(&mut self, observed: &mut ObservedPod) {
        if let Some(entry) = record(&mut self.ledger, observed) {
            self.entry_freed(&entry);
        }
    }

    /// Updates the pending pods, retaining their last refusal, and the bound pods that preemption
    /// may evict.
    fn update_pods(&mut self, observed: ObservedPod, refused: bool) {
        let uid = &observed.uid;
        let old = self.pending.remove(uid);
        if matches!(observed.state, PodState::Terminating) {
            self.deleted.insert(uid);
        }
        if let Some(gang) = &observed.gang {
            match observed.state {
                PodState::Pending(_) => {}
                PodState::Bound { .. } => self.gangs.observe(gang, uid, true),
                PodState::Finished | PodState::Terminating | PodState::Other => {
                    self.gangs.observe(gang, uid, false);
                }
            }
        }
        let mut bound_pod = None;
        let mut resizing = None;
        match observed.state {
            PodState::Pending(mut new) => {
                new.refused = refused;
                new.listed = true;
                if let Some(old) = old {
                    if new.preemption.unschedulable && !old.preemption.unschedulable {
                        self.forget(uid, |by| *by == By::Filter);
                    }
                    new.refused = old.refused;
                    new.claimed.clone_from(&old.claimed);
                    new.offered = old.offered.clone();
                    new.refusals.clone_from(&old.refusals);
                    let last = &mut new.preemption.nominated_last;
                    *last = last
                        .take()
                        .or_else(|| old.preemption.nominated_last.clone());
                }
                self.observe_plan(uid, &new);
                self.pending.insert(uid.clone(), Arc::from(new));
            }
            PodState::Bound {
                bound_pod: shown,
                planned,
                resize,
                ..
            } => {
                self.end_plan(uid, planned);
                bound_pod = shown;
                resizing = resize.map(|resize| *resize);
            }
            PodState::Finished | PodState::Terminating | PodState::Other => {
                self.end_plan(uid, None);
            }
        }
        self.bound_pods.put(uid, bound_pod);
        self.resizes.put(uid, resizing);
    }

    /// These are all pods: others are gone.
    fn replace_pods(&mut self, mut pods: Vec<ObservedPod>) {
        let listed: HashSet<PodUid> = pods.iter().map(|observed| observed.uid.clone()).collect();
        let gone: Vec<PodUid> = self
            .ledger
            .pod_entries()
            .filter(|(uid, entry)| entry.is_confirmed() && !listed.contains(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        self.ledger.together(|ledger| {
            for uid in gone {
                ledger.release(&uid);
            }
            for observed in &mut pods {
                record(ledger, observed);
            }
        });
        // Any other pod may be younger than the list, and what filter assumed for it expires anyway.
        let planned = |entry: &PodEntry| matches!(entry.assumed_by(), Some(By::Plan { .. }));
        let gone: Vec<PodUid> = self
            .ledger
            .assumptions()
            .filter(|(uid, entry)| planned(entry) && !listed.contains(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.ledger.forget(&uid);
        }
        self.assumptions.retain(|uid| listed.contains(uid));
        self.bound_pods.retain(|uid| listed.contains(uid));
        self.resizes.retain(|uid| listed.contains(uid));
        let finished = &mut self.preemptions.finished;
        finished.retain(|uid, _| listed.contains(uid));
        // A pod that only filter knows may be younger than this list, not than the next one.
        let deleted = &mut self.deleted;
        self.pending.retain(|uid, pending| {
            let younger = !pending.listed;
            if younger {
                Arc::make_mut(pending).listed = true;
            }
            let stays = younger || listed.contains(uid);
            if !stays {
                deleted.insert(uid);
            }
            stays
        });
        self.gangs.list();
        for observed in pods {
            self.update_pods(observed, true);
        }
        self.events.add(CapacityEvent::Everywhere);
    }
}

impl Index<PodView> for LedgerCache {
    type Entry = ObservedPod;

    fn entry(&self, pod: PodView) -> ObservedPod {
        let mut observed = observe(&pod, self.settings());
        if let PodState::Bound {
            bound_pod: Some(bound_pod),
            ..
        } = &mut observed.state
        {
            self.lock().bound_pods.share_labels(bound_pod);
        }
        observed
    }

    fn apply(&self, pod: PodView) {
        fail_point::at("BeforeApply");
        let mut observed = observe(&pod, self.settings());
        let mut state = self.lock();
        state.record(&mut observed);
        state.update_pods(observed, false);
        drop(state);
        fail_point::at("AfterApply");
    }

    fn delete(&self, pod: PodView) {
        let uid = pod.uid();
        let mut state = self.lock();
        state.deleted.insert(&uid);
        if let Some(entry) = state.ledger.release(&uid) {
            state.entry_freed(&entry);
        }
        state.bound_pods.put(&uid, None);
        state.resizes.put(&uid, None);
        if let Some(gang) = GangName::read(&pod) {
            state.gangs.observe(&gang, &uid, false);
        }
        state.pending.remove(&uid);
        state.end_plan(&uid, None);
    }

    fn replace(&self, pods: Vec<ObservedPod>) {
        fail_point::at("BeforeReset");
        self.lock().replace_pods(pods);
        fail_point::at("AfterReset");
    }
}

impl Index<Node> for LedgerCache {
    type Entry = (NodeName, NodePublication, Arc<Labels>);

    fn entry(&self, node: Node) -> Self::Entry {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        let published = published(&node);
        let labels = node.metadata.labels.unwrap_or_default();
        (name, published, labels.into())
    }

    fn apply(&self, node: Node) {
        let (name, published, labels) = Index::<Node>::entry(self, node);
        self.lock().publish(&name, published, labels);
    }

    fn delete(&self, node: Node) {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        self.lock().ledger.publish(&name, None);
    }

    fn replace(&self, nodes: Vec<(NodeName, NodePublication, Arc<Labels>)>) {
        let state = &mut *self.lock();
        let listed: HashSet<&NodeName> = nodes.iter().map(|(name, ..)| name).collect();
        let known = state.ledger.cluster().iter().map(|(_, name, _)| name);
        let gone: Vec<_> = known.filter(|n| !listed.contains(n)).cloned().collect();
        drop(listed);
        for name in gone {
            state.ledger.publish(&name, None);
        }
        for (name, published, labels) in nodes {
            state.publish(&name, published, labels);
        }
        state.events.add(CapacityEvent::Everywhere);
    }
}

impl LedgerCache {
    /// The quota's namespace and its limits on our resources; logs what is wrong with it.
    fn read_quota(&self, object: &ResourceQuota) -> (Namespace, Quota) {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let quota = quota::quota(object, &self.settings().names);
        for limit in &quota.limits {
            let (name, key) = (&quota.name, &limit.key);
            if let LimitValue::Unreadable(value) = &limit.most {
                tracing::error!(namespace, quota = %name, %key, %value,
                    "invalid limit in ResourceQuota, nothing of the resource is allocated; expected: a whole number, without Ki, Mi or Gi");
            }
            if quota::scoped(object) {
                tracing::warn!(namespace, quota = %name, %key,
                    "scopes of ResourceQuota are not supported, its limit applies to every pod of the namespace");
            }
        }
        (namespace.into(), quota)
    }
}

impl Index<ResourceQuota> for LedgerCache {
    type Entry = (Namespace, Quota);

    fn entry(&self, object: ResourceQuota) -> Self::Entry {
        self.read_quota(&object)
    }

    fn apply(&self, object: ResourceQuota) {
        let (namespace, quota) = self.read_quota(&object);
        let name = quota.name.clone();
        self.lock().set_quota(namespace, &name, Some(quota));
    }

    fn delete(&self, object: ResourceQuota) {
        let (namespace, quota) = self.read_quota(&object);
        self.lock().set_quota(namespace, &quota.name, None);
    }

    fn replace(&self, quotas: Vec<(Namespace, Quota)>) {
        let mut all: BTreeMap<Namespace, Vec<Quota>> = BTreeMap::new();
        for (namespace, quota) in quotas {
            all.entry(namespace).or_default().push(quota);
        }
        let state = &mut *self.lock();
        for namespace in state.ledger.set_quotas(all) {
            state.events.add(CapacityEvent::Namespace(namespace));
        }
    }
}

impl State {
    /// Records what the node publishes, where that differs from before.
    fn publish(&mut self, name: &NodeName, published: NodePublication, labels: Arc<Labels>) {
        if self.ledger.published(name.as_str()) == Some(&published) {
            return;
        }
        let has_gpus = |one: &NodePublication| one.inventory.is_some();
        if has_gpus(&published) && !self.ledger.published(name.as_str()).is_some_and(has_gpus) {
            self.node_joined.notify_one();
        }
        self.ledger.publish(name, Some(published));
        if let Some(slot) = self.ledger.cluster().slot(name.as_str()) {
            self.events.add(CapacityEvent::Node(slot, labels));
        }
    }

    fn set_quota(&mut self, namespace: Namespace, name: &str, quota: Option<Quota>) {
        if self.ledger.set_quota(&namespace, name, quota) {
            self.events.add(CapacityEvent::Namespace(namespace));
        }
    }
}
