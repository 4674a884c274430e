//! Our certificate authorities and the leaf that they issue, as values.
//!
//! Authorities live in one Secret, so that replicas agree; each replica issues
//! its own leaf. While one authority follows another both are in the bundle, so
//! at no moment does the API server meet a leaf that it does not trust.
//! Fed by: the Secret's data and the wall clock, both as arguments.
//! Must not: do IO or read a clock.

mod authorities;
mod authority;

#[cfg(test)]
mod tests;

pub use authorities::{Authorities, Lifetimes};
pub use authority::{Authority, CertificateError, Leaf};
