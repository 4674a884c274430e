//! The six policies with published figures on openb, as their simulator has them: random, dot
//! product, clustering, packing, best fit and fragmentation gradient descent (FGD). They are not
//! tuned: reproducing their figures is what validates the experiment.
//!
//! Scores are whole numbers up to 100, rounded down; the first node wins among equals. The score of
//! a shape on a node is cached until the node changes.

use fastrand::Rng;

use crate::experiment::{Choice, Placer, Typical};
use crate::trace::{Shape, WHOLE};
use crate::workload::{Node, Pod, kind_of_request};

/// The published simulator's largest node: cores and GPUs, in thousandths.
const MOST_CPU: f64 = 128_000.0;
const MOST_GPU: f64 = 8_000.0;

/// Which of the six.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// Any node that fits, any GPU that fits.
    Random,
    /// Least alignment of what is left with the request.
    DotProd,
    /// Nodes with the same kind of request.
    Clustering,
    /// Used GPUs before free GPUs before free nodes.
    Packing,
    /// Least left over.
    BestFit,
    /// Least growth of the expected fragmentation.
    Fgd,
}

/// A score and, for a part of a GPU, the GPU.
type Score = (u32, usize);

/// A node's version, and its score if its GPUs fit.
type CachedScore = (u32, Option<Score>);

/// A [`Published`] policy with its cache.
pub struct PublishedPolicy {
    policy: Published,
    typical: Typical,
    rng: Rng,
    /// For each kind of pod and each node.
    memo: Vec<Vec<Option<CachedScore>>>,
}

impl PublishedPolicy {
    /// With an empty cache; `seed` is what [`Published::Random`] draws from.
    pub fn new(policy: Published, typical: Typical, seed: u64) -> Self {
        Self {
            policy,
            typical,
            rng: Rng::with_seed(seed),
            memo: Vec::new(),
        }
    }

    fn random(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice> {
        let fits = |at: &usize| nodes[*at].has_room(pod) && nodes[*at].has_gpus(&pod.shape);
        let feasible: Vec<usize> = (0..nodes.len()).filter(fits).collect();
        let node = self.rng.choice(feasible)?;
        let gpus = if pod.shape.is_fraction() {
            let left = &nodes[node].gpus;
            let fitting = (0..left.len()).filter(|&gpu| left[gpu] >= pod.shape.milli);
            let fitting: Vec<usize> = fitting.collect();
            self.rng.choice(fitting).into_iter().collect()
        } else {
            nodes[node].first_gpus(&pod.shape)
        };
        Some(Choice { node, gpus })
    }
}

impl Placer for PublishedPolicy {
    fn choose(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice> {
        if self.policy == Published::Random {
            return self.random(nodes, pod);
        }
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
                    let score = fits.then(|| score(self.policy, &self.typical, node, &pod.shape));
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

fn score(policy: Published, typical: &Typical, node: &Node, shape: &Shape) -> Score {
    let fitting = (0..node.gpus.len()).filter(|&gpu| node.gpus[gpu] >= shape.milli);
    let tightest = fitting.min_by_key(|&gpu| node.gpus[gpu]).unwrap_or(0);
    let (cpu, gpu) = (f64::from(node.cpu.1), f64::from(node.gpu_left()));
    let (cpu_asked, gpu_asked) = (f64::from(shape.cpu), f64::from(shape.request()));
    let score = match policy {
        Published::Random => 0,
        Published::DotProd => {
            let aligned =
                cpu / MOST_CPU * cpu_asked / MOST_CPU + gpu / MOST_GPU * gpu_asked / MOST_GPU;
            whole(100.0 * (1.0 - aligned / 2.0))
        }
        // The simulator stretches these to 0..=100, which changes no order.
        Published::BestFit => {
            let left = 0.5 * (cpu - cpu_asked) / MOST_CPU + 0.5 * (gpu - gpu_asked) / MOST_GPU;
            whole(100.0 * (1.0 - left))
        }
        Published::Packing => packing(node, shape, tightest),
        Published::Clustering => clustering(node, shape),
        Published::Fgd => return gradient(typical, node, shape),
    };
    (score, tightest)
}

/// Rounded down, never below 0.
fn whole(value: f64) -> u32 {
    (0..=100)
        .rev()
        .find(|n| f64::from(*n) <= value)
        .unwrap_or(0)
}

fn packing(node: &Node, shape: &Shape, tightest: usize) -> u32 {
    if shape.gpus == 0 {
        return 0;
    }
    let free = node.gpus.iter().filter(|left| **left == WHOLE).count();
    let used = node.gpus.len() - free;
    let free = u32::try_from(free).unwrap_or(u32::MAX);
    if used == 0 {
        33_u32.saturating_sub(free).max(free)
    } else if !shape.is_fraction() || node.gpus[tightest] == WHOLE {
        50_u32.saturating_sub(shape.gpus).max(33)
    } else {
        100_u32.saturating_sub(node.gpus[tightest] / 100).max(50)
    }
}

fn clustering(node: &Node, shape: &Shape) -> u32 {
    let own = kind_of_request(shape);
    if own == 0 {
        return 0;
    }
    let base = match (node.kinds & own != 0, node.kinds & !own != 0) {
        (true, false) => 75,
        (true, true) => 50,
        (false, false) => 25,
        (false, true) => 0,
    };
    base + whole(25.0 * (MOST_GPU - f64::from(node.gpu_left())) / MOST_GPU)
}

/// FGD: 100 times the sigmoid of what the fragmentation shrinks by, in GPUs.
fn gradient(typical: &Typical, node: &Node, shape: &Shape) -> Score {
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
