//! Memory of graphs' allocation nodes: the driver takes it of a card when a graph is launched, and
//! keeps it until somebody trims it. What a launch may take is known from the graph's nodes since it
//! was instantiated, and is reserved before the launch; what the driver then says it has is charged.
//!
//! Fed by: [`crate::table`]; [`crate::account`] and [`crate::view`], before anything is refused or
//! called free. Must not: give back what the driver still has.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::sync::MutexGuard;

use crate::account::Account;
use crate::capture;
use crate::ffi::{Code, Device, Handle, Out, Properties, SUCCESS};
use crate::ledger::in_blocks;
use crate::lock::Lock;
use crate::process::{self, Process};
use crate::table::call;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 2;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC` and `..._MEM_FREE`.
const ALLOCATES: c_uint = 10;
const FREES: c_uint = 11;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;

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
struct Need {
    device: Device,
    /// The most at once.
    peak: u64,
    /// What is left when it is done.
    left: u64,
    /// What the launch before left is freed first.
    frees_before: bool,
    /// There was one.
    launched: bool,
}

/// What is charged for graphs, and what graphs need that can be launched.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    charged: Lock<HashMap<Device, u64>>,
    needs: Lock<HashMap<Handle, Need>>,
    any: AtomicBool,
}

impl GraphMemory {
    /// Charges what the driver has reserved now.
    pub(crate) fn look(&self, process: &'static Process) {
        let mut charged = self.charged.lock();
        for (device, card) in process.contexts.devices() {
            let account = Account {
                process,
                card,
                context: 0,
            };
            settle(&mut charged, account, device, 0);
        }
    }
}

/// Charges what the driver has reserved now, of which `held` was reserved beside what is charged.
fn settle(charged: &mut HashMap<Device, u64>, account: Account, device: Device, held: u64) {
    let before = charged.get(&device).copied().unwrap_or(0);
    match attribute(device, RESERVED).and_then(in_blocks) {
        Some(now) => {
            charged.insert(device, now);
            account.settle(before + held, now);
        }
        // Kept: nobody knows what was taken.
        None => drop(charged.insert(device, before + held)),
    }
}

fn attribute(device: Device, attribute: i32) -> Option<u64> {
    let mut bytes = 0;
    let code = call::cuDeviceGetGraphMemAttribute(device, attribute, Out::to(&mut bytes));
    (code == SUCCESS).then_some(bytes)
}

pub(crate) fn instantiate(
    real: extern "C" fn(Out<Handle>, Handle, *mut c_void, *mut c_void, usize) -> Code,
    made: Out<Handle>,
    graph: Handle,
    node: *mut c_void,
    log: *mut c_void,
    size: usize,
) -> Code {
    noted(made, graph, 0, || real(made, graph, node, log, size))
}

pub(crate) fn instantiate_with(
    real: extern "C" fn(Out<Handle>, Handle, u64) -> Code,
    made: Out<Handle>,
    graph: Handle,
    flags: u64,
) -> Code {
    noted(made, graph, flags, || real(made, graph, flags))
}

/// `parameters` begin with the flags.
pub(crate) fn instantiate_as(
    real: extern "C" fn(Out<Handle>, Handle, Out<u64>) -> Code,
    made: Out<Handle>,
    graph: Handle,
    parameters: Out<u64>,
) -> Code {
    let flags = parameters.get().unwrap_or(0);
    noted(made, graph, flags, || real(made, graph, parameters))
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, graph: Handle) -> Code {
    if let Some(process) = process::get().filter(|process| process.graphs.any.load(Relaxed)) {
        process.graphs.needs.lock().remove(&graph);
    }
    real(graph)
}

fn noted(made: Out<Handle>, graph: Handle, flags: u64, call: impl FnOnce() -> Code) -> Code {
    let code = call();
    let limited = process::get().filter(|process| !process.is_uncontrolled());
    if let (SUCCESS, Some(made), Some(process)) = (code, made.get(), limited)
        && let Some(need) = need(graph)
    {
        let frees_before = flags & AUTO_FREE != 0;
        let need = Need {
            frees_before,
            ..need
        };
        process.graphs.needs.lock().insert(made, need);
        process.graphs.any.store(true, Relaxed);
    }
    code
}

/// What the nodes of a graph need, in their order; `None`: nothing.
fn need(graph: Handle) -> Option<Need> {
    let mut count = 0;
    if call::cuGraphGetNodes(graph, Out::null(), Out::to(&mut count)) != SUCCESS {
        return None;
    }
    let mut nodes: Vec<Handle> = vec![0; count];
    let first = Out::first(&mut nodes)?;
    if call::cuGraphGetNodes(graph, first, Out::to(&mut count)) != SUCCESS {
        return None;
    }
    let (mut need, mut live) = (Need::default(), HashMap::new());
    let mut found = false;
    for node in nodes {
        let mut kind = 0;
        if call::cuGraphNodeGetType(node, Out::to(&mut kind)) != SUCCESS {
            continue;
        }
        if kind == ALLOCATES {
            let allocation = allocation(node)?;
            let bytes = in_blocks(allocation.bytes)?;
            need.device = allocation.properties.device()?;
            need.left = need.left.saturating_add(bytes);
            need.peak = need.peak.max(need.left);
            live.insert(allocation.pointer, bytes);
            found = true;
        } else if kind == FREES {
            let mut pointer = 0;
            call::cuGraphMemFreeNodeGetParams(node, Out::to(&mut pointer));
            let bytes = live.remove(&pointer).unwrap_or(0);
            need.left = need.left.saturating_sub(bytes);
        }
    }
    found.then_some(need)
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

/// Launches a graph, with room for what it takes.
pub(crate) fn launch(graph: Handle, stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let process = process::get().filter(|process| process.graphs.any.load(Relaxed));
    let known = |process: &Process| process.graphs.needs.lock().get(&graph).copied();
    let Some((process, need)) = process.and_then(|process| Some((process, known(process)?))) else {
        return call();
    };
    if capture::any() && capture::aside(|| capture::is_captured(stream)) {
        return call();
    }
    let account = match Account::of_device(need.device) {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    let mut charged = process.graphs.charged.lock();
    let mut growth = reserve(&charged, account, need);
    if growth.is_none() {
        drop(charged);
        account.settle_all();
        charged = process.graphs.charged.lock();
        growth = reserve(&charged, account, need);
    }
    let Some(growth) = growth else {
        return account.refuse("cuGraphLaunch", need.peak);
    };
    let code = call();
    settle(&mut charged, account, need.device, growth);
    if code == SUCCESS
        && let Some(need) = process.graphs.needs.lock().get_mut(&graph)
    {
        need.launched = true;
    }
    code
}

/// Takes what a launch may need beyond what is charged.
fn reserve(
    charged: &MutexGuard<HashMap<Device, u64>>,
    account: Account,
    need: Need,
) -> Option<u64> {
    let mut used = attribute(need.device, USED).unwrap_or(0);
    if need.frees_before && need.launched {
        used = used.saturating_sub(need.left);
    }
    let most = in_blocks(used.saturating_add(need.peak))?;
    let before = charged.get(&need.device).copied().unwrap_or(0);
    let growth = most.saturating_sub(before);
    (growth == 0 || account.takes(growth, account.on_card())).then_some(growth)
}

/// As [`launch`], for what takes the memory and does not run.
pub(crate) fn upload(
    real: extern "C" fn(Handle, Handle) -> Code,
    graph: Handle,
    stream: Handle,
) -> Code {
    launch(graph, stream, || real(graph, stream))
}
