//! `libvgpu.so`: stands between a container's processes and the NVIDIA driver, counts the memory
//! they take and refuses what passes the seat's limit.
//!
//! Fed by: the calls of [`table`], which reach it as a stand-in for the driver's libraries or as
//! a preloaded library ([`route`]); the seat's two files ([`process`]).
//! Must not: start a thread, handle a signal, exit, panic into C, or write to stdout.

mod account;
mod array;
mod context;
mod ffi;
mod ledger;
mod lock;
mod log;
mod memory;
mod nvml;
mod nvml_processes;
mod physical;
mod pool;
mod process;
mod real;
mod route;
mod table;
mod view;
