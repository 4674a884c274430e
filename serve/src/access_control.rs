//! Serves health to everyone, and everything else only to accounts that Kubernetes authenticates
//! and authorizes, as kube-rbac-proxy does: over TLS with a certificate made at start, with a
//! bearer token in each request. Reviews are remembered for a short time. Who has no accepted
//! token is slowed down ([`crate::peers`]), and the kernel refuses new connections of an address that
//! has too many ([`crate::syn_filter`]).

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::access::Access;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::http::{self, Ended};
use crate::peers::{PeerConnection, Peers};
use crate::syn_filter::SynFilter;
use crate::tls::{self, SelfSignedError};

/// The header for a token that passes the API server's proxy, which removes `Authorization`.
pub const TOKEN_HEADER: &str = "aliquot-token";

/// How long an accepted token is not reviewed again.
const ALLOWED_FOR: Duration = Duration::from_mins(2);
/// The same for a refused one.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Reviews remembered.
const REMEMBERED: usize = 1024;
/// Largest head of a request in bytes; a token has 1 to 8 kB.
const HEAD: usize = 16 << 10;
/// How long a connection may wait for others of the same address.
const TURN: Duration = Duration::from_secs(30);
/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection may wait for the head of a request.
const IDLE: Duration = Duration::from_secs(90);
/// Between two checks of which addresses may connect again.
const RESUME: Duration = Duration::from_secs(1);
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// The answer to a review of a token and a path, or why there is none.
pub type Reviewed = std::pin::Pin<Box<dyn Future<Output = Result<Access, String>> + Send>>;

/// Why a port cannot be guarded.
#[derive(Debug, Error)]
#[error("cannot make a certificate for the metrics' port")]
pub struct AccessControlError(#[from] SelfSignedError);

/// Decides who is answered.
#[derive(Clone)]
pub struct AccessControl(Arc<State>);

struct State {
    review: Box<dyn Fn(String, String) -> Reviewed + Send + Sync>,
    open: Vec<String>,
    reviews: Mutex<HashMap<Question, Remembered>>,
    peers: Peers,
    acceptor: TlsAcceptor,
}

/// A token and a path.
type Question = (String, String);

#[derive(Clone)]
struct Remembered {
    access: Access,
    until: Instant,
}

impl AccessControl {
    /// With this review of a token and a path; `open` are the paths besides health that need
    /// no token.
    pub fn new(
        review: impl Fn(String, String) -> Reviewed + Send + Sync + 'static,
        open: impl IntoIterator<Item = String>,
    ) -> Result<Self, AccessControlError> {
        let health = HEALTH.map(str::to_owned);
        Ok(Self(Arc::new(State {
            review: Box::new(review),
            open: health.into_iter().chain(open).collect(),
            reviews: Mutex::default(),
            peers: Peers::default(),
            acceptor: TlsAcceptor::from(tls::self_signed()?),
        })))
    }

    /// Serves until `stop` is cancelled, then waits up to `drain` for open requests.
    pub async fn serve(
        self,
        mut listener: TcpListener,
        router: Router,
        stop: CancellationToken,
        drain: Duration,
    ) -> Ended {
        let connections = TaskTracker::new();
        let mut filter = SynFilter::default();
        let mut resume = interval(RESUME);
        resume.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (stream, peer) = tokio::select! {
                () = stop.cancelled() => break,
                _ = resume.tick(), if !filter.is_empty() => {
                    filter.retain(&listener, |address| !self.0.peers.has_room(address));
                    continue;
                }
                accepted = Listener::accept(&mut listener) => accepted,
            };
            let Some(open) = self.0.peers.connect(peer.ip(), Instant::now()) else {
                // Before the client notices that its connection is closed.
                filter.insert(&listener, peer.ip());
                continue;
            };
            let connection = self
                .clone()
                .connection(stream, open, router.clone(), stop.clone());
            connections.spawn(connection);
        }
        drop(listener);
        connections.close();
        if timeout(drain, connections.wait()).await.is_ok() {
            return Ended::Drained;
        }
        tracing::warn!(?drain, "connections still open at the drain deadline");
        Ended::DeadlinePassed
    }

    /// Serves one connection, by HTTP/1.1 only: one request at a time.
    async fn connection(
        self,
        stream: TcpStream,
        open: PeerConnection,
        router: Router,
        stop: CancellationToken,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let Ok(Ok(_served)) = timeout(TURN, open.served.acquire()).await else {
            return;
        };
        sleep(open.charge(Instant::now())).await;
        let stream = match timeout(HANDSHAKE, self.0.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return tracing::debug!("TLS handshake took too long"),
        };
        let service = service_fn(|request: Request<Incoming>| {
            let router = router.clone();
            let (control, open) = (&self, &open);
            async move {
                match control
                    .refusal(open, request.uri().path(), request.headers())
                    .await
                {
                    Some(refusal) => Ok(refusal),
                    None => router.oneshot(request.map(Body::new)).await,
                }
            }
        });
        let mut serving = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .max_buf_size(HEAD)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = stop.cancelled() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// Why a request is not answered; `None` if it is.
    async fn refusal(
        &self,
        connection: &PeerConnection,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<Response> {
        let slow_down = || sleep(connection.charge(Instant::now()));
        if self.0.open.iter().any(|open| open == path) {
            slow_down().await;
            return None;
        }
        let Some(token) = token(headers) else {
            slow_down().await;
            let why = format!(
                "{path} requires a token: a header {}: Bearer TOKEN, or {TOKEN_HEADER}: TOKEN through the API server's proxy",
                header::AUTHORIZATION
            );
            return Some(refused(StatusCode::UNAUTHORIZED, why));
        };
        let question = (token.to_owned(), path.to_owned());
        let known = self.0.reviews.lock().get(&question).cloned();
        if known
            .as_ref()
            .is_none_or(|known| known.access != Access::Allowed)
        {
            slow_down().await;
        }
        let access = match known.filter(|known| known.until > Instant::now()) {
            Some(known) => known.access,
            None => match self.review(question).await {
                Ok(access) => access,
                Err(why) => {
                    tracing::warn!(path, "{why}");
                    return Some(refused(StatusCode::SERVICE_UNAVAILABLE, why));
                }
            },
        };
        match access {
            Access::Allowed => None,
            Access::Unauthenticated => {
                let why = "the token is not of any account, or has expired".to_owned();
                Some(refused(StatusCode::UNAUTHORIZED, why))
            }
            Access::Forbidden(why) => Some(refused(StatusCode::FORBIDDEN, why.to_string())),
        }
    }

    /// Reviews and remembers.
    async fn review(&self, question: Question) -> Result<Access, String> {
        let (token, path) = question.clone();
        let access = (self.0.review)(token, path).await?;
        let now = Instant::now();
        let length = match access {
            Access::Allowed => ALLOWED_FOR,
            Access::Unauthenticated | Access::Forbidden(_) => REFUSED_FOR,
        };
        let mut reviews = self.0.reviews.lock();
        if reviews.len() >= REMEMBERED {
            reviews.retain(|_, known| known.access == Access::Allowed && known.until > now);
        }
        if reviews.len() < REMEMBERED {
            let until = now + length;
            let remembered = Remembered {
                access: access.clone(),
                until,
            };
            reviews.insert(question, remembered);
        }
        Ok(access)
    }
}

/// Serves a router on a port that `control` protects, or that is open to all without one.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    control: Option<AccessControl>,
    stop: CancellationToken,
) -> io::Result<Ended> {
    match control {
        Some(control) => Ok(control.serve(listener, router, stop, http::DRAIN).await),
        None => http::serve(http::plain(listener), router, stop, http::DRAIN).await,
    }
}

/// The token of a request.
pub fn token(headers: &HeaderMap) -> Option<&str> {
    let bearer = || {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    };
    let own = headers
        .get(TOKEN_HEADER)
        .and_then(|value| value.to_str().ok());
    let token = own.or_else(bearer)?.trim();
    (!token.is_empty()).then_some(token)
}

fn refused(status: StatusCode, why: String) -> Response {
    let mut response = (status, why).into_response();
    if status == StatusCode::UNAUTHORIZED {
        let bearer = header::HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, bearer);
    }
    response
}

#[cfg(test)]
#[path = "access_control_tests.rs"]
mod tests;
