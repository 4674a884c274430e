//! One run: the pods of a workload are offered one by one to a policy, which is checked: it cannot
//! change a node, nor place a pod where it does not fit.
//!
//! Rules 5 to 9 of the published experiment: a pod that fits nowhere is dropped,
//! no pod ever leaves, and after each pod two figures go into the column of the
//! load that has arrived so far: the allocated part of all GPUs, and their fragmentation.
//!
//! The fragmentation of a node is what is idle on its GPUs and of no use to a typical pod, averaged over
//! the typical pods by how common they are (FGD, USENIX ATC'23). Only this figure and the published
//! policies use these typical pods; Aliquot's own are in `aliquot-core`, in integers.

use std::collections::HashMap;

use thiserror::Error;

use crate::trace::{PodRow, Shape, Trace};
use crate::workload::{Node, Pod, Workload};

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

/// The result of one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// For each whole percent of arrived load: percent of all GPUs in use, if
    /// a pod arrived there.
    pub allocated: Vec<Option<f64>>,
    /// The same for the fragmentation, in percent of all GPUs.
    pub fragmentation: Vec<Option<f64>>,
    /// Pods offered.
    pub offered: u32,
    /// Pods dropped.
    pub dropped: u32,
}

/// A policy placed a pod where it does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("pod {pod} ({shape}) does not fit where the policy placed it: node {node}, GPUs {gpus:?}")]
pub struct Misplaced {
    /// Its number in the workload.
    pub pod: usize,
    /// Its request.
    pub shape: String,
    /// The node.
    pub node: String,
    /// The GPUs.
    pub gpus: Vec<usize>,
}

/// The mean of the values that fall into one column.
#[derive(Clone, Copy, Default)]
struct Column {
    sum: f64,
    count: u32,
}

impl Column {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Offers all pods of `workload` to `placer`. `load` is the last column.
pub fn run(
    trace: &Trace,
    workload: Workload,
    typical: &Typical,
    placer: &mut dyn Placer,
    load: u32,
) -> Result<Run, Misplaced> {
    let Workload { pods, mut nodes } = workload;
    let capacity = f64::from(trace.capacity());
    let columns = usize::try_from(load).unwrap_or_default() + 1;
    let mut allocated = vec![Column::default(); columns];
    let mut fragmentation = vec![Column::default(); columns];
    let f_of = |node: &Node| typical.fragmentation(node, node.cpu.1, &node.gpus);
    let mut fragments: Vec<f64> = nodes.iter().map(f_of).collect();
    let mut fragmented: f64 = fragments.iter().sum();
    let (mut arrived, mut in_use, mut dropped) = (0_u32, 0_u32, 0_u32);
    for (at, pod) in pods.iter().enumerate() {
        arrived += pod.shape.request();
        match placer.choose(&nodes, pod) {
            None => dropped += 1,
            Some(choice) => {
                let node = &mut nodes[choice.node];
                if !node.place(pod, &choice.gpus) {
                    return Err(misplaced(at, pod, &node.name, choice.gpus));
                }
                in_use += pod.shape.request();
                let now = f_of(node);
                fragmented += now - fragments[choice.node];
                fragments[choice.node] = now;
            }
        }
        let column = column(f64::from(arrived) / capacity * 100.0, columns);
        if let Some(column) = column {
            allocated[column].add(f64::from(in_use) / capacity * 100.0);
            fragmentation[column].add(fragmented / capacity * 100.0);
        }
    }
    let means = |columns: Vec<Column>| columns.into_iter().map(Column::mean).collect();
    Ok(Run {
        allocated: means(allocated),
        fragmentation: means(fragmentation),
        offered: u32::try_from(pods.len()).unwrap_or(u32::MAX),
        dropped,
    })
}

/// The column that a percentage rounds to.
fn column(percent: f64, columns: usize) -> Option<usize> {
    let inside = |at: &usize| u32::try_from(*at).is_ok_and(|at| f64::from(at) + 0.5 > percent);
    (0..columns).find(inside)
}

fn misplaced(at: usize, pod: &Pod, node: &str, gpus: Vec<usize>) -> Misplaced {
    let shape = pod.shape;
    Misplaced {
        pod: at,
        shape: format!(
            "{} x {} of a GPU, {} CPU, {} MiB",
            shape.gpus, shape.milli, shape.cpu, pod.memory
        ),
        node: node.to_owned(),
        gpus,
    }
}
