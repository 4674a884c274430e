//! The monitor of a node: measures what each container with a share really uses, charges what the
//! limiter cannot count, arbitrates compute between priorities, kills processes above their limit,
//! and exports metrics.
//!
//! Start with [`run`]; [`managed_containers`] lists this node's containers with a share from what the
//! device plugin wrote on disk. A tenant's file is never believed where driver or cgroups disagree.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod actions;
pub mod agent_reports;
pub mod arbiter;
pub mod attribution;
pub mod busy;
pub mod container_cgroups;
pub mod container_names;
pub mod counted_memory;
pub mod devices;
pub mod enforce;
pub mod evaluation;
pub mod exporter;
pub mod history;
pub mod lending;
pub mod managed_containers;
pub mod metrics;
pub mod node_sample;
pub mod oom;
pub mod overhead;
pub mod pods;
pub mod run;
pub mod sampler;
pub mod sampling_loop;
pub mod settings;
#[cfg(test)]
mod testing;
pub mod usage;
pub mod usage_routes;
