//! The simulated driver from outside: by the product's own driver library, and by many processes at
//! once.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

#[path = "../../cuda/tests/driver/client.rs"]
#[allow(dead_code, reason = "other suites use the rest")]
mod client;
#[path = "../../cuda/tests/driver/common.rs"]
#[allow(dead_code, reason = "other suites use the rest")]
mod common;
mod driver;
mod holders;
mod memory_limits;
mod mig_driver;
mod partitioned_gpus;
mod process_figures;
