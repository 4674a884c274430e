//! The scheduler extender: books from watches, answers to kube-scheduler.
//!
//! Start with [`routes`] (the verbs), then [`verbs`] (what they answer)
//! and [`bind`] (the one write).
//! Fed by: kube-scheduler over HTTP, the API server by watch.
//! Must not: answer before the first full list.

#![forbid(unsafe_code)]

pub mod audit;
pub mod bind;
pub mod bind_error;
mod binding;
pub mod books;
pub mod claims;
pub mod evict;
pub mod eviction;
pub mod explain;
mod fail_point;
pub mod feed;
pub mod gauges;
pub mod grown;
mod holders;
pub mod leader;
pub mod learn;
pub mod metrics;
pub mod nudge;
pub mod page;
pub mod preempt;
pub mod quotas;
pub mod routes;
pub mod run;
pub mod settings;
pub mod statement;
pub mod tenants;
pub mod verbs;
pub mod waiting;
mod wake;
