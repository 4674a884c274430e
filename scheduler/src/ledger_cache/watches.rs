//! Writes what the watches of pods, nodes and quotas show into the ledger.
//!
//! A reservation is not released because a list lacks its pod: the pod may be younger than the
//! list ([`crate::bind`] asks the API server). A quota is removed only by its deletion or by a list
//! without it.

use std::collections::{BTreeMap, HashMap, HashSet};

use aliquot_core::ledger::{PodEntry, Purpose, Reservation};
use aliquot_core::node::NodePublication;
use aliquot_core::preemption::record::PREEMPTION;
use aliquot_core::quota::{LimitValue, Quota};
use aliquot_core::usage::AllocatedUse;
use aliquot_core::{Ledger, Namespace, NodeName, PodUid, Requests};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::node::published;
use aliquot_k8s::watch::Index;
use aliquot_k8s::{pod, quota, replicas};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};

use super::LedgerCache;
use super::bound_pods::{self, BoundPod};
use super::gangs::GangName;
use super::pending_pods::{CapacityEvent, PendingPod};
use super::resizes::ObservedResize;
use crate::fail_point::{self, Point};

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
    /// Not bound, and without a request.
    Other,
}

/// Reads a pod.
fn observe(pod: &Pod, settings: &pod::Settings) -> ObservedPod {
    let uid = pod::uid(pod);
    let state = if pod::is_finished(pod) {
        PodState::Finished
    } else if let Some(node) = pod::node(pod) {
        // A pod without an allocation was bound by another: what we may have reserved elsewhere
        // will not be used.
        let allocated = pod::allocated(pod, settings)
            .map_or_else(AllocatedUse::nothing, |(_, allocated)| allocated);
        PodState::Bound {
            bound_pod: bound_pods::read(pod, &node, &allocated),
            planned: pod::annotation(pod, PREEMPTION).map(|_| Box::new(pod::reference(pod))),
            requests: replicas::requests(pod, settings),
            resize: observe_resize(pod, &node),
            node,
            allocated,
        }
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
        namespace: pod::namespace(pod),
        gang: GangName::of(pod),
        state,
    }
}

fn observe_resize(pod: &Pod, node: &NodeName) -> Option<Box<ObservedResize>> {
    match ObservedResize::read(pod, node) {
        Ok(observed) => observed.map(Box::new),
        Err(error) => {
            let name = pod.metadata.name.as_deref();
            tracing::error!(pod = name, %error, "cannot read how far the pod's resize is; it is not resized");
            None
        }
    }
}

/// Records what the watch shows of a pod in the ledger; returns the entry that ended or changed.
fn record(ledger: &mut Ledger, observed: &ObservedPod) -> Option<PodEntry> {
    match &observed.state {
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
            let namespace = &observed.namespace;
            let (allocated_now, requests_now) = (allocated.clone(), requests.clone());
            let old =
                ledger.confirm(&observed.uid, namespace, node, allocated_now, requests_now)?;
            let same = old.node == *node
                && old.allocated == *allocated
                && old.requests.replicas == requests.replicas;
            (!same).then_some(old)
        }
        PodState::Pending(_) | PodState::Other => None,
    }
}

impl LedgerCache {
    /// Updates the pending pods, retaining their last refusal, and the bound pods that preemption
    /// may evict.
    fn update_pods(
        &self,
        all: &mut HashMap<PodUid, PendingPod>,
        observed: ObservedPod,
        refused: bool,
    ) {
        let old = all.remove(&observed.uid);
        if let Some(gang) = &observed.gang {
            match observed.state {
                PodState::Pending(_) => {}
                PodState::Bound { .. } => self.gangs.observe(gang, &observed.uid, true),
                PodState::Finished | PodState::Other => {
                    self.gangs.observe(gang, &observed.uid, false);
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
                    new.refused = old.refused;
                    new.offered = old.offered;
                    new.refusals = old.refusals;
                    let last = &mut new.preemption.nominated_last;
                    *last = last.take().or(old.preemption.nominated_last);
                }
                self.observe_plan(&observed.uid, &new);
                all.insert(observed.uid.clone(), *new);
            }
            PodState::Bound {
                bound_pod: shown,
                planned,
                resize,
                ..
            } => {
                self.end_plan(&observed.uid, planned);
                bound_pod = shown;
                resizing = resize.map(|resize| *resize);
            }
            PodState::Finished | PodState::Other => self.end_plan(&observed.uid, None),
        }
        self.bound_pods.0.write().put(&observed.uid, bound_pod);
        self.resizes.put(&observed.uid, resizing);
    }
}

impl Index<Pod> for LedgerCache {
    type Entry = ObservedPod;

    fn entry(&self, pod: Pod) -> ObservedPod {
        observe(&pod, self.settings())
    }

    fn apply(&self, pod: Pod) {
        fail_point::at(Point::BeforeApply);
        let observed = self.entry(pod);
        let freed = record(&mut self.ledger.write(), &observed);
        if let Some(entry) = freed {
            self.allocation_freed(&entry);
        }
        self.update_pods(&mut self.pending.pods.lock(), observed, false);
        fail_point::at(Point::AfterApply);
    }

    fn delete(&self, pod: Pod) {
        let uid = pod::uid(&pod);
        let freed = self.ledger.write().release(&uid);
        if let Some(entry) = freed {
            self.allocation_freed(&entry);
        }
        self.bound_pods.0.write().put(&uid, None);
        self.resizes.put(&uid, None);
        // Before its reservation is released: filter may reserve for it at this moment.
        if let Some(gang) = GangName::of(&pod) {
            self.gangs.delete(&gang, &uid);
        }
        self.remove_pending(&uid);
    }

    fn replace(&self, pods: Vec<ObservedPod>) {
        fail_point::at(Point::BeforeReset);
        let mut ledger = self.ledger.write();
        let listed: HashSet<&PodUid> = pods.iter().map(|observed| &observed.uid).collect();
        let gone: Vec<_> = ledger
            .pod_entries()
            .filter(|(uid, entry)| entry.confirmed && !listed.contains(uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        ledger.together(|ledger| {
            for uid in gone {
                ledger.release(&uid);
            }
            for observed in &pods {
                record(ledger, observed);
            }
        });
        // A gang's member may be younger than the list, and its reservation expires anyway.
        let planned = |own: &Reservation| matches!(own.purpose, Purpose::Preemption { .. });
        let reserved = ledger.reservations().filter(|(_, own)| planned(own));
        let gone: Vec<_> = reserved
            .map(|(uid, _)| uid)
            .filter(|uid| !listed.contains(uid))
            .cloned()
            .collect();
        for uid in gone {
            ledger.drop_reservation(&uid);
        }
        drop(ledger);
        self.bound_pods.0.write().retain(|uid| listed.contains(uid));
        self.resizes.retain(|uid| listed.contains(uid));
        let mut all = self.pending.pods.lock();
        // A pod that only filter knows may be younger than this list, not than the next one.
        all.retain(|uid, pending| {
            listed.contains(uid) || !std::mem::replace(&mut pending.listed, true)
        });
        drop(listed);
        self.gangs.list();
        for observed in pods {
            self.update_pods(&mut all, observed, true);
        }
        drop(all);
        self.pending.add_event(CapacityEvent::Everywhere);
        fail_point::at(Point::AfterReset);
    }
}

impl Index<Node> for LedgerCache {
    type Entry = (NodeName, NodePublication);

    fn entry(&self, node: Node) -> Self::Entry {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        (name.into(), published(&node))
    }

    fn apply(&self, node: Node) {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        let published = published(&node);
        let mut ledger = self.ledger.write();
        if ledger.published(name.as_str()) == Some(&published) {
            return;
        }
        ledger.publish(&name, Some(published));
        let slot = ledger.cluster().slot(name.as_str());
        drop(ledger);
        if let Some(slot) = slot {
            let labels = node.metadata.labels.unwrap_or_default();
            let event = CapacityEvent::Node(slot, labels.into());
            self.pending.add_event(event);
        }
    }

    fn delete(&self, node: Node) {
        let name: NodeName = node.metadata.name.as_deref().unwrap_or_default().into();
        self.ledger.write().publish(&name, None);
    }

    fn replace(&self, nodes: Vec<(NodeName, NodePublication)>) {
        let mut ledger = self.ledger.write();
        let listed: HashSet<&NodeName> = nodes.iter().map(|(name, _)| name).collect();
        let known = ledger.cluster().iter().map(|(_, name, _)| name);
        let gone: Vec<_> = known.filter(|n| !listed.contains(n)).cloned().collect();
        drop(listed);
        for name in gone {
            ledger.publish(&name, None);
        }
        for (name, published) in nodes {
            ledger.publish(&name, Some(published));
        }
        drop(ledger);
        self.pending.add_event(CapacityEvent::Everywhere);
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

    fn quota_changed(&self, namespace: Namespace, changed: bool) {
        if changed {
            self.pending.add_event(CapacityEvent::Namespace(namespace));
        }
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
        let mut ledger = self.ledger.write();
        let changed = ledger.set_quota(&namespace, &name, Some(quota));
        drop(ledger);
        self.quota_changed(namespace, changed);
    }

    fn delete(&self, object: ResourceQuota) {
        let (namespace, quota) = self.read_quota(&object);
        let mut ledger = self.ledger.write();
        let changed = ledger.set_quota(&namespace, &quota.name, None);
        drop(ledger);
        self.quota_changed(namespace, changed);
    }

    fn replace(&self, quotas: Vec<(Namespace, Quota)>) {
        let mut all: BTreeMap<Namespace, Vec<Quota>> = BTreeMap::new();
        for (namespace, quota) in quotas {
            all.entry(namespace).or_default().push(quota);
        }
        let changed = self.ledger.write().set_quotas(all);
        for namespace in changed {
            self.quota_changed(namespace, true);
        }
    }
}
