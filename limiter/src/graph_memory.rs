//! Memory of graphs' allocation nodes: the driver takes it of a card when a graph is launched, and
//! keeps it until somebody trims it. What a launch may take is known from the graph's nodes since it
//! was instantiated, and is reserved before the launch; what the driver then says it has is charged.
//!
//! Fed by: [`crate::table`]; [`crate::account`] and [`crate::view`], before anything is refused or
//! called free. Must not: give back what the driver still has.

use core::ffi::c_void;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;

use crate::account::Account;
use crate::capture;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::graph_nodes::{self, Need};
use crate::lock::Lock;
use crate::process::{self, Process};

mod room;
use room::{Charged, with_room};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

/// What launches of a graph take.
#[derive(Clone, Debug)]
struct Needs {
    /// Of each device once.
    each: Vec<Need>,
    /// What the launch before left is freed first.
    frees_before: bool,
    /// There was one.
    launched: bool,
}

/// What is charged for graphs, and what graphs need that can be launched.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    charged: Lock<HashMap<Device, Charged>>,
    needs: Lock<HashMap<Handle, Needs>>,
    /// What graphs left that were destroyed since.
    orphaned: Lock<HashMap<Device, u64>>,
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
            charged.entry(device).or_default().settle(account, device);
        }
    }

    /// A context of a device ended; the last one's takes the memory of graphs with it.
    pub(crate) fn end(&self, process: &Process, device: Device, card: usize) {
        let left = process.contexts.devices();
        if left.iter().any(|(one, _)| *one == device) {
            return;
        }
        self.orphaned.lock().remove(&device);
        if let Some(charged) = self.charged.lock().remove(&device) {
            process.seat.release(card, charged.bytes());
        }
    }

    /// What all graphs left on a device, if nobody freed any of it since.
    fn left(&self, device: Device) -> u64 {
        let orphaned = self.orphaned.lock().get(&device).copied().unwrap_or(0);
        let needs = self.needs.lock();
        let launched = needs.values().filter(|needs| needs.launched);
        let each = launched.flat_map(|needs| &needs.each);
        let left = each.filter(|need| need.device == device);
        left.fold(orphaned, |sum, need| sum.saturating_add(need.left))
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
    let call = || noted(made, graph, flags, || real(made, graph, parameters));
    let uploads = flags & UPLOAD != 0;
    match process::get().filter(|process| uploads && !process.is_uncontrolled()) {
        // The memory is taken within this call.
        Some(process) => {
            let each = graph_nodes::needs(graph);
            with_room(process, "cuGraphInstantiateWithParams", &each, false, call)
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
            *sum = sum.saturating_add(need.left);
        }
    }
    real(graph)
}

fn noted(made: Out<Handle>, graph: Handle, flags: u64, call: impl FnOnce() -> Code) -> Code {
    let code = call();
    let limited = process::get().filter(|process| !process.is_uncontrolled());
    if let (SUCCESS, Some(made), Some(process)) = (code, made.get(), limited) {
        let each = graph_nodes::needs(graph);
        if !each.is_empty() {
            let needs = Needs {
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

/// Launches a graph, with room for what it takes.
pub(crate) fn launch(graph: Handle, stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let process = process::get().filter(|process| process.graphs.any.load(Relaxed));
    let known = |process: &Process| process.graphs.needs.lock().get(&graph).cloned();
    let Some((process, needs)) = process.and_then(|process| Some((process, known(process)?)))
    else {
        return call();
    };
    if capture::any() && capture::aside(|| capture::is_captured(stream)) {
        return call();
    }
    let again = needs.frees_before && needs.launched;
    let code = with_room(process, "cuGraphLaunch", &needs.each, again, call);
    if code == SUCCESS
        && let Some(needs) = process.graphs.needs.lock().get_mut(&graph)
    {
        needs.launched = true;
    }
    code
}

/// The driver gives back what no graph uses.
pub(crate) fn trim(real: extern "C" fn(Device) -> Code, device: Device) -> Code {
    let code = real(device);
    if let Some(process) = process::get().filter(|process| process.graphs.any.load(Relaxed)) {
        process.graphs.look(process);
    }
    code
}

/// As [`launch`], for what takes the memory and does not run.
pub(crate) fn upload(
    real: extern "C" fn(Handle, Handle) -> Code,
    graph: Handle,
    stream: Handle,
) -> Code {
    launch(graph, stream, || real(graph, stream))
}
