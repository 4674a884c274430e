//! One certificate authority (CA), and the serving certificates that it issues.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use thiserror::Error;
use x509_parser::parse_x509_certificate;
use x509_parser::pem::parse_x509_pem;

/// Certificates are valid from this long before they are issued, for clients whose clock is behind
/// ours.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

/// An error about a certificate.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A new certificate or key could not be made.
    #[error("cannot create a certificate")]
    Create(#[source] rcgen::Error),
    /// The certificate is not PEM or not X.509.
    #[error("{name}: cannot read the certificate; expected: X.509 in PEM")]
    Certificate {
        /// Which entry of the Secret.
        name: String,
    },
    /// The key is not PEM or of a kind that cannot sign here.
    #[error("{name}: cannot read the private key; expected: PEM of a kind that can sign")]
    Key {
        /// Which entry of the Secret.
        name: String,
        /// The cause.
        source: rcgen::Error,
    },
    /// Certificate and key belong to different pairs.
    #[error("{name}: the private key does not match the certificate")]
    Mismatch {
        /// Which entry of the Secret.
        name: String,
    },
    /// The certificate or the key is missing.
    #[error(
        "{name}: the certificate or its private key is missing; expected: {name}.crt and {name}.key"
    )]
    Incomplete {
        /// Which entry of the Secret.
        name: String,
    },
    /// A time outside the range of certificates.
    #[error("{seconds} seconds since 1970 is outside the range of certificate times")]
    Time {
        /// The time.
        seconds: i64,
    },
}

/// A certificate authority with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Ca {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub key: String,
    /// When it was issued.
    pub created: Timestamp,
    /// When it stops being valid.
    pub expires: Timestamp,
}

/// A server certificate with its key.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub key: String,
    /// When it was issued.
    pub created: Timestamp,
    /// When it stops being valid.
    pub expires: Timestamp,
    /// The certificate of the CA that issued it, PEM.
    pub issuer: String,
}

/// Two thirds of a certificate's life are over, so the next one is due.
pub(super) fn is_due(created: Timestamp, expires: Timestamp, now: Timestamp) -> bool {
    now >= created + created.duration_until(expires) * 2 / 3
}

impl ServingCertificate {
    /// A new one should replace it.
    pub fn is_due(&self, now: Timestamp) -> bool {
        is_due(self.created, self.expires, now)
    }
}

impl Ca {
    /// Creates a new CA. Times are whole seconds.
    pub fn create(now: Timestamp, lifetime: SignedDuration) -> Result<Self, CertificateError> {
        let created = whole_seconds(now)?;
        let expires = created + lifetime;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let name = format!("aliquot-webhook {}", created.as_second());
        params.distinguished_name.push(DnType::CommonName, name);
        let key = valid_between(&mut params, created, expires)?;
        let certificate = params.self_signed(&key).map_err(CertificateError::Create)?;
        Ok(Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            created,
            expires,
        })
    }

    /// Reads one from PEM; `name` is for the error.
    pub fn read(name: &str, certificate: &str, key: &str) -> Result<Self, CertificateError> {
        let unreadable = || CertificateError::Certificate {
            name: name.to_owned(),
        };
        let (_, pem) = parse_x509_pem(certificate.as_bytes()).map_err(|_| unreadable())?;
        let (_, parsed) = parse_x509_certificate(&pem.contents).map_err(|_| unreadable())?;
        let second = |time: i64| Timestamp::from_second(time).map_err(|_| unreadable());
        let validity = parsed.validity();
        let pair = KeyPair::from_pem(key).map_err(|source| CertificateError::Key {
            name: name.to_owned(),
            source,
        })?;
        if pair.public_key_raw() != parsed.public_key().subject_public_key.data.as_ref() {
            return Err(CertificateError::Mismatch {
                name: name.to_owned(),
            });
        }
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            created: second(validity.not_before.timestamp())? + BACKDATE,
            expires: second(validity.not_after.timestamp())?,
        })
    }

    /// Issues a server certificate for `names` (DNS names and IP addresses).
    /// It expires after `lifetime`, or with the CA where that is sooner.
    pub fn issue(
        &self,
        names: &[String],
        now: Timestamp,
        lifetime: SignedDuration,
    ) -> Result<ServingCertificate, CertificateError> {
        let key = KeyPair::from_pem(&self.key).map_err(CertificateError::Create)?;
        let issuer =
            Issuer::from_ca_cert_pem(&self.certificate, key).map_err(CertificateError::Create)?;
        let created = whole_seconds(now)?;
        let expires = self.expires.min(created + lifetime);
        let mut params = CertificateParams::new(names).map_err(CertificateError::Create)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "aliquot-webhook");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = valid_between(&mut params, created, expires)?;
        let certificate = params
            .signed_by(&key, &issuer)
            .map_err(CertificateError::Create)?;
        Ok(ServingCertificate {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            created,
            expires,
            issuer: self.certificate.clone(),
        })
    }
}

fn valid_between(
    params: &mut CertificateParams,
    created: Timestamp,
    expires: Timestamp,
) -> Result<KeyPair, CertificateError> {
    let at = |time: Timestamp| {
        let seconds = time.as_second();
        let since = u64::try_from(seconds).map_err(|_| CertificateError::Time { seconds })?;
        Ok(rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(since))
    };
    params.not_before = at(created - BACKDATE)?;
    params.not_after = at(expires)?;
    KeyPair::generate().map_err(CertificateError::Create)
}

fn whole_seconds(time: Timestamp) -> Result<Timestamp, CertificateError> {
    let seconds = time.as_second();
    Timestamp::from_second(seconds).map_err(|_| CertificateError::Time { seconds })
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca")
            .field("created", &self.created)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate")
            .field("created", &self.created)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}
