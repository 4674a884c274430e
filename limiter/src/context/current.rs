//! Which context a call is about: the thread's, or that of the stream that it names.
//!
//! Fed by: [`crate::account`], [`crate::pace`], [`crate::marker`]. Must not: leave another context
//! current than it found.

use crate::ffi::{Code, Handle, Out, SUCCESS};
use crate::table::call;

/// `CU_STREAM_PER_THREAD`; streams up to it are no objects.
const PER_THREAD: Handle = 2;

/// Does something with a context current, which may be another's than this thread's.
pub(crate) fn within<T>(context: Handle, act: impl FnOnce() -> T) -> Result<T, Code> {
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

/// The context in which work of a stream runs; 0: there is none, and the driver refuses.
pub(crate) fn of_stream(stream: Handle) -> Handle {
    let mut context = 0;
    let is_object = stream > PER_THREAD;
    if is_object && call::cuStreamGetCtx(stream, Out::to(&mut context)) == SUCCESS && context != 0 {
        return context;
    }
    let code = call::cuCtxGetCurrent(Out::to(&mut context));
    if code == SUCCESS { context } else { 0 }
}
