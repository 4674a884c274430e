//! What a graph takes of each device when it is launched, according to its nodes, including those
//! of child graphs. Only what its kernels take at their first launch is charged here.

use core::ffi::c_uint;
use std::collections::HashMap;

use super::library;
use crate::charges::allocations::in_blocks;
use crate::charges::graphs::DeviceNeed;
use crate::driver::call;
use crate::ffi::{AllocNodeParams, Code, Handle, KernelNodeParams, MemoryLocation, Out, SUCCESS};

/// `CU_GRAPH_NODE_TYPE_KERNEL`.
const KERNEL: c_uint = 0;
/// `CU_GRAPH_NODE_TYPE_GRAPH`, and the depth to which child graphs are followed.
const CHILD_GRAPH: c_uint = 4;
const MAX_DEPTH: u32 = 16;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC` and `..._MEM_FREE`.
const ALLOC_NODE: c_uint = 10;
const FREE_NODE: c_uint = 11;

/// What a graph needs of each device; most need nothing.
pub(crate) fn needs(graph: Handle) -> Vec<DeviceNeed> {
    let mut walk = NodeWalk::default();
    walk.walk_graph(graph, 0);
    walk.each
}

/// Charges what the driver loads and reserves for the kernels of a graph.
pub(crate) fn ensure_kernels_ready(graph: Handle) -> Result<(), Code> {
    ensure_ready(graph, 0)
}

fn ensure_ready(graph: Handle, depth: u32) -> Result<(), Code> {
    for node in nodes(graph) {
        match kind(node) {
            Some(KERNEL) => {
                let parameters = kernel_params(node).unwrap_or_default();
                let function = match parameters.function {
                    0 => parameters.kernel,
                    function => function,
                };
                if function != 0 {
                    library::ensure_node_ready(function, parameters.context)?;
                }
            }
            Some(CHILD_GRAPH) if depth < MAX_DEPTH => {
                if let Some(inner) = child_graph(node) {
                    ensure_ready(inner, depth + 1)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Sums up what nodes need, in their order.
#[derive(Debug, Default)]
struct NodeWalk {
    each: Vec<DeviceNeed>,
    /// By address: the index in `each`, and bytes.
    live: HashMap<u64, (usize, u64)>,
}

impl NodeWalk {
    /// Visits a graph and its child graphs.
    fn walk_graph(&mut self, graph: Handle, depth: u32) {
        for node in nodes(graph) {
            match kind(node) {
                Some(ALLOC_NODE) => self.count_allocation(node),
                Some(FREE_NODE) => self.count_free(node),
                Some(CHILD_GRAPH) if depth < MAX_DEPTH => {
                    if let Some(inner) = child_graph(node) {
                        self.walk_graph(inner, depth + 1);
                    }
                }
                _ => {}
            }
        }
    }

    fn count_allocation(&mut self, node: Handle) {
        let found = allocation_params(node);
        let found = found.and_then(|one| Some((one, in_blocks(one.bytes)?)));
        let Some((allocation, bytes)) = found else {
            return;
        };
        let device = match allocation.properties.location() {
            MemoryLocation::Device(device) => device,
            // This node takes no device memory; others may.
            MemoryLocation::Host => return,
            // Of whichever device uses it: the current one.
            MemoryLocation::Managed | MemoryLocation::Unknown(_) => {
                let mut device = 0;
                call::cuCtxGetDevice(Out::to(&mut device));
                device
            }
        };
        let known = self.each.iter().position(|need| need.device == device);
        let place = known.unwrap_or_else(|| {
            self.each.push(DeviceNeed {
                device,
                ..DeviceNeed::default()
            });
            self.each.len() - 1
        });
        let need = &mut self.each[place];
        need.remaining = need.remaining.saturating_add(bytes);
        need.peak = need.peak.max(need.remaining);
        self.live.insert(allocation.pointer, (place, bytes));
    }

    fn count_free(&mut self, node: Handle) {
        let mut pointer = 0;
        call::cuGraphMemFreeNodeGetParams(node, Out::to(&mut pointer));
        if let Some((place, bytes)) = self.live.remove(&pointer) {
            let need = &mut self.each[place];
            need.remaining = need.remaining.saturating_sub(bytes);
        }
    }
}

fn nodes(graph: Handle) -> Vec<Handle> {
    let mut count = 0;
    if call::cuGraphGetNodes(graph, Out::null(), Out::to(&mut count)) != SUCCESS {
        return Vec::new();
    }
    let mut nodes: Vec<Handle> = vec![0; count];
    let code = Out::first(&mut nodes)
        .map(|first| call::cuGraphGetNodes(graph, first, Out::to(&mut count)));
    if code != Some(SUCCESS) {
        nodes.clear();
    }
    nodes
}

fn kind(node: Handle) -> Option<c_uint> {
    let mut kind = 0;
    let code = call::cuGraphNodeGetType(node, Out::to(&mut kind));
    (code == SUCCESS).then_some(kind)
}

fn child_graph(node: Handle) -> Option<Handle> {
    let mut inner = 0;
    let code = call::cuGraphChildGraphNodeGetGraph(node, Out::to(&mut inner));
    (code == SUCCESS).then_some(inner)
}

fn kernel_params(node: Handle) -> Option<KernelNodeParams> {
    let mut parameters = KernelNodeParams::default();
    let mut code = call::cuGraphKernelNodeGetParams_v2(node, Out::to(&mut parameters));
    if code != SUCCESS {
        code = call::cuGraphKernelNodeGetParams(node, Out::to(&mut parameters));
    }
    (code == SUCCESS).then_some(parameters)
}

fn allocation_params(node: Handle) -> Option<AllocNodeParams> {
    let mut allocation = AllocNodeParams::default();
    let code = call::cuGraphMemAllocNodeGetParams(node, Out::to(&mut allocation));
    (code == SUCCESS).then_some(allocation)
}
