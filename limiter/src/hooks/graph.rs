//! Memory of graphs' allocation nodes. The driver allocates it when a graph is launched, and keeps
//! it until it is trimmed. What a launch may take is known from the graph's nodes since its
//! instantiation and is reserved before the launch; afterwards, what the driver says it has
//! reserved is charged.
//!
//! A launch may wait within the driver until the device has advanced, for which other threads may
//! have to make a call. So no lock is held across it, and what was reserved for it stays reserved
//! until it returns.

use core::ffi::c_void;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use super::graph_nodes;
use crate::charges::account::Account;
use crate::charges::graphs::{DeviceNeed, GraphMemory, GraphNeeds};
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::process::{self, ProcessState};
use crate::stream::goes_into_capture;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;
/// There is, or was, a graph that takes memory.
static ANY: AtomicBool = AtomicBool::new(false);

pub(crate) fn instantiate(
    real: extern "C" fn(Out<Handle>, Handle, *mut c_void, *mut c_void, usize) -> Code,
    made: Out<Handle>,
    graph: Handle,
    node: *mut c_void,
    log: *mut c_void,
    size: usize,
) -> Code {
    record_needs(made, graph, 0, || real(made, graph, node, log, size))
}

pub(crate) fn instantiate_with(
    real: extern "C" fn(Out<Handle>, Handle, u64) -> Code,
    made: Out<Handle>,
    graph: Handle,
    flags: u64,
) -> Code {
    record_needs(made, graph, flags, || real(made, graph, flags))
}

/// `parameters` begin with the flags.
pub(crate) fn instantiate_as(
    real: extern "C" fn(Out<Handle>, Handle, Out<u64>) -> Code,
    made: Out<Handle>,
    graph: Handle,
    parameters: Out<u64>,
) -> Code {
    let flags = parameters.get().unwrap_or(0);
    let call = || record_needs(made, graph, flags, || real(made, graph, parameters));
    let uploads = flags & UPLOAD != 0;
    match process::get().filter(|process| uploads && !process.is_uncontrolled()) {
        // The memory is allocated within this call.
        Some(process) => {
            let each = graph_nodes::needs(graph);
            with_reservation(process, "cuGraphInstantiateWithParams", &each, false, call)
        }
        None => call(),
    }
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, graph: Handle) -> Code {
    if let Some(process) = process::get().filter(|_| ANY.load(Relaxed)) {
        GraphMemory::of(process).forget(graph);
    }
    real(graph)
}

fn record_needs(made: Out<Handle>, graph: Handle, flags: u64, call: impl FnOnce() -> Code) -> Code {
    let limited = process::limited();
    if limited.is_some()
        && let Err(code) = graph_nodes::ensure_kernels_ready(graph)
    {
        return code;
    }
    let code = call();
    if let (SUCCESS, Some(made), Some(process)) = (code, made.get(), limited) {
        let each = graph_nodes::needs(graph);
        if !each.is_empty() {
            let needs = GraphNeeds {
                each,
                frees_before: flags & AUTO_FREE != 0,
                launched: false,
            };
            GraphMemory::of(process).needs.lock().insert(made, needs);
            ANY.store(true, Relaxed);
        }
    }
    code
}

/// Launches a graph, after reserving what it takes.
pub(crate) fn launch(graph: Handle, stream: Handle, call: impl FnOnce() -> Code) -> Code {
    if !ANY.load(Relaxed) {
        return call();
    }
    let Some(process) = process::get() else {
        return call();
    };
    let graphs = GraphMemory::of(process);
    let known = graphs.needs.lock().get(&graph).cloned();
    let Some(needs) = known else {
        return call();
    };
    if goes_into_capture(stream) {
        return call();
    }
    let frees_previous = needs.frees_before && needs.launched;
    let code = with_reservation(process, "cuGraphLaunch", &needs.each, frees_previous, call);
    if code == SUCCESS
        && let Some(needs) = graphs.needs.lock().get_mut(&graph)
    {
        needs.launched = true;
    }
    code
}

/// The driver releases what no graph uses.
pub(crate) fn trim(real: extern "C" fn(Device) -> Code, device: Device) -> Code {
    let code = real(device);
    if let Some(process) = process::get().filter(|_| ANY.load(Relaxed)) {
        GraphMemory::of(process).refresh(process);
    }
    code
}

/// Like [`launch`], for a call that allocates the memory and does not run the graph.
pub(crate) fn upload(
    real: extern "C" fn(Handle, Handle) -> Code,
    graph: Handle,
    stream: Handle,
) -> Code {
    launch(graph, stream, || real(graph, stream))
}

/// Makes a call that takes what a graph needs, if there is room; `frees_previous` as for
/// [`GraphMemory::try_reserve`].
fn with_reservation(
    process: &'static ProcessState,
    name: &str,
    each: &[DeviceNeed],
    frees_previous: bool,
    call: impl FnOnce() -> Code,
) -> Code {
    let graphs = GraphMemory::of(process);
    let mut reservations: Vec<(Account, DeviceNeed, u64)> = Vec::with_capacity(each.len());
    let mut refused = None;
    for need in each {
        match Account::of_device(need.device) {
            Ok(None) => {}
            Ok(Some(account)) => {
                let reserve = |_| graphs.try_reserve(account, *need, frees_previous);
                match account.reserve_retrying(reserve) {
                    Some(growth) => reservations.push((account, *need, growth)),
                    None => refused = Some(account.refuse(name, need.peak)),
                }
            }
            Err(code) => refused = Some(code),
        }
        if refused.is_some() {
            break;
        }
    }
    let code = refused.unwrap_or_else(call);
    let mut all = graphs.charged.lock();
    for (account, need, growth) in reservations {
        // Unless its last context ended meanwhile.
        let Some(charged) = all.get_mut(&need.device) else {
            continue;
        };
        charged.end(need);
        if refused.is_some() {
            charged.bytes = charged.bytes.saturating_sub(growth);
            account.release(growth);
        } else {
            charged.settle(account, need.device);
        }
    }
    code
}
