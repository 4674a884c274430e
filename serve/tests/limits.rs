//! What clients may take of a port: connections, bytes and time.

use std::net::SocketAddr;
use std::time::Duration;

use aliquot_serve::http::{self, Limits};
use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

const DEADLINE: Duration = Duration::from_secs(20);
const BODY: usize = 256 << 10;

struct Port {
    addr: SocketAddr,
    /// A request to `/never` is being answered.
    entered: mpsc::Receiver<()>,
    _stop: DropGuard,
}

async fn port(limits: Limits) -> Result<Port> {
    let (enter, entered) = mpsc::channel(1);
    let never = async move || {
        let _ = enter.send(()).await;
        std::future::pending::<String>().await
    };
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route(
            "/size",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .route("/never", get(never));
    let listener = http::bind("127.0.0.1:0".parse()?).await?;
    let addr = listener.local_addr()?;
    let stop = CancellationToken::new();
    tokio::spawn(http::serve(listener, None, router, limits, stop.clone()));
    Ok(Port {
        addr,
        entered,
        _stop: stop.drop_guard(),
    })
}

impl Port {
    async fn sent(&self, text: &[u8]) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.addr).await?;
        stream.write_all(text).await?;
        Ok(stream)
    }

    async fn answer(&self, text: &[u8]) -> Result<String> {
        rest(self.sent(text).await?).await
    }
}

/// What the server sends until it closes.
async fn rest(mut stream: TcpStream) -> Result<String> {
    let mut text = String::new();
    let read = timeout(DEADLINE, stream.read_to_string(&mut text)).await;
    read.context("the server keeps the connection")??;
    Ok(text)
}

async fn is_closed(mut stream: TcpStream) -> bool {
    let read = timeout(DEADLINE, stream.read(&mut [0])).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

/// A request whose connection stays open.
const HELLO_AND_WAIT: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn size_of(length: usize) -> Vec<u8> {
    let head = format!(
        "POST /size HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    head.into_bytes()
}

/// Clusters have pods with addresses of IPv4, of IPv6, or of both.
#[tokio::test]
async fn serves_at_the_addresses_of_ipv4_and_ipv6() -> Result<()> {
    let listener = http::bind("0.0.0.0:0".parse()?).await?;
    let port = listener.local_addr()?.port();
    for address in ["127.0.0.1", "::1"] {
        // The machine may have no IPv6.
        if std::net::TcpListener::bind((address, 0)).is_ok() {
            let connected = timeout(DEADLINE, TcpStream::connect((address, port))).await?;
            connected.context(address)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn closes_what_waits_for_new_connections_beyond_the_limit() -> Result<()> {
    let mut limits = Limits::new(BODY);
    limits.connections = 4;
    [limits.head, limits.body] = [DEADLINE * 10; 2];
    let mut port = port(limits).await?;
    let mut answered = port.sent(b"GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    port.entered.recv().await.context("a request")?;
    let silent = port.sent(b"").await?;
    let heading = port.sent(b"GET / HT").await?;
    let writing = port.sent(&size_of(2)).await?;
    let mut more = Vec::new();
    for closed in [silent, heading, writing] {
        let mut next = port.sent(HELLO_AND_WAIT).await?;
        let mut answer = [0; 12];
        timeout(DEADLINE, next.read_exact(&mut answer)).await??;
        assert_eq!(&answer, b"HTTP/1.1 200");
        more.push(next);
        assert!(is_closed(closed).await);
    }
    let open = timeout(Duration::from_millis(100), answered.read(&mut [0])).await;
    assert!(open.is_err(), "closed while it was answered: {open:?}");
    Ok(())
}

/// kube-scheduler opens a connection for each Binding, and tries a pod again later whose own is closed.
#[tokio::test]
async fn new_connection_waits_while_all_are_being_answered() -> Result<()> {
    let mut limits = Limits::new(BODY);
    limits.connections = 1;
    let mut port = port(limits).await?;
    let answered = port.sent(b"GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    port.entered.recv().await.context("a request")?;
    let mut next = port.sent(HELLO_AND_WAIT).await?;
    let open = timeout(Duration::from_millis(100), next.read(&mut [0])).await;
    assert!(open.is_err(), "closed instead of waiting: {open:?}");
    drop(answered);
    let mut answer = [0; 12];
    timeout(DEADLINE, next.read_exact(&mut answer)).await??;
    assert_eq!(&answer, b"HTTP/1.1 200");
    Ok(())
}

#[tokio::test]
async fn holds_a_bounded_size_of_bodies() -> Result<()> {
    let mut limits = Limits::new(BODY);
    limits.body = Duration::from_secs(3);
    let port = port(limits).await?;
    let whole = [size_of(BODY), vec![b'x'; BODY]].concat();
    let answer = port.answer(&whole).await?;
    assert!(answer.ends_with(&BODY.to_string()), "{answer}");
    // As many as there is memory for, each without its last byte.
    let mut stalled = Vec::new();
    for _ in 0..4 {
        stalled.push(port.sent(&whole[..whole.len() - 1]).await?);
    }
    // Another one waits, once these are being read.
    let waiting = loop {
        let other = port.sent(&whole).await?;
        if timeout(Duration::from_millis(100), other.readable())
            .await
            .is_err()
        {
            break other;
        }
        let over = timeout(Duration::ZERO, stalled[0].readable()).await;
        assert!(over.is_err(), "no body waited for another");
    };
    let small = port.answer(&[size_of(8), vec![b'x'; 8]].concat()).await?;
    assert!(small.starts_with("HTTP/1.1 200 "), "{small}");
    let over = timeout(Duration::ZERO, stalled[0].readable()).await;
    assert!(over.is_err(), "a small body waited for large ones");
    for stalled in stalled {
        let answer = rest(stalled).await?;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    let answer = rest(waiting).await?;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    Ok(())
}

#[tokio::test]
async fn refuses_bodies_that_are_too_large() -> Result<()> {
    let port = port(Limits::new(BODY)).await?;
    let announced = port.answer(&size_of(BODY + 1)).await?;
    assert!(announced.starts_with("HTTP/1.1 413 "), "{announced}");
    let head = b"POST /size HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    // Nothing is left unread where the server notices: a closed connection would lose its answer.
    let chunk = format!("{:x}\r\n{}", BODY + 1, "x".repeat(BODY + 1));
    let mut chunked = port.sent(head).await?;
    chunked.write_all(chunk.as_bytes()).await?;
    let mut answer = [0; 13];
    timeout(DEADLINE, chunked.read_exact(&mut answer)).await??;
    assert_eq!(&answer, b"HTTP/1.1 413 ");
    Ok(())
}

#[tokio::test]
async fn ends_heads_and_bodies_that_stall() -> Result<()> {
    let mut limits = Limits::new(BODY);
    [limits.head, limits.body] = [Duration::from_millis(200); 2];
    let port = port(limits).await?;
    for text in ["", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        assert!(is_closed(port.sent(text.as_bytes()).await?).await, "{text}");
    }
    let answer = port.answer(&[size_of(2), vec![b'x']].concat()).await?;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let long = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let mut stream = TcpStream::connect(port.addr).await?;
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = [0; 13];
    let read = timeout(DEADLINE, stream.read_exact(&mut answer)).await?;
    assert!(read.is_err() || &answer == b"HTTP/1.1 431 ", "{answer:?}");
    Ok(())
}
