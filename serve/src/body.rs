//! How large a request body may be, per route, and answers that are made while
//! they are read.
//!
//! Fed by: the routers of the binaries. axum refuses bodies above 2 MB by
//! default, which a review or an extender call with node objects can pass.
//! Must not: remove the limit; a bound is always set.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::DefaultBodyLimit;

/// Largest review: the API server takes objects of 3 MiB, and an update carries two.
pub const REVIEW_BYTES: usize = 8 << 20;

/// A layer that lets bodies of up to `bytes` through; larger ones get 413.
pub fn limit(bytes: usize) -> DefaultBodyLimit {
    DefaultBodyLimit::max(bytes)
}

/// An answer of pieces, each made when the one before it was taken, so that a
/// long answer to a slow reader takes little memory. Empty pieces are left out.
pub fn pieces(pieces: impl Iterator<Item = String> + Send + 'static) -> Body {
    let pieces = pieces.filter(|piece| !piece.is_empty());
    Body::from_stream(tokio_stream::iter(pieces.map(Ok::<_, Infallible>)))
}
