//! One run: the pods of a workload are offered one by one to a policy, which is checked: it cannot
//! change a node, nor place a pod where it does not fit.
//!
//! Rules 5 to 9 of the published experiment: a pod that fits nowhere is dropped,
//! no pod ever leaves, and after each pod the allocated part of all GPUs goes into the column of
//! the load that has arrived so far.

use thiserror::Error;

use crate::trace::Trace;
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

/// The result of one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// For each whole percent of arrived load: percent of all GPUs in use, if
    /// a pod arrived there.
    pub allocated: Vec<Option<f64>>,
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
    placer: &mut dyn Placer,
    load: u32,
) -> Result<Run, Misplaced> {
    let Workload { pods, mut nodes } = workload;
    let capacity = f64::from(trace.capacity());
    let columns = usize::try_from(load).unwrap_or_default() + 1;
    let mut allocated = vec![Column::default(); columns];
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
            }
        }
        let column = column(f64::from(arrived) / capacity * 100.0, columns);
        if let Some(column) = column {
            allocated[column].add(f64::from(in_use) / capacity * 100.0);
        }
    }
    Ok(Run {
        allocated: allocated.into_iter().map(Column::mean).collect(),
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
