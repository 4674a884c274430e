//! The simulated driver from outside: by clients of other projects, by raw calls, by the product's
//! own driver library, and by many processes at once.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

mod answers;
mod calls;
mod client;
mod clients;
mod common;
mod driver;
mod holders;
mod memory_limits;
mod mig_calls;
mod mig_driver;
mod partitioned_gpus;
mod process_figures;
mod process_utilization;
