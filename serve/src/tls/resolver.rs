//! The serving certificate, replaceable at any time. Open connections keep the one that
//! they began with.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

/// Why a certificate is not usable. The previous one stays in use.
#[derive(Debug, Error)]
pub enum CertificateError {
    #[error("the certificate chain is not PEM")]
    Chain(#[source] rustls_pki_types::pem::Error),
    #[error("the certificate chain is empty")]
    EmptyChain,
    #[error("the private key is not PEM")]
    Key(#[source] rustls_pki_types::pem::Error),
    #[error("the private key cannot be used with the certificate")]
    Pair(#[source] rustls::Error),
}

/// The certificate that new connections get. Clones share it.
#[derive(Clone, Default)]
pub struct Certificates {
    current: Arc<ArcSwapOption<CertifiedKey>>,
}

impl Certificates {
    /// None yet: handshakes fail until the first [`Self::replace`].
    pub fn none() -> Self {
        Self::default()
    }

    /// New handshakes use this pair from now on. Both are PEM, the serving certificate
    /// first.
    pub fn replace(&self, chain_pem: &str, key_pem: &str) -> Result<(), CertificateError> {
        let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(CertificateError::Chain)?;
        if chain.is_empty() {
            return Err(CertificateError::EmptyChain);
        }
        let key =
            PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(CertificateError::Key)?;
        let pair = CertifiedKey::from_der(chain, key, &default_provider())
            .map_err(CertificateError::Pair)?;
        self.current.store(Some(Arc::new(pair)));
        Ok(())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("present", &self.current.load().is_some())
            .finish_non_exhaustive()
    }
}
