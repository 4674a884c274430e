//! Aliquot as a user runs it: its binaries on a real cluster, with their real
//! RBAC; only the GPU is simulated.
//!
//! Start with [`stack`]. Scenarios are in `tests/`, the demo in `src/bin`.

#![forbid(unsafe_code)]

mod agent;
pub mod clients;
pub mod figures;
pub mod http;
pub mod ledger;
pub mod limits_program;
pub mod pod_resources;
pub mod pods;
pub mod pool;
pub mod processes;
pub mod prometheus;
pub mod proxy;
pub mod scenario;
pub mod service;
pub mod stack;
