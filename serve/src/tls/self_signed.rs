//! A certificate of the process's own, made at start and never stored. It encrypts; it does not
//! tell the client whom it speaks to.

use std::sync::Arc;

use rustls::ServerConfig;
use thiserror::Error;

use super::{CertificateError, Certificates};

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum SelfSignedError {
    /// No key or no signature.
    #[error("cannot sign a certificate")]
    Sign(#[from] rcgen::Error),
    /// The pair is not usable.
    #[error(transparent)]
    Pair(#[from] CertificateError),
    /// The configuration is not usable.
    #[error("cannot configure TLS")]
    Configuration(#[from] rustls::Error),
}

/// A server configuration with a new certificate, for HTTP/1.1.
pub fn self_signed() -> Result<Arc<ServerConfig>, SelfSignedError> {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificates = Certificates::none();
    certificates.replace(&pair.cert.pem(), &pair.signing_key.serialize_pem())?;
    let config = super::server_config(&certificates)?;
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
