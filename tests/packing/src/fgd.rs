//! Fragmentation gradient descent (FGD, USENIX ATC'23) as its authors' simulator has it, the best of the
//! policies with published figures on openb. It is not tuned: that it reaches its published figures here
//! validates the experiment.
//!
//! Scores are whole numbers up to 100, rounded down; the first node wins among equals. The score of
//! a shape on a node is cached until the node changes.
//!
//! The fragmentation of a node is what is idle on its GPUs and of no use to a typical pod, averaged over
//! the typical pods by how common they are. Aliquot's own typical pods are in `aliquot-core`, in integers.

use std::collections::HashMap;

use crate::experiment::{Choice, Placer};
use crate::trace::{PodRow, Shape};
use crate::workload::{Node, Pod};

/// Percent of the pods that the typical ones stand for.
const COVERED: usize = 95;

/// The commonest shapes with their weights, which sum up to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Typical(pub(crate) Vec<(Shape, f64)>);

impl Typical {
    /// Groups the pods by shape and takes the commonest until 95 % of the pods
    /// are covered. Equally common: the larger first.
    pub fn of(pods: &[PodRow]) -> Self {
        let mut counts: HashMap<Shape, u32> = HashMap::new();
        for pod in pods {
            *counts.entry(pod.shape).or_default() += 1;
        }
        let mut groups: Vec<(Shape, u32)> = counts.into_iter().collect();
        groups.sort_unstable_by_key(|&(shape, count)| {
            std::cmp::Reverse((count, shape.cpu, shape.milli, shape.gpus, shape.models))
        });
        let mut covered = 0;
        groups.retain(|&(_, count)| {
            let included = covered * 100 < pods.len() * COVERED;
            if included {
                covered += usize::try_from(count).unwrap_or_default();
            }
            included
        });
        let sum: u32 = groups.iter().map(|&(_, count)| count).sum();
        let weigh = |(shape, count)| (shape, f64::from(count) / f64::from(sum));
        Self(groups.into_iter().map(weigh).collect())
    }

    /// F of a node with this much CPU left and these GPUs, in thousandths of a GPU.
    pub fn fragmentation(&self, node: &Node, cpu: u32, gpus: &[u32]) -> f64 {
        let idle: u32 = gpus.iter().sum();
        let lost = |shape: &Shape| {
            let fitting = gpus.iter().filter(|left| **left >= shape.milli).count();
            let fits = shape.gpus > 0
                && shape.models.allow(node.model)
                && cpu >= shape.cpu
                && u32::try_from(fitting).is_ok_and(|count| count >= shape.gpus);
            if fits {
                gpus.iter().filter(|left| **left < shape.milli).sum()
            } else {
                idle
            }
        };
        let parts = self.0.iter();
        parts
            .map(|(shape, weight)| weight * f64::from(lost(shape)))
            .sum()
    }
}

/// A score and, for a part of a GPU, the GPU.
type Score = (u32, usize);

/// A node's version, and its score if its GPUs fit.
type CachedScore = (u32, Option<Score>);

/// The policy with its cache.
pub struct Fgd {
    typical: Typical,
    /// For each kind of pod and each node.
    memo: Vec<Vec<Option<CachedScore>>>,
}

impl Fgd {
    /// With an empty cache.
    pub fn new(typical: Typical) -> Self {
        Self {
            typical,
            memo: Vec::new(),
        }
    }
}

impl Placer for Fgd {
    fn choose(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice> {
        if self.memo.len() <= pod.kind {
            self.memo.resize_with(pod.kind + 1, Vec::new);
        }
        let cached = &mut self.memo[pod.kind];
        cached.resize(nodes.len(), None);
        let mut best: Option<(Score, usize)> = None;
        for (at, node) in nodes.iter().enumerate() {
            if !node.has_room(pod) {
                continue;
            }
            let score = match cached[at] {
                Some((version, score)) if version == node.version => score,
                _ => {
                    let fits = node.has_gpus(&pod.shape);
                    let score = fits.then(|| score(&self.typical, node, &pod.shape));
                    cached[at] = Some((node.version, score));
                    score
                }
            };
            if let Some(score) = score
                && best.is_none_or(|(best, _)| score.0 > best.0)
            {
                best = Some((score, at));
            }
        }
        let ((_, gpu), node) = best?;
        let gpus = if pod.shape.is_fraction() {
            vec![gpu]
        } else {
            nodes[node].first_gpus(&pod.shape)
        };
        Some(Choice { node, gpus })
    }
}

/// Rounded down, never below 0.
fn whole(value: f64) -> u32 {
    (0..=100)
        .rev()
        .find(|n| f64::from(*n) <= value)
        .unwrap_or(0)
}

/// FGD: 100 times the sigmoid of what the fragmentation shrinks by, in GPUs.
fn score(typical: &Typical, node: &Node, shape: &Shape) -> Score {
    let before = typical.fragmentation(node, node.cpu.1, &node.gpus);
    let cpu = node.cpu.1 - shape.cpu;
    let mut after = node.gpus.clone();
    let mut scored = |gpus: &[usize]| {
        for &gpu in gpus {
            after[gpu] -= shape.milli;
        }
        let delta = before - typical.fragmentation(node, cpu, &after);
        for &gpu in gpus {
            after[gpu] += shape.milli;
        }
        whole(100.0 / (1.0 + (-delta / 1000.0).exp()))
    };
    if !shape.is_fraction() {
        return (scored(&node.first_gpus(shape)), 0);
    }
    let mut best: Option<Score> = None;
    for (gpu, left) in node.gpus.iter().enumerate() {
        // An equal GPU before this one has an equal score.
        if *left < shape.milli || node.gpus[..gpu].contains(left) {
            continue;
        }
        let score = scored(&[gpu]);
        if best.is_none_or(|(best, _)| score > best) {
            best = Some((score, gpu));
        }
    }
    best.unwrap_or_default()
}
