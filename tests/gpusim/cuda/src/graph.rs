//! Graphs, and the memory that their allocation nodes reserve of a card until it is trimmed.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::capture::{Node, Work};
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::context::ContextRef;
use crate::driver::Driver;
use crate::exports::launch;
use crate::ffi::Answer;
use crate::heap::Kind;
use crate::types::Handle;

/// A graph that is built.
#[derive(Default)]
pub(crate) struct Graph(pub(crate) Mutex<Vec<Node>>);

/// A graph that can be launched.
pub(crate) struct Exec {
    pub(crate) nodes: Mutex<Vec<Node>>,
    /// `CUgraphInstantiate_flags`.
    pub(crate) flags: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// What graph memory of a card is a multiple of.
const CHUNK: u64 = 2 << 20;

/// Memory of allocation nodes on one card.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reserve {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

/// That of all cards.
#[derive(Default)]
pub(crate) struct Reserves(Mutex<std::collections::HashMap<usize, Reserve>>);

fn whole(bytes: u64) -> u64 {
    bytes.next_multiple_of(CHUNK)
}

impl Graph {
    /// Adds a node after others, which must be of this graph.
    pub(crate) fn add(&self, work: Work, after: &[Handle]) -> Answer<Handle> {
        let mut nodes = self.0.lock();
        let places = after
            .iter()
            .map(|handle| nodes.iter().position(|node| node.handle == *handle));
        let places: Option<Vec<usize>> = places.collect();
        let node = Node {
            after: places.ok_or(ERROR_INVALID_VALUE)?,
            ..Node::new(work)
        };
        let handle = node.handle;
        nodes.push(node);
        Ok(handle)
    }
}

impl Exec {
    /// Takes what its allocation nodes need, and gives the nanoseconds that one launch takes.
    pub(crate) fn start(&self, driver: &Driver, context: ContextRef) -> Answer<u64> {
        let nodes = self.nodes.lock();
        let mut work = 0_u64;
        driver
            .reserves
            .launch(driver, context, &nodes, self.flags)?;
        for node in nodes.iter() {
            if let Work::Kernel { function, .. } = node.work {
                let known = driver
                    .objects
                    .functions
                    .get(function, ERROR_INVALID_HANDLE)?;
                work = work.saturating_add(launch::draw(&known, context.card));
            }
        }
        Ok(work)
    }
}

impl Reserves {
    /// Looks at a card's graph memory or changes it.
    pub(crate) fn with<T>(&self, card: usize, body: impl FnOnce(&mut Reserve) -> T) -> T {
        body(self.0.lock().entry(card).or_default())
    }

    /// The allocation and free nodes of a launch, in order.
    fn launch(&self, driver: &Driver, context: ContextRef, nodes: &[Node], flags: u64) -> Answer {
        let takes = nodes
            .iter()
            .any(|node| matches!(node.work, Work::Alloc { .. } | Work::Free { .. }));
        if !takes {
            return Ok(());
        }
        let card = context.card;
        for node in nodes {
            if let Work::Alloc { address, .. } = node.work
                && let Some(live) = driver.heap.find(address)
            {
                // Memory of the launch before.
                if flags & AUTO_FREE == 0 {
                    return Err(ERROR_INVALID_VALUE);
                }
                driver.heap.remove(address, |kind| kind == Kind::Graph);
                self.gave(driver, card, live.size);
            }
        }
        let (mut running, mut peak) = (0_u64, 0_u64);
        for node in nodes {
            match node.work {
                Work::Alloc { bytes, .. } => running += whole(bytes),
                Work::Free { address } => {
                    let own = nodes.iter().find_map(|node| match node.work {
                        Work::Alloc {
                            address: from,
                            bytes,
                        } if from == address => Some(bytes),
                        _ => None,
                    });
                    running = running.saturating_sub(own.map_or(0, whole));
                }
                _ => {}
            }
            peak = peak.max(running);
        }
        self.with(card, |reserve| {
            let lacking = (reserve.used + peak).saturating_sub(reserve.reserved);
            driver.charge(card, lacking)?;
            reserve.reserved += lacking;
            reserve.reserved_high = reserve.reserved_high.max(reserve.reserved);
            reserve.used_high = reserve.used_high.max(reserve.used + peak);
            Ok::<(), u32>(())
        })?;
        for node in nodes {
            match node.work {
                Work::Alloc { address, bytes } => {
                    driver.heap.add(address, bytes, Kind::Graph, Some(context));
                    driver.count_request(card, bytes);
                    self.with(card, |reserve| reserve.used += whole(bytes));
                }
                Work::Free { address } => {
                    let gone = driver.heap.remove(address, |kind| kind == Kind::Graph);
                    self.gave(driver, card, gone.ok_or(ERROR_INVALID_VALUE)?.size);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// An allocation of a graph was freed; the card gets it back when it is trimmed.
    pub(crate) fn gave(&self, driver: &Driver, card: usize, bytes: u64) {
        driver.uncount_request(card, bytes);
        self.with(card, |reserve| {
            reserve.used = reserve.used.saturating_sub(whole(bytes));
        });
    }

    /// `cuDeviceGraphMemTrim`.
    pub(crate) fn trim(&self, driver: &Driver, card: usize) {
        self.with(card, |reserve| {
            driver.release(card, reserve.reserved - reserve.used);
            reserve.reserved = reserve.used;
        });
    }
}

/// A copy of a graph's nodes, in order.
pub(crate) fn copy_of(graph: &Arc<Graph>) -> Vec<Node> {
    graph.0.lock().clone()
}
