//! The edge that every binary shares: telemetry, admin routes, listeners, stop.
//!
//! Fed by: routers and certificates of the binaries.
//! Must not: know a route of one product, or talk to the API server.

pub mod admin;
pub mod body;
pub mod http;
pub mod readiness;
pub mod stop;
pub mod telemetry;
pub mod tls;

pub use readiness::Readiness;
