//! TLS under load: rotation, silent clients, stop, and mutual TLS with mounted certificates.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_serve::http::{self, Limits};
use aliquot_serve::tls::{Certificates, FilesError, MountedCertificates, server_config};
use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::routing::get;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(20);

struct Pair {
    chain: String,
    key: String,
    root: CertificateDer<'static>,
}

fn pair() -> Result<Pair> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()])?;
    Ok(Pair {
        chain: cert.pem(),
        key: signing_key.serialize_pem(),
        root: cert.der().clone(),
    })
}

/// Writes the files that somebody else mounts.
fn put(folder: &Path, pair: &Pair) -> Result<()> {
    std::fs::write(folder.join("tls.crt"), &pair.chain)?;
    Ok(std::fs::write(folder.join("tls.key"), &pair.key)?)
}

struct Served {
    addr: SocketAddr,
    entered: Arc<Notify>,
    certificates: Certificates,
    stop: CancellationToken,
    ended: JoinHandle<()>,
}

async fn serve(certificates: Certificates, handshake: Duration, drain: Duration) -> Result<Served> {
    let config = server_config(&certificates, None)?;
    let tcp = http::bind("127.0.0.1:0".parse()?).await?;
    let addr = tcp.local_addr()?;
    let entered = Arc::new(Notify::new());
    let never = {
        let entered = entered.clone();
        async move || {
            entered.notify_one();
            std::future::pending::<String>().await
        }
    };
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/never", get(never));
    let stop = CancellationToken::new();
    let limits = Limits {
        handshake,
        drain,
        ..Limits::new(0)
    };
    let serving = http::serve(tcp, Some(config), router, limits, stop.clone());
    let ended = tokio::spawn(serving);
    Ok(Served {
        addr,
        entered,
        certificates,
        stop,
        ended,
    })
}

fn trusting<'a>(pairs: impl IntoIterator<Item = &'a Pair>) -> Result<Arc<ClientConfig>> {
    client(pairs, None)
}

/// A client that trusts these servers and presents a certificate of its own.
fn client<'a>(
    pairs: impl IntoIterator<Item = &'a Pair>,
    own: Option<&Pair>,
) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for pair in pairs {
        roots.add(pair.root.clone())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes())?;
            builder.with_client_auth_cert(vec![own.root.clone()], key)?
        }
    };
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

async fn request(config: Arc<ClientConfig>, addr: SocketAddr, path: &str) -> Result<String> {
    let tcp = TcpStream::connect(addr).await.context("connect")?;
    let name = ServerName::try_from("localhost")?;
    let connector = TlsConnector::from(config);
    let mut tls = connector.connect(name, tcp).await.context("handshake")?;
    let text = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    tls.write_all(text.as_bytes()).await.context("write")?;
    let mut answer = String::new();
    tls.read_to_string(&mut answer).await.context("read")?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_under_load_fails_no_handshake() -> Result<()> {
    const HANDSHAKES: usize = 50;
    let pairs = (0..4).map(|_| pair()).collect::<Result<Vec<_>>>()?;
    let certificates = Certificates::none();
    certificates.replace(&pairs[0].chain, &pairs[0].key)?;
    let served = serve(certificates, DEADLINE, DEADLINE).await?;
    let config = trusting(&pairs)?;

    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (config, addr) = (config.clone(), served.addr);
        clients.spawn(async move {
            for _ in 0..HANDSHAKES {
                let answer = timeout(DEADLINE, request(config.clone(), addr, "/")).await??;
                ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            }
            Ok(())
        });
    }
    let mut rotations = 0;
    while !clients.is_empty() {
        let next = &pairs[rotations % pairs.len()];
        served.certificates.replace(&next.chain, &next.key)?;
        rotations += 1;
        while let Some(client) = clients.try_join_next() {
            client??;
        }
        tokio::task::yield_now().await;
    }
    assert!(rotations > HANDSHAKES, "{rotations}");
    Ok(())
}

#[tokio::test]
async fn silent_clients_block_nobody() -> Result<()> {
    let pair = pair()?;
    let certificates = Certificates::none();
    certificates.replace(&pair.chain, &pair.key)?;
    let served = serve(certificates, Duration::from_millis(500), DEADLINE).await?;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(served.addr).await?);
    }
    let answer = timeout(DEADLINE, request(trusting([&pair])?, served.addr, "/")).await??;
    assert!(answer.ends_with("hello"), "{answer}");
    // The deadline ends them: the server closes, so a read sees the end or a reset.
    for mut client in silent {
        let read = timeout(DEADLINE, client.read(&mut [0; 1])).await?;
        assert!(matches!(read, Ok(0) | Err(_)));
    }
    Ok(())
}

#[tokio::test]
async fn missing_certificate_fails_only_the_handshake() -> Result<()> {
    let pair = pair()?;
    let served = serve(Certificates::none(), DEADLINE, DEADLINE).await?;
    let config = trusting([&pair])?;
    let refused = timeout(DEADLINE, request(config.clone(), served.addr, "/")).await?;
    assert!(refused.unwrap_err().to_string().contains("handshake"));
    served.certificates.replace(&pair.chain, &pair.key)?;
    assert!(
        timeout(DEADLINE, request(config, served.addr, "/"))
            .await?
            .is_ok()
    );
    Ok(())
}

#[tokio::test]
async fn stop_drains_connections_until_the_deadline() -> Result<()> {
    let pair = pair()?;
    let certificates = Certificates::none();
    certificates.replace(&pair.chain, &pair.key)?;
    let config = trusting([&pair])?;

    let quiet = serve(certificates.clone(), DEADLINE, 2 * DEADLINE).await?;
    assert!(request(config.clone(), quiet.addr, "/").await.is_ok());
    quiet.stop.cancel();
    timeout(DEADLINE, quiet.ended).await??;

    let drain = Duration::from_millis(100);
    let busy = serve(certificates, DEADLINE, drain).await?;
    let stuck = tokio::spawn(request(config, busy.addr, "/never"));
    timeout(DEADLINE, busy.entered.notified()).await?;
    let begun = Instant::now();
    busy.stop.cancel();
    timeout(DEADLINE, busy.ended).await??;
    assert!(begun.elapsed() >= drain);
    stuck.abort();
    Ok(())
}

#[tokio::test]
async fn serves_only_clients_of_the_mounted_ca_and_reloads_files() -> Result<()> {
    let (server, next, ours, stranger) = (pair()?, pair()?, pair()?, pair()?);
    let folder = tempfile::tempdir()?;
    assert!(matches!(
        MountedCertificates::open(folder.path()),
        Err(FilesError::Read { .. })
    ));
    put(folder.path(), &server)?;
    let mut mounted = MountedCertificates::open(folder.path())?;
    std::fs::write(folder.path().join("ca.crt"), "nothing")?;
    assert!(matches!(mounted.clients(), Err(FilesError::NoClientCa)));
    std::fs::write(folder.path().join("ca.crt"), &ours.chain)?;
    let config = server_config(&mounted.certificates(), Some(mounted.clients()?))?;
    let tcp = http::bind("127.0.0.1:0".parse()?).await?;
    let addr = tcp.local_addr()?;
    let stop = CancellationToken::new();
    let router = Router::new().route("/", get(|| async { "hello" }));
    let limits = Limits::new(0);
    let task = tokio::spawn(http::serve(tcp, Some(config), router, limits, stop.clone()));

    let ask = async |server: &Pair, own| {
        timeout(DEADLINE, request(client([server], own)?, addr, "/")).await?
    };
    let answer = ask(&server, Some(&ours)).await?;
    assert!(answer.ends_with("hello"), "{answer}");
    for other in [None, Some(&stranger)] {
        let answer = ask(&server, other).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    assert!(!mounted.reload_if_changed()?);
    std::fs::write(folder.path().join("tls.key"), "half")?;
    assert!(mounted.reload_if_changed().is_err());
    assert!(ask(&server, Some(&ours)).await.is_ok());
    put(folder.path(), &next)?;
    assert!(mounted.reload_if_changed()?);
    let answer = ask(&next, Some(&ours)).await?;
    assert!(answer.ends_with("hello"), "{answer}");
    stop.cancel();
    task.await?;
    Ok(())
}
