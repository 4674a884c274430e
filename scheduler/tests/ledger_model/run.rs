//! Random operations on the world, on the events of its watches, on the lease, and on Bindings,
//! resizes and preemption plans. Equal seeds give equal runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::preemption::PreemptionRecord;
use aliquot_core::{Allocation, NodeName, PodUid};
use aliquot_scheduler::ledger_cache::pending_pods::CLAIM_LIFETIME;
use fastrand::Rng;

use crate::shapes;
use crate::system::{SETTLING, System};
use crate::world::{Node, Pod, Store};

const NODES: u8 = 4;
/// Pods that exist at once, about.
const PODS: usize = 24;

/// A Binding whose response has not arrived.
struct PendingBinding {
    uid: PodUid,
    given: Allocation,
}

/// A resize whose write is not answered. Its precondition is that the pod is as it was.
struct PendingResize {
    uid: PodUid,
    before: Pod,
    after: Pod,
}

pub(crate) struct Run {
    rng: Rng,
    system: System,
    pods: Store<PodUid, Pod>,
    nodes: Store<NodeName, Node>,
    bindings: Vec<PendingBinding>,
    resizes: Vec<PendingResize>,
    /// Plans whose write is not answered.
    plans: Vec<(PodUid, PreemptionRecord)>,
    /// How many plans there were.
    pub(crate) planned: u64,
    /// This replica may send.
    leads: bool,
    /// Bindings and resizes of killed processes, which may still arrive.
    orphans: Vec<PendingBinding>,
    orphaned_resizes: Vec<PendingResize>,
    /// Bindings that were accepted, for the audit.
    settled: Vec<PodUid>,
    limits: [Option<u64>; 2],
    made: u64,
    steps: u64,
}

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        let names: Vec<NodeName> = (0..NODES).map(|n| format!("n{n}").into()).collect();
        let mut run = Self {
            rng: Rng::with_seed(seed),
            system: System::new(shapes::all(), names.clone()),
            pods: Store::default(),
            nodes: Store::default(),
            bindings: Vec::new(),
            resizes: Vec::new(),
            plans: Vec::new(),
            planned: 0,
            leads: false,
            orphans: Vec::new(),
            orphaned_resizes: Vec::new(),
            settled: Vec::new(),
            limits: [None, None],
            made: 0,
            steps: 0,
        };
        for name in &names {
            let node = run.new_node(name);
            run.nodes.put(name, node);
        }
        run
    }

    /// One operation and the comparison after it.
    pub(crate) async fn step(&mut self) {
        self.steps += 1;
        let leads = self.system.leader.leads();
        assert_eq!(leads, self.leads, "nothing is allocated without the lead");
        match self.rng.u32(..1150) {
            0..150 => self.create(),
            150..420 => self.deliver_pod(),
            420..440 => self.deliver_node(),
            440..560 if leads => self.reserve(),
            560..700 if leads => self.post(),
            700..760 if leads => self.filter(),
            440..760 => self.bound_by_leader(),
            760..850 => self.end(),
            850..880 => self.bound_by_others(),
            880..900 => self.late_binding(),
            900..950 => self.change_node(),
            950..960 => self.lose_node(),
            960..966 => self.list_pods(),
            966..970 => self.list_nodes(),
            970..972 => self.restart(),
            972..980 => self.audit(),
            980..985 => self.change_quota(),
            _ if !leads => self.lead().await,
            985..987 => self.lose_lead(),
            987..1020 => self.preempt(),
            _ if self.rng.u8(..8) > 0 => self.resize(),
            _ => self.wait_and_requeue().await,
        }
        self.system.check();
        if self.steps.is_multiple_of(64) {
            self.system.check_deeply();
        }
    }

    fn any(&mut self, pick: impl Fn(&Pod) -> bool) -> Option<(PodUid, Pod)> {
        let some: Vec<_> = self
            .pods
            .objects
            .iter()
            .filter(|(_, pod)| pick(pod))
            .collect();
        let (uid, pod) = *self.rng.choice(&some)?;
        Some((uid.clone(), pod.clone()))
    }

    fn name(&mut self) -> NodeName {
        let at = self.rng.usize(..self.system.names.len());
        self.system.names[at].clone()
    }

    fn create(&mut self) {
        if self.pods.objects.len() >= PODS {
            return self.end();
        }
        self.made += 1;
        let uid = format!("p{}", self.made).into();
        let shape = self.rng.usize(..self.system.shapes.len());
        let pod = Pod {
            shape,
            node: None,
            given: None,
            ended: false,
            generation: 0,
            to: None,
            plan: None,
        };
        self.pods.put(&uid, pod);
    }

    /// Deleted, or run to its end.
    fn end(&mut self) {
        let deleted = self.rng.bool();
        if let Some((uid, _)) = self.any(|pod| deleted || !pod.ended) {
            if deleted {
                self.pods.delete(&uid);
            } else {
                self.pods.change(&uid, |pod| pod.ended = true);
            }
        }
    }

    fn deliver_pod(&mut self) {
        for _ in 0..self.rng.u8(1..4) {
            if let Some((uid, event)) = self.pods.coming.pop_front() {
                self.system.pod_event(&uid, &event);
            }
        }
    }

    fn deliver_node(&mut self) {
        if let Some((name, event)) = self.nodes.coming.pop_front() {
            self.system.node_event(&name, event);
        }
    }

    fn filter(&mut self) {
        if let Some((uid, pod)) = self.any(Pod::pending) {
            self.system.filter(&uid, pod.shape, &pod);
        }
    }

    /// As bind does: also for pods that our watch has not shown, or has shown deleted.
    fn reserve(&mut self) {
        let Some((uid, pod)) = self.any(Pod::pending) else {
            return;
        };
        let node = self.name();
        // A second bind call waits for the first.
        if self.bindings.iter().any(|binding| binding.uid == uid) {
            return;
        }
        if let Some(given) = self.system.reserve(&uid, pod.shape, &node) {
            self.bindings.push(PendingBinding { uid, given });
        }
    }

    /// The API server's response to a Binding, or without the lead to a GET: bound, or definitely
    /// not.
    fn commit(&mut self, binding: &PendingBinding, leads: bool) -> bool {
        let Some(pod) = self.pods.objects.get(&binding.uid) else {
            return false;
        };
        let given = Some(Ok(binding.given.clone()));
        let node = binding.given.node.clone();
        if leads && pod.node.is_none() {
            self.pods.change(&binding.uid, |pod| {
                (pod.node, pod.given) = (Some(node), given);
            });
            return true;
        }
        // A conflict: an earlier copy of the same Binding, or another's.
        pod.node == Some(node) && matches!(&pod.given, Some(Ok(given)) if *given == binding.given)
    }

    /// A Binding is sent, or sent again; its response may get lost.
    fn post(&mut self) {
        if self.bindings.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.bindings.len());
        let binding = self.bindings.swap_remove(at);
        let arrives = self.rng.u8(..8) > 0;
        let bound = arrives && self.commit(&binding, true);
        let answered = arrives && self.rng.u8(..4) > 0;
        match (answered, bound) {
            (false, _) => self.bindings.push(binding),
            (true, true) => self.settled.push(binding.uid),
            (true, false) => self.system.cancel(&binding.uid),
        }
    }

    fn late_binding(&mut self) {
        if let Some(binding) = self.orphans.pop() {
            self.commit(&binding, true);
        }
        if let Some(resize) = self.orphaned_resizes.pop() {
            self.commit_resize(&resize, true);
        }
    }

    /// A step of some resize: one is decided, written, or enforced by its node.
    fn resize(&mut self) {
        match self.rng.u8(..8) {
            0..4 => self.reserve_resize(),
            4..6 => self.write_resize(),
            _ => {
                if let Some((uid, _)) = self.any(|pod| pod.to.is_some()) {
                    self.pods
                        .change(&uid, |pod| pod.given = pod.to.take().map(Ok));
                }
            }
        }
    }

    fn reserve_resize(&mut self) {
        let bound = |pod: &Pod| matches!(pod.given, Some(Ok(_))) && !pod.ended;
        let Some((uid, before)) = self.any(bound) else {
            return;
        };
        let busy = self.resizes.iter().any(|resize| resize.uid == uid);
        let containers = &self.system.shapes[before.shape].containers;
        let containers = containers.iter().filter(|(.., request)| request.is_some());
        let names: Vec<String> = containers.map(|(name, ..)| name.clone()).collect();
        let Some(name) = self.rng.choice(&names).filter(|_| !busy) else {
            return;
        };
        let (memory, cores) = (self.rng.u64(1..700), self.rng.u32(..=100));
        let text = match self.rng.u8(..3) {
            0 => format!("{name}:gpumem={memory}"),
            1 => format!("{name}:gpucores={cores}"),
            _ => format!("{name}:gpumem={memory},gpucores={cores}"),
        };
        if let Some(resized) = self.system.resize(&uid, &before, &text) {
            let after = Pod {
                given: Some(Ok(resized.allocation)),
                generation: before.generation + 1,
                to: Some(resized.to),
                ..before.clone()
            };
            self.resizes.push(PendingResize { uid, before, after });
        }
    }

    /// The same for a resize: written, or definitely not.
    fn commit_resize(&mut self, resize: &PendingResize, leads: bool) -> bool {
        let now = self.pods.objects.get(&resize.uid);
        let unchanged = leads && now == Some(&resize.before);
        if unchanged {
            self.pods
                .change(&resize.uid, |pod| *pod = resize.after.clone());
        }
        // A conflict: an earlier copy of the same write, or another change.
        let now = self.pods.objects.get(&resize.uid);
        unchanged || now.is_some_and(|pod| pod.generation == resize.after.generation)
    }

    /// A resize is sent, or sent again; its response may get lost.
    fn write_resize(&mut self) {
        if self.resizes.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.resizes.len());
        let resize = self.resizes.swap_remove(at);
        let arrives = self.rng.u8(..8) > 0;
        let written = arrives && self.commit_resize(&resize, true);
        let answered = arrives && self.rng.u8(..4) > 0;
        match (answered, written) {
            (false, _) => self.resizes.push(resize),
            (true, true) => {}
            (true, false) => self.system.end_resize(&resize.uid, resize.after.generation),
        }
    }

    /// A step of some preemption: a plan is made, written or withdrawn, or a victim ends.
    fn preempt(&mut self) {
        match self.rng.u8(..8) {
            0..3 => self.plan(),
            3..5 => self.write_plan(),
            5 => self.withdraw(),
            _ => self.evict(),
        }
    }

    fn plan(&mut self) {
        let refused = self.rng.choice(&self.system.reference.refused).cloned();
        let Some(uid) = refused else { return };
        // A pod has one plan at a time.
        let pods = &self.pods.objects;
        let has_plan = pods.get(&uid).is_none_or(|pod| pod.plan.is_some());
        if has_plan || self.plans.iter().any(|(other, _)| *other == uid) {
            return;
        }
        let pending = pods.values().filter(|pod| pod.pending());
        let written = pending.filter_map(Pod::open_plan);
        let all = written.chain(self.plans.iter().map(|(_, plan)| plan));
        let others: Vec<_> = all.cloned().map(Arc::new).collect();
        if let Some(plan) = self.system.plan(&uid, &others) {
            self.plans.push((uid, plan));
            self.planned += 1;
        }
    }

    /// A plan is written on its pod; the answer may get lost, and then it is written again.
    fn write_plan(&mut self) {
        let Some((uid, plan)) = self.plans.pop() else {
            return;
        };
        let is_rejected = self.rng.u8(..8) == 0;
        if is_rejected || !self.pods.objects.contains_key(&uid) {
            return self.system.forget_unwritten(&uid);
        }
        self.pods.change(&uid, |pod| pod.plan = Some(plan.clone()));
        if self.rng.u8(..4) == 0 {
            self.plans.push((uid, plan));
        }
    }

    /// A plan is given up, or removed from its pod.
    fn withdraw(&mut self) {
        if let Some((uid, pod)) = self.any(|pod| pod.open_plan().is_some()) {
            let closed = pod.plan.map(|plan| plan.given_up(0));
            let closed = closed.filter(|_| self.rng.bool());
            self.pods.change(&uid, |pod| pod.plan = closed);
            self.system.forget_unwritten(&uid);
        }
    }

    /// One victim of a plan is gone.
    fn evict(&mut self) {
        let planned = self.any(|pod| pod.open_plan().is_some());
        let plan = planned.and_then(|(_, pod)| pod.plan);
        let victims = plan.into_iter().flat_map(|plan| plan.victims);
        for victim in victims {
            if self.pods.objects.contains_key(&victim.uid) {
                return self.pods.delete(&victim.uid);
            }
        }
    }

    /// Another replica leads: this one sends nothing more, and asks what has arrived.
    fn lose_lead(&mut self) {
        self.system.show_lease_of("pod-b_1");
        self.leads = false;
        self.end_calls(false);
        self.plans.clear();
        for uid in self.pods.objects.keys() {
            self.system.forget_unwritten(uid);
        }
    }

    /// The other replica binds a pod, by its own ledger.
    fn bound_by_leader(&mut self) {
        let Some((uid, pod)) = self.any(Pod::pending) else {
            return;
        };
        let node = self.name();
        let other = self.system.fresh(&self.pods.objects, &self.nodes.objects);
        let demand = &self.system.shapes[pod.shape].demand;
        if let Ok(given) = other.reserve(&uid, &"d".into(), &node, demand) {
            let given = Some(Ok(given));
            self.pods
                .change(&uid, |pod| (pod.node, pod.given) = (Some(node), given));
        }
    }

    /// This replica has the lease again. It leads once a list has shown what the other one bound,
    /// and then its ledger is that of the watches.
    async fn lead(&mut self) {
        self.system.show_lease_of("pod-a_1");
        assert!(!self.system.leader.leads(), "before the list");
        tokio::time::advance(SETTLING).await;
        self.list_nodes();
        self.list_pods();
        self.leads = true;
        self.audit();
        self.system.expire();
        let fresh = self.system.fresh(&self.pods.objects, &self.nodes.objects);
        let ours = self.system.cache.read(Clone::clone);
        let same = fresh.read(|fresh| *fresh == ours);
        assert!(same, "the ledger is not that of the watches");
    }

    /// By the default scheduler, by hand, by another release of ours.
    fn bound_by_others(&mut self) {
        let Some((uid, _)) = self.any(Pod::pending) else {
            return;
        };
        let (node, other) = (self.name(), self.name());
        let damaged = [r#"{"v":9}"#, "", "{"];
        let text = damaged[self.rng.usize(..damaged.len())];
        let given = match self.rng.u8(..12) {
            0 => Some(Err(text)),
            1 => Some(Ok(Allocation {
                v: 1,
                node: other,
                containers: BTreeMap::new(),
                init: BTreeMap::new(),
                priority: 1,
            })),
            _ => None,
        };
        self.pods
            .change(&uid, |pod| (pod.node, pod.given) = (Some(node), given));
    }

    fn new_node(&mut self, name: &NodeName) -> Node {
        Node::new(name, self.rng.u8(1..4))
    }

    fn change_node(&mut self) {
        let name = self.name();
        let fresh = self.new_node(&name);
        let what = self.rng.u8(..8);
        let memory = 600 + 100 * self.rng.u64(..6);
        let replicas = self.rng.u32(1..6);
        let offered = self.rng.u32(..16);
        let pod = self.any(|_| true).map(|(uid, _)| uid);
        if !self.nodes.objects.contains_key(&name) {
            return self.nodes.put(&name, fresh);
        }
        let at = self.rng.usize(..3);
        self.nodes.change(&name, |node| {
            let Some(gpu) = node.gpus.get_mut(at) else {
                return *node = fresh;
            };
            match what {
                0 | 1 => gpu.healthy ^= true,
                2 => gpu.cordoned ^= true,
                3 => (gpu.memory, gpu.replicas) = (memory, replicas),
                4 => node.readable ^= true,
                5 => *node = fresh,
                6 => node.offered = (offered < 15).then_some(offered),
                _ if node.orphaned.is_empty() => {
                    let left = |pod| (pod, gpu.uuid.clone(), 200, 20);
                    node.orphaned = pod.map(left).into_iter().collect();
                }
                _ => node.orphaned.clear(),
            }
        });
    }

    fn change_quota(&mut self) {
        self.limits = [9000, 400].map(|most| self.rng.bool().then(|| self.rng.u64(..most)));
        self.system.quota(self.limits);
    }

    fn lose_node(&mut self) {
        let name = self.name();
        self.nodes.delete(&name);
    }

    /// A watch was interrupted: the events on their way are lost.
    fn list_pods(&mut self) {
        self.pods.coming.clear();
        self.system.pod_list(&self.pods.objects);
    }

    fn list_nodes(&mut self) {
        self.nodes.coming.clear();
        self.system.node_list(&self.nodes.objects);
    }

    fn restart(&mut self) {
        self.system.restart();
        self.orphans.append(&mut self.bindings);
        self.orphaned_resizes.append(&mut self.resizes);
        self.plans.clear();
        self.settled.clear();
        self.system.quota(self.limits);
        self.list_nodes();
        self.list_pods();
    }

    /// A settled reservation that the watch never showed is released when its pod no longer exists.
    fn audit(&mut self) {
        for uid in std::mem::take(&mut self.settled) {
            if self.pods.objects.contains_key(&uid) {
                self.settled.push(uid);
            } else {
                self.system.cancel(&uid);
            }
        }
    }

    /// All that is claimed and assumed expires, and refused pods are checked.
    async fn wait_and_requeue(&mut self) {
        self.system.expire();
        tokio::time::advance(CLAIM_LIFETIME + Duration::from_millis(1)).await;
        // Waiting for a capacity event notices expired claims; an earlier event may be pending,
        // too.
        for _ in 0..2 {
            let soon = Duration::from_millis(1);
            drop(tokio::time::timeout(soon, self.system.cache.capacity_changed()).await);
        }
        self.system.ranks();
        self.system.requeue();
    }

    /// Every call is answered.
    fn end_calls(&mut self, leads: bool) {
        for binding in std::mem::take(&mut self.bindings) {
            if self.commit(&binding, leads) {
                self.settled.push(binding.uid);
            } else {
                self.system.cancel(&binding.uid);
            }
        }
        for resize in std::mem::take(&mut self.resizes) {
            if !self.commit_resize(&resize, leads) {
                self.system.end_resize(&resize.uid, resize.after.generation);
            }
        }
    }

    /// At the end every event is delivered and every call answered: the ledger is that of a new
    /// process, and no pod is only reserved.
    pub(crate) fn settle(&mut self) {
        self.end_calls(true);
        while !self.plans.is_empty() {
            self.write_plan();
        }
        while let Some((uid, event)) = self.pods.coming.pop_front() {
            self.system.pod_event(&uid, &event);
        }
        while let Some((name, event)) = self.nodes.coming.pop_front() {
            self.system.node_event(&name, event);
        }
        self.audit();
        self.system.expire();
        self.system.check();
        let running = self.system.cache.read(Clone::clone);
        self.restart();
        let same = self.system.cache.read(|ledger| *ledger == running);
        assert!(same, "a new process has another ledger");
    }
}
