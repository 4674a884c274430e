//! The end of contexts, by whatever call. What of ours is in a context (events) is taken away before
//! the driver may end it, so that no other thread asks for it meanwhile; where the context lives on
//! it is put back.
//!
//! Fed by: [`crate::table`], [`crate::green`]. Must not: use an event whose context is gone.

use std::sync::atomic::Ordering;

use super::Context;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::leaving::Left;
use crate::ledger::Entry;
use crate::pace::Aside;
use crate::process::{self, Process};
use crate::table::call;

/// What we have in a context that may end now.
struct Going {
    context: Handle,
    marks: Aside,
    left: Left,
}

impl Going {
    fn new(process: &Process, context: Handle) -> Self {
        Self {
            context,
            marks: process.pace.set_aside(context),
            left: process.leaving.set_aside(context),
        }
    }

    /// It is gone.
    fn end(self, process: &Process) {
        process.pace.forget(self.context, self.marks);
        process.leaving.end(process, self.left);
    }

    /// It lives on.
    fn put_back(self, process: &Process) {
        process.pace.put_back(self.marks);
        process.leaving.put_back(self.left);
    }
}

/// `cuDevicePrimaryCtxRelease` and `...Reset`.
pub(crate) fn release(real: extern "C" fn(Device) -> Code, device: Device) -> Code {
    match process::get() {
        Some(process) => around(process, device, 0, || real(device)),
        None => real(device),
    }
}

/// A call after which the primary context of a device may be gone, and which ends the green one
/// `green`, if that is not 0.
pub(crate) fn around(
    process: &Process,
    device: Device,
    green: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let contexts = &process.contexts;
    let known = contexts.known.lock();
    // Green ones end with the primary one.
    let ends = known
        .iter()
        .filter(|(_, one)| one.primary && one.device == device);
    let ends: Vec<Handle> = ends.map(|(handle, _)| *handle).collect();
    let owned = known.iter().filter(|(_, one)| ends.contains(&one.owner));
    let mut all: Vec<Handle> = owned.map(|(handle, _)| *handle).collect();
    drop(known);
    if green != 0 && !all.contains(&green) {
        all.push(green);
    }
    let all: Vec<Going> = all
        .into_iter()
        .map(|one| Going::new(process, one))
        .collect();
    let code = call();
    let mut ended = Vec::new();
    if code == SUCCESS {
        if green != 0 {
            contexts.forget_green(green);
            ended.push(green);
        }
        ended.extend(look(process, device));
    }
    for going in all {
        // Another thread may have found first that it ended.
        let is_known = contexts.known.lock().contains_key(&going.context);
        if is_known && !ended.contains(&going.context) {
            going.put_back(process);
        } else {
            going.end(process);
        }
    }
    code
}

/// Gives a primary context back that is there no more; what ended with it.
fn look(process: &Process, device: Device) -> Vec<Handle> {
    let (mut flags, mut active) = (0, 1);
    let asked = call::cuDevicePrimaryCtxGetState(device, Out::to(&mut flags), Out::to(&mut active));
    if asked != SUCCESS || active != 0 {
        return Vec::new();
    }
    let mut known = process.contexts.known.lock();
    let ended: Vec<_> = known
        .extract_if(|_, one| one.primary && one.device == device)
        .collect();
    // Green ones end with it.
    let with = known.extract_if(|_, one| ended.iter().any(|(primary, _)| one.owner == *primary));
    let mut all: Vec<Handle> = with.map(|(handle, _)| handle).collect();
    drop(known);
    all.extend(ended.iter().map(|(handle, _)| *handle));
    for (handle, context) in ended {
        let owned = process.ledger.take_all(handle);
        end(process, handle, context, owned);
    }
    all
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, context: Handle) -> Code {
    ended(context, || real(context), || true)
}

/// One user less; the last one's ends it.
pub(crate) fn detach(real: extern "C" fn(Handle) -> Code, context: Handle) -> Code {
    ended(
        context,
        || real(context),
        || {
            let mut version = 0;
            call::cuCtxGetApiVersion(context, Out::to(&mut version)) != SUCCESS
        },
    )
}

/// A call after which a context may be gone: it is if `is_gone` says so.
fn ended(context: Handle, call: impl FnOnce() -> Code, is_gone: impl FnOnce() -> bool) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    // Before the driver does it: afterwards the handle may be another's.
    let known = process.contexts.known.lock().remove(&context);
    let going = Going::new(process, context);
    let owned = process.ledger.take_all(context);
    let code = call();
    if code == SUCCESS && is_gone() {
        going.end(process);
        // One that was made behind our back may not have been charged yet.
        if let Some(known) = known {
            end(process, context, known, owned);
        }
        return code;
    }
    for (at, entry) in owned {
        process.ledger.put_back(at, entry);
    }
    going.put_back(process);
    process
        .contexts
        .known
        .lock()
        .extend(known.map(|known| (context, known)));
    code
}

fn end(process: &Process, handle: Handle, context: Context, owned: Vec<(u64, Entry)>) {
    process.contexts.last.store(0, Ordering::Relaxed);
    process.sizes.forget(handle);
    process.modules.forget(handle);
    process.libraries.forget(handle);
    process.graphs.end(process, context.device, context.card);
    for (at, entry) in owned {
        process.forget_elsewhere(at);
        process.left(at, entry);
    }
    process.seat.release(context.card, context.bytes);
    process
        .seat
        .note_contexts(context.card, context.bytes.wrapping_neg());
}
