//! What is done with each hooked call, by families of calls. A handler makes the call by its last
//! argument, or gets the driver's answer or function as its first one.

pub(crate) mod array;
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
