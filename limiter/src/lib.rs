//! `libvgpu.so`: sits between a container's processes and the NVIDIA driver, counts the memory that
//! they allocate, refuses what exceeds the container's limit, and delays launches to keep the
//! container's compute share.
//!
//! The calls of [`table`] reach it through shim libraries or as a preloaded library ([`route`]);
//! the limits and counters are in the container directory ([`process`]). It never starts a thread,
//! handles a signal, exits, panics into C or writes to stdout.

mod account;
mod allocations;
mod array;
mod capture;
mod clock;
mod context;
mod context_limits;
mod ffi;
mod graph_memory;
mod graph_nodes;
mod green;
mod image;
mod launch;
mod library;
mod lock;
mod log;
mod marker;
mod memory;
mod module;
mod nvml;
mod nvml_processes;
mod nvml_samples;
mod pace;
mod pending_free;
mod physical;
mod pool;
mod process;
mod real;
mod route;
mod table;
mod transfer;
mod view;
