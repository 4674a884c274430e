//! The admission webhook: reviews of pods that mention a GPU resource of ours.
//!
//! Start with [`review::review`], the pure decision. [`server`] serves it over HTTP; the
//! [`reconciler`] maintains the certificates and the webhook configuration. A review makes no
//! outgoing call.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod args;
pub mod certificates;
pub mod configuration;
pub mod metrics;
pub mod reconciler;
pub mod review;
pub mod server;
pub mod settings;
pub mod verdict;
pub mod wire;

mod pod;
