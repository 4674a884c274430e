//! A model of stock HAMi, not a run of it: node policy binpack, GPU policy spread, pods without a GPU
//! placed by kube-scheduler's default score.
//!
//! A node's score is its used part of replicas, compute and memory, before the pod; a GPU has 10
//! replicas, and a part of a GPU requests the same percentage of memory and compute.

use crate::experiment::{Choice, Placer};
use crate::trace::WHOLE;
use crate::workload::{Node, Pod};

/// HAMi's `deviceSplitCount`.
const REPLICAS: u32 = 10;

/// The model; it has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hami;

impl Placer for Hami {
    fn choose(&mut self, nodes: &[Node], pod: &Pod) -> Option<Choice> {
        if pod.shape.gpus == 0 {
            return least_allocated(nodes, pod);
        }
        let fits = |node: &Node| {
            node.has_room(pod) && node.has_gpus(&pod.shape) && {
                u32::try_from(fitting_gpus(node, pod).len())
                    .is_ok_and(|count| count >= pod.shape.gpus)
            }
        };
        let fitting = (0..nodes.len()).filter(|&at| fits(&nodes[at]));
        let node = first_best(fitting, |&at| fullness(&nodes[at]))?;
        let mut gpus = fitting_gpus(&nodes[node], pod);
        let left = &nodes[node];
        gpus.sort_by_key(|&gpu| std::cmp::Reverse(emptiness(left, gpu)));
        gpus.truncate(usize::try_from(pod.shape.gpus).unwrap_or_default());
        gpus.sort_unstable();
        Some(Choice { node, gpus })
    }
}

/// The first of those with the highest value.
fn first_best<T, K: Ord>(all: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> Option<T> {
    all.fold(None, |best: Option<(K, T)>, one| {
        let value = key(&one);
        match best {
            Some((most, best)) if most >= value => Some((most, best)),
            _ => Some((value, one)),
        }
    })
    .map(|(_, one)| one)
}

fn fitting_gpus(node: &Node, pod: &Pod) -> Vec<usize> {
    let fits = |gpu: &usize| node.gpus[*gpu] >= pod.shape.milli && node.shares[*gpu] < REPLICAS;
    (0..node.gpus.len()).filter(fits).collect()
}

/// Used replicas, compute and memory in millionths of what there is, added up.
fn fullness(node: &Node) -> u64 {
    let Ok(count) = u64::try_from(node.gpus.len()) else {
        return 0;
    };
    let replicas: u64 = node.shares.iter().map(|n| u64::from(*n)).sum();
    let used = count * u64::from(WHOLE) - u64::from(node.gpu_left());
    let part = |used: u64, all: u64| (used * 1_000_000).checked_div(all).unwrap_or(0);
    part(replicas, count * u64::from(REPLICAS)) + 2 * part(used, count * u64::from(WHOLE))
}

fn emptiness(node: &Node, gpu: usize) -> u64 {
    let replicas =
        u64::from(REPLICAS - node.shares[gpu].min(REPLICAS)) * 1_000_000 / u64::from(REPLICAS);
    replicas + 2 * u64::from(node.gpus[gpu]) * 1_000_000 / u64::from(WHOLE)
}

/// kube-scheduler's default for a pod without a GPU: the node with the largest
/// free part of CPU and memory after the pod, in whole percent; the first of equals.
pub fn least_allocated(nodes: &[Node], pod: &Pod) -> Option<Choice> {
    let fitting = (0..nodes.len()).filter(|&at| nodes[at].has_room(pod));
    let node = first_best(fitting, |&at| least_allocated_score(&nodes[at], pod))?;
    Some(Choice {
        node,
        gpus: Vec::new(),
    })
}

/// `LeastAllocated` of kube-scheduler over CPU and memory, 0 to 100.
pub fn least_allocated_score(node: &Node, pod: &Pod) -> u64 {
    let part = |(all, left): (u32, u32), asked: u32| {
        let left = u64::from(left.saturating_sub(asked)) * 100;
        left.checked_div(u64::from(all)).unwrap_or(0)
    };
    u64::midpoint(part(node.cpu, pod.shape.cpu), part(node.memory, pod.memory))
}
