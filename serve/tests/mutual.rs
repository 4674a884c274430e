//! Mutual TLS with certificates from a directory that somebody else writes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_serve::http;
use aliquot_serve::tls::{FilesError, MountedCertificates, TlsListener, mutual_config};
use anyhow::{Context, Result};
use axum::Router;
use axum::routing::get;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(20);

fn made() -> Result<CertifiedKey<rcgen::KeyPair>> {
    Ok(generate_simple_self_signed(vec!["localhost".to_owned()])?)
}

fn put(folder: &Path, pair: &CertifiedKey<rcgen::KeyPair>) -> Result<()> {
    std::fs::write(folder.join("tls.crt"), pair.cert.pem())?;
    Ok(std::fs::write(
        folder.join("tls.key"),
        pair.signing_key.serialize_pem(),
    )?)
}

/// The answer to a client that trusts `server` and presents `own`.
async fn ask(
    addr: std::net::SocketAddr,
    server: &CertifiedKey<rcgen::KeyPair>,
    own: Option<&CertifiedKey<rcgen::KeyPair>>,
) -> Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(server.cert.der().clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::from_pem_slice(own.signing_key.serialize_pem().as_bytes())?;
            builder.with_client_auth_cert(vec![own.cert.der().clone()], key)?
        }
    };
    let tcp = TcpStream::connect(addr).await.context("connect")?;
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost")?;
    let asked = async {
        let mut tls = connector.connect(name, tcp).await.context("handshake")?;
        let text = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        tls.write_all(text.as_bytes()).await.context("write")?;
        let mut answer = String::new();
        tls.read_to_string(&mut answer).await.context("read")?;
        Ok(answer)
    };
    tokio::time::timeout(DEADLINE, asked).await?
}

#[tokio::test]
async fn serves_only_clients_of_the_mounted_ca_and_reloads_files() -> Result<()> {
    let (server, next, client, stranger) = (made()?, made()?, made()?, made()?);
    let folder = tempfile::tempdir()?;
    assert!(matches!(
        MountedCertificates::open(folder.path()),
        Err(FilesError::Read { .. })
    ));
    put(folder.path(), &server)?;
    let mut mounted = MountedCertificates::open(folder.path())?;
    std::fs::write(folder.path().join("ca.crt"), "nothing")?;
    assert!(matches!(mounted.clients(), Err(FilesError::NoClientCa)));
    std::fs::write(folder.path().join("ca.crt"), client.cert.pem())?;
    let config = mutual_config(&mounted.certificates(), mounted.clients()?)?;
    let tcp = http::bind("127.0.0.1:0".parse()?).await?;
    let addr = tcp.local_addr()?;
    let stop = CancellationToken::new();
    let router = Router::new().route("/", get(|| async { "hello" }));
    let listener = TlsListener::new(tcp, config);
    let task = tokio::spawn(http::serve(listener, router, stop.clone(), DEADLINE));

    let answer = ask(addr, &server, Some(&client)).await?;
    assert!(answer.ends_with("hello"), "{answer}");
    for other in [None, Some(&stranger)] {
        let answer = ask(addr, &server, other).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    assert!(!mounted.reload_if_changed()?);
    std::fs::write(folder.path().join("tls.key"), "half")?;
    assert!(mounted.reload_if_changed().is_err());
    assert!(ask(addr, &server, Some(&client)).await.is_ok());
    put(folder.path(), &next)?;
    assert!(mounted.reload_if_changed()?);
    let answer = ask(addr, &next, Some(&client)).await?;
    assert!(answer.ends_with("hello"), "{answer}");
    stop.cancel();
    task.await??;
    Ok(())
}
