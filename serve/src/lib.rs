//! What every program needs to serve: telemetry, admin routes, listeners, termination. It
//! knows no program's routes and no API server.

#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod access_control;
pub mod admin;
pub mod fail_point;
pub mod http;
pub mod readiness;
pub mod repeated_warnings;
pub mod stop;
pub mod telemetry;
pub mod tls;

pub use readiness::Readiness;
