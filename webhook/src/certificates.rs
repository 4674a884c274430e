//! The webhook's certificate authorities (CAs) and its serving certificate, as values.
//!
//! CAs live in one Secret, so that replicas agree; each replica issues its own serving
//! certificate. While one CA replaces another both are in the bundle, so the API server trusts
//! every certificate that is served. Nothing here does IO or reads a clock; certificates that
//! something else issues are read in [`mounted`].

pub mod mounted;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
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

#[derive(Debug, Error)]
pub enum CertificateError {
    #[error("cannot create a certificate")]
    Create(#[source] rcgen::Error),
    #[error("{name}: cannot read the certificate; expected: X.509 in PEM")]
    Certificate { name: String },
    #[error("{name}: cannot read the private key; expected: PEM of a kind that can sign")]
    Key { name: String, source: rcgen::Error },
    #[error("{name}: the certificate is not of a CA; expected: one that may sign others")]
    NoCa { name: String },
    #[error("{name}: the private key does not match the certificate")]
    Mismatch { name: String },
    #[error(
        "{name}: the certificate or its private key is missing; expected: {name}.crt and {name}.key"
    )]
    Incomplete { name: String },
    #[error("{seconds} seconds since 1970 is outside the range of certificate times")]
    Time { seconds: i64 },
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
fn is_due(created: Timestamp, expires: Timestamp, now: Timestamp) -> bool {
    now >= created + created.duration_until(expires) * 2 / 3
}

/// It was issued while the clock was ahead, and is not valid yet.
fn is_early(created: Timestamp, now: Timestamp) -> bool {
    now < created - BACKDATE
}

impl ServingCertificate {
    /// A new one should replace it.
    pub fn is_due(&self, now: Timestamp) -> bool {
        is_due(self.created, self.expires, now) || is_early(self.created, now)
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
        let parsed = Parsed::read(name, certificate)?;
        if !parsed.is_ca {
            return Err(CertificateError::NoCa {
                name: name.to_owned(),
            });
        }
        let pair = KeyPair::from_pem(key).map_err(|source| CertificateError::Key {
            name: name.to_owned(),
            source,
        })?;
        if pair.public_key_raw() != parsed.public_key {
            return Err(CertificateError::Mismatch {
                name: name.to_owned(),
            });
        }
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            created: parsed.not_before + BACKDATE,
            expires: parsed.not_after,
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
        let ca_key = KeyPair::from_pem(&self.key).map_err(CertificateError::Create)?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, ca_key)
            .map_err(CertificateError::Create)?;
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

/// How long certificates live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    pub ca: SignedDuration,
    pub serving: SignedDuration,
}

impl Lifetimes {
    /// How long a new CA is published before it signs, so that every API server has received it:
    /// a minute, less where CAs live for less than 12.
    pub(crate) fn publication_delay(&self) -> SignedDuration {
        SignedDuration::from_mins(1).min(self.ca / 12)
    }
}

/// The CAs that are valid at a time, the newest last. Empty only before the first is created.
///
/// The next CA is created after two thirds of the life of the newest. It is published in the
/// bundle at once, but signs only after it has been published for a while. A CA leaves the bundle
/// only when it has expired, and with it the serving certificates that it issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaSet(Vec<Ca>);

impl CaSet {
    /// Reads the Secret's data: `<name>.crt` and `<name>.key`. Pairs that cannot be read are
    /// skipped and reported.
    pub fn read(data: &BTreeMap<String, ByteString>) -> (Self, Vec<CertificateError>) {
        let stem = |key: &String| Some(key.rsplit_once('.')?.0.to_owned());
        let names: BTreeSet<String> = data.keys().filter_map(stem).collect();
        let (mut cas, mut errors) = (Vec::new(), Vec::new());
        for name in names {
            let text = |end: &str| data.get(&format!("{name}.{end}")).map(utf8);
            let read = match (text("crt"), text("key")) {
                (Some(certificate), Some(key)) => Ca::read(&name, &certificate, &key),
                _ => Err(CertificateError::Incomplete { name }),
            };
            match read {
                Ok(ca) => cas.push(ca),
                Err(error) => errors.push(error),
            }
        }
        cas.sort_by_key(|ca| ca.created);
        (Self(cas), errors)
    }

    /// The Secret's data.
    pub fn write(&self) -> BTreeMap<String, ByteString> {
        let bytes = |text: &String| ByteString(text.clone().into_bytes());
        let pair = |ca: &Ca| {
            let name = ca.created.as_second();
            [
                (format!("{name}.crt"), bytes(&ca.certificate)),
                (format!("{name}.key"), bytes(&ca.key)),
            ]
        };
        self.0.iter().flat_map(pair).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All certificates, PEM, newest first: what the API server is to trust.
    pub fn bundle(&self) -> String {
        self.0
            .iter()
            .rev()
            .map(|ca| ca.certificate.as_str())
            .collect()
    }

    /// The certificates of the published bundle that are of no CA here and have not expired, PEM:
    /// replicas with other certificates may serve what they signed.
    pub fn others(&self, published: &str, now: Timestamp) -> String {
        let own = |one: &str| self.0.iter().any(|ca| ca.certificate.contains(one));
        let expired = |one: &str| Parsed::read("", one).is_ok_and(|read| read.not_after <= now);
        certificates(published)
            .filter(|one| !own(one) && !expired(one))
            .take(mounted::MAX_CAS)
            .flat_map(|one| [one, "\n"])
            .collect()
    }

    /// The CAs as they should be at `now`: without the expired ones, and with a new one when the
    /// newest is due, or none is valid yet. `None` when nothing has to change.
    pub fn renewed(
        &self,
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Option<Self>, CertificateError> {
        let alive = |ca: &&Ca| now < ca.expires;
        let mut cas: Vec<Ca> = self.0.iter().filter(alive).cloned().collect();
        // Where the configured lifetime was shortened, the shorter one applies.
        let expiry = |newest: &Ca| newest.expires.min(newest.created + lifetimes.ca);
        let fresh = |newest: &Ca| !is_due(newest.created, expiry(newest), now);
        let early = |ca: &Ca| is_early(ca.created, now);
        if !cas.last().is_some_and(fresh) || cas.iter().all(early) {
            cas.push(Ca::create(now, lifetimes.ca)?);
            cas.sort_by_key(|ca| ca.created);
        }
        let renewed = Self(cas);
        Ok((renewed != *self).then_some(renewed))
    }

    /// The CA that signs at `now`: the newest one that has been in `published`, the API server's
    /// bundle, for long enough; the oldest where there is none such.
    pub fn issuer(&self, now: Timestamp, published: &str, lifetimes: &Lifetimes) -> Option<&Ca> {
        let settled = |ca: &&Ca| {
            now >= ca.created + lifetimes.publication_delay() && published.contains(&ca.certificate)
        };
        self.0.iter().rev().find(settled).or_else(|| self.0.first())
    }
}

/// What is read out of a certificate.
struct Parsed {
    is_ca: bool,
    public_key: Vec<u8>,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Parsed {
    fn read(name: &str, certificate: &str) -> Result<Self, CertificateError> {
        let unreadable = || CertificateError::Certificate {
            name: name.to_owned(),
        };
        let (_, pem) = parse_x509_pem(certificate.as_bytes()).map_err(|_| unreadable())?;
        let (_, parsed) = parse_x509_certificate(&pem.contents).map_err(|_| unreadable())?;
        let second = |time: i64| Timestamp::from_second(time).map_err(|_| unreadable());
        let validity = parsed.validity();
        Ok(Self {
            is_ca: parsed.is_ca(),
            public_key: parsed.public_key().subject_public_key.data.to_vec(),
            not_before: second(validity.not_before.timestamp())?,
            not_after: second(validity.not_after.timestamp())?,
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

/// The certificates of a bundle, PEM.
fn certificates(bundle: &str) -> impl Iterator<Item = &str> {
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split_inclusive(END)
        .filter(|one| one.contains(END))
        .map(str::trim)
}

fn utf8(bytes: &ByteString) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}
