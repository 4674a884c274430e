//! The cluster's typical pods, learnt from its own pods.
//!
//! A [`Census`] counts pods by shape; the commonest shapes that make up 95 % of them, at
//! most 64, are typical. With fewer than 50 pods an assumed mix replaces the missing ones.
//! Shapes beyond a maximum are counted but not distinguished, so a census does not grow
//! with the cluster. It also counts which models pods accept ([`crate::scarcity`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::request::Memory;
use crate::scarcity::ModelBalance;
use crate::units::{HostResources, Mib, MilliCpu, Percent};
use crate::usage::AllocatedUse;

/// Percent of the pods that the typical ones cover (as in the published experiment).
const COVERED: u64 = 95;
/// The most typical pods: one bit each in a word.
const MOST: usize = 64;
/// The most distinguished shapes.
const SHAPES: usize = 4096;
/// With fewer pods the assumed mix replaces the missing ones.
const ENOUGH: u32 = 50;
/// In ten-thousandths of the pods: a larger change counts.
const CHANGED: u64 = 500;
/// In thousandths of a GPU: a model's price that changed by this much counts.
const PRICE_CHANGED: u64 = 200;
/// The assumed mix: percent of a device's memory, and how many of ten pods ask for it.
const ASSUMED: [(u32, u32); 4] = [(100, 4), (50, 3), (25, 2), (10, 1)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PodShape {
    /// CPU. Host memory is not part of the shape.
    pub cpu: MilliCpu,
    /// Number of devices; 0 for a pod without GPUs.
    pub count: u32,
    pub memory: Memory,
    /// Compute on each; 100 means exclusive use.
    pub cores: Percent,
}

impl PodShape {
    /// The shape of a pod with this allocation and these requests; `None` if its allocation
    /// is unreadable. Of devices with different shares the largest counts.
    pub fn new(allocated: &AllocatedUse, host: HostResources) -> Option<Self> {
        let uses = allocated.uses()?;
        let alone = uses.values().any(|used| used.alone);
        let cores = uses.values().map(|used| used.cores).max();
        let memory = uses.values().map(|used| used.memory).max();
        Some(Self {
            cpu: host.cpu,
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
    /// For each shape: the number of pods, and the sum of their host memory.
    shapes: HashMap<PodShape, (u32, Mib)>,
    pods: u32,
    /// What they ask of the GPUs, and what is free of each model.
    pub balance: ModelBalance,
}

impl Census {
    /// Counts a pod of this shape with this host memory.
    pub fn add(&mut self, shape: PodShape, memory: Mib) {
        self.pods += 1;
        if self.shapes.len() < SHAPES || self.shapes.contains_key(&shape) {
            let (count, sum) = self.shapes.entry(shape).or_default();
            *count += 1;
            *sum += memory;
        }
    }

    pub fn pods(&self) -> u32 {
        self.pods
    }

    pub fn shapes(&self) -> usize {
        self.shapes.len()
    }

    pub fn typical(&self) -> Typical {
        let mut shapes: Vec<_> = self.shapes.iter().collect();
        shapes.sort_unstable_by_key(|(shape, (count, _))| Reverse((*count, shape.size())));
        let needed = u64::from(self.pods) * COVERED;
        let mut covered = 0;
        let mut pods = Vec::new();
        let missing = ENOUGH.saturating_sub(self.pods);
        for (shape, (count, memory)) in shapes.into_iter().take(MOST - ASSUMED.len()) {
            if covered * 100 >= needed {
                break;
            }
            covered += u64::from(*count);
            let host = HostResources {
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
                host: HostResources::default(),
                count: 1,
                memory: Memory::Share(Percent(part)),
                cores: Percent(0),
            }));
        }
        let weight = pods.iter().map(|pod| u64::from(pod.weight)).sum();
        let prices = if missing > 0 {
            Vec::new()
        } else {
            self.balance.prices()
        };
        Typical {
            cpu_per_gpu: cpu_per_gpu(&pods),
            hosted: [
                steps(&pods, |host| host.cpu.0),
                steps(&pods, |host| host.memory.0),
            ],
            pods,
            weight,
            prices,
        }
    }
}

/// What pods ask of a node's CPU for each whole GPU that they ask for; those without a compute
/// request do not count. 0 if they ask for none.
fn cpu_per_gpu(pods: &[TypicalPod]) -> MilliCpu {
    let sharing = pods.iter().filter(|pod| pod.count > 0 && pod.cores.0 > 0);
    let (cpu, cores) = sharing.fold((0, 0), |(cpu, cores), pod| {
        let (weight, count) = (u64::from(pod.weight), u64::from(pod.count));
        (
            cpu + weight * pod.host.cpu.0,
            cores + weight * count * u64::from(pod.cores.0),
        )
    });
    MilliCpu((cpu * 100).checked_div(cores).unwrap_or(0))
}

/// For each amount that a pod with devices asks for, ascending: those that ask for no more, one bit each.
fn steps(pods: &[TypicalPod], of: fn(HostResources) -> u64) -> Vec<(u64, u64)> {
    let mut steps = BTreeMap::new();
    for (at, pod) in pods.iter().enumerate().filter(|(_, pod)| pod.count > 0) {
        *steps.entry(of(pod.host)).or_insert(0) |= 1_u64 << at;
    }
    let mut bits = 0;
    for served in steps.values_mut() {
        bits |= *served;
        *served = bits;
    }
    steps.into_iter().collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypicalPod {
    /// How common it is.
    pub weight: u32,
    /// What it requests of the node's CPU and memory.
    pub host: HostResources,
    /// Number of devices; 0 for a pod without GPUs.
    pub count: u32,
    pub memory: Memory,
    /// Compute on each; 100 means exclusive use.
    pub cores: Percent,
}

impl TypicalPod {
    /// The memory that it asks for on a device with this much.
    pub fn memory_of(&self, device: Mib) -> Mib {
        match self.memory {
            Memory::Mib(memory) => memory,
            Memory::Share(part) => device.share(part),
        }
    }
}

/// The typical pods, at most 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typical {
    pods: Vec<TypicalPod>,
    weight: u64,
    cpu_per_gpu: MilliCpu,
    /// What [`steps`] says of CPU and of memory.
    hosted: [Vec<(u64, u64)>; 2],
    /// Of each scarce model.
    prices: Vec<(String, u64)>,
}

impl Default for Typical {
    /// The assumed mix.
    fn default() -> Self {
        Census::default().typical()
    }
}

impl Typical {
    /// The pods, most common first.
    pub fn pods(&self) -> &[TypicalPod] {
        &self.pods
    }

    /// Whether verdicts should be recomputed: 5 of 100 pods have another shape, or a model's
    /// price changed.
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
        // A pod that changes its shape is counted twice.
        moved > 2 * CHANGED || self.dearer_than(other) || other.dearer_than(self)
    }

    fn dearer_than(&self, other: &Self) -> bool {
        let mut prices = self.prices.iter();
        prices.any(|(model, price)| *price >= other.price(model) + PRICE_CHANGED)
    }

    /// What a GPU of this model costs, in thousandths of a GPU ([`crate::scarcity`]).
    pub fn price(&self, model: &str) -> u64 {
        let mut prices = self.prices.iter();
        let price = prices.find(|(known, _)| known == model);
        price.map_or(0, |(_, price)| *price)
    }

    /// Whether any model costs more than others.
    pub fn has_scarce_models(&self) -> bool {
        !self.prices.is_empty()
    }

    /// How much of the GPUs, in thousandths of one, pods like these can use with this much CPU;
    /// `None` if they ask for no CPU.
    pub fn gpus_served_by(&self, cpu: MilliCpu) -> Option<u64> {
        cpu.0.saturating_mul(1000).checked_div(self.cpu_per_gpu.0)
    }

    /// The pods that ask for devices and for no more CPU and memory than this, one bit each.
    pub(crate) fn hosted(&self, free: HostResources) -> u64 {
        let within = |steps: &[(u64, u64)], free: u64| {
            let above = steps.partition_point(|(asked, _)| *asked <= free);
            above.checked_sub(1).map_or(0, |last| steps[last].1)
        };
        let [cpu, memory] = &self.hosted;
        within(cpu, free.cpu.0) & within(memory, free.memory.0)
    }

    pub fn weight(&self) -> u64 {
        self.weight
    }
}
