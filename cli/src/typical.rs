//! The typical pods of a trace, and the fragmentation that they see.
//!
//! F of a node is what is idle on its GPUs and of no use to a typical pod, averaged over the typical
//! pods by how common they are (FGD, USENIX ATC'23). Only the published policies use it; Aliquot's
//! own is in `aliquot-core`, in integers.

use std::collections::HashMap;

use crate::placer::Node;
use crate::trace::{PodRow, Shape};

/// Percent of the pods that the typical ones stand for.
const COVERED: usize = 95;

/// The commonest shapes with their weights, which sum up to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Typical(Vec<(Shape, f64)>);

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

    /// How many shapes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No pods at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
