//! A certificate that somebody else makes and renews, such as cert-manager: files of a mounted
//! Secret of type `kubernetes.io/tls` with its authority beside it.
//!
//! Fed by: the folder, read at each pass. Must not: write there, or take a pair that is half
//! written; the kubelet changes the whole folder at once.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use thiserror::Error;

use crate::certificates::{CertificateError, Leaf};

/// Most authorities that are published at once.
const BUNDLED: usize = 3;
/// The names of the files.
const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// Why the files cannot be used. Those that were read before stay in use.
#[derive(Debug, Error)]
pub enum MountedError {
    /// A file is not there.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The certificate is none.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// The leaf in this folder; its issuer is the authority beside it.
pub(super) fn read(folder: &Path) -> Result<Leaf, MountedError> {
    let [certificate, key, issuer] = FILES.map(|name| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|source| MountedError::Read { path, source })
    });
    let certificate = certificate?;
    let (created, expires) = validity(&certificate)?;
    Ok(Leaf {
        certificate,
        key: key?,
        created,
        expires,
        issuer: issuer?,
    })
}

/// The bundle to publish: what is published, and before it this issuer where that lacks it. So
/// replicas that read the folder at different times are trusted both.
pub(super) fn bundle(issuer: &str, published: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    let issuer = issuer.trim();
    if published.contains(issuer) {
        return published.to_owned();
    }
    let before = published
        .split_inclusive(END)
        .filter(|one| one.contains(END));
    let kept = before.take(BUNDLED - 1).map(str::trim);
    let all: Vec<&str> = std::iter::once(issuer).chain(kept).collect();
    all.join("\n") + "\n"
}

fn validity(certificate: &str) -> Result<(Timestamp, Timestamp), CertificateError> {
    let unreadable = || CertificateError::Certificate {
        name: FILES[0].to_owned(),
    };
    let (_, pem) =
        x509_parser::pem::parse_x509_pem(certificate.as_bytes()).map_err(|_| unreadable())?;
    let (_, parsed) =
        x509_parser::parse_x509_certificate(&pem.contents).map_err(|_| unreadable())?;
    let second = |time: i64| Timestamp::from_second(time).map_err(|_| unreadable());
    let validity = parsed.validity();
    let begin = second(validity.not_before.timestamp())?;
    Ok((begin, second(validity.not_after.timestamp())?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use jiff::SignedDuration;

    use super::*;
    use crate::certificates::Authority;

    #[test]
    fn an_authority_before_stays_published_and_nobody_quarrels_about_the_order() {
        let pem = |name: &str| {
            format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n")
        };
        let first = bundle(&pem("a"), "");
        assert_eq!(first, pem("a"));
        let second = bundle(&pem("b"), &first);
        assert_eq!(second, pem("b") + &pem("a"));
        assert_eq!(bundle(&pem("a"), &second), second, "an older replica");
        let fourth = bundle(&pem("d"), &bundle(&pem("c"), &second));
        assert_eq!(fourth, pem("d") + &pem("c") + &pem("b"));
    }

    #[test]
    fn a_mounted_pair_is_read_with_its_authority_and_a_part_of_it_is_refused() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let hour = SignedDuration::from_hours(1);
        let authority = Authority::make(now, hour).unwrap();
        let made = authority.issue(&["w.n.svc".to_owned()], now, hour).unwrap();
        let room = tempfile::tempdir().unwrap();
        let texts = [&made.certificate, &made.key, &made.issuer];
        for (name, text) in FILES.iter().zip(texts) {
            let missing = read(room.path()).unwrap_err().to_string();
            assert!(missing.starts_with("cannot read "), "{missing}");
            fs::write(room.path().join(name), text).unwrap();
        }
        let leaf = read(room.path()).unwrap();
        assert_eq!((leaf.expires, &leaf.issuer), (made.expires, &made.issuer));
        fs::write(room.path().join(FILES[0]), "no PEM").unwrap();
        let refused = read(room.path()).unwrap_err().to_string();
        assert_eq!(refused, "tls.crt: the certificate cannot be read");
    }
}
