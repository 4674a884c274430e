//! A certificate of the process's own, made at start and never stored. It encrypts, but does not
//! prove to the client whom it speaks to.

use std::sync::Arc;

use rustls::ServerConfig;
use thiserror::Error;

use super::{CertificateError, Certificates};

#[derive(Debug, Error)]
pub enum SelfSignedError {
    #[error("cannot sign a certificate")]
    Sign(#[from] rcgen::Error),
    #[error(transparent)]
    Pair(#[from] CertificateError),
    #[error("cannot configure TLS")]
    Configuration(#[from] rustls::Error),
}

/// A server configuration with a new certificate.
pub fn self_signed() -> Result<Arc<ServerConfig>, SelfSignedError> {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificates = Certificates::none();
    certificates.replace(&pair.cert.pem(), &pair.signing_key.serialize_pem())?;
    Ok(super::server_config(&certificates, None)?)
}
