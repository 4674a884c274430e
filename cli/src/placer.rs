//! Nodes and pods of the published experiment, in which a GPU is one number, its free thousandths; and
//! the policy that chooses among nodes.

use crate::trace::{Models, NodeRow, Shape, WHOLE};

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
    /// Kinds of GPU requests on it, one bit each ([`kind_of_request`]).
    pub kinds: u8,
    /// Counts its changes.
    pub version: u32,
}

/// The kinds of requests that the clustering policy keeps apart: a part of a
/// GPU, 1, 2, 4 or 8 GPUs. 0 for a pod without.
pub fn kind_of_request(shape: &Shape) -> u8 {
    match shape.gpus {
        0 => 0,
        1 if shape.is_fraction() => 1,
        1 => 2,
        2 => 4,
        3..=4 => 8,
        _ => 16,
    }
}

/// Where a pod goes: a node and its GPUs, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The node's index.
    pub node: usize,
    /// The GPUs' indexes.
    pub gpus: Vec<usize>,
}

/// A policy with its state. The nodes change between two calls
/// by exactly the choice that it returned.
pub trait Placer {
    /// Where `pod` goes; `None` when it fits nowhere.
    fn choose(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice>;
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
            kinds: 0,
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
        self.kinds |= kind_of_request(&pod.shape);
        self.version += 1;
        for &gpu in gpus {
            self.gpus[gpu] -= pod.shape.milli;
            self.shares[gpu] += 1;
        }
        true
    }
}
