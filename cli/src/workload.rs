//! A trace for one seed: pods shuffled and scaled to a load, nodes in a random order.
//!
//! Rules 2 to 4 of the published experiment. The random streams are our own, so
//! single seeds differ from the published ones; means do not.

use std::collections::HashMap;

use fastrand::Rng;

use crate::placer::{Node, Pod};
use crate::trace::{PodRow, Shape, Trace};

/// The workload of one seed.
#[derive(Clone, Debug)]
pub struct Workload {
    /// In the order in which they are offered.
    pub pods: Vec<Pod>,
    /// Empty, sorted by name, which is the seed's random order.
    pub nodes: Vec<Node>,
    /// Number of different [`Pod::kind`]s.
    pub kinds: usize,
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
            kinds: kinds.len(),
        }
    }
}
