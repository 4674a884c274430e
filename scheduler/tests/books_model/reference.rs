//! The reference model: what the books were told, as plain lists, and sums made
//! anew for every question.
//!
//! Fed by: the same facts as the books, in the same order.
//! Must not: share code with the product beyond types of values.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::{Allocation, GpuUuid, NodeName, PodUid, Stage};

use crate::shapes::Shape;
use crate::world::{Card, Node, Pod};

/// What is taken of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) seats: u64,
    pub(crate) memory: u64,
    pub(crate) cores: u64,
    pub(crate) alone: bool,
    pub(crate) leftover: bool,
}

impl Taken {
    fn of(memory: u64, cores: u64) -> Self {
        Self {
            seats: 1,
            memory,
            cores,
            alone: cores >= 100,
            leftover: cores == 0,
        }
    }

    fn join(self, other: Self, number: fn(u64, u64) -> u64) -> Self {
        Self {
            seats: number(self.seats, other.seats),
            memory: number(self.memory, other.memory),
            cores: number(self.cores, other.cores),
            alone: self.alone || other.alone,
            leftover: self.leftover || other.leftover,
        }
    }

    fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        let add = |sum: Self, one| sum.join(one, |a, b| a + b);
        all.into_iter().fold(Self::default(), add)
    }
}

/// `None`: cannot be read, so all of the node.
type Cards = Option<Vec<(GpuUuid, Taken)>>;

/// One booking.
#[derive(Clone, Debug)]
pub(crate) struct Booked {
    pub(crate) node: NodeName,
    pub(crate) cards: Cards,
    pub(crate) apps: u64,
    pub(crate) seats: u64,
    pub(crate) confirmed: bool,
}

/// All that the books were told.
#[derive(Default)]
pub(crate) struct Reference {
    pub(crate) nodes: BTreeMap<NodeName, Node>,
    pub(crate) pods: BTreeMap<PodUid, Booked>,
    /// Shown, asking for a share, not bound: their shapes.
    pub(crate) waiting: BTreeMap<PodUid, usize>,
    /// Those of them that filter refused and nothing has woken since.
    pub(crate) refused: BTreeSet<PodUid>,
    /// What the namespace may use of memory and of compute.
    pub(crate) limits: [Option<u64>; 2],
}

impl Reference {
    pub(crate) fn pod_shown(&mut self, shapes: &[Shape], uid: &PodUid, pod: &Pod, listed: bool) {
        let shape = &shapes[pod.shape];
        if pod.ended {
            self.pods.remove(uid);
        } else if let Some(node) = &pod.node {
            let cards = match &pod.given {
                None => Some(Vec::new()),
                Some(Ok(given)) if given.node == *node => Some(effective(shape, given)),
                Some(_) => None,
            };
            self.book(uid, shape, node, cards, true);
        }
        if !pod.pending() || !shape.demand.asks() {
            self.stop_waiting(uid);
        } else if self.waiting.insert(uid.clone(), pod.shape).is_none() && listed {
            self.refused.insert(uid.clone());
        }
    }

    pub(crate) fn pod_gone(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.stop_waiting(uid);
    }

    /// A list frees what was confirmed and is not in it; a reservation may be
    /// younger than the list.
    pub(crate) fn pods_listed(&mut self, shapes: &[Shape], pods: &BTreeMap<PodUid, Pod>) {
        let listed = |uid: &PodUid| pods.contains_key(uid);
        self.pods.retain(|uid, one| !one.confirmed || listed(uid));
        self.waiting.retain(|uid, _| listed(uid));
        self.refused.retain(listed);
        for (uid, pod) in pods {
            self.pod_shown(shapes, uid, pod, true);
        }
    }

    pub(crate) fn reserved(&mut self, shape: &Shape, uid: &PodUid, given: &Allocation) {
        let cards = Some(effective(shape, given));
        self.book(uid, shape, &given.node, cards, false);
    }

    pub(crate) fn cancelled(&mut self, uid: &PodUid) {
        self.pods
            .retain(|one, booked| booked.confirmed || one != uid);
    }

    fn stop_waiting(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
        self.refused.remove(uid);
    }

    fn book(&mut self, uid: &PodUid, shape: &Shape, node: &NodeName, cards: Cards, sure: bool) {
        let booked = Booked {
            node: node.clone(),
            cards,
            apps: shape.apps(),
            seats: shape.seats(),
            confirmed: sure,
        };
        self.pods.insert(uid.clone(), booked);
    }

    /// The bookings on a node.
    pub(crate) fn on(&self, node: &NodeName) -> impl Iterator<Item = (&PodUid, &Booked)> {
        let pods = self.pods.iter();
        pods.filter(move |(_, booked)| booked.node == *node)
    }

    /// Some allocation on the node cannot be read.
    pub(crate) fn unreadable(&self, node: &NodeName) -> bool {
        self.on(node).any(|(_, booked)| booked.cards.is_none())
    }

    /// What pods take of a card of a node, and how many do.
    pub(crate) fn sum(&self, name: &NodeName, card: &GpuUuid) -> (Taken, u32) {
        let pods = self.on(name).filter_map(|(_, one)| one.cards.as_ref());
        let here = pods.flatten().filter(|(uuid, _)| uuid == card);
        let mut taken: Vec<Taken> = here.map(|(_, taken)| *taken).collect();
        let lingering = self.nodes.get(name).map(|node| &node.lingering);
        for (pod, uuid, memory, cores) in lingering.into_iter().flatten() {
            if uuid == card && !self.on(name).any(|(uid, _)| uid == pod) {
                taken.push(Taken::of(*memory, u64::from(*cores)));
            }
        }
        let pods = u32::try_from(taken.len()).expect("few");
        (Taken::sum(taken), pods)
    }

    /// Whether the node can take a pod of this shape, by trying every card;
    /// `None` for shapes of several containers, where order matters.
    pub(crate) fn fits(&self, name: &NodeName, shape: &Shape) -> Option<bool> {
        let asking = shape.containers.iter();
        let asking: Vec<_> = asking.filter_map(|(_, _, asked)| *asked).collect();
        let node = match self.nodes.get(name) {
            Some(node) if node.readable && !self.unreadable(name) => node,
            _ => return Some(false),
        };
        let cards = &node.cards;
        if asking.is_empty() {
            return Some(true);
        }
        // Whoever placed them, pods have their seats.
        let requested: u64 = self.on(name).map(|(_, booked)| booked.seats).sum();
        let offered = node.offered.map_or(u64::MAX, u64::from);
        if requested + shape.seats() > offered {
            return Some(false);
        }
        let [asked] = asking[..] else {
            return None;
        };
        let whole = |card: &Card| if asked.percent { card.memory } else { 100 };
        let asked_of = |card: &Card| whole(card) * asked.memory / 100;
        let free = cards.iter().filter(|card| {
            let (taken, pods) = self.sum(name, &card.uuid);
            card.open()
                && taken.seats < u64::from(card.seats)
                && taken.memory + asked_of(card) <= card.memory
                && taken.cores + asked.cores <= 100
                && !taken.alone
                && (asked.cores < 100 || pods == 0)
                && (asked.cores > 0 || taken.cores < 100)
        });
        let free: Vec<u64> = free.map(asked_of).collect();
        let count = u64::try_from(asked.cards).expect("few");
        let [memory, cores] = self.left();
        let least = free.iter().min().copied().unwrap_or(0);
        let most = free.iter().max().copied().unwrap_or(0);
        if free.len() < asked.cards || least * count > memory || asked.cores * count > cores {
            return Some(false);
        }
        // Else it depends on which of them it would be given.
        (most * count <= memory).then_some(true)
    }

    /// What the quota leaves of memory and of compute.
    fn left(&self) -> [u64; 2] {
        let known = self.pods.values().all(|booked| booked.cards.is_some());
        let cards = self
            .pods
            .values()
            .flat_map(|booked| &booked.cards)
            .flatten();
        let used = Taken::sum(cards.map(|(_, taken)| *taken));
        let left = |(most, used): (Option<u64>, u64)| {
            most.map_or(
                u64::MAX,
                |most| if known { most.saturating_sub(used) } else { 0 },
            )
        };
        [(self.limits[0], used.memory), (self.limits[1], used.cores)].map(left)
    }
}

/// A pod's use of each card: the larger of (each init container with the
/// sidecars before it) and (all app containers with all sidecars).
fn effective(shape: &Shape, given: &Allocation) -> Vec<(GpuUuid, Taken)> {
    let kinds = [&given.containers, &given.init];
    let everything = kinds.into_iter().flat_map(BTreeMap::values).flatten();
    let cards: BTreeSet<&GpuUuid> = everything.map(|grant| &grant.gpu).collect();
    let together = |card: &GpuUuid, wanted: &dyn Fn(usize, Stage) -> bool| {
        let numbered = shape.containers.iter().enumerate();
        let some = numbered.filter(|(number, (_, stage, _))| wanted(*number, *stage));
        let grants = some.flat_map(|(_, (name, ..))| given.grants(name).unwrap_or_default());
        let here = grants.filter(|grant| grant.gpu == *card);
        Taken::sum(here.map(|grant| Taken::of(grant.memory.0, grant.cores.0.into())))
    };
    let most = |card: &GpuUuid| {
        let apps = together(card, &|_, stage| stage != Stage::Init);
        let numbered = shape.containers.iter().enumerate();
        let inits = numbered.filter(|(_, (_, stage, _))| *stage == Stage::Init);
        inits.fold(apps, |most, (init, _)| {
            let beside = |number, stage| number < init && stage == Stage::Sidecar;
            let with = together(card, &|number, stage| {
                number == init || beside(number, stage)
            });
            most.join(with, u64::max)
        })
    };
    cards
        .into_iter()
        .map(|card| (card.clone(), most(card)))
        .collect()
}
