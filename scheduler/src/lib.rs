//! The scheduler extender: a ledger kept current by watches, and answers to kube-scheduler.
//!
//! Start with [`extender`] (the verbs over HTTP and their answers) and [`bind`] (the one write).
//! Nothing is answered before the first full list of every watch.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod admission_policies;
pub mod bind;
pub mod evict;
pub mod extender;
pub mod leader;
pub mod learn;
pub mod ledger_cache;
pub mod metrics;
pub mod node_types;
mod pins;
pub mod pod_client;
pub mod preempt;
pub mod requeue;
pub mod resize;
pub mod run;
pub mod scale_up;
pub mod settings;
pub mod ticks;
pub mod unreadable;
pub mod views;
