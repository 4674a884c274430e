//! Streams: the context in which one runs, and which are being captured into a graph; checking
//! whether any is costs one load. What is launched into a capture does not run now, is not charged,
//! and must not be measured.
//!
//! A capture that begins without a known call is still found before an event is recorded, by asking
//! the driver. A capture also ends with its stream or its context, and some failed ends leave it
//! running: then the driver is asked which captures go on. A capture that goes on is never counted
//! as ended, and destroyed streams are never queried.

use core::ffi::c_uint;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::driver::call;
use crate::ffi::{Code, Handle, Out, PER_THREAD_STREAM, SUCCESS};
use crate::lock::FutexLock;

/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`: it goes on.
const WRONG_THREAD: Code = 908;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

static ONGOING: AtomicU32 = AtomicU32::new(0);
static CAPTURES: FutexLock<Vec<StreamCapture>> = FutexLock::new(Vec::new());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamCapture {
    stream: Handle,
    /// The thread, for streams that each thread has its own of.
    thread: usize,
    context: Handle,
}

impl StreamCapture {
    fn new(stream: Handle) -> Self {
        let own = stream == 0 || stream == PER_THREAD_STREAM;
        let mut context = 0;
        call::cuCtxGetCurrent(Out::to(&mut context));
        Self {
            stream: if own { PER_THREAD_STREAM } else { stream },
            thread: if own { thread_id() } else { 0 },
            context,
        }
    }

    fn is_same_stream(self, other: Self) -> bool {
        (self.stream, self.thread) == (other.stream, other.thread)
    }

    /// Whether it goes on, as far as this thread can tell.
    fn is_ongoing(self) -> bool {
        let own = Self::new(self.stream);
        !own.is_same_stream(self) || is_captured(self.stream)
    }
}

/// Does something with a context current, which may not be this thread's.
pub(crate) fn with_current<T>(context: Handle, act: impl FnOnce() -> T) -> Result<T, Code> {
    let mut current = 0;
    if call::cuCtxGetCurrent(Out::to(&mut current)) == SUCCESS && current == context {
        return Ok(act());
    }
    match call::cuCtxPushCurrent_v2(context) {
        SUCCESS => {
            let result = act();
            call::cuCtxPopCurrent_v2(Out::to(&mut current));
            Ok(result)
        }
        code => Err(code),
    }
}

/// The context in which work of a stream runs; 0 if there is none, and the driver refuses.
pub(crate) fn context_of(stream: Handle) -> Handle {
    let mut context = 0;
    let is_object = stream > PER_THREAD_STREAM;
    if is_object && call::cuStreamGetCtx(stream, Out::to(&mut context)) == SUCCESS && context != 0 {
        return context;
    }
    let code = call::cuCtxGetCurrent(Out::to(&mut context));
    if code == SUCCESS { context } else { 0 }
}

/// A number for a stream of the calling thread; each thread has a default stream of its own.
pub(crate) fn identity(stream: Handle) -> Handle {
    if stream == PER_THREAD_STREAM {
        thread_id()
    } else {
        stream
    }
}

fn thread_id() -> usize {
    // SAFETY: any thread may ask for its own id.
    let id = unsafe { libc::pthread_self() };
    usize::try_from(id).unwrap_or(0)
}

/// Whether any stream of this process is captured, as far as known.
#[inline]
pub(crate) fn any_captured() -> bool {
    ONGOING.load(Relaxed) > 0
}

/// Whether work for this stream would not run now, or the driver does not say.
pub(crate) fn is_captured(stream: Handle) -> bool {
    let mut status = 0;
    call::cuStreamIsCapturing(stream, Out::to(&mut status)) != SUCCESS || status != 0
}

/// Whether work for this stream becomes part of a graph; the driver is only asked if some stream is
/// captured.
pub(crate) fn goes_into_capture(stream: Handle) -> bool {
    any_captured() && with_relaxed_capture(|| is_captured(stream))
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

/// Makes a call that begins a capture of a stream.
pub(crate) fn begin_capture(stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let capture = StreamCapture::new(stream);
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

/// Handles the driver's answer to the end of a capture, which may go on.
pub(crate) fn finish_capture(stream: Handle, code: Code) -> Code {
    if code == SUCCESS {
        let one = StreamCapture::new(stream);
        forget_if(|capture| capture.is_same_stream(one));
    } else if code != WRONG_THREAD {
        with_relaxed_capture(|| forget_if(|capture| !capture.is_ongoing()));
    }
    code
}

/// Makes a call that ends a stream, and with it its capture.
pub(crate) fn end_stream(stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let own = |capture: &StreamCapture| capture.stream == stream && stream > PER_THREAD_STREAM;
    let begun = any_captured()
        .then(|| CAPTURES.lock().iter().copied().find(own))
        .flatten();
    // Before the driver call: afterwards the handle may belong to another.
    forget_if(|capture| Some(capture) == begun);
    let code = call();
    if let Some(begun) = begun.filter(|_| code != SUCCESS) {
        ONGOING.fetch_add(1, Relaxed);
        CAPTURES.lock().push(begun);
    }
    code
}

/// A context ends, with its streams.
pub(crate) fn forget_captures(context: Handle) {
    forget_if(|capture| capture.context == context);
}

fn forget_if(gone: impl Fn(StreamCapture) -> bool) {
    if !any_captured() {
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
