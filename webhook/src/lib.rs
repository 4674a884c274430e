//! The admission webhook: reviews of pods that mention a GPU resource of ours.
//!
//! Start with [`review::review`], the pure decision. [`handler`] puts it behind
//! HTTP, [`certificates`] and [`configuration`] keep the API server calling it.
//! Fed by: admission reviews, flags, one Secret and one webhook configuration.
//! Must not: make an outgoing call during a review.

#![forbid(unsafe_code)]

pub mod args;
pub mod certificates;
pub mod configuration;
pub mod handler;
pub mod keeper;
pub mod keeping;
pub mod metrics;
pub mod review;
pub mod settings;
pub mod warn;
pub mod wire;
