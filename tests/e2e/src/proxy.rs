//! A proxy to the API server that loses, delays and answers requests as a test tells it to.
//!
//! A part reaches it with [`Proxy::kubeconfig`] (plain HTTP on loopback). What no rule matches is
//! passed on as it is; watches stream. Nothing is forwarded twice.

mod reply;
mod traffic;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_cluster::wait::PATIENCE;
use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::Client;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use reply::{Reply, status_reply};
pub use traffic::Traffic;

/// From now on the test decides about these requests.
struct Rule {
    id: u64,
    traffic: Traffic,
    trap: mpsc::UnboundedSender<StoppedRequest>,
}

struct Shared {
    upstream: Client,
    rules: Mutex<Vec<Rule>>,
}

/// What becomes of a request.
enum RequestOutcome {
    Passes(Box<Request<Bytes>>),
    Waits(oneshot::Receiver<Reply>),
}

/// The proxy; it ends with this value.
pub struct Proxy {
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    server: AbortHandle,
}

/// Requests that wait for the test's decision. When it is dropped, later ones pass.
#[must_use = "the rule ends with it"]
pub struct Trap {
    stopped: mpsc::UnboundedReceiver<StoppedRequest>,
    id: u64,
    shared: Arc<Shared>,
}

/// A request that has not been forwarded. If it is dropped, its connection ends without a response.
pub struct StoppedRequest {
    request: Request<Bytes>,
    shared: Arc<Shared>,
    reply: oneshot::Sender<Reply>,
}

/// A response that has not been passed on. If it is dropped, the connection ends without it.
pub struct PendingResponse {
    response: Reply,
    reply: oneshot::Sender<Reply>,
}

impl Proxy {
    /// A proxy for the owner of this kubeconfig; its own lies beside it.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let config = Kubeconfig::read_from(kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await?;
        let shared = Arc::new(Shared {
            upstream: Client::try_from(config)?,
            rules: Mutex::default(),
        });
        let through = through(kubeconfig, listener.local_addr()?)?;
        let server = tokio::spawn(serve(listener, shared.clone())).abort_handle();
        Ok(Self {
            kubeconfig: through,
            shared,
            server,
        })
    }

    /// The same identity through this proxy.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// From now on these requests wait for the test's decision.
    pub fn trap(&self, traffic: Traffic) -> Trap {
        let (trap, stopped) = mpsc::unbounded_channel();
        let mut rules = self.shared.rules.lock();
        let id = rules.last().map_or(0, |rule| rule.id + 1);
        rules.push(Rule { id, traffic, trap });
        let shared = self.shared.clone();
        Trap {
            stopped,
            id,
            shared,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.shared.rules.lock().retain(|rule| rule.id != self.id);
    }
}

impl Trap {
    /// The next request that fell into the trap.
    pub async fn next(&mut self) -> Result<StoppedRequest> {
        let next = tokio::time::timeout(PATIENCE, self.stopped.recv()).await;
        let next = next.with_context(|| format!("no such request within {PATIENCE:?}"))?;
        next.context("the proxy has ended")
    }
}

impl StoppedRequest {
    /// Forwards it, whether its sender still waits or not.
    pub async fn forward(self) -> Result<PendingResponse> {
        let response = self.shared.forward(self.request).await?;
        let reply = self.reply;
        Ok(PendingResponse { response, reply })
    }

    /// Answers with this status, and forwards nothing.
    pub fn answer(self, status: StatusCode) -> Result<()> {
        send(self.reply, status_reply(status)?)
    }
}

impl PendingResponse {
    /// The API server's status.
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// Passes the answer on.
    pub fn pass(self) -> Result<()> {
        send(self.reply, self.response)
    }

    /// Answers something else instead.
    pub fn replace(self, status: StatusCode) -> Result<()> {
        send(self.reply, status_reply(status)?)
    }
}

impl Shared {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Reply> {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, body.collect().await?.to_bytes());
        match self.decide(request)? {
            RequestOutcome::Passes(request) => self.forward(*request).await,
            RequestOutcome::Waits(answer) => answer.await.context("the test dropped the request"),
        }
    }

    /// Hands the request to the trap that matches.
    fn decide(self: &Arc<Self>, request: Request<Bytes>) -> Result<RequestOutcome> {
        let rules = self.rules.lock();
        let Some(rule) = rules.iter().find(|rule| rule.traffic.is(&request)) else {
            return Ok(RequestOutcome::Passes(Box::new(request)));
        };
        let (reply, answer) = oneshot::channel();
        let shared = self.clone();
        let stopped = StoppedRequest {
            request,
            shared,
            reply,
        };
        let sent = rule.trap.send(stopped);
        sent.ok().context("the test has dropped the trap")?;
        Ok(RequestOutcome::Waits(answer))
    }

    async fn forward(&self, mut request: Request<Bytes>) -> Result<Reply> {
        for header in [HOST, AUTHORIZATION] {
            request.headers_mut().remove(header);
        }
        let response = self.upstream.send(request.map(Body::from)).await?;
        let (parts, body) = response.into_parts();
        let body = BodyStream::new(body).map(|frame| frame.map_err(anyhow::Error::from));
        let body = StreamBody::new(body).boxed_unsync();
        Ok(Response::from_parts(parts, body))
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) -> Result<Infallible> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        let shared = shared.clone();
        connections.spawn(async move {
            let answer = service_fn(move |request| shared.clone().answer(request));
            let server = auto::Builder::new(TokioExecutor::new());
            // Connections end in an error where a test wants that.
            let _ended = server.serve_connection(TokioIo::new(stream), answer).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Writes a kubeconfig with the same identity and this server.
fn through(kubeconfig: &Path, address: SocketAddr) -> Result<PathBuf> {
    let text = std::fs::read_to_string(kubeconfig)?;
    let mut config: serde_json::Value = serde_json::from_str(&text)?;
    config["clusters"][0]["cluster"] = json!({"server": format!("http://{address}")});
    let path = kubeconfig.with_extension(format!("proxy-{}", address.port()));
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

fn send(to: oneshot::Sender<Reply>, reply: Reply) -> Result<()> {
    let sent = to.send(reply).ok();
    sent.context("the sender of the request no longer waits")
}
