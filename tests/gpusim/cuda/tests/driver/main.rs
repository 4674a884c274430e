//! The simulated CUDA driver from outside, by a client that opens it by path.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

mod capturing;
#[allow(dead_code, reason = "other suites use the rest")]
mod client;
#[allow(dead_code, reason = "other suites use the rest")]
mod common;
mod contexts;
mod lookup;
mod names;
mod timing;
