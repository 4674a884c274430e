//! Certificate, key and the authorities of clients in a folder that somebody else writes, such as a
//! mounted Secret; the pair is read again while it is served.
//!
//! Fed by: the files `tls.crt`, `tls.key` and `ca.crt`. Must not: let a pair that cannot be used
//! take the place of one that can.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::{CertificateError, Certificates};

/// Between two looks at the folder.
const LOOK: Duration = Duration::from_secs(10);

/// Why a folder cannot be served from.
#[derive(Debug, Error)]
pub enum FilesError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Certificate and key are no pair.
    #[error("tls.crt and tls.key cannot be served")]
    Pair(#[from] CertificateError),
    /// The authorities of clients are none.
    #[error("ca.crt holds no certificate authority")]
    Authorities,
}

/// Such a folder.
pub struct Mounted {
    folder: PathBuf,
    certificates: Certificates,
    last: (String, String),
}

impl Mounted {
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

    /// Whom clients must have their certificates from.
    pub fn clients(&self) -> Result<RootCertStore, FilesError> {
        let text = read(&self.folder, "ca.crt")?;
        let mut roots = RootCertStore::empty();
        let read = CertificateDer::pem_slice_iter(text.as_bytes()).flatten();
        let (added, _) = roots.add_parsable_certificates(read);
        if added == 0 {
            return Err(FilesError::Authorities);
        }
        Ok(roots)
    }

    /// Takes over a pair that has changed; whether one has.
    pub fn look(&mut self) -> Result<bool, FilesError> {
        let now = pair(&self.folder)?;
        if now == self.last {
            return Ok(false);
        }
        self.certificates.replace(&now.0, &now.1)?;
        self.last = now;
        Ok(true)
    }

    /// Looks until `stop`.
    pub async fn keep(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            match self.look() {
                Ok(false) => {}
                Ok(true) => tracing::info!("serving a new certificate"),
                Err(error) => tracing::warn!(%error, "the certificate before stays in use"),
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
