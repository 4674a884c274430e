//! The reference model: the same events as the ledger gets, as plain lists, and sums computed for
//! every query. It shares only value types with the scheduler.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::usage::{DeviceUse, DeviceUses};
use aliquot_core::{Allocation, GpuUuid, Mib, NodeName, Percent, PodUid};

use crate::shapes::Shape;
use crate::world::{ModelGpu, Node, Pod};

/// `None`: unreadable, so all of the node.
type GpuUsages = Option<DeviceUses>;

/// How certain it is that a pod gets what its entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Certainty {
    Assumed,
    /// Assumed by a plan that the watch has not shown.
    Unwritten,
    /// Assumed by the plan in the pod's annotation.
    Planned,
    Reserved,
    Confirmed,
}

/// What is allocated to a pod, reserved or assumed for it.
#[derive(Clone, Debug)]
pub(crate) struct ModelEntry {
    pub(crate) node: NodeName,
    /// What counts: what the watch shows, and what is reserved for a resize.
    pub(crate) gpus: GpuUsages,
    watched: GpuUsages,
    /// The number of a resize that is being written, and what it takes.
    resizing: Option<(u64, DeviceUses)>,
    pub(crate) apps: u64,
    pub(crate) replicas: u64,
    pub(crate) certainty: Certainty,
    /// Its gang assumes it again if its Binding fails.
    gang: bool,
    /// Its Binding began with what its gang had assumed.
    of_gang: bool,
    /// It requests a share: without one, anybody may have written an unreadable allocation.
    pub(crate) asks: bool,
    /// The victims of its plan.
    victims: Vec<PodUid>,
}

impl ModelEntry {
    fn by_plan(&self) -> bool {
        matches!(self.certainty, Certainty::Unwritten | Certainty::Planned)
    }
}

/// All that the ledger was given.
#[derive(Default)]
pub(crate) struct Reference {
    pub(crate) nodes: BTreeMap<NodeName, Node>,
    pub(crate) pods: BTreeMap<PodUid, ModelEntry>,
    /// The pods that were shown, request a share and are not bound.
    pub(crate) waiting: BTreeMap<PodUid, Pod>,
    /// Those of them that filter refused and that were not requeued since.
    pub(crate) refused: BTreeSet<PodUid>,
    /// Those of them that only filter has shown: the next list may be older than they are.
    unlisted: BTreeSet<PodUid>,
    /// What the namespace may use of memory and of compute.
    pub(crate) limits: [Option<u64>; 2],
}

impl Reference {
    pub(crate) fn pod_shown(&mut self, shapes: &[Shape], uid: &PodUid, pod: &Pod, listed: bool) {
        let shape = &shapes[pod.shape];
        if pod.ended {
            self.pods.remove(uid);
        } else if let Some(node) = &pod.node {
            let gpus = match &pod.given {
                None => Some(DeviceUses::new()),
                Some(Ok(given)) if given.node == *node => Some(effective(shape, given)),
                Some(_) => None,
            };
            let resizing = self.pods.get(uid).filter(|old| old.node == *node);
            let resizing = resizing.and_then(|old| old.resizing.clone());
            self.record(uid, shape, node, gpus, Certainty::Confirmed);
            if let Some((generation, reserved)) = resizing.filter(|(own, _)| *own > pod.generation)
            {
                self.reserve_resize(uid, generation, reserved);
            }
        }
        if !pod.pending() || !shape.demand.requests_gpu() {
            self.stop_waiting(uid);
        } else {
            self.unlisted.remove(uid);
            let known = self.waiting.insert(uid.clone(), pod.clone());
            if known.is_none() && listed {
                self.refused.insert(uid.clone());
            }
            self.follow_plan(uid, shape);
        }
    }

    /// What the shown plan says counts, unless its pod is being bound.
    fn follow_plan(&mut self, uid: &PodUid, shape: &Shape) {
        let plan = self.waiting.get(uid).and_then(Pod::open_plan).cloned();
        match plan {
            Some(plan) if !self.has(uid) => self.planned(uid, shape, &plan, Certainty::Planned),
            Some(_) => {}
            None => self.forget(uid, Certainty::Planned),
        }
    }

    /// A plan assumes what its pod will take once the victims, who still have the CPU, have ended.
    pub(crate) fn planned(
        &mut self,
        uid: &PodUid,
        shape: &Shape,
        plan: &PreemptionRecord,
        certainty: Certainty,
    ) {
        let gpus = Some(plan.reserved.clone());
        self.record(uid, shape, &plan.node, gpus, certainty);
        let entry = self.pods.get_mut(uid).expect("recorded");
        entry.apps = 0;
        entry.victims = plan.victims.iter().map(|one| one.uid.clone()).collect();
    }

    /// Forgets the pod's entry if it is of this kind.
    pub(crate) fn forget(&mut self, uid: &PodUid, kind: Certainty) {
        self.pods
            .retain(|other, entry| other != uid || entry.certainty != kind);
    }

    /// Filter named this node first, and assumed this of its GPUs for the pod.
    pub(crate) fn assumed(
        &mut self,
        shape: &Shape,
        uid: &PodUid,
        node: &NodeName,
        gpus: DeviceUses,
        gang: bool,
    ) {
        self.record(uid, shape, node, Some(gpus), Certainty::Assumed);
        self.pods.get_mut(uid).expect("recorded").gang = gang;
    }

    /// Filter named a node for a member that is being bound, whose gang begins anew.
    pub(crate) fn gang_filtered(&mut self, uid: &PodUid) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.gang = entry.of_gang;
        }
    }

    /// The time of everything that is assumed is over.
    pub(crate) fn expire(&mut self) {
        self.pods.retain(|_, one| {
            one.gang = false;
            one.certainty != Certainty::Assumed
        });
    }

    /// Whether the pod has an entry that is more than assumed.
    pub(crate) fn has(&self, uid: &PodUid) -> bool {
        let entry = self.pods.get(uid);
        entry.is_some_and(|entry| entry.certainty >= Certainty::Reserved)
    }

    /// Whether the pod has an entry that filter does not change.
    pub(crate) fn stays(&self, uid: &PodUid) -> bool {
        let entry = self.pods.get(uid);
        entry.is_some_and(|entry| entry.certainty != Certainty::Assumed)
    }

    /// Filter refused the pod, which our watch may not have shown yet.
    pub(crate) fn filter_refused(&mut self, uid: &PodUid, pod: &Pod) {
        if !self.stays(uid) {
            self.pods.remove(uid);
        }
        if let Entry::Vacant(unknown) = self.waiting.entry(uid.clone()) {
            unknown.insert(pod.clone());
            self.unlisted.insert(uid.clone());
        }
        self.refused.insert(uid.clone());
    }

    pub(crate) fn pod_gone(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.stop_waiting(uid);
    }

    /// A list frees what was confirmed or planned and is not in it; a reservation may be
    /// younger than the list.
    pub(crate) fn pods_listed(&mut self, shapes: &[Shape], pods: &BTreeMap<PodUid, Pod>) {
        let listed = |uid: &PodUid| pods.contains_key(uid);
        let ends = |one: &ModelEntry| one.certainty == Certainty::Confirmed || one.by_plan();
        self.pods.retain(|uid, one| !ends(one) || listed(uid));
        let younger = std::mem::take(&mut self.unlisted);
        let known = |uid: &PodUid| listed(uid) || younger.contains(uid);
        self.waiting.retain(|uid, _| known(uid));
        self.refused.retain(known);
        for (uid, pod) in pods {
            self.pod_shown(shapes, uid, pod, true);
        }
    }

    pub(crate) fn reserved(&mut self, shape: &Shape, uid: &PodUid, given: &Allocation) {
        let gpus = Some(effective(shape, given));
        let gang = self.pods.get(uid).is_some_and(|assumed| assumed.gang);
        self.record(uid, shape, &given.node, gpus, Certainty::Reserved);
        let entry = self.pods.get_mut(uid).expect("recorded");
        (entry.gang, entry.of_gang) = (gang, gang);
    }

    pub(crate) fn cancelled(&mut self, shapes: &[Shape], uid: &PodUid) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        if entry.certainty != Certainty::Reserved {
            return;
        }
        if entry.gang {
            entry.certainty = Certainty::Assumed;
        } else {
            self.pods.remove(uid);
        }
        if let Some(shape) = self.waiting.get(uid).map(|pod| pod.shape) {
            self.follow_plan(uid, &shapes[shape]);
        }
    }

    fn stop_waiting(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
        self.refused.remove(uid);
        self.unlisted.remove(uid);
    }

    fn record(
        &mut self,
        uid: &PodUid,
        shape: &Shape,
        node: &NodeName,
        gpus: GpuUsages,
        certainty: Certainty,
    ) {
        let entry = ModelEntry {
            node: node.clone(),
            watched: gpus.clone(),
            gpus,
            resizing: None,
            apps: shape.apps(),
            replicas: shape.replicas(),
            certainty,
            gang: false,
            of_gang: false,
            asks: shape.demand.requests_gpu(),
            victims: Vec::new(),
        };
        self.pods.insert(uid.clone(), entry);
    }

    fn reserve_resize(&mut self, uid: &PodUid, generation: u64, reserved: DeviceUses) {
        let entry = self.pods.get_mut(uid).expect("known");
        entry.gpus = entry.watched.clone().map(|watched| {
            let both = watched.into_iter().map(|(gpu, used)| {
                let own = reserved.get(&gpu).copied().unwrap_or_default();
                (gpu, used.or(own))
            });
            both.collect()
        });
        entry.resizing = Some((generation, reserved));
    }

    /// This was reserved for a resize.
    pub(crate) fn resized(
        &mut self,
        uid: &PodUid,
        shape: &Shape,
        generation: u64,
        to: &Allocation,
    ) {
        self.reserve_resize(uid, generation, effective(shape, to));
    }

    /// A resize is definitely not written.
    pub(crate) fn resize_ended(&mut self, uid: &PodUid, generation: u64) {
        if let Some(entry) = self.pods.get_mut(uid)
            && entry
                .resizing
                .as_ref()
                .is_some_and(|(own, _)| *own <= generation)
        {
            entry.gpus = entry.watched.clone();
            entry.resizing = None;
        }
    }

    /// The pod is shown with this allocation, and no resize of it is being written.
    pub(crate) fn shows(&self, uid: &PodUid, shape: &Shape, given: &Allocation) -> bool {
        let entry = self.pods.get(uid).filter(|_| self.has(uid));
        entry.is_some_and(|entry| {
            entry.resizing.is_none()
                && entry.node == given.node
                && entry.gpus == Some(effective(shape, given))
        })
    }

    /// Whether the pod can have this allocation instead of its own; `None` if the ledger does not
    /// show it with its own.
    pub(crate) fn fits_resized(
        &self,
        uid: &PodUid,
        shape: &Shape,
        own: &Allocation,
        (container, other): (&str, &Allocation),
    ) -> Option<bool> {
        let name = &own.node;
        if !self.shows(uid, shape, own) {
            return None;
        }
        let node = self.nodes.get(name).filter(|node| node.readable);
        let gpu =
            |uuid: &GpuUuid| node.and_then(|node| node.gpus.iter().find(|one| one.uuid == *uuid));
        let grants = own.grants(container).unwrap_or_default();
        if grants.is_empty() || grants.iter().any(|grant| gpu(&grant.gpu).is_none()) {
            return Some(false);
        }
        let (own, asked) = (effective(shape, own), effective(shape, other));
        let fits = own.iter().zip(&asked).all(|((uuid, own), (_, asked))| {
            let Some(gpu) = gpu(uuid) else {
                return own == asked;
            };
            let (others, pods) = self.sum_without(name, uuid, Some(uid));
            own.or(*asked) == *own
                || (!self.unreadable(name)
                    && gpu.open()
                    && others.replicas + asked.replicas <= gpu.replicas
                    && others.memory + asked.memory <= Mib(gpu.memory)
                    && others.cores + asked.cores <= Percent(100)
                    && !others.alone
                    && !(asked.alone && pods > 0)
                    && !(asked.leftover && others.cores >= Percent(100)))
        });
        let [memory, cores] = self.left_without(Some(uid));
        let (own, asked) = (sum(own.values()), sum(asked.values()));
        let memory = asked.memory <= own.memory || asked.memory.0 <= memory;
        let cores = asked.cores <= own.cores || u64::from(asked.cores.0) <= cores;
        Some(fits && memory && cores)
    }

    pub(crate) fn on(&self, node: &NodeName) -> impl Iterator<Item = (&PodUid, &ModelEntry)> {
        let pods = self.pods.iter();
        pods.filter(move |(_, entry)| entry.node == *node)
    }

    /// An allocation on the node is unreadable.
    pub(crate) fn unreadable(&self, node: &NodeName) -> bool {
        self.on(node)
            .any(|(_, entry)| entry.gpus.is_none() && entry.asks)
    }

    /// What pods use of a GPU of a node, and how many do.
    pub(crate) fn sum(&self, name: &NodeName, gpu: &GpuUuid) -> (DeviceUse, u32) {
        self.sum_without(name, gpu, None)
    }

    fn sum_without(
        &self,
        name: &NodeName,
        gpu: &GpuUuid,
        without: Option<&PodUid>,
    ) -> (DeviceUse, u32) {
        let used = self.uses(name, gpu, without);
        let pods = u32::try_from(used.len()).expect("few");
        (sum(used.iter().map(|(_, used)| used)), pods)
    }

    /// Which pods use a GPU of a node, and what.
    pub(crate) fn uses(
        &self,
        name: &NodeName,
        gpu: &GpuUuid,
        without: Option<&PodUid>,
    ) -> Vec<(&PodUid, DeviceUse)> {
        let pods = self.on(name).filter(|(uid, _)| Some(*uid) != without);
        let here = pods.filter_map(|(uid, one)| Some((uid, *one.gpus.as_ref()?.get(gpu)?)));
        let mut used: Vec<_> = here.collect();
        let orphaned = self.nodes.get(name).map(|node| &node.orphaned);
        for (pod, uuid, memory, cores) in orphaned.into_iter().flatten() {
            // What is assumed for the pod itself is taken away, but not what is orphaned.
            let is_left = Some(pod) == without && !self.has(pod);
            // What anybody may have written hides nothing.
            let counts = |entry: &ModelEntry| entry.asks || entry.gpus.is_some();
            let has_entry = self
                .on(name)
                .any(|(uid, entry)| uid == pod && counts(entry));
            if uuid == gpu && (is_left || !has_entry) {
                used.push((pod, DeviceUse::new(Mib(*memory), Percent(*cores))));
            }
        }
        used
    }

    /// These sums, in which what victims still hold of their preemptor's share counts once.
    pub(crate) fn counted_once(
        &self,
        name: &NodeName,
        gpu: &GpuUuid,
        (mut all, mut pods): (DeviceUse, u32),
    ) -> (DeviceUse, u32) {
        for (_, plan) in self.on(name).filter(|(_, one)| !one.victims.is_empty()) {
            let mut held = self.uses(name, gpu, None);
            held.retain(|(uid, _)| plan.victims.contains(uid));
            let reserved = plan.gpus.as_ref().and_then(|gpus| gpus.get(gpu));
            if let Some(reserved) = reserved.filter(|_| !held.is_empty()) {
                let held = sum(held.iter().map(|(_, used)| used));
                all = all.less(reserved.overlap(held));
                pods -= 1;
            }
        }
        (all, pods)
    }

    /// Whether the node can take this pod, by trying every GPU, without what is assumed for it; `None`
    /// for shapes of several containers, where order matters.
    pub(crate) fn fits(&self, name: &NodeName, shape: &Shape, uid: &PodUid) -> Option<bool> {
        let own = (!self.has(uid)).then_some(uid);
        let asking = shape.containers.iter();
        let asking: Vec<_> = asking.filter_map(|(_, _, request)| *request).collect();
        let node = match self.nodes.get(name) {
            Some(node) if node.readable && !self.unreadable(name) => node,
            _ => return Some(false),
        };
        let gpus = &node.gpus;
        if asking.is_empty() {
            return Some(true);
        }
        // Pods have replicas whoever placed them.
        let others = self.on(name).filter(|(uid, _)| Some(*uid) != own);
        let requested: u64 = others.map(|(_, entry)| entry.replicas).sum();
        let offered = node.offered.map_or(u64::MAX, u64::from);
        if requested + shape.replicas() > offered {
            return Some(false);
        }
        let [request] = asking[..] else {
            return None;
        };
        let whole = |gpu: &ModelGpu| if request.percent { gpu.memory } else { 100 };
        let requested_of = |gpu: &ModelGpu| whole(gpu) * request.memory / 100;
        let free = gpus.iter().filter(|gpu| {
            let (used, pods) = self.sum_without(name, &gpu.uuid, own);
            gpu.open()
                && used.replicas < gpu.replicas
                && used.memory.0 + requested_of(gpu) <= gpu.memory
                && u64::from(used.cores.0) + request.cores <= 100
                && !used.alone
                && (request.cores < 100 || pods == 0)
                && (request.cores > 0 || used.cores < Percent(100))
        });
        let free: Vec<u64> = free.map(requested_of).collect();
        let count = u64::try_from(request.gpus).expect("few");
        let [memory, cores] = self.left_without(own);
        let least = free.iter().min().copied().unwrap_or(0);
        let most = free.iter().max().copied().unwrap_or(0);
        if free.len() < request.gpus || least * count > memory || request.cores * count > cores {
            return Some(false);
        }
        // Otherwise it depends on which of them would be chosen.
        (most * count <= memory).then_some(true)
    }

    /// What the quota leaves of memory and of compute beside the other pods. Plans are not charged.
    fn left_without(&self, without: Option<&PodUid>) -> [u64; 2] {
        let pods = || {
            let pods = self.pods.iter();
            pods.filter(|(uid, entry)| Some(*uid) != without && !entry.by_plan())
        };
        let known = pods().all(|(_, entry)| entry.gpus.is_some());
        let gpus = pods().flat_map(|(_, entry)| &entry.gpus);
        let used = sum(gpus.flat_map(DeviceUses::values));
        let left = |(most, used): (Option<u64>, u64)| {
            most.map_or(
                u64::MAX,
                |most| if known { most.saturating_sub(used) } else { 0 },
            )
        };
        let [memory, cores] = self.limits;
        [(memory, used.memory.0), (cores, used.cores.0.into())].map(left)
    }
}

pub(crate) fn sum<'u>(all: impl IntoIterator<Item = &'u DeviceUse>) -> DeviceUse {
    let all = all.into_iter().copied();
    all.fold(DeviceUse::default(), DeviceUse::with)
}

/// A pod's use of each GPU: the most of what runs at once.
fn effective(shape: &Shape, given: &Allocation) -> DeviceUses {
    let mut most: BTreeMap<GpuUuid, DeviceUse> = BTreeMap::new();
    for containers in shape.at_once() {
        let mut together: BTreeMap<&GpuUuid, DeviceUse> = BTreeMap::new();
        for (name, ..) in containers {
            for grant in given.grants(name).unwrap_or_default() {
                let used = together.entry(&grant.gpu).or_default();
                *used = used.with(DeviceUse::new(grant.memory, grant.cores));
            }
        }
        for (gpu, used) in together {
            let most = most.entry(gpu.clone()).or_default();
            *most = most.or(used);
        }
    }
    most.into_iter().collect()
}
