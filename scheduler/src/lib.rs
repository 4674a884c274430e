//! The scheduler extender: a ledger kept current by watches, and answers to kube-scheduler.
//!
//! Start with [`routes`] (the verbs over HTTP), then [`verbs`] (their answers) and [`bind`] (the
//! one write). Nothing is answered before the first full list of every watch.

#![forbid(unsafe_code)]

pub mod audit;
pub mod bind;
pub mod bound_pods;
pub mod capacity_events;
pub mod evict;
pub mod explain;
mod fail_point;
pub mod gauges;
pub mod leader;
pub mod learn;
pub mod ledger_cache;
pub mod ledger_report;
pub mod metrics;
pub mod page;
pub mod pending;
pub mod preempt;
pub mod quotas;
pub mod requeue;
pub mod routes;
pub mod run;
pub mod settings;
pub mod unreadable;
pub mod verbs;
pub mod watches;
