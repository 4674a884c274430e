//! Kubernetes on one side, `aliquot-core` on the other.
//!
//! Start with [`watch`] (streams become calls of an [`watch::Index`]) and
//! [`pod`] (a Pod becomes a demand or a booking).
//! Fed by: the API server. Must not: decide anything.

#![forbid(unsafe_code)]

pub mod client;
pub mod compute;
pub mod disruption;
pub mod event;
pub mod extender;
pub mod flags;
pub mod leader;
pub mod node;
pub mod pod;
pub mod publisher;
pub mod quota;
pub mod seats;
pub mod slim;
pub mod watch;
