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
/// 1.3, ALPN h2 and http/1.1; with `clients` only for those with a certificate of one of these CAs.
pub fn server_config(
    certificates: &Certificates,
    clients: Option<RootCertStore>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider)
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificates.clone()));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
