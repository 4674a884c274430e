//! Whether some stream of the process is being captured into a graph, at the price of one load:
//! what is launched there does not run now, is not charged, and must not be marked.
//!
//! A capture that begins behind our back is still found before a mark is set, by asking the
//! driver. A capture also ends with its stream or its context, and some failures of its end leave
//! it open: then the driver is asked which of them go on. Fed by: [`crate::table`].
//! Must not: count a capture as ended that goes on, or ask for a stream that is gone.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::ffi::{Code, Handle, Out, SUCCESS};
use crate::lock::Lock;
use crate::table::call;

/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`: it goes on.
const WRONG_THREAD: Code = 908;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;
/// `CU_STREAM_PER_THREAD`; streams up to it are no objects.
const PER_THREAD: Handle = 2;

static ONGOING: AtomicU32 = AtomicU32::new(0);
static KNOWN: Lock<Vec<Captured>> = Lock::new(Vec::new());

/// A stream that is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Captured {
    stream: Handle,
    /// Whose stream it is, where that is each thread's own.
    thread: usize,
    context: Handle,
}

impl Captured {
    fn of(stream: Handle) -> Self {
        let own = stream == 0 || stream == PER_THREAD;
        // SAFETY: any thread may ask for its own name.
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

    fn is(self, other: Self) -> bool {
        (self.stream, self.thread) == (other.stream, other.thread)
    }

    /// It goes on, as far as this thread can tell.
    fn goes_on(self) -> bool {
        let own = Self::of(self.stream);
        !own.is(self) || is_captured(self.stream)
    }
}

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
    began(stream, || real(stream))
}

pub(crate) fn begin_v2(
    real: extern "C" fn(Handle, c_uint) -> Code,
    stream: Handle,
    mode: c_uint,
) -> Code {
    began(stream, || real(stream, mode))
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
    began(stream, || real(stream, graph, after, edges, count, mode))
}

pub(crate) fn begin_again(
    real: extern "C" fn(Handle, c_uint, Handle, *const c_void, *mut c_void) -> Code,
    stream: Handle,
    mode: c_uint,
    graph: Handle,
    callback: *const c_void,
    data: *mut c_void,
) -> Code {
    began(stream, || real(stream, mode, graph, callback, data))
}

/// What is captured here runs in a queue of a graphics program.
pub(crate) fn begin_for_graphics(
    real: extern "C" fn(Handle, *mut c_void) -> Code,
    stream: Handle,
    params: *mut c_void,
) -> Code {
    began(stream, || real(stream, params))
}

fn began(stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let known = Captured::of(stream);
    // Before the driver knows of it: another thread may launch into it at once.
    ONGOING.fetch_add(1, Relaxed);
    let code = call();
    if code == SUCCESS {
        KNOWN.lock().push(known);
    } else {
        ended();
    }
    code
}

pub(crate) fn end(
    real: extern "C" fn(Handle, Out<Handle>) -> Code,
    stream: Handle,
    graph: Out<Handle>,
) -> Code {
    judged(stream, real(stream, graph))
}

pub(crate) fn end_for_graphics(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    judged(stream, real(stream))
}

/// The answer to a capture's end; it may go on.
fn judged(stream: Handle, code: Code) -> Code {
    if code == SUCCESS {
        let one = Captured::of(stream);
        forget_if(|known| known.is(one));
    } else if code != WRONG_THREAD {
        aside(|| forget_if(|known| !known.goes_on()));
    }
    code
}

/// A stream ends, and what is captured in it.
pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    let own = |known: &Captured| known.stream == stream && stream > PER_THREAD;
    let begun = any()
        .then(|| KNOWN.lock().iter().copied().find(own))
        .flatten();
    // Before the driver does it: afterwards the handle may be another's.
    forget_if(|known| Some(known) == begun);
    let code = real(stream);
    if let Some(begun) = begun.filter(|_| code != SUCCESS) {
        ONGOING.fetch_add(1, Relaxed);
        KNOWN.lock().push(begun);
    }
    code
}

/// A context ends, and its streams.
pub(crate) fn forget(context: Handle) {
    forget_if(|known| known.context == context);
}

fn forget_if(gone: impl Fn(Captured) -> bool) {
    if !any() {
        return;
    }
    // The driver may be asked, so not under the lock.
    let all = KNOWN.lock().clone();
    for one in all.into_iter().filter(|one| gone(*one)) {
        let mut known = KNOWN.lock();
        if let Some(place) = known.iter().position(|known| *known == one) {
            known.swap_remove(place);
            ended();
        }
    }
}

fn ended() {
    let _ = ONGOING.fetch_update(Relaxed, Relaxed, |ongoing| ongoing.checked_sub(1));
}
