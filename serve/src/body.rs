//! How large a request body may be, per route.
//!
//! Fed by: the routers of the binaries. axum refuses bodies above 2 MB by
//! default, which a review or an extender call with node objects can pass.
//! Must not: remove the limit; a bound is always set.

use axum::extract::DefaultBodyLimit;

/// Largest review: the API server takes objects of 3 MiB, and an update carries two.
pub const REVIEW_BYTES: usize = 8 << 20;

/// A layer that lets bodies of up to `bytes` through; larger ones get 413.
pub fn limit(bytes: usize) -> DefaultBodyLimit {
    DefaultBodyLimit::max(bytes)
}
