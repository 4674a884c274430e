//! The two files that host and container share: the limits page ([`limits`]) and the counters
//! file ([`counters`]), and the accounting on it; for the host a reader ([`host`]) and a place
//! ([`room`]) for what a tenant writes.
//!
//! Fed by: the device plugin (writes both first), libvgpu.so (maps both), the host's accounting.
//! Must not: know CUDA or Kubernetes, wait for anybody, or trust what the other side wrote to be
//! in range.

pub mod account;
pub mod counters;
pub mod fork;
mod going;
pub mod host;
pub mod limits;
mod lock;
mod map;
pub mod room;
pub mod seat;

pub use counters::AttachError;
