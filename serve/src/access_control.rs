//! Serves health to everyone, and everything else only to accounts that Kubernetes authenticates
//! and authorizes, as kube-rbac-proxy does: over TLS with a certificate made at start, with a
//! bearer token in each request. Reviews are remembered for a short time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::Excerpt;
use aliquot_core::access::Access;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::{self, Limits};
use crate::tls::{self, SelfSignedError};

/// The header for a token that passes the API server's proxy, which removes `Authorization`.
pub const TOKEN_HEADER: &str = "aliquot-token";

/// How long an accepted token is not reviewed again.
const ALLOWED_FOR: Duration = Duration::from_mins(2);
/// The same for a refused one.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Reviews remembered.
const REMEMBERED: usize = 1024;
/// Reviews at the same time: tokens that nobody has cost the API server little.
const REVIEWS: usize = 8;
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// The answer to a review of a token and a path, or why there is none.
pub type Reviewed = std::pin::Pin<Box<dyn Future<Output = Result<Access, String>> + Send>>;

/// Decides who is answered.
#[derive(Clone)]
pub struct AccessControl(Arc<Control>);

struct Control {
    review: Box<dyn Fn(String, String) -> Reviewed + Send + Sync>,
    open: Vec<String>,
    /// The answers, and until when they hold.
    reviews: Mutex<HashMap<Question, (Access, Instant)>>,
    turns: Semaphore,
    tls: Arc<ServerConfig>,
}

/// A token and a path.
type Question = (String, String);

impl AccessControl {
    /// With this review of a token and a path; `open` are the paths besides health that need
    /// no token.
    pub fn new(
        review: impl Fn(String, String) -> Reviewed + Send + Sync + 'static,
        open: impl IntoIterator<Item = String>,
    ) -> Result<Self, SelfSignedError> {
        let health = HEALTH.map(str::to_owned);
        Ok(Self(Arc::new(Control {
            review: Box::new(review),
            open: health.into_iter().chain(open).collect(),
            reviews: Mutex::default(),
            turns: Semaphore::new(REVIEWS),
            tls: tls::self_signed()?,
        })))
    }

    fn guard(self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(self, guard))
    }

    /// Why a request is not answered; `None` if it is.
    async fn refusal(&self, path: &str, headers: &HeaderMap) -> Option<Response> {
        if self.0.open.iter().any(|open| open == path) {
            return None;
        }
        let Some(token) = token(headers) else {
            let why = format!(
                "{} requires a token: a header {}: Bearer TOKEN, or {TOKEN_HEADER}: TOKEN through the API server's proxy",
                Excerpt::from(path),
                header::AUTHORIZATION
            );
            return Some(refused(StatusCode::UNAUTHORIZED, why));
        };
        let access = match self.access(token, path).await {
            Ok(access) => access,
            Err(why) => {
                tracing::warn!(path = %Excerpt::from(path), "{why}");
                return Some(refused(StatusCode::SERVICE_UNAVAILABLE, why));
            }
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

    /// Whether the token's account may get the path, on this port or another one of Aliquot's.
    pub async fn access(&self, token: &str, path: &str) -> Result<Access, String> {
        let question = (token.to_owned(), path.to_owned());
        let known = self.0.reviews.lock().get(&question).cloned();
        match known.filter(|(_, until)| *until > Instant::now()) {
            Some((access, _)) => Ok(access),
            None => self.review(question).await,
        }
    }

    async fn review(&self, question: Question) -> Result<Access, String> {
        let (token, path) = question.clone();
        let turn = self.0.turns.acquire().await;
        let access = (self.0.review)(token, path).await?;
        drop(turn);
        let now = Instant::now();
        let length = match access {
            Access::Allowed => ALLOWED_FOR,
            Access::Unauthenticated | Access::Forbidden(_) => REFUSED_FOR,
        };
        let mut reviews = self.0.reviews.lock();
        if reviews.len() >= REMEMBERED {
            reviews.retain(|_, (access, until)| *access == Access::Allowed && *until > now);
        }
        // One account may ask for as many paths.
        if reviews.len() >= REMEMBERED {
            reviews.clear();
        }
        reviews.insert(question, (access.clone(), now + length));
        Ok(access)
    }
}

/// Serves a router, whose requests have no body, on a port that `control` protects, or that is open to
/// all without one.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    control: Option<AccessControl>,
    stop: CancellationToken,
) {
    let tls = control.as_ref().map(|control| Arc::clone(&control.0.tls));
    let router = match control {
        Some(control) => control.guard(router),
        None => router,
    };
    http::serve(listener, tls, router, Limits::new(0), stop).await;
}

async fn guard(State(control): State<AccessControl>, request: Request, next: Next) -> Response {
    let (path, headers) = (request.uri().path(), request.headers());
    match control.refusal(path, headers).await {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

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
