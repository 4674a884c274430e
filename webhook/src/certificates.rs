//! The webhook's certificate authorities (CAs) and its serving certificate, as values.
//!
//! CAs live in one Secret, so that replicas agree; each replica issues its own serving
//! certificate. While one CA replaces another both are in the bundle, so the API server trusts
//! every certificate that is served. Nothing here does IO or reads a clock.

mod ca;
mod ca_set;

#[cfg(test)]
mod tests;

pub use ca::{Ca, CertificateError, ServingCertificate};
pub use ca_set::{CaSet, Lifetimes};
