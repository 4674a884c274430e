//! What a graph takes of each device when it is launched, by its nodes, those of graphs within it
//! included.
//!
//! Fed by: [`crate::graph_memory`]. Must not: charge anything.

use core::ffi::c_uint;
use std::collections::HashMap;

use crate::ffi::{Device, Handle, Out, Properties, SUCCESS, Where};
use crate::ledger::in_blocks;
use crate::table::call;

/// `CU_GRAPH_NODE_TYPE_GRAPH`, and how deep we look into such.
const WITHIN: c_uint = 4;
const DEEPEST: u32 = 16;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC` and `..._MEM_FREE`.
const ALLOCATES: c_uint = 10;
const FREES: c_uint = 11;
/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    properties: Properties,
    rest: [u64; 9],
    access: [u64; 2],
    bytes: u64,
    pointer: u64,
}

/// What a launch of a graph takes of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    pub(crate) device: Device,
    /// The most at once.
    pub(crate) peak: u64,
    /// What is left when it is done.
    pub(crate) left: u64,
}

/// What a graph needs of each device; nothing of most.
pub(crate) fn needs(graph: Handle) -> Vec<Need> {
    let mut walk = Walk::default();
    walk.through(graph, 0);
    walk.each
}

/// What nodes need, in their order.
#[derive(Debug, Default)]
struct Walk {
    each: Vec<Need>,
    /// By address: the place in `each`, and bytes.
    live: HashMap<u64, (usize, u64)>,
}

impl Walk {
    /// Goes through a graph and the graphs within it.
    fn through(&mut self, graph: Handle, depth: u32) {
        for node in nodes(graph) {
            let mut kind = 0;
            if call::cuGraphNodeGetType(node, Out::to(&mut kind)) != SUCCESS {
                continue;
            }
            match kind {
                ALLOCATES => self.take(node),
                FREES => self.free(node),
                WITHIN if depth < DEEPEST => {
                    let mut inner = 0;
                    let code = call::cuGraphChildGraphNodeGetGraph(node, Out::to(&mut inner));
                    if code == SUCCESS {
                        self.through(inner, depth + 1);
                    }
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, node: Handle) {
        let found = allocation(node);
        let found = found.and_then(|one| Some((one, in_blocks(one.bytes)?)));
        let Some((allocation, bytes)) = found else {
            return;
        };
        let device = match allocation.properties.on() {
            Where::Card(device) => device,
            // This node takes nothing of a card; others may.
            Where::Host => return,
            // Of whichever card: the one that is used here.
            Where::Moving | Where::Unknown(_) => {
                let mut device = 0;
                call::cuCtxGetDevice(Out::to(&mut device));
                device
            }
        };
        let known = self.each.iter().position(|need| need.device == device);
        let place = known.unwrap_or_else(|| {
            self.each.push(Need {
                device,
                ..Need::default()
            });
            self.each.len() - 1
        });
        let need = &mut self.each[place];
        need.left = need.left.saturating_add(bytes);
        need.peak = need.peak.max(need.left);
        self.live.insert(allocation.pointer, (place, bytes));
    }

    fn free(&mut self, node: Handle) {
        let mut pointer = 0;
        call::cuGraphMemFreeNodeGetParams(node, Out::to(&mut pointer));
        if let Some((place, bytes)) = self.live.remove(&pointer) {
            let need = &mut self.each[place];
            need.left = need.left.saturating_sub(bytes);
        }
    }
}

fn nodes(graph: Handle) -> Vec<Handle> {
    let mut count = 0;
    if call::cuGraphGetNodes(graph, Out::null(), Out::to(&mut count)) != SUCCESS {
        return Vec::new();
    }
    let mut nodes: Vec<Handle> = vec![0; count];
    let asked = Out::first(&mut nodes)
        .map(|first| call::cuGraphGetNodes(graph, first, Out::to(&mut count)));
    if asked != Some(SUCCESS) {
        nodes.clear();
    }
    nodes
}

fn allocation(node: Handle) -> Option<Allocation> {
    let mut allocation = Allocation {
        properties: Properties::default(),
        rest: [0; 9],
        access: [0; 2],
        bytes: 0,
        pointer: 0,
    };
    let code = call::cuGraphMemAllocNodeGetParams(node, Out::to(&mut allocation));
    (code == SUCCESS).then_some(allocation)
}
