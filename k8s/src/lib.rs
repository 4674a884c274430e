//! The adapter between Kubernetes and `aliquot-core`. It decides nothing.
//!
//! Start with [`watch`] (streams become calls of a [`watch::Index`]) and [`pod`] (a Pod
//! becomes a demand or an entry in the ledger).

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod access;
pub mod bare;
pub mod client;
pub mod disruption;
pub mod event;
pub mod extender;
pub mod flags;
mod list;
pub mod node;
pub mod pod;
pub mod publisher;
pub mod quota;
pub mod replicas;
pub mod selection;
pub mod view;
pub mod watch;
