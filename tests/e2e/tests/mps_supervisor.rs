//! The supervisor of MPS daemons as a process of its own, killed and started again, on simulated
//! GPUs with the commands of NVIDIA's daemon. No cluster.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

#[path = "mps_supervisor/bench.rs"]
mod bench;
#[path = "mps_supervisor/daemons.rs"]
mod daemons;
#[path = "mps_supervisor/killed.rs"]
mod killed;
