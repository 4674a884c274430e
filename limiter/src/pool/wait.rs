//! Waits for the card, after which the driver gives memory of pools back.
//!
//! Fed by: [`crate::table`]. Must not: change what a wait answers.

use core::sync::atomic::Ordering::Relaxed;

use super::ANY;
use crate::ffi::{Code, Handle, SUCCESS};
use crate::process;

/// Somebody waited for the card: the driver may have given memory of pools back, and of graphs.
fn looked(code: Code) -> Code {
    if let Some(process) = process::get().filter(|_| code == SUCCESS) {
        if ANY.load(Relaxed) {
            process.pools.look();
        }
        process.leaving.look(process);
    }
    code
}

/// A wait for a stream, an event or a context.
pub(crate) fn waited(real: extern "C" fn(Handle) -> Code, of: Handle) -> Code {
    looked(real(of))
}

/// A wait for the current context.
pub(crate) fn waited_here(real: extern "C" fn() -> Code) -> Code {
    looked(real())
}
