//! TLS: certificates that can be replaced while they are served. One crypto provider: ring.

mod files;
mod resolver;
mod self_signed;

pub use files::{FilesError, MountedCertificates};
pub use resolver::{CertificateError, Certificates};
pub use self_signed::{SelfSignedError, self_signed};

use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// A server configuration that asks `certificates` anew for every handshake. TLS 1.2 and
/// 1.3, ALPN h2 and http/1.1, no client certificates.
pub fn server_config(certificates: &Certificates) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificates.clone()));
    Ok(with_protocols(config))
}

/// The same for clients with a certificate of one of these CAs, and no others.
pub fn mutual_config(
    certificates: &Certificates,
    clients: RootCertStore,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(clients), Arc::clone(&provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(certificates.clone()));
    Ok(with_protocols(config))
}

fn with_protocols(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}
