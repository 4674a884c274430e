//! The kubelet's device plugin API, generated from `proto/` by `build.rs`.

/// Device plugin API v1beta1.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

pub const VERSION: &str = "v1beta1";
/// Health of a replica that the kubelet may allocate.
pub const HEALTHY: &str = "Healthy";
/// Health of a replica that it may not allocate.
pub const UNHEALTHY: &str = "Unhealthy";
