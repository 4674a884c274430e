//! Graphs, and the GPU memory that their allocation nodes reserve until it is trimmed.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::capture::{Node, Work};
use crate::codes::ERROR_INVALID_VALUE;
use crate::context::ContextRef;
use crate::driver::Driver;
use crate::exports::launch;
use crate::ffi::Answer;
use crate::heap::Kind;
use crate::types::Handle;

#[derive(Default)]
pub(crate) struct Graph(pub(crate) Mutex<Vec<Node>>);

pub(crate) struct ExecutableGraph {
    pub(crate) nodes: Vec<Node>,
    /// `CUgraphInstantiate_flags`.
    pub(crate) flags: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// What graph memory of a GPU is a multiple of.
const CHUNK: u64 = 2 << 20;

/// Memory of allocation nodes on one GPU.
#[derive(Clone, Copy, Default)]
pub(crate) struct GraphMemory {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

#[derive(Default)]
pub(crate) struct GraphMemoryByGpu(Mutex<std::collections::HashMap<usize, GraphMemory>>);

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

impl ExecutableGraph {
    /// Takes what its nodes need, and gives the nanoseconds that one launch takes.
    pub(crate) fn start(&self, driver: &Driver, context: ContextRef) -> Answer<u64> {
        let mut work = 0_u64;
        for node in &self.nodes {
            if let Work::Kernel { function } = node.work {
                let known = driver.objects.functions.get(function)?;
                context.owner().prepare_launch(driver, known.local_bytes)?;
                work = work.saturating_add(launch::draw(&known, context.gpu_index));
            }
        }
        driver
            .graph_memory
            .launch(driver, context, &self.nodes, self.flags)?;
        Ok(work)
    }
}

impl GraphMemoryByGpu {
    /// Reads or changes a GPU's graph memory.
    pub(crate) fn with<T>(&self, gpu_index: usize, body: impl FnOnce(&mut GraphMemory) -> T) -> T {
        body(self.0.lock().entry(gpu_index).or_default())
    }

    /// The allocation and free nodes of a launch, in order.
    fn launch(&self, driver: &Driver, context: ContextRef, nodes: &[Node], flags: u64) -> Answer {
        let takes = nodes
            .iter()
            .any(|node| matches!(node.work, Work::Alloc { .. } | Work::Free { .. }));
        if !takes {
            return Ok(());
        }
        for node in nodes {
            if let Work::Alloc {
                address, gpu_index, ..
            } = node.work
                && let Some(live) = driver.heap.find(address)
            {
                // Memory of the launch before.
                if flags & AUTO_FREE == 0 {
                    return Err(ERROR_INVALID_VALUE);
                }
                driver.heap.remove(address, is_graphs);
                self.record_freed(gpu_index, live.size);
            }
        }
        self.grow(driver, nodes)?;
        for node in nodes {
            match node.work {
                Work::Alloc {
                    address,
                    bytes,
                    gpu_index,
                } => {
                    let kind = Kind::Graph { gpu_index };
                    driver.heap.add(address, bytes, kind, Some(context));
                    self.with(gpu_index, |reserve| reserve.used += whole(bytes));
                }
                Work::Free { address } => {
                    let gone = driver.heap.remove(address, is_graphs);
                    let gone = gone.ok_or(ERROR_INVALID_VALUE)?;
                    if let Kind::Graph { gpu_index } = gone.kind {
                        self.record_freed(gpu_index, gone.size);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes what is lacking for the most that nodes have at once.
    pub(crate) fn grow(&self, driver: &Driver, nodes: &[Node]) -> Answer {
        let mut grown = Vec::new();
        for (gpu_index, peak) in peaks(nodes) {
            let lacking = self.with(gpu_index, |reserve| {
                let lacking = (reserve.used + peak).saturating_sub(reserve.reserved);
                driver.charge(gpu_index, lacking)?;
                reserve.reserved += lacking;
                reserve.reserved_high = reserve.reserved_high.max(reserve.reserved);
                reserve.used_high = reserve.used_high.max(reserve.used + peak);
                Ok::<u64, u32>(lacking)
            });
            match lacking {
                Ok(lacking) => grown.push((gpu_index, lacking)),
                Err(code) => {
                    for (gpu_index, lacking) in grown {
                        driver.release(gpu_index, lacking);
                        self.with(gpu_index, |reserve| reserve.reserved -= lacking);
                    }
                    return Err(code);
                }
            }
        }
        Ok(())
    }

    /// An allocation of a graph was freed; the GPU gets it back when it is trimmed.
    pub(crate) fn record_freed(&self, gpu_index: usize, bytes: u64) {
        self.with(gpu_index, |reserve| {
            reserve.used = reserve.used.saturating_sub(whole(bytes));
        });
    }

    pub(crate) fn trim(&self, driver: &Driver, gpu_index: usize) {
        self.with(gpu_index, |reserve| {
            driver.release(gpu_index, reserve.reserved - reserve.used);
            reserve.reserved = reserve.used;
        });
    }
}

fn is_graphs(kind: Kind) -> bool {
    matches!(kind, Kind::Graph { .. })
}

/// The most that nodes have of each GPU at once, in their order.
fn peaks(nodes: &[Node]) -> BTreeMap<usize, u64> {
    let (mut running, mut peaks) = (BTreeMap::<usize, u64>::new(), BTreeMap::<usize, u64>::new());
    for node in nodes {
        match node.work {
            Work::Alloc {
                bytes, gpu_index, ..
            } => {
                let now = running.entry(gpu_index).or_default();
                *now += whole(bytes);
                let peak = peaks.entry(gpu_index).or_default();
                *peak = (*peak).max(*now);
            }
            Work::Free { address } => {
                let own = nodes.iter().find_map(|node| match node.work {
                    Work::Alloc {
                        address: from,
                        bytes,
                        gpu_index,
                    } if from == address => Some((gpu_index, whole(bytes))),
                    _ => None,
                });
                if let Some((gpu_index, bytes)) = own {
                    let now = running.entry(gpu_index).or_default();
                    *now = now.saturating_sub(bytes);
                }
            }
            _ => {}
        }
    }
    peaks
}
