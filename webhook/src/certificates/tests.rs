//! Years of rotation in a loop: what the API server trusts covers every leaf served.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring::default_provider;

use super::*;

const LIFETIMES: Lifetimes = Lifetimes {
    authority: SignedDuration::from_hours(24 * 365),
    leaf: SignedDuration::from_hours(24 * 30),
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A TLS client with this bundle takes this leaf for this name at this time.
fn trusts(bundle: &str, leaf: &Leaf, name: &str, now: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let leaf = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    let provider = std::sync::Arc::new(default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
        .build()
        .unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let seconds = u64::try_from(now.as_second()).unwrap();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    verifier
        .verify_server_cert(&leaf, &[], &name, &[], now)
        .is_ok()
}

fn names() -> Vec<String> {
    ["aliquot-webhook.aliquot-system.svc", "127.0.0.1"]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn a_leaf_is_trusted_for_its_names_and_within_its_time() {
    let authority = Authority::make(at(0), LIFETIMES.authority).unwrap();
    let leaf = authority.issue(&names(), at(0), LIFETIMES.leaf).unwrap();
    let bundle = &authority.certificate;
    for (name, days, expected) in [
        ("aliquot-webhook.aliquot-system.svc", 0, true),
        ("127.0.0.1", 29, true),
        ("127.0.0.1", 31, false),
        ("127.0.0.1", -1, false),
        ("other.aliquot-system.svc", 0, false),
    ] {
        assert_eq!(
            trusts(bundle, &leaf, name, at(days * 86_400)),
            expected,
            "{name} {days}"
        );
    }
    let other = Authority::make(at(0), LIFETIMES.authority).unwrap();
    assert!(!trusts(&other.certificate, &leaf, "127.0.0.1", at(0)));
}

#[test]
fn a_leaf_never_outlives_its_authority_and_is_due_after_two_thirds() {
    let authority = Authority::make(at(0), SignedDuration::from_secs(60)).unwrap();
    let leaf = authority.issue(&names(), at(30), LIFETIMES.leaf).unwrap();
    assert_eq!((leaf.created, leaf.expires), (at(30), at(60)));
    assert!(!leaf.is_due(at(49)));
    assert!(leaf.is_due(at(50)));
}

#[test]
fn the_secret_holds_what_was_written_into_it() {
    let (none, problems) = Authorities::read(&[].into());
    assert!(none.is_empty() && problems.is_empty());
    let first = none.renewed(at(0), &LIFETIMES).unwrap().unwrap();
    let second = first
        .renewed(at(300 * 86_400), &LIFETIMES)
        .unwrap()
        .unwrap();
    let (read, problems) = Authorities::read(&second.write());
    assert_eq!(read, second);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(read.write().len(), 4);
    assert_eq!(read.renewed(at(300 * 86_400), &LIFETIMES).unwrap(), None);
}

#[test]
fn broken_entries_are_reported_and_left_out() {
    let good = Authorities::default()
        .renewed(at(0), &LIFETIMES)
        .unwrap()
        .unwrap();
    let other = Authorities::default()
        .renewed(at(9), &LIFETIMES)
        .unwrap()
        .unwrap();
    let mut data = good.write();
    let name = |seconds: i64, end: &str| format!("{}.{end}", at(seconds).as_second());
    let certificate = data[&name(0, "crt")].clone();
    let key = other.write()[&name(9, "key")].clone();
    data.insert("half.crt".to_owned(), certificate.clone());
    data.insert("junk.crt".to_owned(), ByteString(b"junk".to_vec()));
    data.insert("junk.key".to_owned(), key.clone());
    data.insert("mixed.crt".to_owned(), certificate);
    data.insert("mixed.key".to_owned(), key);
    let (read, problems) = Authorities::read(&data);
    assert_eq!(read, good);
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "half: the certificate or its key is missing",
            "junk: the certificate cannot be read",
            "mixed: key and certificate do not belong together",
        ]
    );
}

/// One replica: what it serves. It acts only every few ticks, out of step with others.
struct Replica {
    leaf: Option<Leaf>,
    every: i64,
    issued: u32,
}

#[test]
fn replicas_out_of_step_never_serve_what_the_bundle_does_not_cover() {
    let lifetimes = Lifetimes {
        authority: SignedDuration::from_secs(3600),
        leaf: SignedDuration::from_secs(600),
    };
    let mut secret = Authorities::default();
    let mut live = String::new();
    let mut replicas = [1, 7, 30].map(|every| Replica {
        leaf: None,
        every,
        issued: 0,
    });
    let mut bundles = std::collections::BTreeSet::new();
    for tick in 0..4 * 3600 / 5 {
        let now = at(tick * 5);
        for replica in &mut replicas {
            if tick % replica.every == 0 {
                if let Some(next) = secret.renewed(now, &lifetimes).unwrap() {
                    secret = next;
                }
                let issuer = secret.issuer(now, &live, &lifetimes).unwrap();
                let stale = |leaf: &Leaf| leaf.is_due(now) || leaf.issuer != issuer.certificate;
                if replica.leaf.as_ref().is_none_or(stale) {
                    replica.leaf = Some(issuer.issue(&names(), now, lifetimes.leaf).unwrap());
                    replica.issued += 1;
                }
                live = secret.bundle();
            }
            if let Some(leaf) = &replica.leaf {
                assert!(trusts(&live, leaf, "127.0.0.1", now), "tick {tick}");
            }
        }
        bundles.insert(live.clone());
    }
    // Four hours with an hour each: rotation happened, old ones left.
    assert!(bundles.len() >= 8, "{}", bundles.len());
    assert!(secret.write().len() <= 4);
    assert!(replicas.iter().all(|replica| replica.issued >= 24));
}
