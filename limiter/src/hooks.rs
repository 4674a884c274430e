//! What is done with each hooked call, by families of calls. A handler gets the driver's function as
//! its first argument, and the call's arguments.

pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod checkpoint;
pub(crate) mod context;
pub(crate) mod context_limits;
pub(crate) mod graph;
pub(crate) mod green;
pub(crate) mod ipc;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod nvml;
pub(crate) mod nvml_processes;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod transfer;
pub(crate) mod view;

use crate::ffi::Code;

/// Calls of CUDA 3.1, whose addresses and sizes have 32 bits, and of graphics that share a device:
/// nothing counts what they take, so they are refused (801) where there is a limit. Their arguments
/// are words.
pub(crate) fn refuse(
    real: extern "C" fn(usize, usize, usize, usize, usize) -> Code,
    one: usize,
    two: usize,
    three: usize,
    four: usize,
    five: usize,
) -> Code {
    memory::reject_uncounted(|| real(one, two, three, four, five))
}
