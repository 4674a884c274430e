//! Green contexts: parts of a device's processors, created from its primary context, which they
//! keep alive. So the primary context is charged, once, and what is allocated in a green one
//! belongs to it.

use std::collections::HashMap;

use super::context;
use crate::driver::call;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::process::{self, PerProcess};
use crate::reserve::{record_context, reserve_context};

#[derive(Clone, Copy, Debug)]
struct GreenContext {
    device: Device,
    /// The context handle by which it can be made current; 0: unknown.
    context: Handle,
}

static GREEN_CONTEXTS: PerProcess<FutexLock<HashMap<Handle, GreenContext>>> = PerProcess::new();

pub(crate) fn create(
    green: Out<Handle>,
    device: Device,
    mut call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    let Some(process) = process::required()? else {
        return Ok(call());
    };
    let reserved = if process.contexts.has_primary(device) {
        None
    } else {
        reserve_context(device)?
    };
    let code = match reserved {
        Some((account, bytes)) => account.call_until_lent_memory_returns(bytes, call),
        None => call(),
    };
    let (SUCCESS, Some(made)) = (code, green.get()) else {
        if let Some((account, bytes)) = reserved {
            account.release(bytes);
        }
        return Ok(code);
    };
    if let Some((account, bytes)) = reserved {
        // Only to learn its handle: the green context keeps it alive.
        let mut primary = 0;
        if call::cuDevicePrimaryCtxRetain(Out::to(&mut primary), device) == SUCCESS {
            let _ = call::cuDevicePrimaryCtxRelease_v2(device);
            record_context(account, primary, device, true, bytes);
        }
    }
    // A stream of it has this context, also where the program never asks for it.
    let mut context = 0;
    if call::cuCtxFromGreenCtx(Out::to(&mut context), made) == SUCCESS {
        process.contexts.record_green(context, device);
    }
    let entry = GreenContext { device, context };
    GREEN_CONTEXTS.of(process).lock().insert(made, entry);
    Ok(code)
}

/// A green context was returned as a context that can be made current.
pub(crate) fn as_context(code: Code, context: Out<Handle>, green: Handle) -> Code {
    if let (SUCCESS, Some(found), Some(process)) = (code, context.get(), process::get())
        && let Some(entry) = GREEN_CONTEXTS.of(process).lock().get_mut(&green)
    {
        entry.context = found;
        process.contexts.record_green(found, entry.device);
    }
    code
}

pub(crate) fn destroy(green: Handle, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let known = GREEN_CONTEXTS.of(process);
    let removed = known.lock().remove(&green);
    let Some(entry) = removed else {
        return call();
    };
    let code = context::with_primary_release(process, entry.device, entry.context, call);
    if code != SUCCESS {
        known.lock().insert(green, entry);
    }
    code
}
