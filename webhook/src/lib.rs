//! The admission webhook: reviews of pods that mention a GPU resource of ours.
//!
//! Start with [`review::review`], the pure decision. [`handler`] serves it over HTTP; the
//! [`reconciler`] maintains the certificates and the webhook configuration. A review makes no
//! outgoing call.

#![forbid(unsafe_code)]

pub mod args;
pub mod certificates;
pub mod configuration;
pub mod handler;
pub mod metrics;
pub mod reconciler;
pub mod review;
pub mod settings;
pub mod warn;
pub mod wire;
