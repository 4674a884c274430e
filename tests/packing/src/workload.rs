//! The nodes and pods of one run. A GPU is one number, its free thousandths.
//!
//! A seed shuffles the pods of a trace, scales them to a load, and orders the nodes: rules 2 to 4 of
//! the published experiment. The random streams are our own, so single seeds differ from the
//! published ones; means do not.

use std::collections::HashMap;

use fastrand::Rng;

use crate::trace::{Models, NodeRow, PodRow, Shape, Trace, WHOLE};

/// Most pods of a node, as in the published experiment.
const MOST_PODS: u32 = 1001;

/// A pod as it is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its request, without memory.
    pub shape: Shape,
    /// MiB of host memory.
    pub memory: u32,
    /// Equal for pods of one shape: 0, 1, 2, …
    pub kind: usize,
}

/// A node and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Sorts in the random order of its seed.
    pub name: String,
    /// One bit.
    pub model: Models,
    /// Thousandths of a core: all, and what is left.
    pub cpu: (u32, u32),
    /// MiB of host memory: all, and what is left.
    pub memory: (u32, u32),
    /// What is left of each GPU.
    pub gpus: Vec<u32>,
    /// Shares on each GPU.
    pub shares: Vec<u32>,
    /// Pods on it.
    pub pods: u32,
    /// Counts its changes.
    pub version: u32,
}

impl Node {
    /// Nothing on it yet.
    pub fn empty(name: String, row: &NodeRow) -> Self {
        let count = usize::try_from(row.gpus).unwrap_or_default();
        Self {
            name,
            model: row.model,
            cpu: (row.cpu, row.cpu),
            memory: (row.memory, row.memory),
            gpus: vec![WHOLE; count],
            shares: vec![0; count],
            pods: 0,
            version: 0,
        }
    }

    /// CPU, memory and pod count suffice.
    pub fn has_room(&self, pod: &Pod) -> bool {
        self.pods < MOST_PODS && self.cpu.1 >= pod.shape.cpu && self.memory.1 >= pod.memory
    }

    /// Enough GPUs of an allowed model have enough left.
    pub fn has_gpus(&self, shape: &Shape) -> bool {
        shape.gpus == 0
            || (shape.models.allow(self.model) && {
                let fitting = self.gpus.iter().filter(|left| **left >= shape.milli);
                u32::try_from(fitting.count()).unwrap_or(u32::MAX) >= shape.gpus
            })
    }

    /// The lowest-numbered GPUs that have enough left.
    pub fn first_gpus(&self, shape: &Shape) -> Vec<usize> {
        let fitting = (0..self.gpus.len()).filter(|&gpu| self.gpus[gpu] >= shape.milli);
        fitting
            .take(usize::try_from(shape.gpus).unwrap_or_default())
            .collect()
    }

    /// What is left of all its GPUs.
    pub fn gpu_left(&self) -> u32 {
        self.gpus.iter().sum()
    }

    /// Puts the pod on these GPUs; false, with nothing changed, when it does
    /// not fit there.
    pub fn place(&mut self, pod: &Pod, gpus: &[usize]) -> bool {
        let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        let ascending = gpus.windows(2).all(|pair| pair[0] < pair[1]);
        let enough = |gpu: &usize| {
            self.gpus
                .get(*gpu)
                .is_some_and(|left| *left >= pod.shape.milli)
        };
        let allowed = count == 0 || pod.shape.models.allow(self.model);
        if count != pod.shape.gpus
            || !ascending
            || !allowed
            || !gpus.iter().all(enough)
            || !self.has_room(pod)
        {
            return false;
        }
        self.cpu.1 -= pod.shape.cpu;
        self.memory.1 -= pod.memory;
        self.pods += 1;
        self.version += 1;
        for &gpu in gpus {
            self.gpus[gpu] -= pod.shape.milli;
            self.shares[gpu] += 1;
        }
        true
    }
}

/// The workload of one seed.
#[derive(Clone, Debug)]
pub struct Workload {
    /// In the order in which they are offered.
    pub pods: Vec<Pod>,
    /// Empty, sorted by name, which is the seed's random order.
    pub nodes: Vec<Node>,
}

impl Workload {
    /// Shuffles, then appends copies of random pods or deletes random ones until
    /// the requests come to `load` percent of all GPUs.
    pub fn of(trace: &Trace, seed: u64, load: u32) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut rows: Vec<&PodRow> = trace.pods.iter().collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        let original = rows.clone();
        rng.shuffle(&mut rows);
        let target = u64::from(trace.capacity()) * u64::from(load) / 100;
        let mut sum = u64::from(trace.request());
        if sum > 0 {
            while sum < target {
                let drawn = original[rng.usize(..original.len())];
                // The published test adds one GPU's part, the published sum the whole request.
                if sum + u64::from(drawn.shape.milli) > target {
                    break;
                }
                sum += u64::from(drawn.shape.request());
                rows.push(drawn);
            }
            while sum > target && !rows.is_empty() {
                let drawn = rows.remove(rng.usize(..rows.len()));
                sum -= u64::from(drawn.shape.request());
            }
        }
        let mut kinds: HashMap<Shape, usize> = HashMap::new();
        let pods = rows
            .iter()
            .map(|row| {
                let next = kinds.len();
                Pod {
                    shape: row.shape,
                    memory: row.memory,
                    kind: *kinds.entry(row.shape).or_insert(next),
                }
            })
            .collect();
        let mut nodes: Vec<_> = trace.nodes.iter().collect();
        rng.shuffle(&mut nodes);
        let named = nodes.into_iter().enumerate();
        let nodes = named.map(|(at, row)| Node::empty(format!("{at:05}-{}", row.name), row));
        Self {
            pods,
            nodes: nodes.collect(),
        }
    }
}
