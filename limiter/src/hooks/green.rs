//! Green contexts: parts of a device's processors, created from its primary context, which they
//! keep alive. So the primary context is charged, once, and what is allocated in a green one
//! belongs to it.

use core::ffi::{c_uint, c_void};
use std::collections::HashMap;

use super::context;
use crate::driver::call;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::process::{self, PerProcess, ProcessState};
use crate::reserve::{record_context, reserve_context};

#[derive(Clone, Copy, Debug)]
struct GreenContext {
    device: Device,
    /// The context handle by which it can be made current; 0: unknown.
    context: Handle,
}

/// The green contexts of this process.
#[derive(Debug, Default)]
struct GreenContexts {
    known: FutexLock<HashMap<Handle, GreenContext>>,
}

impl GreenContexts {
    fn of(process: &ProcessState) -> &'static Self {
        static GREEN_CONTEXTS: PerProcess<GreenContexts> = PerProcess::new();
        GREEN_CONTEXTS.of(process)
    }
}

pub(crate) fn create(
    real: extern "C" fn(Out<Handle>, *const c_void, Device, c_uint) -> Code,
    green: Out<Handle>,
    resources: *const c_void,
    device: Device,
    flags: c_uint,
) -> Code {
    let process = match process::required() {
        Ok(process) if !process.is_uncontrolled() => process,
        Ok(_) => return real(green, resources, device, flags),
        Err(code) => return code,
    };
    let reserved = if process.contexts.has_primary(device) {
        None
    } else {
        match reserve_context(device) {
            Ok(reserved) => reserved,
            Err(code) => return code,
        }
    };
    let call = || real(green, resources, device, flags);
    let code = match reserved {
        Some((account, bytes)) => account.call_until_lent_memory_returns(bytes, call),
        None => call(),
    };
    let (SUCCESS, Some(made)) = (code, green.get()) else {
        if let Some((account, bytes)) = reserved {
            account.release(bytes);
        }
        return code;
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
    GreenContexts::of(process).known.lock().insert(made, entry);
    code
}

/// Returns a green context as a context that can be made current.
pub(crate) fn as_context(
    real: extern "C" fn(Out<Handle>, Handle) -> Code,
    context: Out<Handle>,
    green: Handle,
) -> Code {
    let code = real(context, green);
    if let (SUCCESS, Some(found), Some(process)) = (code, context.get(), process::get())
        && let Some(entry) = GreenContexts::of(process).known.lock().get_mut(&green)
    {
        entry.context = found;
        process.contexts.record_green(found, entry.device);
    }
    code
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, green: Handle) -> Code {
    let Some(process) = process::get() else {
        return real(green);
    };
    let entry = GreenContexts::of(process).known.lock().remove(&green);
    let Some(entry) = entry else {
        return real(green);
    };
    let code = context::with_primary_release(process, entry.device, entry.context, || real(green));
    if code != SUCCESS {
        GreenContexts::of(process).known.lock().insert(green, entry);
    }
    code
}
