//! The serving certificate, its key and the CA of clients in a directory such as a mounted
//! Secret; the pair is reloaded while it is served. An unusable pair never replaces a
//! usable one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::{CertificateError, Certificates};

const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Why a directory cannot be served from.
#[derive(Debug, Error)]
pub enum FilesError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("tls.crt and tls.key are not a usable pair")]
    Pair(#[from] CertificateError),
    #[error("ca.crt contains no CA certificate")]
    NoClientCa,
}

pub struct MountedCertificates {
    folder: PathBuf,
    certificates: Certificates,
    last: (String, String),
}

impl MountedCertificates {
    /// Reads the pair.
    pub fn open(folder: &Path) -> Result<Self, FilesError> {
        let last = pair(folder)?;
        let certificates = Certificates::none();
        certificates.replace(&last.0, &last.1)?;
        Ok(Self {
            folder: folder.to_owned(),
            certificates,
            last,
        })
    }

    /// The pair in use.
    pub fn certificates(&self) -> Certificates {
        self.certificates.clone()
    }

    pub fn clients(&self) -> Result<RootCertStore, FilesError> {
        let text = read(&self.folder, "ca.crt")?;
        let mut roots = RootCertStore::empty();
        let read = CertificateDer::pem_slice_iter(text.as_bytes()).flatten();
        let (added, _) = roots.add_parsable_certificates(read);
        if added == 0 {
            return Err(FilesError::NoClientCa);
        }
        Ok(roots)
    }

    /// Reloads the pair if it has changed. Returns whether it has.
    pub fn reload_if_changed(&mut self) -> Result<bool, FilesError> {
        let now = pair(&self.folder)?;
        if now == self.last {
            return Ok(false);
        }
        self.certificates.replace(&now.0, &now.1)?;
        self.last = now;
        Ok(true)
    }

    /// Polls the directory until `stop`.
    pub async fn reload_until(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            match self.reload_if_changed() {
                Ok(false) => {}
                Ok(true) => tracing::info!("serving a new certificate"),
                Err(error) => {
                    tracing::warn!(%error, "cannot reload the certificate, the previous one stays in use");
                }
            }
        }
    }
}

fn pair(folder: &Path) -> Result<(String, String), FilesError> {
    Ok((read(folder, "tls.crt")?, read(folder, "tls.key")?))
}

fn read(folder: &Path, name: &str) -> Result<String, FilesError> {
    let path = folder.join(name);
    std::fs::read_to_string(&path).map_err(|source| FilesError::Read { path, source })
}
