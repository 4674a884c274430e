//! Streamed answers.

use std::convert::Infallible;

use axum::body::Body;

/// A body streamed from `parts`, each produced once the one before was sent, so
/// that a long answer to a slow reader takes little memory. Empty parts are left out.
pub fn stream(parts: impl Iterator<Item = String> + Send + 'static) -> Body {
    let parts = parts.filter(|part| !part.is_empty());
    Body::from_stream(tokio_stream::iter(parts.map(Ok::<_, Infallible>)))
}
