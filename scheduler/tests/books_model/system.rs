//! The running books beside the reference model: every fact goes to both, and
//! then they must be equal.
//!
//! Fed by: the operations of `run.rs`. Must not: choose anything.

use std::collections::BTreeMap;

use aliquot_core::decide::{self, Question};
use aliquot_core::fit::Policies;
use aliquot_core::ledger::{Held, NotReserved};
use aliquot_core::memo::Memo;
use aliquot_core::reason::Reason;
use aliquot_core::{Allocation, Cluster, Ledger, NodeName, NodeState, PodUid, invariant};
use aliquot_k8s::pod::Settings;
use aliquot_k8s::watch::Index;
use aliquot_scheduler::books::Books;
use aliquot_scheduler::waiting;
use k8s_openapi::api::core::v1 as api;

use crate::reference::{Reference, Taken};
use crate::shapes::{CPU, Shape};
use crate::world::{self, Event, Node, Pod};

/// Both, and a snapshot with what it said when it was taken.
pub(crate) struct System {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) books: Books,
    pub(crate) reference: Reference,
    pub(crate) names: Vec<NodeName>,
    /// The same, as a call carries them.
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
        Self {
            shapes,
            books: Books::new(Settings::default(), Policies::default()),
            reference: Reference::default(),
            texts: names.iter().map(ToString::to_string).collect(),
            names,
            snapshot: (Cluster::default(), Vec::new()),
        }
    }

    /// The process is killed, and another one starts.
    pub(crate) fn restart(&mut self) {
        self.books = Books::new(Settings::default(), Policies::default());
        self.reference = Reference::default();
    }

    pub(crate) fn pod_event(&mut self, uid: &PodUid, event: &Event<Pod>) {
        match event {
            Event::Applied(pod) => {
                let object = world::pod_object(&self.shapes, uid, pod);
                Index::<api::Pod>::apply(&self.books, object);
                self.reference.pod_shown(&self.shapes, uid, pod, false);
            }
            Event::Deleted(pod) => {
                let object = world::pod_object(&self.shapes, uid, pod);
                Index::<api::Pod>::delete(&self.books, object);
                self.reference.pod_gone(uid);
            }
        }
    }

    pub(crate) fn pod_list(&mut self, pods: &BTreeMap<PodUid, Pod>) {
        let object = |(uid, pod)| world::pod_object(&self.shapes, uid, pod);
        Index::<api::Pod>::reset(&self.books, pods.iter().map(object).collect());
        self.reference.pods_listed(&self.shapes, pods);
    }

    pub(crate) fn node_event(&mut self, name: &NodeName, event: Event<Node>) {
        match event {
            Event::Applied(node) => {
                Index::<api::Node>::apply(&self.books, world::node_object(name, &node));
                self.reference.nodes.insert(name.clone(), node);
            }
            Event::Deleted(node) => {
                Index::<api::Node>::delete(&self.books, world::node_object(name, &node));
                self.reference.nodes.remove(name);
            }
        }
    }

    pub(crate) fn node_list(&mut self, nodes: &BTreeMap<NodeName, Node>) {
        let object = |(name, node)| world::node_object(name, node);
        Index::<api::Node>::reset(&self.books, nodes.iter().map(object).collect());
        self.reference.nodes.clone_from(nodes);
    }

    /// The namespace's quota on memory and compute, if it has any.
    pub(crate) fn quota(&mut self, limits: [Option<u64>; 2]) {
        let object = world::quota_object(limits);
        if limits == [None, None] {
            Index::<api::ResourceQuota>::delete(&self.books, object);
        } else {
            Index::<api::ResourceQuota>::apply(&self.books, object);
        }
        self.reference.limits = limits;
    }

    pub(crate) fn cancel(&mut self, uid: &PodUid) {
        self.books.cancel(uid);
        self.reference.cancelled(uid);
    }

    /// Reserves where it must be possible and is refused where it must not.
    pub(crate) fn reserve(
        &mut self,
        uid: &PodUid,
        shape: usize,
        node: &NodeName,
    ) -> Option<Allocation> {
        let shape = &self.shapes[shape];
        let fits = self.reference.fits(node, shape);
        match self.books.reserve(uid, &"d".into(), node, &shape.demand) {
            Ok(given) => {
                assert_ne!(fits, Some(false), "reserved on {node} without room");
                assert!(!self.reference.pods.contains_key(uid), "booked twice");
                self.reference.reserved(shape, uid, &given);
                self.within_capacity(node, uid);
                Some(given)
            }
            Err(NotReserved::Booked(there)) => {
                let booked = self.reference.pods.get(uid).expect("a booking");
                assert_eq!(booked.node, there);
                None
            }
            Err(NotReserved::Refused(refusal)) => {
                assert_ne!(fits, Some(true), "refused on {node}: {refusal}");
                None
            }
        }
    }

    fn within_capacity(&self, node: &NodeName, uid: &PodUid) {
        self.books.read(|ledger| {
            let state = ledger
                .cluster()
                .node(node.as_str())
                .expect("reserved on it");
            let Some(Held::Uses(uses)) = ledger.booking(uid).map(|booking| &booking.held) else {
                panic!("{uid} holds nothing");
            };
            let inventory = state.inventory.as_ref().expect("reserved on its cards");
            for (gpu, card) in inventory.gpus.iter().zip(&state.cards) {
                let here = uses.contains_key(&gpu.uuid);
                assert!(
                    !here || invariant::within_capacity(card),
                    "{node}: {card:?}"
                );
            }
        });
    }

    /// Filter, as kube-scheduler asks it: what fits does not depend on notes.
    pub(crate) fn filter(&mut self, uid: &PodUid, shape: usize, pod: &Pod) {
        let demand = self.shapes[shape].demand.clone();
        if !demand.asks() {
            return;
        }
        let seen = self.books.enlargements();
        let view = self.books.view("d");
        let object = world::pod_object(&self.shapes, uid, pod);
        if let Ok(found) = self.books.fitting(&view, uid, &demand, &self.texts) {
            let fitting: Vec<&str> = found.iter().map(|ranked| ranked.name).collect();
            self.check_fitting(shape, &fitting);
            let best = decide::shortlist(found, 1);
            self.books.claim(&view.0, &object, &demand, best[0]);
        } else {
            self.check_fitting(shape, &[]);
            let mut waiting = waiting::waiting(&object, demand, true);
            waiting.offered = view.0.set(&self.texts);
            self.books.refused(uid, waiting, seen);
            self.reference.waiting.insert(uid.clone(), shape);
            self.reference.refused.insert(uid.clone());
        }
    }

    fn check_fitting(&self, shape: usize, fitting: &[&str]) {
        for name in &self.names {
            let expected = self.reference.fits(name, &self.shapes[shape]);
            let found = fitting.contains(&name.as_str());
            assert!(
                expected.is_none_or(|fits| fits == found),
                "filter says {found} of {name}"
            );
        }
    }

    /// With no claim alive: wakes, and whatever is not woken does not fit.
    pub(crate) fn wake(&mut self) {
        let woken = self.books.wakeable();
        for (uid, _) in &woken {
            assert!(
                self.reference.refused.remove(uid),
                "{uid} was woken unasked"
            );
        }
        if !woken.is_empty() {
            return;
        }
        for uid in &self.reference.refused {
            let shape = &self.shapes[self.reference.waiting[uid]];
            let booked = self.reference.pods.contains_key(uid);
            let fits = self
                .names
                .iter()
                .find(|name| self.reference.fits(name, shape) == Some(true));
            assert!(
                booked || fits.is_none(),
                "{uid} sleeps and fits on {fits:?}"
            );
        }
    }

    /// With no claim alive: kept verdicts are those of a memo without memory.
    pub(crate) fn ranks(&self) {
        let cluster = self.books.snapshot();
        let nobody = PodUid::from("nobody");
        let policies = self.books.policies();
        for shape in self.shapes.iter().filter(|shape| shape.demand.asks()) {
            let question = Question {
                cluster: &cluster,
                demand: &shape.demand,
                policies: &policies,
                notes: &[],
                own: None,
                headroom: None,
            };
            let fresh = decide::ranks(&question, &mut Memo::default(), &self.texts);
            let kept = self
                .books
                .ranks(&cluster, &nobody, &shape.demand, &self.texts);
            assert_eq!(kept, fresh);
        }
    }

    /// What costs more than a step: recomputed books, and the old snapshot.
    pub(crate) fn check_deeply(&mut self) {
        let differences = self.books.recompute();
        assert_eq!(differences.count(), 0, "self-check: {differences:?}");
        let (snapshot, before) = &self.snapshot;
        assert!(content(snapshot) == *before, "a snapshot changed");
        let snapshot = self.books.snapshot();
        let content = content(&snapshot);
        self.snapshot = (snapshot, content);
    }

    /// The books say what the model says.
    pub(crate) fn check(&self) {
        self.books.read(|ledger| self.compare(ledger));
        let waiting = (self.reference.waiting.len(), self.reference.refused.len());
        assert_eq!(self.books.waiting_counts(), waiting, "waiting, refused");
    }

    fn compare(&self, ledger: &Ledger) {
        let model = &self.reference;
        assert_eq!(ledger.bookings().count(), model.pods.len(), "bookings");
        for (uid, booked) in &model.pods {
            let booking = ledger.booking(uid).unwrap_or_else(|| panic!("{uid} lost"));
            assert_eq!(booking.node, booked.node, "{uid}");
            assert_eq!(booking.confirmed, booked.confirmed, "{uid}");
            match (&booking.held, &booked.cards) {
                (Held::Unreadable, None) => {}
                (Held::Uses(uses), Some(cards)) => {
                    let uses = uses.iter().map(|(card, used)| (card, taken(used)));
                    let same = uses.eq(cards.iter().map(|(card, taken)| (card, *taken)));
                    assert!(same, "{uid}: {booking:?} and {booked:?}");
                }
                _ => panic!("{uid}: {booking:?} and {booked:?}"),
            }
        }
        for name in &self.names {
            let known = model.nodes.contains_key(name) || model.on(name).next().is_some();
            let state = ledger.cluster().node(name.as_str());
            assert_eq!(state.is_some(), known, "{name}");
            if let Some(state) = state {
                self.compare_node(name, state);
            }
        }
    }

    fn compare_node(&self, name: &NodeName, state: &NodeState) {
        let model = &self.reference;
        let apps: u64 = model.on(name).map(|(_, booked)| booked.apps).sum();
        assert_eq!(state.host.requested.cpu.0, apps * CPU, "{name}");
        let seats: u64 = model.on(name).map(|(_, booked)| booked.seats).sum();
        let requested = state.seats.requested.under("nvidia.com/gpu");
        assert_eq!(u64::from(requested), seats, "{name}");
        let Some(node) = model.nodes.get(name).filter(|node| node.readable) else {
            assert_eq!(state.closed, Some(Reason::NodeNotRegistered), "{name}");
            return assert!(state.cards.is_empty());
        };
        let unreadable = model
            .unreadable(name)
            .then_some(Reason::NodeAllocationUnreadable);
        assert_eq!(state.closed, unreadable, "{name}");
        assert_eq!(state.cards.len(), node.cards.len(), "{name}");
        for (card, told) in state.cards.iter().zip(&node.cards) {
            assert_eq!(card.closed.is_none(), told.open(), "{told:?}");
            let (sum, pods) = model.sum(name, &told.uuid);
            assert_eq!(
                (taken(&card.sums.used), card.sums.pods),
                (sum, pods),
                "{told:?}"
            );
        }
    }
}

fn taken(used: &aliquot_core::usage::Use) -> Taken {
    Taken {
        seats: used.seats.into(),
        memory: used.memory.0,
        cores: used.cores.0.into(),
        alone: used.alone,
        leftover: used.leftover,
    }
}
