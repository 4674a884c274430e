//! The cluster's typical pods, learnt from its own.
//!
//! A [`Census`] counts pods by shape; the commonest shapes that make up 95 % of
//! them, at most 64, are typical. While fewer than 50 pods were counted, an
//! assumed mix stands in for those that are missing.
//! Fed by: the books, or a trace. Must not: grow with the cluster; shapes beyond
//! a number are counted but not told apart.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::id::NodeName;
use crate::ledger::{Booking, Held, Ledger};
use crate::node::Compute;
use crate::request::Memory;
use crate::units::{Mib, MilliCpu, Percent};

/// Percent of the pods that the typical ones stand for (as in the published experiment).
const COVERED: u64 = 95;
/// Most typical pods: one bit each in a word.
const MOST: usize = 64;
/// Most shapes that are told apart.
const SHAPES: usize = 4096;
/// With fewer pods than this the assumed mix makes up for the rest.
const ENOUGH: u32 = 50;
/// A change of this many ten-thousandths of the pods is one.
const CHANGED: u64 = 500;
/// The assumed mix: parts of a card's memory, and how many pods of ten ask for it.
const ASSUMED: [(u32, u32); 4] = [(100, 4), (50, 3), (25, 2), (10, 1)];

/// What pods of one shape ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Of the node. Host memory is not part of the shape.
    pub cpu: MilliCpu,
    /// Number of cards; 0 for a pod without.
    pub count: u32,
    /// Memory on each.
    pub memory: Memory,
    /// Compute on each; 100 means alone.
    pub cores: Percent,
}

impl Shape {
    /// The shape of a pod that is booked; `None` when its allocation cannot be
    /// read. Of cards with different shares the largest counts.
    pub fn of(booking: &Booking) -> Option<Self> {
        let Held::Uses(uses) = &booking.held else {
            return None;
        };
        let alone = uses.values().any(|used| used.alone);
        let cores = uses.values().map(|used| used.cores).max();
        let memory = uses.values().map(|used| used.memory).max();
        Some(Self {
            cpu: booking.requests.host.cpu,
            count: u32::try_from(uses.len()).unwrap_or(u32::MAX),
            memory: Memory::Mib(memory.unwrap_or_default()),
            cores: if alone {
                Percent::WHOLE
            } else {
                cores.unwrap_or_default()
            },
        })
    }

    /// Breaks ties between equally common shapes: the larger first.
    fn size(&self) -> (u64, Percent, u64, u32) {
        let memory = match self.memory {
            Memory::Mib(memory) => memory.0,
            Memory::Share(part) => part.0.into(),
        };
        (self.cpu.0, self.cores, memory, self.count)
    }
}

/// Pods counted by shape.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// For each shape: pods, and their host memory together.
    shapes: HashMap<Shape, (u32, Mib)>,
    pods: u32,
}

impl Census {
    /// Counts a pod of this shape with this host memory.
    pub fn add(&mut self, shape: Shape, memory: Mib) {
        self.pods += 1;
        if self.shapes.len() < SHAPES || self.shapes.contains_key(&shape) {
            let (count, sum) = self.shapes.entry(shape).or_default();
            *count += 1;
            *sum += memory;
        }
    }

    /// Counts the pods that are booked on a node.
    pub fn count(&mut self, ledger: &Ledger, node: &NodeName) {
        let pods = ledger.pods_on(node.as_str());
        for booking in pods.filter_map(|pod| ledger.booking(pod)) {
            if let Some(shape) = Shape::of(booking) {
                self.add(shape, booking.requests.host.memory);
            }
        }
    }

    /// How many pods were counted.
    pub fn pods(&self) -> u32 {
        self.pods
    }

    /// How many shapes are told apart.
    pub fn shapes(&self) -> usize {
        self.shapes.len()
    }

    /// The typical pods.
    pub fn typical(&self) -> Typical {
        let mut shapes: Vec<_> = self.shapes.iter().collect();
        shapes.sort_unstable_by_key(|(shape, (count, _))| Reverse((*count, shape.size())));
        let wanted = u64::from(self.pods) * COVERED;
        let mut covered = 0;
        let mut pods = Vec::new();
        let missing = ENOUGH.saturating_sub(self.pods);
        for (shape, (count, memory)) in shapes.into_iter().take(MOST - ASSUMED.len()) {
            if covered * 100 >= wanted {
                break;
            }
            covered += u64::from(*count);
            let host = Compute {
                cpu: shape.cpu,
                memory: Mib(memory.0 / u64::from(*count)),
            };
            pods.push(TypicalPod {
                weight: *count * 10,
                host,
                count: shape.count,
                memory: shape.memory,
                cores: shape.cores,
            });
        }
        if missing > 0 {
            pods.extend(ASSUMED.map(|(part, of_ten)| TypicalPod {
                weight: missing * of_ten,
                host: Compute::default(),
                count: 1,
                memory: Memory::Share(Percent(part)),
                cores: Percent(0),
            }));
        }
        let weight = pods.iter().map(|pod| u64::from(pod.weight)).sum();
        Typical { pods, weight }
    }
}

/// One typical pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypicalPod {
    /// How common it is.
    pub weight: u32,
    /// What it asks of the node.
    pub host: Compute,
    /// Number of cards; 0 for a pod without.
    pub count: u32,
    /// Memory on each.
    pub memory: Memory,
    /// Compute on each; 100 means alone.
    pub cores: Percent,
}

impl TypicalPod {
    /// What it asks of the memory of a card that has this much.
    pub fn memory_of(&self, card: Mib) -> Mib {
        match self.memory {
            Memory::Mib(memory) => memory,
            Memory::Share(part) => card.share(part),
        }
    }
}

/// The typical pods, at most 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typical {
    pods: Vec<TypicalPod>,
    weight: u64,
}

impl Default for Typical {
    /// The assumed mix.
    fn default() -> Self {
        Census::default().typical()
    }
}

impl Typical {
    /// In the order of how common they are.
    pub fn pods(&self) -> &[TypicalPod] {
        &self.pods
    }

    /// So different that verdicts should be made anew: 5 of 100 pods are of
    /// another shape.
    pub fn differs(&self, other: &Self) -> bool {
        let share = |of: &Self, pod: &TypicalPod| u64::from(pod.weight) * 10_000 / of.weight.max(1);
        let key = |pod: &TypicalPod| (pod.host.cpu, pod.count, pod.memory, pod.cores);
        let mut shares: HashMap<_, (u64, u64)> = HashMap::new();
        for pod in &self.pods {
            shares.entry(key(pod)).or_default().0 += share(self, pod);
        }
        for pod in &other.pods {
            shares.entry(key(pod)).or_default().1 += share(other, pod);
        }
        let moved: u64 = shares.values().map(|(a, b)| a.abs_diff(*b)).sum();
        // What left one shape came to another and is counted twice.
        moved > 2 * CHANGED
    }

    /// All their weights together.
    pub fn weight(&self) -> u64 {
        self.weight
    }
}
