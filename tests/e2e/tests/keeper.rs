//! The keeper of MPS daemons as a process of its own, killed and started again, on simulated cards
//! with the daemon's commands as NVIDIA's are. No cluster.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

#[path = "keeper/bench.rs"]
mod bench;
#[path = "keeper/daemons.rs"]
mod daemons;
#[path = "keeper/killed.rs"]
mod killed;
