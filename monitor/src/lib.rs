//! The monitor of a node: measures what each share really uses, charges what the library in the
//! container cannot see, arbitrates priorities, ends what breaks its limit, and tells Prometheus.
//!
//! Start with [`run`]. [`seats`] lists this node's shares from what the device plugin left on disk.
//! Fed by: the disk, the driver, `/proc`, the watch of this node's pods. Must not: place pods, or
//! believe a tenant's file where driver and cgroups say otherwise.

#![forbid(unsafe_code)]

pub mod account;
pub mod act;
pub mod arbiter;
pub mod attribute;
pub mod busy;
pub mod cards;
pub mod cgroup;
pub mod containers;
pub mod enforce;
pub mod figures;
pub mod judge;
pub mod leaving;
pub mod look;
pub mod metrics;
pub mod names;
pub mod once;
pub mod oom;
pub mod pods;
pub mod processes;
pub mod rounds;
pub mod run;
pub mod seats;
pub mod settings;
#[cfg(test)]
mod testing;
pub mod unmanaged;
