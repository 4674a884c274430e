//! MPS as its owner and its clients see it: the real binaries, the real CUDA library, processes.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

#[path = "../../cuda/tests/driver/client.rs"]
#[macro_use]
#[allow(dead_code, reason = "other suites use the rest")]
mod client;
#[path = "../../cuda/tests/driver/common.rs"]
#[allow(dead_code, reason = "other suites use the rest")]
mod common;

mod clients;
mod daemon;
mod owner;
