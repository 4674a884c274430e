//! What is done with each hooked call, by families of calls. A handler gets the driver's function as
//! its first argument, and the call's arguments.

pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod context_limits;
pub(crate) mod graph;
mod graph_nodes;
pub(crate) mod green;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod nvml;
pub(crate) mod nvml_processes;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod transfer;
pub(crate) mod view;
