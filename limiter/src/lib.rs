//! `libvgpu.so`: sits between a container's processes and the NVIDIA driver, counts the memory that
//! they allocate, refuses what exceeds the container's limit, and delays launches to keep the
//! container's compute share.
//!
//! The calls of [`table`] reach it through shim libraries or as a preloaded library; [`hooks`] has
//! what is done with each. The limits and counters are in the container directory ([`process`]). It
//! never starts a thread, handles a signal, exits, panics into C or writes to stdout.

mod charges;
mod clock;
mod contexts;
mod device_pace;
mod driver;
mod early;
mod ffi;
mod hooks;
mod lent;
mod lock;
mod log;
mod marker;
mod pace;
mod process;
mod reserve;
mod stream;
mod table;
