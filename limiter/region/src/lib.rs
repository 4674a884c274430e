//! The two files that the host and a container share: the limits page ([`limits`]) and the counters
//! file ([`counters`]), with the accounting on them ([`account`], [`slot`]) and the host's reader
//! ([`host`]).
//!
//! Neither side trusts the other to have written values in range, and neither waits for the other.

#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod account;
pub mod counters;
mod descriptors;
mod exiting;
pub mod fork;
pub mod host;
pub mod limits;
mod lock;
mod map;
pub mod shared;
pub mod slot;
pub mod tag;
#[cfg(test)]
mod testing;

pub use counters::AttachError;
