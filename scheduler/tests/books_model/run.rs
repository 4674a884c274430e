//! Random operations on the world, on what its watches tell and on Bindings.
//!
//! Fed by: a seed; equal seeds give equal runs.
//! Must not: look into the books; `system.rs` compares them.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_core::{Allocation, NodeName, PodUid};
use aliquot_scheduler::claims::LIFE;
use fastrand::Rng;

use crate::shapes;
use crate::system::System;
use crate::world::{Node, Pod, Store};

const NODES: u8 = 4;
/// Pods that the API server holds at once, about.
const PODS: usize = 24;

/// A Binding whose answer has not been heard.
struct Flight {
    uid: PodUid,
    given: Allocation,
}

/// One run.
pub(crate) struct Run {
    rng: Rng,
    system: System,
    pods: Store<PodUid, Pod>,
    nodes: Store<NodeName, Node>,
    flights: Vec<Flight>,
    /// Bindings of killed processes: they may still arrive.
    orphans: Vec<Flight>,
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
            flights: Vec::new(),
            orphans: Vec::new(),
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
        match self.rng.u32(..1000) {
            0..150 => self.create(),
            150..420 => self.deliver_pod(),
            420..440 => self.deliver_node(),
            440..560 => self.reserve(),
            560..700 => self.post(),
            700..760 => self.filter(),
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
            _ => self.wait_and_wake().await,
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

    /// As bind does: also for pods that our watch has not shown, or shown gone.
    fn reserve(&mut self) {
        let Some((uid, pod)) = self.any(Pod::pending) else {
            return;
        };
        let node = self.name();
        // A second bind call waits for the first.
        if self.flights.iter().any(|flight| flight.uid == uid) {
            return;
        }
        if let Some(given) = self.system.reserve(&uid, pod.shape, &node) {
            self.flights.push(Flight { uid, given });
        }
    }

    /// The API server's answer to a Binding: bound, or definitely not.
    fn commit(&mut self, flight: &Flight) -> bool {
        let Some(pod) = self.pods.objects.get(&flight.uid) else {
            return false;
        };
        let given = Some(Ok(flight.given.clone()));
        let node = flight.given.node.clone();
        if pod.node.is_none() {
            self.pods.change(&flight.uid, |pod| {
                (pod.node, pod.given) = (Some(node), given);
            });
            return true;
        }
        // A conflict: an earlier copy of the same Binding, or another's.
        pod.node == Some(node) && matches!(&pod.given, Some(Ok(given)) if *given == flight.given)
    }

    /// A Binding is sent, or sent again; its answer may get lost.
    fn post(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.flights.len());
        let flight = self.flights.swap_remove(at);
        let arrives = self.rng.u8(..8) > 0;
        let bound = arrives && self.commit(&flight);
        let heard = arrives && self.rng.u8(..4) > 0;
        match (heard, bound) {
            (false, _) => self.flights.push(flight),
            (true, true) => self.settled.push(flight.uid),
            (true, false) => self.system.cancel(&flight.uid),
        }
    }

    fn late_binding(&mut self) {
        if let Some(flight) = self.orphans.pop() {
            self.commit(&flight);
        }
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
        let seats = self.rng.u32(1..6);
        let offered = self.rng.u32(..16);
        let pod = self.any(|_| true).map(|(uid, _)| uid);
        if !self.nodes.objects.contains_key(&name) {
            return self.nodes.put(&name, fresh);
        }
        let at = self.rng.usize(..3);
        self.nodes.change(&name, |node| {
            let Some(card) = node.cards.get_mut(at) else {
                return *node = fresh;
            };
            match what {
                0 | 1 => card.healthy ^= true,
                2 => card.cordoned ^= true,
                3 => (card.memory, card.seats) = (memory, seats),
                4 => node.readable ^= true,
                5 => *node = fresh,
                6 => node.offered = (offered < 15).then_some(offered),
                _ if node.lingering.is_empty() => {
                    let left = |pod| (pod, card.uuid.clone(), 200, 20);
                    node.lingering = pod.map(left).into_iter().collect();
                }
                _ => node.lingering.clear(),
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

    /// A watch lost its place: what was on its way is never told.
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
        self.orphans.append(&mut self.flights);
        self.settled.clear();
        self.system.quota(self.limits);
        self.list_nodes();
        self.list_pods();
    }

    /// A settled reservation that the watch never showed is freed when its pod
    /// no longer exists.
    fn audit(&mut self) {
        for uid in std::mem::take(&mut self.settled) {
            if self.pods.objects.contains_key(&uid) {
                self.settled.push(uid);
            } else {
                self.system.cancel(&uid);
            }
        }
    }

    /// All claims end, and refused pods are looked at.
    async fn wait_and_wake(&mut self) {
        tokio::time::advance(LIFE + Duration::from_millis(1)).await;
        // Claims that are over are noticed by who waits for an enlargement;
        // there may be one that nobody has looked at, too.
        for _ in 0..2 {
            let soon = Duration::from_millis(1);
            drop(tokio::time::timeout(soon, self.system.books.enlarged()).await);
        }
        self.system.ranks();
        self.system.wake();
    }

    /// For the end: everything is told and answered; the books are those of a new process,
    /// and nothing is only reserved.
    pub(crate) fn settle(&mut self) {
        for flight in std::mem::take(&mut self.flights) {
            if self.commit(&flight) {
                self.settled.push(flight.uid);
            } else {
                self.system.cancel(&flight.uid);
            }
        }
        while let Some((uid, event)) = self.pods.coming.pop_front() {
            self.system.pod_event(&uid, &event);
        }
        while let Some((name, event)) = self.nodes.coming.pop_front() {
            self.system.node_event(&name, event);
        }
        self.audit();
        self.system.check();
        let running = self.system.books.read(Clone::clone);
        self.restart();
        let same = self.system.books.read(|ledger| *ledger == running);
        assert!(same, "a new process has other books");
    }
}
