//! Rotation over years: the API server's bundle covers every certificate that is served.

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
    ca: SignedDuration::from_hours(24 * 365),
    serving: SignedDuration::from_hours(24 * 30),
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A TLS client with this bundle accepts this certificate for this name at this time.
fn trusts(bundle: &str, serving: &ServingCertificate, name: &str, now: Timestamp) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let certificate = CertificateDer::from_pem_slice(serving.certificate.as_bytes()).unwrap();
    let provider = std::sync::Arc::new(default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
        .build()
        .unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let seconds = u64::try_from(now.as_second()).unwrap();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    verifier
        .verify_server_cert(&certificate, &[], &name, &[], now)
        .is_ok()
}

fn names() -> Vec<String> {
    ["aliquot-webhook.aliquot-system.svc", "127.0.0.1"]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn serving_certificate_is_trusted_for_its_names_and_lifetime() {
    let ca = Ca::create(at(0), LIFETIMES.ca).unwrap();
    let serving = ca.issue(&names(), at(0), LIFETIMES.serving).unwrap();
    let bundle = &ca.certificate;
    for (name, days, expected) in [
        ("aliquot-webhook.aliquot-system.svc", 0, true),
        ("127.0.0.1", 29, true),
        ("127.0.0.1", 31, false),
        ("127.0.0.1", -1, false),
        ("other.aliquot-system.svc", 0, false),
    ] {
        assert_eq!(
            trusts(bundle, &serving, name, at(days * 86_400)),
            expected,
            "{name} {days}"
        );
    }
    let other = Ca::create(at(0), LIFETIMES.ca).unwrap();
    assert!(!trusts(&other.certificate, &serving, "127.0.0.1", at(0)));
}

#[test]
fn serving_certificate_expires_with_its_ca() {
    let ca = Ca::create(at(0), SignedDuration::from_secs(60)).unwrap();
    let serving = ca.issue(&names(), at(30), LIFETIMES.serving).unwrap();
    assert_eq!((serving.created, serving.expires), (at(30), at(60)));
    assert!(!serving.is_due(at(49)));
    assert!(serving.is_due(at(50)));
}

/// A machine that boots may set its clock back while the webhook runs.
#[test]
fn replaces_what_was_issued_while_the_clock_was_ahead() {
    let ahead = at(7200);
    let early = CaSet::default()
        .renewed(ahead, &LIFETIMES)
        .unwrap()
        .unwrap();
    let set = early.renewed(at(0), &LIFETIMES).unwrap().unwrap();
    assert_eq!(set.renewed(at(0), &LIFETIMES).unwrap(), None);
    let bundle = set.bundle();
    let issuer = set.issuer(at(0), &bundle, &LIFETIMES).unwrap();
    assert_eq!(issuer.created, at(0));
    let serving = issuer.issue(&names(), ahead, LIFETIMES.serving).unwrap();
    assert!(!trusts(&bundle, &serving, "127.0.0.1", at(0)));
    assert!(serving.is_due(at(0)) && !serving.is_due(ahead));
    let serving = issuer.issue(&names(), at(0), LIFETIMES.serving).unwrap();
    assert!(trusts(&bundle, &serving, "127.0.0.1", at(0)));
    assert!(!serving.is_due(at(-60)));
}

#[test]
fn reports_and_skips_broken_secret_entries() {
    let good = CaSet::default()
        .renewed(at(0), &LIFETIMES)
        .unwrap()
        .unwrap();
    let other = CaSet::default()
        .renewed(at(9), &LIFETIMES)
        .unwrap()
        .unwrap();
    let mut data = good.write();
    let name = |seconds: i64, end: &str| format!("{}.{end}", at(seconds).as_second());
    let certificate = data[&name(0, "crt")].clone();
    let key = other.write()[&name(9, "key")].clone();
    data.insert("half.crt".to_owned(), certificate.clone());
    let ca = &good.0[0];
    let leaf = ca.issue(&names(), at(0), LIFETIMES.serving).unwrap();
    data.insert("leaf.crt".to_owned(), ByteString(leaf.certificate.into()));
    data.insert("leaf.key".to_owned(), ByteString(leaf.key.into()));
    data.insert("junk.crt".to_owned(), ByteString(b"junk".to_vec()));
    data.insert("junk.key".to_owned(), key.clone());
    data.insert("mixed.crt".to_owned(), certificate);
    data.insert("mixed.key".to_owned(), key);
    let (read, errors) = CaSet::read(&data);
    assert_eq!(read, good);
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "half: the certificate or its private key is missing; expected: half.crt and half.key",
            "junk: cannot read the certificate; expected: X.509 in PEM",
            "leaf: the certificate is not of a CA; expected: one that may sign others",
            "mixed: the private key does not match the certificate",
        ]
    );
}

/// One replica and the certificate that it serves. It acts only every few ticks.
struct Replica {
    serving: Option<ServingCertificate>,
    every: i64,
    issued: u32,
}

#[test]
fn replicas_never_serve_a_certificate_outside_the_bundle() {
    let lifetimes = Lifetimes {
        ca: SignedDuration::from_secs(3600),
        serving: SignedDuration::from_secs(600),
    };
    let mut secret = CaSet::default();
    let mut live = String::new();
    let mut replicas = [1, 7, 30].map(|every| Replica {
        serving: None,
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
                let stale = |served: &ServingCertificate| {
                    served.is_due(now) || served.issuer != issuer.certificate
                };
                if replica.serving.as_ref().is_none_or(stale) {
                    replica.serving = Some(issuer.issue(&names(), now, lifetimes.serving).unwrap());
                    replica.issued += 1;
                }
                live = secret.bundle();
            }
            if let Some(serving) = &replica.serving {
                assert!(trusts(&live, serving, "127.0.0.1", now), "tick {tick}");
            }
        }
        bundles.insert(live.clone());
    }
    // Four hours with an hour each: CAs were replaced, and expired ones removed.
    assert!(bundles.len() >= 8, "{}", bundles.len());
    assert!(secret.write().len() <= 4);
    assert!(replicas.iter().all(|replica| replica.issued >= 24));
}
