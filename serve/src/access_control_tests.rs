//! Real connections to a guarded port.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_core::access::Forbidden;
use anyhow::{Context as _, Result};
use axum::routing::get;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

/// A client that accepts any certificate, as Prometheus with `insecureSkipVerify`.
#[derive(Debug)]
struct Anyone(CryptoProvider);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

async fn connect(address: SocketAddr) -> Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from("localhost")?;
    Ok(TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await?)
}

/// The whole response to a request with these header lines.
async fn ask(address: SocketAddr, path: &str, headers: &str) -> Result<String> {
    let mut stream = connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

/// The token `good` may get `/metrics`, `other` may not, and `away` is never reviewed. Counts reviews.
fn control() -> Result<(AccessControl, Arc<AtomicUsize>)> {
    let reviews = Arc::new(AtomicUsize::new(0));
    let counted = reviews.clone();
    let review = move |token: String, path: String| -> Reviewed {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            match &*token {
                "good" if path == "/metrics" => Ok(Access::Allowed),
                "good" | "other" => Ok(Access::Forbidden(Forbidden {
                    account: token,
                    path,
                })),
                "away" => Err("the API server does not answer".to_owned()),
                _ => Ok(Access::Unauthenticated),
            }
        })
    };
    let control = AccessControl::new(review, ["/style.css".to_owned()])?;
    Ok((control, reviews))
}

/// A port guarded by [`control`].
async fn guarded() -> Result<(SocketAddr, Arc<AtomicUsize>, CancellationToken)> {
    let (control, reviews) = control()?;
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/style.css", get(|| async { "open" }))
        .route("/top", get(|| async { "secret" }))
        .route("/metrics", get(|| async { "secret" }));
    let listener = http::bind("127.0.0.1:0".parse()?).await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, router, Some(control), stop.clone()));
    Ok((address, reviews, stop))
}

#[tokio::test]
async fn answers_only_health_and_open_paths_without_token() -> Result<()> {
    let (address, reviews, _stop) = guarded().await?;
    for path in ["/healthz", "/style.css"] {
        let answer = ask(address, path, "").await?;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    }
    for path in ["/metrics", "/top", "/unknown", "/healthz/"] {
        let answer = ask(address, path, "").await?;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{path}: {answer}");
        assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
        assert!(!answer.contains("secret"), "{answer}");
    }
    assert_eq!(reviews.load(Ordering::Relaxed), 0);
    Ok(())
}

#[tokio::test]
async fn answers_what_the_account_of_the_token_may_get() -> Result<()> {
    let (address, _, _stop) = guarded().await?;
    let check = async |path: &str, header: &str, status: &str, text: &str| -> Result<()> {
        let answer = ask(address, path, &format!("{header}\r\n")).await?;
        let expected = answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(text);
        assert!(expected, "{path} with {header}: {answer}");
        Ok(())
    };
    check("/metrics", "authorization: Bearer good", "200", "secret").await?;
    check("/metrics", "Aliquot-Token: good", "200", "secret").await?;
    check(
        "/top",
        "authorization: Bearer good",
        "403",
        "good may not get /top",
    )
    .await?;
    check(
        "/metrics",
        "authorization: Bearer other",
        "403",
        "other may not",
    )
    .await?;
    check(
        "/metrics",
        "authorization: Bearer x",
        "401",
        "not of any account",
    )
    .await?;
    check(
        "/metrics",
        "authorization: Basic good",
        "401",
        "requires a token",
    )
    .await?;
    check(
        "/metrics",
        "authorization: Bearer away",
        "503",
        "does not answer",
    )
    .await
}

#[tokio::test]
async fn reviews_a_token_and_path_once_in_a_while() -> Result<()> {
    let (address, reviews, _stop) = guarded().await?;
    for token in ["good", "x"] {
        for _ in 0..5 {
            ask(address, "/metrics", &format!("aliquot-token: {token}\r\n")).await?;
        }
    }
    assert_eq!(reviews.load(Ordering::Relaxed), 2);
    Ok(())
}

#[tokio::test]
async fn remembers_a_bounded_number_of_reviews() -> Result<()> {
    let control = AccessControl::new(
        |token, _| {
            Box::pin(async move {
                Ok(match &*token {
                    "good" => Access::Allowed,
                    _ => Access::Unauthenticated,
                })
            })
        },
        [],
    )?;
    control
        .review(("good".to_owned(), String::new()))
        .await
        .map_err(anyhow::Error::msg)?;
    for number in 0..3 * REMEMBERED {
        let question = (format!("bad-{number}"), String::new());
        control.review(question).await.map_err(anyhow::Error::msg)?;
    }
    let reviews = control.0.reviews.lock();
    assert!(reviews.len() <= REMEMBERED, "{}", reviews.len());
    assert!(reviews.contains_key(&("good".to_owned(), String::new())));
    Ok(())
}

#[tokio::test]
async fn answers_only_over_tls() -> Result<()> {
    let (address, _, _stop) = guarded().await?;
    let mut plain = TcpStream::connect(address).await?;
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    // Either a TLS alert or a closed connection.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn flood_without_token_leaves_others_served() -> Result<()> {
    let (address, reviews, _stop) = guarded().await?;
    let mut silent = Vec::new();
    // More than a port may have.
    for _ in 0..Limits::new(0).connections + 50 {
        silent.push(TcpStream::connect(address).await?);
    }
    let mut flood = JoinSet::new();
    for _ in 0..64 {
        flood.spawn(async move {
            loop {
                let attempt = async {
                    let mut stream = TcpStream::connect(address).await?;
                    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await?;
                    stream.read_to_end(&mut Vec::new()).await
                };
                let _ = timeout(Duration::from_millis(20), attempt).await;
            }
        });
    }
    // The usual timeout of Prometheus.
    for _ in 0..20 {
        let scrape = ask(address, "/metrics", "aliquot-token: good\r\n");
        let answer = timeout(Duration::from_secs(10), scrape).await;
        let answer = answer.context("an answer")??;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    flood.shutdown().await;
    assert_eq!(reviews.load(Ordering::Relaxed), 1);
    Ok(())
}
