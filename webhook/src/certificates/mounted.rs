//! A certificate that something else issues and renews, such as cert-manager: the files of a
//! mounted Secret of type `kubernetes.io/tls` with `ca.crt`. The kubelet replaces the whole
//! directory at once, so no pair is half written.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{CertificateError, Parsed, ServingCertificate, certificates};

/// The maximum number of CAs that are published at once.
pub(super) const MAX_CAS: usize = 3;
const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// Why the files cannot be used. The certificate that was read before stays in use.
#[derive(Debug, Error)]
pub enum MountedError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// The serving certificate in this directory; its issuer is `ca.crt`.
pub fn read(directory: &Path) -> Result<ServingCertificate, MountedError> {
    let [certificate, key, issuer] = FILES.map(|name| {
        let path = directory.join(name);
        std::fs::read_to_string(&path).map_err(|source| MountedError::Read { path, source })
    });
    let certificate = certificate?;
    let parsed = Parsed::read(FILES[0], &certificate)?;
    let issuer = issuer?;
    if certificates(&issuer).next().is_none() {
        let name = FILES[2].to_owned();
        return Err(CertificateError::Certificate { name }.into());
    }
    Ok(ServingCertificate {
        certificate,
        key: key?,
        created: parsed.not_before,
        expires: parsed.not_after,
        issuer,
    })
}

/// The bundle to publish: this issuer first where the published bundle lacks it, then the
/// published ones. So the API server trusts replicas that read the directory at different times.
pub fn bundle(issuer: &str, published: &str) -> String {
    let issuer = issuer.trim();
    if published.contains(issuer) {
        return published.to_owned();
    }
    let previous = certificates(published).take(MAX_CAS - 1);
    let all: Vec<&str> = std::iter::once(issuer).chain(previous).collect();
    all.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs;

    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::certificates::Ca;

    #[test]
    fn keeps_previous_cas_published_in_stable_order() {
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
    fn reads_mounted_certificate_only_when_complete() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let hour = SignedDuration::from_hours(1);
        let ca = Ca::create(now, hour).unwrap();
        let issued = ca.issue(&["w.n.svc".to_owned()], now, hour).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let texts = [&issued.certificate, &issued.key, &issued.issuer];
        for (name, text) in FILES.iter().zip(texts) {
            let missing = read(directory.path()).unwrap_err().to_string();
            assert!(missing.starts_with("cannot read "), "{missing}");
            fs::write(directory.path().join(name), text).unwrap();
        }
        let serving = read(directory.path()).unwrap();
        assert_eq!(
            (serving.expires, &serving.issuer),
            (issued.expires, &issued.issuer)
        );
        fs::write(directory.path().join(FILES[0]), "no PEM").unwrap();
        let refused = read(directory.path()).unwrap_err().to_string();
        assert_eq!(
            refused,
            "tls.crt: cannot read the certificate; expected: X.509 in PEM"
        );
        fs::write(directory.path().join(FILES[0]), &issued.certificate).unwrap();
        fs::write(directory.path().join(FILES[2]), "").unwrap();
        let refused = read(directory.path()).unwrap_err().to_string();
        assert_eq!(
            refused,
            "ca.crt: cannot read the certificate; expected: X.509 in PEM"
        );
    }
}
