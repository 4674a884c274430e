//! The authorities that hold at a time, and the order in which one follows another.
//!
//! A new one is made after two thirds of the life of the newest. It is published
//! in the bundle at once, but signs only when it has been published for a while;
//! an old one leaves the bundle when it has expired, and its leaves with it.
//! Fed by: the Secret's data. Must not: drop an authority that has not expired.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;

use super::authority::{Authority, CertificateError, is_due};

/// How long certificates live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of an authority.
    pub authority: SignedDuration,
    /// Of a leaf.
    pub leaf: SignedDuration,
}

impl Lifetimes {
    /// How long a new authority is published before it signs: time for every
    /// API server to hear of it. A minute, less where authorities live for less than 12.
    fn settling(&self) -> SignedDuration {
        SignedDuration::from_mins(1).min(self.authority / 12)
    }
}

/// Newest last. Empty only before the first is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorities(Vec<Authority>);

impl Authorities {
    /// Reads the Secret's data: `<name>.crt` beside `<name>.key`. Pairs that
    /// cannot be read are left out and reported.
    pub fn read(data: &BTreeMap<String, ByteString>) -> (Self, Vec<CertificateError>) {
        let stem = |key: &String| Some(key.rsplit_once('.')?.0.to_owned());
        let names: BTreeSet<String> = data.keys().filter_map(stem).collect();
        let (mut authorities, mut problems) = (Vec::new(), Vec::new());
        for name in names {
            let text = |end: &str| data.get(&format!("{name}.{end}")).map(utf8);
            let read = match (text("crt"), text("key")) {
                (Some(certificate), Some(key)) => Authority::read(&name, &certificate, &key),
                _ => Err(CertificateError::Half { name }),
            };
            match read {
                Ok(authority) => authorities.push(authority),
                Err(problem) => problems.push(problem),
            }
        }
        authorities.sort_by_key(|authority| authority.created);
        (Self(authorities), problems)
    }

    /// The Secret's data.
    pub fn write(&self) -> BTreeMap<String, ByteString> {
        let bytes = |text: &String| ByteString(text.clone().into_bytes());
        let pair = |authority: &Authority| {
            let name = authority.created.as_second();
            [
                (format!("{name}.crt"), bytes(&authority.certificate)),
                (format!("{name}.key"), bytes(&authority.key)),
            ]
        };
        self.0.iter().flat_map(pair).collect()
    }

    /// No authority is there.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All certificates, PEM, newest first: what the API server is to trust.
    pub fn bundle(&self) -> String {
        self.0
            .iter()
            .rev()
            .map(|authority| authority.certificate.as_str())
            .collect()
    }

    /// As they should be at `now`: without the expired, with a new one when the
    /// newest is due. `None` when nothing has to change.
    pub fn renewed(
        &self,
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Option<Self>, CertificateError> {
        let alive = |authority: &&Authority| now < authority.expires;
        let mut next: Vec<Authority> = self.0.iter().filter(alive).cloned().collect();
        // Where the configured life was made shorter, the shorter one counts.
        let ends = |newest: &Authority| newest.expires.min(newest.created + lifetimes.authority);
        let fresh = |newest: &Authority| !is_due(newest.created, ends(newest), now);
        if !next.last().is_some_and(fresh) {
            next.push(Authority::make(now, lifetimes.authority)?);
        }
        let next = Self(next);
        Ok((next != *self).then_some(next))
    }

    /// The authority that signs at `now`: the newest that stands in `published`
    /// (the bundle that the API server holds) and has settled; where there is
    /// none such, the oldest.
    pub fn issuer(
        &self,
        now: Timestamp,
        published: &str,
        lifetimes: &Lifetimes,
    ) -> Option<&Authority> {
        let settled = |authority: &&Authority| {
            now >= authority.created + lifetimes.settling()
                && published.contains(&authority.certificate)
        };
        self.0.iter().rev().find(settled).or_else(|| self.0.first())
    }
}

fn utf8(bytes: &ByteString) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}
