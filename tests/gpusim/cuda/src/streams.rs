//! Streams as handles: the two default ones and those that programs make.

use crate::codes::ERROR_INVALID_HANDLE;
use crate::context::{ContextRef, current};
use crate::driver::driver;
use crate::ffi::Answer;
use crate::types::Handle;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

/// A stream that a program made.
pub(crate) struct Stream {
    pub(crate) context: ContextRef,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

/// The context in which a stream's work runs.
pub(crate) fn context_of(stream: Handle, _own: bool) -> Answer<ContextRef> {
    match stream {
        0 | LEGACY | PER_THREAD => current(),
        handle => {
            let found = driver()?
                .objects
                .streams
                .get(handle, ERROR_INVALID_HANDLE)?;
            Ok(found.context)
        }
    }
}
