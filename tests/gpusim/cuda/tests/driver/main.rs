//! The simulated CUDA driver seen from outside: by a client that opens it by path, by clients
//! that were not written here, and by many processes at once.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

mod capturing;
mod client;
mod clients;
mod common;
mod contexts;
mod dying;
mod kinds;
mod lookup;
mod pooled;
mod shared;
mod timed;
mod virtual_memory;
