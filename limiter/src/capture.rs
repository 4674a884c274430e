//! Whether some stream of the process is being captured into a graph, at the price of one load:
//! what is launched there does not run now, is not charged, and must not be marked.
//!
//! A capture that begins behind our back is still found before a mark is set, by asking the
//! driver. Fed by: [`crate::table`]. Must not: count a capture as ended that goes on.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::ffi::{Code, Handle, Out, SUCCESS};
use crate::table::call;

/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`, the only failure of a capture's end with those
/// around it after which the capture goes on.
const WRONG_THREAD: Code = 908;
/// The failures that a capture's end may have: 900 to 909.
const FAILURES: core::ops::RangeInclusive<Code> = 900..=909;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

static ONGOING: AtomicU32 = AtomicU32::new(0);

/// Some stream of this process is captured, as far as we know.
#[inline]
pub(crate) fn any() -> bool {
    ONGOING.load(Relaxed) > 0
}

/// Work for this stream would not run now, or the driver does not want to tell.
pub(crate) fn is_captured(stream: Handle) -> bool {
    let mut status = 0;
    call::cuStreamIsCapturing(stream, Out::to(&mut status)) != SUCCESS || status != 0
}

/// Does something that no capture of another stream minds, whatever its mode.
pub(crate) fn aside<T>(act: impl FnOnce() -> T) -> T {
    let mut mode = RELAXED;
    let changed = call::cuThreadExchangeStreamCaptureMode(Out::to(&mut mode)) == SUCCESS;
    let result = act();
    if changed {
        call::cuThreadExchangeStreamCaptureMode(Out::to(&mut mode));
    }
    result
}

pub(crate) fn begin(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    began(|| real(stream))
}

pub(crate) fn begin_v2(
    real: extern "C" fn(Handle, c_uint) -> Code,
    stream: Handle,
    mode: c_uint,
) -> Code {
    began(|| real(stream, mode))
}

pub(crate) fn begin_to(
    real: extern "C" fn(Handle, Handle, *const c_void, *const c_void, usize, c_uint) -> Code,
    stream: Handle,
    graph: Handle,
    after: *const c_void,
    edges: *const c_void,
    count: usize,
    mode: c_uint,
) -> Code {
    began(|| real(stream, graph, after, edges, count, mode))
}

pub(crate) fn begin_again(
    real: extern "C" fn(Handle, c_uint, Handle, *const c_void, *mut c_void) -> Code,
    stream: Handle,
    mode: c_uint,
    graph: Handle,
    callback: *const c_void,
    data: *mut c_void,
) -> Code {
    began(|| real(stream, mode, graph, callback, data))
}

/// What is captured here runs in a queue of a graphics program.
pub(crate) fn begin_for_graphics(
    real: extern "C" fn(Handle, *mut c_void) -> Code,
    stream: Handle,
    params: *mut c_void,
) -> Code {
    began(|| real(stream, params))
}

fn began(call: impl FnOnce() -> Code) -> Code {
    // Before the driver knows of it: another thread may launch into it at once.
    ONGOING.fetch_add(1, Relaxed);
    let code = call();
    if code != SUCCESS {
        ended();
    }
    code
}

pub(crate) fn end(
    real: extern "C" fn(Handle, Out<Handle>) -> Code,
    stream: Handle,
    graph: Out<Handle>,
) -> Code {
    judged(real(stream, graph))
}

pub(crate) fn end_for_graphics(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    judged(real(stream))
}

/// The answer to a capture's end; it may go on.
fn judged(code: Code) -> Code {
    if code == SUCCESS || (FAILURES.contains(&code) && code != WRONG_THREAD) {
        ended();
    }
    code
}

fn ended() {
    let _ = ONGOING.fetch_update(Relaxed, Relaxed, |ongoing| ongoing.checked_sub(1));
}
