//! The kubelet's two local APIs, generated from `proto/` (see `tests/generated.rs`).
//!
//! Fed by: the checked-in output of tonic-prost-build.
//! Must not: be edited by hand; change `proto/` and generate anew.

/// Device plugin API v1beta1: what the kubelet and this agent say to each other.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
pub mod v1beta1 {
    include!("generated/v1beta1.rs");
}

/// `PodResources` API v1: the kubelet's account of who holds which device.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
pub mod v1 {
    include!("generated/v1.rs");
}

/// The API version that the kubelet speaks.
pub const VERSION: &str = "v1beta1";
/// Health of a seat that may be handed out.
pub const HEALTHY: &str = "Healthy";
/// Health of a seat that may not.
pub const UNHEALTHY: &str = "Unhealthy";
