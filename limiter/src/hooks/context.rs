//! Contexts: each takes memory of its device before anything is allocated in it. Its size is an
//! estimate from the limits page. It is reserved when the context is created and released when the
//! driver really ends it, together with everything that was allocated in it.
//!
//! One that was created without a known call is charged later ([`crate::reserve`]). No charge ends
//! while its context lives.

use super::context_limits;
use crate::charges::allocations::{Allocations, DeviceAllocation};
use crate::charges::graphs;
use crate::charges::pending_frees::{DetachedFrees, PendingFrees};
use crate::contexts::Context;
use crate::driver::call;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::marker::ContextMarks;
use crate::process::{self, ProcessState};
use crate::reserve::{record_context, reserve_context};

pub(crate) fn retain(
    context: Out<Handle>,
    device: Device,
    mut call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    if process::get().is_some_and(|process| process.contexts.has_primary(device)) {
        return Ok(call());
    }
    create(context, device, true, call)
}

pub(crate) fn create(
    context: Out<Handle>,
    device: Device,
    primary: bool,
    mut call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    let Some((account, bytes)) = reserve_context(device)? else {
        return Ok(call());
    };
    let code = account.call_until_lent_memory_returns(bytes, call);
    match (code, context.get()) {
        (SUCCESS, Some(handle)) => record_context(account, handle, device, primary, bytes),
        _ => account.release(bytes),
    }
    Ok(code)
}

/// Our events in a context that may end now. They are detached before the driver may end the
/// context, so that no other thread queries them meanwhile, and put back if it lives on.
struct EndingContext {
    context: Handle,
    launch_marks: Vec<ContextMarks>,
    frees: DetachedFrees,
}

impl EndingContext {
    fn new(process: &ProcessState, context: Handle) -> Self {
        Self {
            context,
            launch_marks: process.pace.detach(context),
            frees: PendingFrees::of(process).detach(context),
        }
    }

    fn end(self, process: &ProcessState) {
        let pace = &process.pace;
        pace.forget(&process.slot, self.context, self.launch_marks);
        PendingFrees::of(process).end(process, self.frees);
    }

    fn put_back(self, process: &ProcessState) {
        process.pace.put_back(self.launch_marks);
        PendingFrees::of(process).put_back(self.frees);
    }
}

/// `cuDevicePrimaryCtxRelease` and `...Reset`.
pub(crate) fn release(device: Device, call: impl FnOnce() -> Code) -> Code {
    match process::get() {
        Some(process) => with_primary_release(process, device, 0, call),
        None => call(),
    }
}

/// Makes a call after which the primary context of a device may be gone, and which ends the green
/// context `green`, if that is not 0.
pub(crate) fn with_primary_release(
    process: &ProcessState,
    device: Device,
    green: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let contexts = &process.contexts;
    let mut handles = contexts.of_primary(device);
    if green != 0 && !handles.contains(&green) {
        handles.push(green);
    }
    let all: Vec<EndingContext> = handles
        .into_iter()
        .map(|one| EndingContext::new(process, one))
        .collect();
    let code = call();
    let mut ended = Vec::new();
    if code == SUCCESS {
        if green != 0 {
            contexts.forget_green(green);
            ended.push(green);
        }
        ended.extend(remove_ended_primary(process, device));
    }
    for ending in all {
        // Another thread may have noticed its end first.
        let is_known = contexts.get(ending.context).is_some();
        if is_known && !ended.contains(&ending.context) {
            ending.put_back(process);
        } else {
            ending.end(process);
        }
    }
    code
}

/// Removes a primary context that no longer exists; the contexts that ended with it.
fn remove_ended_primary(process: &ProcessState, device: Device) -> Vec<Handle> {
    let (mut flags, mut active) = (0, 1);
    let asked = call::cuDevicePrimaryCtxGetState(device, Out::to(&mut flags), Out::to(&mut active));
    if asked != SUCCESS || active != 0 {
        return Vec::new();
    }
    let (primary, mut all) = process.contexts.remove_primary(device);
    for (handle, context) in primary {
        all.push(handle);
        let owned = Allocations::of(process).remove_context(handle);
        release_context(process, handle, context, owned);
    }
    all
}

pub(crate) fn destroy(context: Handle, call: impl FnOnce() -> Code) -> Code {
    watch_end(context, call, || true)
}

/// Removes one user; the last one ends the context.
pub(crate) fn detach(context: Handle, call: impl FnOnce() -> Code) -> Code {
    let is_gone = || {
        let mut version = 0;
        call::cuCtxGetApiVersion(context, Out::to(&mut version)) != SUCCESS
    };
    watch_end(context, call, is_gone)
}

/// Makes a call after which a context may be gone: it is if `is_gone` says so.
fn watch_end(context: Handle, call: impl FnOnce() -> Code, is_gone: impl FnOnce() -> bool) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    // Before the driver call: afterwards the handle may belong to another.
    let known = process.contexts.remove(context);
    let ending = EndingContext::new(process, context);
    let allocations = Allocations::of(process);
    let owned = allocations.remove_context(context);
    let code = call();
    if code == SUCCESS && is_gone() {
        ending.end(process);
        // One that was created without a known call may not have been charged yet.
        if let Some(known) = known {
            release_context(process, context, known, owned);
        }
        return code;
    }
    for (at, entry) in owned {
        allocations.put_back(at, entry);
    }
    ending.put_back(process);
    if let Some(known) = known
        && let Some(again) = process.contexts.put_back(context, known)
    {
        // A thread that did not find it has charged it once more.
        release_bytes(process, again);
    }
    code
}

fn release_context(
    process: &ProcessState,
    handle: Handle,
    context: Context,
    owned: Vec<(u64, DeviceAllocation)>,
) {
    process.contexts.forget_last();
    context_limits::forget(process, handle);
    graphs::end(process, context.device, context.device_index);
    let allocations = Allocations::of(process);
    for (at, entry) in owned {
        allocations.forget_spilled(process, at);
        allocations.end(process, at, entry);
    }
    release_bytes(process, context);
}

fn release_bytes(process: &ProcessState, context: Context) {
    let slot = &process.slot;
    slot.release(context.device_index, context.bytes);
    slot.note_contexts(context.device_index, context.bytes.wrapping_neg());
}
