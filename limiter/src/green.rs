//! Green contexts: parts of a card's processors, made out of its primary context, which they keep
//! alive. So the primary one is charged, once, and what is allocated in a green one is its own.
//!
//! Fed by: [`crate::table`]. Must not: charge a whole context for a part of one.

use core::ffi::{c_uint, c_void};
use std::collections::HashMap;

use crate::context;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS};
use crate::lock::Lock;
use crate::process;
use crate::table::call;

#[derive(Clone, Copy, Debug)]
struct Green {
    device: Device,
    /// As which it can be made current; 0: nobody asked.
    context: Handle,
}

/// Those of this process.
#[derive(Debug, Default)]
pub(crate) struct Greens(Lock<HashMap<Handle, Green>>);

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
    let begun = if process.contexts.has_primary(device) {
        None
    } else {
        match context::begin(device) {
            Ok(begun) => begun,
            Err(code) => return code,
        }
    };
    let code = real(green, resources, device, flags);
    let (SUCCESS, Some(made)) = (code, green.get()) else {
        if let Some((account, bytes)) = begun {
            account.release(bytes);
        }
        return code;
    };
    if let Some((account, bytes)) = begun {
        // Only to learn its name: the green one keeps it.
        let mut primary = 0;
        if call::cuDevicePrimaryCtxRetain(Out::to(&mut primary), device) == SUCCESS {
            let _ = call::cuDevicePrimaryCtxRelease_v2(device);
            context::note(account, primary, device, true, bytes);
        }
    }
    let known = Green { device, context: 0 };
    process.greens.0.lock().insert(made, known);
    code
}

/// A green context as one that can be made current.
pub(crate) fn as_context(
    real: extern "C" fn(Out<Handle>, Handle) -> Code,
    context: Out<Handle>,
    green: Handle,
) -> Code {
    let code = real(context, green);
    if let (SUCCESS, Some(found), Some(process)) = (code, context.get(), process::get())
        && let Some(known) = process.greens.0.lock().get_mut(&green)
    {
        known.context = found;
        process.contexts.note_green(found, known.device);
    }
    code
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, green: Handle) -> Code {
    let Some(process) = process::get() else {
        return real(green);
    };
    let known = process.greens.0.lock().remove(&green);
    let Some(known) = known else {
        return real(green);
    };
    let code = context::around(process, known.device, known.context, || real(green));
    if code != SUCCESS {
        process.greens.0.lock().insert(green, known);
    }
    code
}
