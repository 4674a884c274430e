//! Tracks whether any stream of the process is being captured into a graph; checking costs one
//! load. What is launched into a capture does not run now, is not charged, and must not be
//! measured.
//!
//! A capture that begins without a known call is still found before an event is recorded, by asking
//! the driver. A capture also ends with its stream or its context, and some failed ends leave it
//! running: then the driver is asked which captures go on. A capture that goes on is never counted
//! as ended, and destroyed streams are never queried.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::ffi::{Code, Handle, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::table::call;

/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`: it goes on.
const WRONG_THREAD: Code = 908;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;
/// `CU_STREAM_PER_THREAD`; handles up to it are no stream objects.
const PER_THREAD: Handle = 2;

static ONGOING: AtomicU32 = AtomicU32::new(0);
static CAPTURES: FutexLock<Vec<StreamCapture>> = FutexLock::new(Vec::new());

/// A stream that is being captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamCapture {
    stream: Handle,
    /// The thread, for streams that each thread has its own of.
    thread: usize,
    context: Handle,
}

impl StreamCapture {
    fn of(stream: Handle) -> Self {
        let own = stream == 0 || stream == PER_THREAD;
        // SAFETY: any thread may ask for its own id.
        let name = unsafe { libc::pthread_self() };
        let thread = if own { name } else { 0 };
        let mut context = 0;
        call::cuCtxGetCurrent(Out::to(&mut context));
        Self {
            stream: if own { PER_THREAD } else { stream },
            thread: usize::try_from(thread).unwrap_or(0),
            context,
        }
    }

    fn is_same_stream(self, other: Self) -> bool {
        (self.stream, self.thread) == (other.stream, other.thread)
    }

    /// Whether it goes on, as far as this thread can tell.
    fn is_ongoing(self) -> bool {
        let own = Self::of(self.stream);
        !own.is_same_stream(self) || is_captured(self.stream)
    }
}

/// Whether any stream of this process is captured, as far as known.
#[inline]
pub(crate) fn any() -> bool {
    ONGOING.load(Relaxed) > 0
}

/// Whether work for this stream would not run now, or the driver does not say.
pub(crate) fn is_captured(stream: Handle) -> bool {
    let mut status = 0;
    call::cuStreamIsCapturing(stream, Out::to(&mut status)) != SUCCESS || status != 0
}

/// Does something that no capture of another stream forbids, whatever its mode.
pub(crate) fn with_relaxed_capture<T>(act: impl FnOnce() -> T) -> T {
    let mut mode = RELAXED;
    let changed = call::cuThreadExchangeStreamCaptureMode(Out::to(&mut mode)) == SUCCESS;
    let result = act();
    if changed {
        call::cuThreadExchangeStreamCaptureMode(Out::to(&mut mode));
    }
    result
}

pub(crate) fn begin(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    begin_capture(stream, || real(stream))
}

pub(crate) fn begin_v2(
    real: extern "C" fn(Handle, c_uint) -> Code,
    stream: Handle,
    mode: c_uint,
) -> Code {
    begin_capture(stream, || real(stream, mode))
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
    begin_capture(stream, || real(stream, graph, after, edges, count, mode))
}

pub(crate) fn begin_again(
    real: extern "C" fn(Handle, c_uint, Handle, *const c_void, *mut c_void) -> Code,
    stream: Handle,
    mode: c_uint,
    graph: Handle,
    callback: *const c_void,
    data: *mut c_void,
) -> Code {
    begin_capture(stream, || real(stream, mode, graph, callback, data))
}

/// A capture that will run in a queue of a graphics program.
pub(crate) fn begin_for_graphics(
    real: extern "C" fn(Handle, *mut c_void) -> Code,
    stream: Handle,
    params: *mut c_void,
) -> Code {
    begin_capture(stream, || real(stream, params))
}

fn begin_capture(stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let capture = StreamCapture::of(stream);
    // Before the driver knows of it: another thread may launch into it at once.
    ONGOING.fetch_add(1, Relaxed);
    let code = call();
    if code == SUCCESS {
        CAPTURES.lock().push(capture);
    } else {
        decrement_ongoing();
    }
    code
}

pub(crate) fn end(
    real: extern "C" fn(Handle, Out<Handle>) -> Code,
    stream: Handle,
    graph: Out<Handle>,
) -> Code {
    finish_capture(stream, real(stream, graph))
}

pub(crate) fn end_for_graphics(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    finish_capture(stream, real(stream))
}

/// Handles the driver's answer to the end of a capture, which may go on.
fn finish_capture(stream: Handle, code: Code) -> Code {
    if code == SUCCESS {
        let one = StreamCapture::of(stream);
        forget_if(|capture| capture.is_same_stream(one));
    } else if code != WRONG_THREAD {
        with_relaxed_capture(|| forget_if(|capture| !capture.is_ongoing()));
    }
    code
}

/// A stream ends, and with it its capture.
pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    let own = |capture: &StreamCapture| capture.stream == stream && stream > PER_THREAD;
    let begun = any()
        .then(|| CAPTURES.lock().iter().copied().find(own))
        .flatten();
    // Before the driver call: afterwards the handle may belong to another.
    forget_if(|capture| Some(capture) == begun);
    let code = real(stream);
    if let Some(begun) = begun.filter(|_| code != SUCCESS) {
        ONGOING.fetch_add(1, Relaxed);
        CAPTURES.lock().push(begun);
    }
    code
}

/// A context ends, with its streams.
pub(crate) fn forget(context: Handle) {
    forget_if(|capture| capture.context == context);
}

fn forget_if(gone: impl Fn(StreamCapture) -> bool) {
    if !any() {
        return;
    }
    // Not under the lock, because the driver may be asked.
    let all = CAPTURES.lock().clone();
    for one in all.into_iter().filter(|one| gone(*one)) {
        let mut capture = CAPTURES.lock();
        if let Some(place) = capture.iter().position(|capture| *capture == one) {
            capture.swap_remove(place);
            decrement_ongoing();
        }
    }
}

fn decrement_ongoing() {
    let _ = ONGOING.fetch_update(Relaxed, Relaxed, |ongoing| ongoing.checked_sub(1));
}
