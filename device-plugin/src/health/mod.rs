//! Watches what may be out of service: GPUs, and the daemons of devices in mode mps.

pub mod errors;
pub mod gpus;
pub mod mps;
