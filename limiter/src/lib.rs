//! `libvgpu.so`: stands between a container's processes and the NVIDIA driver, counts the memory
//! they take, refuses what passes the seat's limit, and lets launches wait for their share of the
//! card's time.
//!
//! Fed by: the calls of [`table`], which reach it as a stand-in for the driver's libraries or as
//! a preloaded library ([`route`]); the seat's two files ([`process`]).
//! Must not: start a thread, handle a signal, exit, panic into C, or write to stdout.

mod account;
mod array;
mod capture;
mod clock;
mod context;
mod ffi;
mod graph_memory;
mod graph_nodes;
mod green;
mod image;
mod launch;
mod leaving;
mod ledger;
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
mod physical;
mod pool;
mod process;
mod real;
mod route;
mod sizes;
mod table;
mod view;
