//! Limits of request bodies, and streamed answers. axum refuses bodies above 2 MB by
//! default, which a review or an extender call with node objects can exceed.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::DefaultBodyLimit;

/// The largest review: the API server accepts objects of 3 MiB, and an update carries two.
pub const REVIEW_BYTES: usize = 8 << 20;

/// A layer that lets bodies of up to `bytes` through; larger ones get 413.
pub fn limit(bytes: usize) -> DefaultBodyLimit {
    DefaultBodyLimit::max(bytes)
}

/// A body streamed from `parts`, each produced once the one before was sent, so
/// that a long answer to a slow reader takes little memory. Empty parts are left out.
pub fn stream(parts: impl Iterator<Item = String> + Send + 'static) -> Body {
    let parts = parts.filter(|part| !part.is_empty());
    Body::from_stream(tokio_stream::iter(parts.map(Ok::<_, Infallible>)))
}
