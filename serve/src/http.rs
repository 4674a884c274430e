//! Serves a router on a port, within limits of connections, bytes and time, until it is stopped.
//!
//! Anybody may connect. At the limit of connections, which `axum::serve` does not have, a new one replaces
//! the oldest whose request is not being answered, so connections that wait, stall or read nothing keep nobody out.
//! Where each is being answered, as with many Bindings at once, the new one waits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::DefaultBodyLimit;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::serve::Listener;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Bodies of the largest size that are in memory at once.
const LARGE: usize = 4;
/// Bytes of a small body. Beside the large ones, each connection has memory for one of its own, and all
/// together for as many again: over HTTP/2 one connection has many at once.
const SMALL: usize = 64 << 10;
/// Largest head of a request in bytes; a token has 1 to 8 kB.
const HEAD_BYTES: usize = 16 << 10;
/// How long a connection may wait between two requests. Clients written in Go close theirs after 90 s:
/// a server that is first could cut off a request.
const IDLE: Duration = Duration::from_mins(2);
/// Between two questions whether the peer of an HTTP/2 connection is still there.
const PING: Duration = Duration::from_secs(30);
/// Between two looks for a connection that has been answered, at the limit.
const FULL: Duration = Duration::from_millis(5);

/// What a port's clients may take of this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    /// Bytes of one request's body.
    pub body_bytes: usize,
    /// Time for the TLS handshake.
    pub handshake: Duration,
    /// Time from then on for the head of the first request.
    pub head: Duration,
    /// Time for a body, and for waiting until there is memory for it.
    pub body: Duration,
    /// Time for open requests after the stop.
    pub drain: Duration,
}

impl Limits {
    /// The limits of all ports, where a request has at most so many bytes of body.
    pub const fn new(body_bytes: usize) -> Self {
        Self {
            connections: 256,
            body_bytes,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            drain: DRAIN,
        }
    }
}

/// The default time for open requests after the stop.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Why a port could not be opened.
#[derive(Debug, Error)]
#[error("cannot listen on {addr}")]
pub struct ListenError {
    addr: SocketAddr,
    source: io::Error,
}

/// Listens at this address. All addresses of IPv4 are those of IPv6, too: where a cluster has no IPv4,
/// the kubelet and the API server reach a pod by no other.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, ListenError> {
    if addr.ip() == Ipv4Addr::UNSPECIFIED {
        let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, addr.port()));
        // Fails where the kernel has no IPv6.
        if let Ok(listener) = TcpListener::bind(all).await {
            return Ok(listener);
        }
    }
    TcpListener::bind(addr)
        .await
        .map_err(|source| ListenError { addr, source })
}

/// Serves until `stop` is cancelled, then accepts no more connections and waits for open requests:
/// over TLS by HTTP/1.1 and HTTP/2, without by HTTP/1.1.
pub async fn serve(
    mut listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let server = Arc::new(Server {
        tls: tls.map(TlsAcceptor::from),
        // A body is limited before the router sees it.
        router: router.layer(DefaultBodyLimit::disable()),
        limits,
        body_memory: Arc::new(BodyMemory::new(limits)),
        stop: stop.clone(),
    });
    let tasks = TaskTracker::new();
    let mut open: VecDeque<Weak<Connection>> = VecDeque::new();
    loop {
        let (stream, _) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = Listener::accept(&mut listener) => accepted,
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = make_room(&mut open, limits.connections) => {}
        }
        let connection = Arc::new(Connection::new());
        open.push_back(Arc::downgrade(&connection));
        tasks.spawn(Arc::clone(&server).connection(stream, connection));
    }
    drop(listener);
    tasks.close();
    if timeout(limits.drain, tasks.wait()).await.is_err() {
        tracing::warn!(drain = ?limits.drain, "connections still open at the drain deadline");
    }
}

/// Waits until there are fewer connections than `most`, or the oldest could be closed.
async fn make_room(open: &mut VecDeque<Weak<Connection>>, most: usize) {
    loop {
        open.retain(|connection| connection.strong_count() > 0);
        if open.len() < most || close_oldest(open) {
            return;
        }
        sleep(FULL).await;
    }
}

/// Closes the oldest connection that answers no request; `false` if each does.
fn close_oldest(open: &mut VecDeque<Weak<Connection>>) -> bool {
    let waits = |connection: &Weak<Connection>| {
        let connection = connection.upgrade();
        connection.is_none_or(|connection| connection.answering.load(Relaxed) == 0)
    };
    let oldest = open.iter().position(waits).and_then(|at| open.remove(at));
    if let Some(connection) = oldest.as_ref().and_then(Weak::upgrade) {
        connection.closed.cancel();
    }
    oldest.is_some()
}

#[derive(Debug)]
struct Connection {
    /// Requests whose answer is being made.
    answering: AtomicUsize,
    /// The head of a request has come.
    has_asked: AtomicBool,
    closed: CancellationToken,
    /// For its own small bodies.
    small: Arc<Semaphore>,
}

impl Connection {
    fn new() -> Self {
        Self {
            answering: AtomicUsize::new(0),
            has_asked: AtomicBool::new(false),
            closed: CancellationToken::new(),
            small: Arc::new(Semaphore::new(SMALL)),
        }
    }
}

struct Server {
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    body_memory: Arc<BodyMemory>,
    stop: CancellationToken,
}

impl Server {
    async fn connection(self: Arc<Self>, stream: TcpStream, connection: Arc<Connection>) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let Some(tls) = &self.tls else {
            return self.requests(stream, false, &connection).await;
        };
        let accepted = tokio::select! {
            accepted = timeout(self.limits.handshake, tls.accept(stream)) => accepted,
            () = connection.closed.cancelled() => return,
        };
        match accepted {
            Ok(Ok(stream)) => {
                let (_, session) = stream.get_ref();
                let http2 = session.alpn_protocol() == Some(b"h2");
                self.requests(stream, http2, &connection).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        http2: bool,
        connection: &Arc<Connection>,
    ) {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(HEAD_BYTES);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .initial_connection_window_size(256 << 10)
            .initial_stream_window_size(64 << 10);
        let builder = if http2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        };
        let (router, limits) = (self.router.clone(), self.limits);
        let (memory, asking) = (Arc::clone(&self.body_memory), Arc::clone(connection));
        let service = service_fn(move |request| {
            asking.has_asked.store(true, Relaxed);
            let (router, memory) = (router.clone(), Arc::clone(&memory));
            answer(router, request, limits, memory, Arc::clone(&asking))
        });
        let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut head = pin!(sleep(self.limits.head));
        let (mut stopping, mut was_late) = (false, false);
        let ended = loop {
            tokio::select! {
                ended = serving.as_mut() => break ended,
                () = connection.closed.cancelled() => return,
                () = self.stop.cancelled(), if !stopping => {
                    stopping = true;
                    serving.as_mut().graceful_shutdown();
                }
                () = head.as_mut(), if !was_late => {
                    was_late = true;
                    if !connection.has_asked.load(Relaxed) {
                        return;
                    }
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Reads a request whole and answers it.
async fn answer(
    router: Router,
    request: Request<Incoming>,
    limits: Limits,
    memory: Arc<BodyMemory>,
    connection: Arc<Connection>,
) -> Result<Response, Infallible> {
    let (head, body) = request.into_parts();
    let (body, _reserved) = match read(body, limits, &memory, &connection).await {
        Ok(read) => read,
        Err(status) => return Ok(status.into_response()),
    };
    let _answering = Answering::begin(connection);
    let request = Request::from_parts(head, Body::from(body));
    router.oneshot(request).await
}

/// The memory for bodies: a permit for each byte. A body gets all that it needs before it is read, so
/// none waits for the rest of another.
struct BodyMemory {
    /// Of small ones, so that large ones do not keep them waiting.
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl BodyMemory {
    fn new(limits: Limits) -> Self {
        let small = Semaphore::new(limits.connections * SMALL);
        let large = Semaphore::new(LARGE * limits.body_bytes);
        Self {
            small: Arc::new(small),
            large: Arc::new(large),
        }
    }

    async fn reserve(
        &self,
        bytes: usize,
        connection: &Connection,
    ) -> Result<OwnedSemaphorePermit, StatusCode> {
        let count = u32::try_from(bytes).map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
        let of = |memory: &Arc<Semaphore>| Arc::clone(memory).acquire_many_owned(count);
        let reserved = if bytes > SMALL {
            of(&self.large).await
        } else {
            tokio::select! {
                biased;
                own = of(&connection.small) => own,
                shared = of(&self.small) => shared,
            }
        };
        reserved.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
    }
}

/// The whole body, with the memory that it takes.
async fn read(
    mut body: Incoming,
    limits: Limits,
    memory: &BodyMemory,
    connection: &Connection,
) -> Result<(Bytes, OwnedSemaphorePermit), StatusCode> {
    let announced = body.size_hint().exact();
    let most = announced
        .map_or(Ok(limits.body_bytes), usize::try_from)
        .ok()
        .filter(|bytes| *bytes <= limits.body_bytes)
        .ok_or(StatusCode::PAYLOAD_TOO_LARGE)?;
    let reserved = timeout(limits.body, memory.reserve(most, connection))
        .await
        .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)??;
    let mut whole = Vec::with_capacity(most);
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| StatusCode::BAD_REQUEST)?;
            let data = frame.into_data().unwrap_or_default();
            if whole.len() + data.len() > most {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            whole.extend_from_slice(&data);
        }
        Ok(())
    };
    let read = timeout(limits.body, reading).await;
    read.map_err(|_| StatusCode::REQUEST_TIMEOUT)??;
    Ok((whole.into(), reserved))
}

/// Counts a request until it is answered, or its client is gone.
struct Answering(Arc<Connection>);

impl Answering {
    fn begin(connection: Arc<Connection>) -> Self {
        connection.answering.fetch_add(1, Relaxed);
        Self(connection)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_with_many_small_bodies_leaves_others_room_for_one() {
        let limits = Limits {
            connections: 1,
            ..Limits::new(SMALL)
        };
        let memory = BodyMemory::new(limits);
        let reserve = async |connection: &Connection| {
            let reserved = memory.reserve(SMALL, connection);
            timeout(Duration::from_millis(100), reserved).await
        };
        let (many, other) = (Connection::new(), Connection::new());
        let mut held = Vec::new();
        while let Ok(reserved) = reserve(&many).await {
            held.push(reserved);
        }
        assert_eq!(held.len(), 2);
        assert!(matches!(reserve(&other).await, Ok(Ok(_))));
    }
}
