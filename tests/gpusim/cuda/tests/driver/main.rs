//! The simulated CUDA driver from outside: by a client that opens it by path, by clients of other
//! projects, and by many processes at once.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

mod capturing;
mod client;
mod clients;
mod common;
mod contexts;
mod first_launches;
mod lookup;
mod managed_and_ipc;
mod memory_kinds;
mod memory_pools;
mod names;
mod process_exit;
mod suspension;
mod timing;
mod unkind_time;
mod virtual_memory;
