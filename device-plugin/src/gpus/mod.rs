//! The GPUs of this node: what is published of them, and what follows from their failures.

pub mod allocatable;
pub mod device_failures;
mod host_memory;
pub mod inventory;
mod namespace_reservations;
