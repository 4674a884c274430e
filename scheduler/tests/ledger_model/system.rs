//! The ledger cache and the reference model: both get every event, and then they must be equal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::decide::{self, Memo, NodeQuery};
use aliquot_core::ledger::{By, NotReserved, NotResized, Phase};
use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::refusal::Reason;
use aliquot_core::resize::{ResizeRequest, Resized};
use aliquot_core::score::Policies;
use aliquot_core::usage::AllocatedUse;
use aliquot_core::{
    Allocation, Cluster, Ledger, Mib, Namespace, NodeName, NodeState, Percent, PodUid,
};
use aliquot_k8s::pod::Settings;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::{Freshness, Index};
use aliquot_scheduler::leader::{Leader, Leadership};
use aliquot_scheduler::ledger_cache::LedgerCache;
use aliquot_scheduler::ledger_cache::assumed::FilteredPod;
use aliquot_scheduler::ledger_cache::gangs::GangName;
use aliquot_scheduler::ledger_cache::pending_pods::PendingPod;
use aliquot_scheduler::preempt;
use aliquot_scheduler::requeue::take_requeueable;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as api;
use serde_json::json;
use tokio::time::Instant;

use crate::reference::{self, Certainty, Reference};
use crate::shapes::{CPU, Shape};
use crate::world::{self, Event, Node, Pod};

/// How long an old leader's last request can take.
pub(crate) const SETTLING: Duration = Duration::from_secs(3);

/// Both, and a snapshot with its content at the time when it was taken.
pub(crate) struct System {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) cache: LedgerCache,
    pub(crate) reference: Reference,
    leadership: Arc<Leadership>,
    /// By the lease and the last list of pods.
    pub(crate) leader: Leader,
    pub(crate) names: Vec<NodeName>,
    /// The same, as in a call.
    texts: Vec<String>,
    snapshot: (Cluster, Vec<(usize, NodeName, NodeState)>),
}

fn content(cluster: &Cluster) -> Vec<(usize, NodeName, NodeState)> {
    let nodes = cluster.iter();
    nodes
        .map(|(slot, name, state)| (slot, name.clone(), (**state).clone()))
        .collect()
}

impl System {
    pub(crate) fn new(shapes: Vec<Shape>, names: Vec<NodeName>) -> Self {
        let leadership = Arc::new(Leadership::new("pod-a".to_owned(), SETTLING));
        Self {
            shapes,
            cache: LedgerCache::new(Settings::default(), Policies::default()),
            reference: Reference::default(),
            leader: Leader::new(leadership.clone(), Freshness::default()),
            leadership,
            texts: names.iter().map(ToString::to_string).collect(),
            names,
            snapshot: (Cluster::default(), Vec::new()),
        }
    }

    /// The process is killed, and another one starts.
    pub(crate) fn restart(&mut self) {
        self.cache = LedgerCache::new(Settings::default(), Policies::default());
        self.reference = Reference::default();
    }

    /// A kube-scheduler acquires the lease.
    pub(crate) fn show_lease_of(&self, holder: &str) {
        // A time to come counts as now, and the lease need not be renewed.
        let time = "2100-01-01T00:00:00.000000Z";
        let spec = json!({"holderIdentity": holder, "acquireTime": time, "renewTime": time});
        let lease = serde_json::from_value(json!({ "spec": spec })).expect("a Lease");
        Index::<Lease>::apply(&*self.leadership, lease);
    }

    /// The ledger of a process that starts now.
    pub(crate) fn fresh(
        &self,
        pods: &BTreeMap<PodUid, Pod>,
        nodes: &BTreeMap<NodeName, Node>,
    ) -> LedgerCache {
        let cache = LedgerCache::new(Settings::default(), Policies::default());
        set_quota(&cache, self.reference.limits);
        let object = |(name, node)| world::node_object(name, node);
        Index::<api::Node>::reset(&cache, nodes.iter().map(object).collect());
        let object = |(uid, pod)| world::pod_object(&self.shapes, uid, pod);
        Index::<PodView>::reset(&cache, pods.iter().map(object).collect());
        cache
    }

    pub(crate) fn pod_event(&mut self, uid: &PodUid, event: &Event<Pod>) {
        match event {
            Event::Applied(pod) => {
                let object = world::pod_object(&self.shapes, uid, pod);
                Index::apply(&self.cache, object);
                self.reference.pod_shown(&self.shapes, uid, pod, false);
            }
            Event::Deleted(pod) => {
                let object = world::pod_object(&self.shapes, uid, pod);
                Index::delete(&self.cache, object);
                self.reference.pod_gone(uid);
            }
        }
    }

    pub(crate) fn pod_list(&mut self, pods: &BTreeMap<PodUid, Pod>) {
        let object = |(uid, pod)| world::pod_object(&self.shapes, uid, pod);
        Index::<PodView>::reset(&self.cache, pods.iter().map(object).collect());
        let listed = Freshness::complete(Instant::now());
        self.leader = Leader::new(self.leadership.clone(), listed);
        self.reference.pods_listed(&self.shapes, pods);
    }

    pub(crate) fn node_event(&mut self, name: &NodeName, event: Event<Node>) {
        match event {
            Event::Applied(node) => {
                Index::<api::Node>::apply(&self.cache, world::node_object(name, &node));
                self.reference.nodes.insert(name.clone(), node);
            }
            Event::Deleted(node) => {
                Index::<api::Node>::delete(&self.cache, world::node_object(name, &node));
                self.reference.nodes.remove(name);
            }
        }
    }

    pub(crate) fn node_list(&mut self, nodes: &BTreeMap<NodeName, Node>) {
        let object = |(name, node)| world::node_object(name, node);
        Index::<api::Node>::reset(&self.cache, nodes.iter().map(object).collect());
        self.reference.nodes.clone_from(nodes);
    }

    /// The namespace's quota on memory and compute, if it has any.
    pub(crate) fn quota(&mut self, limits: [Option<u64>; 2]) {
        set_quota(&self.cache, limits);
        self.reference.limits = limits;
    }

    pub(crate) fn cancel(&mut self, uid: &PodUid) {
        self.cache.cancel(uid);
        self.reference.cancelled(&self.shapes, uid);
    }

    /// Makes a plan: no other has its victims, and what it reserves is promised to nobody else.
    pub(crate) fn plan(
        &mut self,
        uid: &PodUid,
        others: &[Arc<PreemptionRecord>],
    ) -> Option<PreemptionRecord> {
        let waiting = self.cache.pending(uid).expect("refused");
        let plan = preempt::reserve_plan(&self.cache, uid, &waiting, (others, &[]), 0);
        let plan = plan.ok()??;
        let of_others = others.iter().flat_map(|other| &other.victims);
        let mut ending: Vec<&PodUid> = of_others.map(|victim| &victim.uid).collect();
        for victim in plan.victims.iter().map(|victim| &victim.uid) {
            let entry = &self.reference.pods[victim];
            let found = (&entry.node, entry.certainty);
            assert_eq!(found, (&plan.node, Certainty::Confirmed), "{victim}");
            assert!(world::priority(victim) < world::priority(uid), "{victim}");
            assert!(!ending.contains(&victim), "{victim} has two preemptors");
        }
        ending.extend(plan.victims.iter().map(|victim| &victim.uid));
        let shape = &self.shapes[self.reference.waiting[uid].shape];
        self.reference
            .planned(uid, shape, &plan, Certainty::Unwritten);
        for gpu in &self.reference.nodes[&plan.node].gpus {
            let mut used = self.reference.uses(&plan.node, &gpu.uuid, None);
            used.retain(|(one, _)| !ending.contains(one));
            if used.iter().any(|(one, _)| *one == uid) {
                let all = reference::sum(used.iter().map(|(_, one)| one));
                let fits = all.replicas <= gpu.replicas && all.memory <= Mib(gpu.memory);
                let fits = fits && all.cores <= Percent(100) && (!all.alone || used.len() == 1);
                assert!(fits, "{uid} and others: {used:?} of {gpu:?}");
            }
        }
        Some(plan)
    }

    /// The pod's plan is not written, or given up before the watch has shown it.
    pub(crate) fn forget_unwritten(&mut self, uid: &PodUid) {
        self.cache.forget_unwritten_plan(uid);
        self.reference.forget(uid, Certainty::Unwritten);
    }

    /// Decides on a resize, which must be granted exactly where the model allows it.
    pub(crate) fn resize(&mut self, uid: &PodUid, pod: &Pod, text: &str) -> Option<Resized> {
        let shape = &self.shapes[pod.shape];
        let Some(Ok(given)) = &pod.given else {
            panic!("{uid} has no allocation");
        };
        let stages = shape.containers.iter();
        let stages: Vec<_> = stages
            .map(|(name, stage, _)| (name.clone(), *stage))
            .collect();
        let request = ResizeRequest::parse(text).expect("valid");
        let generation = pod.generation + 1;
        let shares = (given, given);
        let found = self
            .cache
            .reserve_resize(uid, generation, shares, &request, &stages);
        match found {
            Ok(resized) => {
                let expected = self.fits_resized(uid, shape, given, text);
                assert_eq!(expected, Some(true), "{uid} {text}: {resized:?}");
                let reference = &mut self.reference;
                reference.resized(uid, shape, generation, &resized.allocation);
                Some(resized)
            }
            Err(NotResized::Behind) => {
                let shown = self.reference.shows(uid, shape, given);
                assert!(!shown, "{uid} {text}: the ledger is up to date");
                None
            }
            Err(NotResized::Refused(_)) => {
                let expected = self.fits_resized(uid, shape, given, text);
                assert_eq!(expected, Some(false), "{uid} {text}: {given:?}");
                None
            }
        }
    }

    fn fits_resized(
        &self,
        uid: &PodUid,
        shape: &Shape,
        given: &Allocation,
        text: &str,
    ) -> Option<bool> {
        let (container, larger) = resized_by_model(given, text);
        self.reference
            .fits_resized(uid, shape, given, (container, &larger))
    }

    pub(crate) fn end_resize(&mut self, uid: &PodUid, generation: u64) {
        self.cache.end_resize(uid, generation);
        self.reference.resize_ended(uid, generation);
    }

    /// Reserves, which must succeed exactly where the model allows it.
    pub(crate) fn reserve(
        &mut self,
        uid: &PodUid,
        shape: usize,
        node: &NodeName,
    ) -> Option<Allocation> {
        let shape = &self.shapes[shape];
        let fits = self.reference.fits(node, shape, uid);
        match self.cache.reserve(uid, &"d".into(), node, &shape.demand) {
            Ok(given) => {
                assert_ne!(fits, Some(false), "reserved on {node} without capacity");
                assert!(!self.reference.has(uid), "reserved twice");
                self.reference.reserved(shape, uid, &given);
                self.within_capacity(node, uid);
                Some(given)
            }
            Err(NotReserved::AlreadyAllocated(there)) => {
                let entry = self.reference.pods.get(uid).expect("an entry");
                assert_eq!(entry.node, there);
                None
            }
            Err(NotReserved::Refused(refusal)) => {
                assert_ne!(fits, Some(true), "refused on {node}: {refusal}");
                None
            }
        }
    }

    fn within_capacity(&self, node: &NodeName, uid: &PodUid) {
        self.cache.read(|ledger| {
            let state = ledger
                .cluster()
                .node(node.as_str())
                .expect("reserved on it");
            let entry = ledger.pod_entry(uid).or_else(|| ledger.assumed(uid));
            let Some(AllocatedUse::Known(uses)) = entry.map(|entry| &entry.allocated) else {
                panic!("{uid} has no allocation");
            };
            let inventory = state.inventory.as_ref().expect("reserved on its GPUs");
            for (gpu, device) in inventory.gpus.iter().zip(&state.devices) {
                let here = uses.contains_key(&gpu.uuid);
                assert!(
                    !here || aliquot_core::node::within_capacity(device),
                    "{node}: {device:?}"
                );
            }
        });
    }

    /// Filter, as kube-scheduler calls it: on the node that it names first, a share is assumed.
    pub(crate) fn filter(&mut self, uid: &PodUid, shape: usize, pod: &Pod) {
        let demand = self.shapes[shape].demand.clone();
        if !demand.requests_gpu() {
            return;
        }
        let object = world::pod_object(&self.shapes, uid, pod);
        let gang = GangName {
            namespace: "d".into(),
            name: "g".to_owned(),
        };
        let of_gang = uid.as_str().ends_with(['0', '2', '4', '6', '8']);
        let filtered = FilteredPod {
            uid,
            namespace: &Namespace::from("d"),
            demand: &demand,
            gang: of_gang.then_some(&gang),
        };
        let all = self.texts.len();
        let best = self.cache.lock().best(filtered, &self.texts, all);
        let Ok(fitting) = best else {
            self.check_fitting(uid, shape, &[]);
            let mut waiting = PendingPod::read(&object, demand.clone(), true);
            waiting.offered = self.cache.snapshot().set(&self.texts);
            self.cache.lock().refuse(uid, waiting);
            self.reference.filter_refused(uid, pod);
            return;
        };
        self.check_fitting(uid, shape, &fitting);
        let node = NodeName::from(fitting[0]);
        let named = if of_gang {
            vec![fitting[0]]
        } else {
            fitting.clone()
        };
        assert_eq!(self.cache.lock().assume(filtered, fitting), Ok(named));
        if self.reference.stays(uid) {
            if of_gang {
                self.reference.gang_filtered(uid);
            }
            return;
        }
        self.within_capacity(&node, uid);
        let uses = self.cache.read(|ledger| {
            let uses = ledger.assumed(uid).and_then(|entry| entry.allocated.uses());
            uses.cloned().unwrap_or_default()
        });
        let shape = &self.shapes[shape];
        self.reference.assumed(shape, uid, &node, uses, of_gang);
    }

    /// The time of everything that is assumed is over.
    pub(crate) fn expire(&mut self) {
        let later = Instant::now() + Duration::from_secs(5);
        self.cache.lock().expire(later);
        self.reference.expire();
    }

    fn check_fitting(&self, uid: &PodUid, shape: usize, fitting: &[&str]) {
        for name in &self.names {
            let expected = self.reference.fits(name, &self.shapes[shape], uid);
            let found = fitting.contains(&name.as_str());
            assert!(
                expected.is_none_or(|fits| fits == found),
                "filter says {found} of {name}"
            );
        }
    }

    /// Without any claim: requeues, and what is not requeued does not fit.
    pub(crate) fn requeue(&mut self) {
        let requeued = take_requeueable(&self.cache);
        for (uid, _) in &requeued {
            assert!(
                self.reference.refused.remove(uid),
                "{uid} was requeued without a refusal"
            );
        }
        if !requeued.is_empty() {
            return;
        }
        for uid in &self.reference.refused {
            let shape = &self.shapes[self.reference.waiting[uid].shape];
            let reserved = self.reference.has(uid);
            let fits = self
                .names
                .iter()
                .find(|name| self.reference.fits(name, shape, uid) == Some(true));
            assert!(
                reserved || fits.is_none(),
                "{uid} is not requeued and fits on {fits:?}"
            );
        }
    }

    /// Without any claim: memoized scores are those of an empty memo.
    pub(crate) fn ranks(&self) {
        let nobody = PodUid::from("nobody");
        let policies = self.cache.policies();
        for shape in self
            .shapes
            .iter()
            .filter(|shape| shape.demand.requests_gpu())
        {
            let cluster = self.cache.snapshot();
            let query = NodeQuery {
                cluster: &cluster,
                demand: &shape.demand,
                policies: &policies,
                without_own: None,
                headroom: None,
            };
            let fresh = decide::ranks(&query, &mut Memo::default(), &self.texts);
            let mut state = self.cache.lock();
            let memoized = state.ranks(&nobody, &shape.demand, &self.texts);
            assert_eq!(memoized, fresh);
        }
    }

    /// The more expensive checks: a recomputed ledger, and the old snapshot.
    pub(crate) fn check_deeply(&mut self) {
        let differences = self.cache.recompute();
        assert_eq!(differences.count(), 0, "self-check: {differences:?}");
        let (snapshot, before) = &self.snapshot;
        assert!(content(snapshot) == *before, "a snapshot changed");
        let snapshot = self.cache.snapshot();
        let content = content(&snapshot);
        self.snapshot = (snapshot, content);
    }

    /// The ledger is that of the model.
    pub(crate) fn check(&self) {
        self.cache.read(|ledger| self.compare(ledger));
        let waiting = (self.reference.waiting.len(), self.reference.refused.len());
        assert_eq!(self.cache.pending_counts(), waiting, "pending, refused");
    }

    fn compare(&self, ledger: &Ledger) {
        let model = &self.reference;
        let entries = ledger.pod_entries().count() + ledger.assumptions().count();
        assert_eq!(entries, model.pods.len(), "entries");
        for (uid, expected) in &model.pods {
            let entry = ledger.pod_entry(uid).or_else(|| ledger.assumed(uid));
            let entry = entry.unwrap_or_else(|| panic!("{uid} lost"));
            assert_eq!(entry.node, expected.node, "{uid}");
            let certainty = match &entry.phase {
                Phase::Assumed(By::Plan { recorded: true, .. }) => Certainty::Planned,
                Phase::Assumed(By::Plan { .. }) => Certainty::Unwritten,
                Phase::Assumed(_) => Certainty::Assumed,
                Phase::Binding(_) => Certainty::Reserved,
                Phase::Bound => Certainty::Confirmed,
            };
            assert_eq!(certainty, expected.certainty, "{uid}");
            match (&entry.allocated, &expected.gpus) {
                (AllocatedUse::Unreadable, None) if expected.asks => {}
                (AllocatedUse::Unproven, None) if !expected.asks => {}
                (AllocatedUse::Known(uses), Some(gpus)) => assert_eq!(uses, gpus, "{uid}"),
                _ => panic!("{uid}: {entry:?} and {expected:?}"),
            }
        }
        for name in &self.names {
            let has_share = model.on(name).any(|(_, entry)| {
                let gpus = entry.gpus.as_ref();
                gpus.is_none_or(|gpus| !gpus.is_empty())
            });
            let known = model.nodes.contains_key(name) || has_share;
            let state = ledger.cluster().node(name.as_str());
            assert_eq!(state.is_some(), known, "{name}");
            if let Some(state) = state {
                self.compare_node(name, state);
            }
        }
    }

    fn compare_node(&self, name: &NodeName, state: &NodeState) {
        let model = &self.reference;
        let apps: u64 = model.on(name).map(|(_, entry)| entry.apps).sum();
        assert_eq!(state.host.requested.cpu.0, apps * CPU, "{name}");
        let replicas: u64 = model.on(name).map(|(_, entry)| entry.replicas).sum();
        let requested = state.replicas.requested.under("nvidia.com/gpu");
        assert_eq!(u64::from(requested), replicas, "{name}");
        let Some(node) = model.nodes.get(name).filter(|node| node.readable) else {
            assert_eq!(state.closed, Some(Reason::NodeNotRegistered), "{name}");
            return assert!(state.devices.is_empty());
        };
        let unreadable = model
            .unreadable(name)
            .then_some(Reason::NodeAllocationUnreadable);
        assert_eq!(state.closed, unreadable, "{name}");
        assert_eq!(state.devices.len(), node.gpus.len(), "{name}");
        for (place, (device, expected)) in state.devices.iter().zip(&node.gpus).enumerate() {
            assert_eq!(device.closed.is_none(), expected.open(), "{expected:?}");
            let found = (device.allocated.used, device.allocated.pods);
            let sums = model.sum(name, &expected.uuid);
            assert_eq!(found, sums, "{expected:?}");
            let once = state.counted_once(place);
            let expected_once = model.counted_once(name, &expected.uuid, sums);
            assert_eq!((once.used, once.pods), expected_once, "{expected:?}");
        }
    }
}

fn set_quota(cache: &LedgerCache, limits: [Option<u64>; 2]) {
    let object = world::quota_object(limits);
    if limits == [None, None] {
        Index::<api::ResourceQuota>::delete(cache, object);
    } else {
        Index::<api::ResourceQuota>::apply(cache, object);
    }
}

/// The container of a resize without percentages, and the larger of the allocation and what it becomes.
fn resized_by_model<'t>(given: &Allocation, text: &'t str) -> (&'t str, Allocation) {
    let (name, amounts) = text.split_once(':').expect("a container");
    let mut resized = given.clone();
    let kinds = [&mut resized.containers, &mut resized.init];
    let grants = kinds
        .into_iter()
        .filter_map(|kind| kind.get_mut(name))
        .flatten();
    for grant in grants {
        for amount in amounts.split(',') {
            let (what, number) = amount.split_once('=').expect("an amount");
            match what {
                "gpumem" => grant.memory = grant.memory.max(Mib(number.parse().expect("MiB"))),
                _ => grant.cores = grant.cores.max(Percent(number.parse().expect("percent"))),
            }
        }
    }
    (name, resized)
}
