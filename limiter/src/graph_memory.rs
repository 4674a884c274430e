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
use std::collections::HashMap;

use crate::account::Account;
use crate::allocations::in_blocks;
use crate::capture;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::graph_nodes::{self, DeviceNeed};
use crate::lock::FutexLock;
use crate::process::{self, ProcessState};
use crate::table::call;
use crate::view;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

/// What launches of a graph take.
#[derive(Clone, Debug)]
struct GraphNeeds {
    /// One entry for each device.
    each: Vec<DeviceNeed>,
    /// The previous launch's remaining memory is freed first.
    frees_before: bool,
    /// It was launched.
    launched: bool,
}

/// What is charged for graphs, and what instantiated graphs need.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    charged: FutexLock<HashMap<Device, GraphCharge>>,
    needs: FutexLock<HashMap<Handle, GraphNeeds>>,
    /// Remaining memory of graphs that were destroyed since.
    orphaned: FutexLock<HashMap<Device, u64>>,
    any: AtomicBool,
}

impl GraphMemory {
    /// Charges what the driver has reserved now.
    pub(crate) fn refresh(&self, process: &'static ProcessState) {
        let mut charged = self.charged.lock();
        for (device, device_index) in process.contexts.devices() {
            let account = Account {
                process,
                device_index,
                context: 0,
            };
            charged.entry(device).or_default().settle(account, device);
        }
    }

    /// A context of a device ended; the last one takes the memory of graphs with it.
    pub(crate) fn end(&self, process: &ProcessState, device: Device, device_index: usize) {
        let left = process.contexts.devices();
        if left.iter().any(|(one, _)| *one == device) {
            return;
        }
        self.orphaned.lock().remove(&device);
        if let Some(charged) = self.charged.lock().remove(&device) {
            process.slot.release(device_index, charged.bytes());
        }
    }

    /// Memory that all graphs left on a device, if none of it was freed since.
    fn remaining(&self, device: Device) -> u64 {
        let orphaned = self.orphaned.lock().get(&device).copied().unwrap_or(0);
        let needs = self.needs.lock();
        let launched = needs.values().filter(|needs| needs.launched);
        let each = launched.flat_map(|needs| &needs.each);
        let left = each.filter(|need| need.device == device);
        left.fold(orphaned, |sum, need| sum.saturating_add(need.remaining))
    }
}

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
    if let Some(process) = process::get().filter(|process| process.graphs.any.load(Relaxed)) {
        let gone = process.graphs.needs.lock().remove(&graph);
        let mut orphaned = process.graphs.orphaned.lock();
        for need in gone
            .iter()
            .filter(|gone| gone.launched)
            .flat_map(|gone| &gone.each)
        {
            let sum = orphaned.entry(need.device).or_default();
            *sum = sum.saturating_add(need.remaining);
        }
    }
    real(graph)
}

fn record_needs(made: Out<Handle>, graph: Handle, flags: u64, call: impl FnOnce() -> Code) -> Code {
    let limited = view::limited();
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
            process.graphs.needs.lock().insert(made, needs);
            process.graphs.any.store(true, Relaxed);
        }
    }
    code
}

/// Launches a graph, after reserving what it takes.
pub(crate) fn launch(graph: Handle, stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let process = process::get().filter(|process| process.graphs.any.load(Relaxed));
    let known = |process: &ProcessState| process.graphs.needs.lock().get(&graph).cloned();
    let Some((process, needs)) = process.and_then(|process| Some((process, known(process)?)))
    else {
        return call();
    };
    if capture::any() && capture::with_relaxed_capture(|| capture::is_captured(stream)) {
        return call();
    }
    let frees_previous = needs.frees_before && needs.launched;
    let code = with_reservation(process, "cuGraphLaunch", &needs.each, frees_previous, call);
    if code == SUCCESS
        && let Some(needs) = process.graphs.needs.lock().get_mut(&graph)
    {
        needs.launched = true;
    }
    code
}

/// The driver releases what no graph uses.
pub(crate) fn trim(real: extern "C" fn(Device) -> Code, device: Device) -> Code {
    let code = real(device);
    if let Some(process) = process::get().filter(|process| process.graphs.any.load(Relaxed)) {
        process.graphs.refresh(process);
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

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 2;

/// What is charged for graphs on a device.
#[derive(Clone, Copy, Debug, Default)]
struct GraphCharge {
    bytes: u64,
    /// Launches that threads are making, and the most that these take together.
    launches: u32,
    peaks: u64,
}

fn attribute(device: Device, attribute: i32) -> Option<u64> {
    let mut bytes = 0;
    let code = call::cuDeviceGetGraphMemAttribute(device, attribute, Out::to(&mut bytes));
    (code == SUCCESS).then_some(bytes)
}

impl GraphCharge {
    fn bytes(self) -> u64 {
        self.bytes
    }

    /// Charges what the driver has reserved now, and not less while launches are under way.
    fn settle(&mut self, account: Account, device: Device) {
        let now = attribute(device, RESERVED).and_then(in_blocks);
        // If the driver does not say, nobody knows what was taken.
        let now = now.unwrap_or(self.bytes);
        let now = if self.launches > 0 {
            now.max(self.bytes)
        } else {
            now
        };
        account.settle(self.bytes, now);
        self.bytes = now;
    }

    /// Reserves what a launch may need beyond the current charge, and returns that.
    /// `frees_previous`: the memory of the previous launch is freed first, unless some was freed
    /// already; then less is used than all graphs left.
    fn reserve(&mut self, account: Account, need: DeviceNeed, frees_previous: bool) -> Option<u64> {
        let mut used = attribute(need.device, USED).unwrap_or(0);
        if frees_previous && account.process.graphs.remaining(need.device) <= used {
            used = used.saturating_sub(need.remaining);
        }
        let most = used.saturating_add(self.peaks).saturating_add(need.peak);
        let growth = in_blocks(most)?.saturating_sub(self.bytes);
        let fits = growth == 0 || account.try_reserve(growth, account.device_limit());
        fits.then(|| {
            self.bytes += growth;
            self.launches += 1;
            self.peaks = self.peaks.saturating_add(need.peak);
            growth
        })
    }

    /// A launch returned, or will not be made.
    fn end(&mut self, need: DeviceNeed) {
        self.launches = self.launches.saturating_sub(1);
        self.peaks = self.peaks.saturating_sub(need.peak);
    }
}

/// Reserves for a launch; `None` if there is no room.
fn reserve_for(
    process: &ProcessState,
    account: Account,
    need: DeviceNeed,
    frees_previous: bool,
) -> Option<u64> {
    account.reserve_retrying(|_| {
        let mut all = process.graphs.charged.lock();
        let charged = all.entry(need.device).or_default();
        let has_others = charged.launches > 0;
        charged
            .reserve(account, need, frees_previous)
            .ok_or(has_others)
    })
}

/// Makes a call that takes what a graph needs, if there is room; `frees_previous` as for
/// [`GraphCharge::reserve`].
fn with_reservation(
    process: &'static ProcessState,
    name: &str,
    each: &[DeviceNeed],
    frees_previous: bool,
    call: impl FnOnce() -> Code,
) -> Code {
    let mut reservations: Vec<(Account, DeviceNeed, u64)> = Vec::with_capacity(each.len());
    let mut refused = None;
    for need in each {
        match Account::of_device(need.device) {
            Ok(None) => {}
            Ok(Some(account)) => match reserve_for(process, account, *need, frees_previous) {
                Some(growth) => reservations.push((account, *need, growth)),
                None => refused = Some(account.refuse(name, need.peak)),
            },
            Err(code) => refused = Some(code),
        }
        if refused.is_some() {
            break;
        }
    }
    let code = refused.unwrap_or_else(call);
    let mut all = process.graphs.charged.lock();
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
