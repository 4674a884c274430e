//! The CAs that are valid at a time, and how one replaces another.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;

use super::ca::{Ca, CertificateError, is_due};

/// How long certificates live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of a CA.
    pub ca: SignedDuration,
    /// Of a serving certificate.
    pub serving: SignedDuration,
}

impl Lifetimes {
    /// How long a new CA is published before it signs, so that every API server has received it:
    /// a minute, less where CAs live for less than 12.
    fn publication_delay(&self) -> SignedDuration {
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

    /// There is no CA.
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

    /// The CAs as they should be at `now`: without the expired ones, and with a new one when the
    /// newest is due. `None` when nothing has to change.
    pub fn renewed(
        &self,
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Option<Self>, CertificateError> {
        let alive = |ca: &&Ca| now < ca.expires;
        let mut next: Vec<Ca> = self.0.iter().filter(alive).cloned().collect();
        // Where the configured lifetime was shortened, the shorter one applies.
        let expiry = |newest: &Ca| newest.expires.min(newest.created + lifetimes.ca);
        let fresh = |newest: &Ca| !is_due(newest.created, expiry(newest), now);
        if !next.last().is_some_and(fresh) {
            next.push(Ca::create(now, lifetimes.ca)?);
        }
        let next = Self(next);
        Ok((next != *self).then_some(next))
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

fn utf8(bytes: &ByteString) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}
