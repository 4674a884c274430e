//! A proxy to the API server that loses, delays and answers requests as a test tells it to.
//!
//! A part reaches it with [`Proxy::kubeconfig`] (plain HTTP on loopback). What no rule matches is
//! passed on as it is; watches stream. Nothing is forwarded twice.

mod reply;
mod traffic;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_cluster::starvation::{Attempts, Measurement};
use aliquot_cluster::wait::PATIENCE;
use anyhow::{Context as _, Result, anyhow};
use futures::{StreamExt as _, stream};
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
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

use reply::{Reply, status_reply};
pub use traffic::Traffic;
use traffic::is_watch;

enum Action {
    /// The test decides.
    Stop(mpsc::UnboundedSender<StoppedRequest>),
    /// 503 at once.
    Refuse,
}

struct Rule {
    id: u64,
    traffic: Vec<Traffic>,
    action: Action,
}

struct Shared {
    upstream: Client,
    rules: Mutex<Vec<Rule>>,
    /// A change of it ends every running watch.
    breaks: watch::Sender<u64>,
}

/// What becomes of a request.
enum RequestOutcome {
    Passes(Box<Request<Bytes>>),
    Waits(oneshot::Receiver<Reply>),
    Refused,
}

/// The proxy; it ends with this value.
pub struct Proxy {
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    server: AbortHandle,
}

/// A rule that applies until this value is dropped.
#[must_use = "the rule ends with it"]
pub struct ActiveRule {
    id: u64,
    shared: Arc<Shared>,
}

/// Requests that wait for the test's decision. When it is dropped, later ones pass.
pub struct Trap {
    stopped: mpsc::UnboundedReceiver<StoppedRequest>,
    _rule: ActiveRule,
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
            breaks: watch::Sender::new(0),
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
    pub fn trap(&self, traffic: &[Traffic]) -> Trap {
        let (sender, stopped) = mpsc::unbounded_channel();
        Trap {
            stopped,
            _rule: self.rule(traffic, Action::Stop(sender)),
        }
    }

    /// From now on these requests are answered with 503.
    pub fn refuse(&self, traffic: &[Traffic]) -> ActiveRule {
        self.rule(traffic, Action::Refuse)
    }

    /// Breaks every watch that runs now.
    pub fn break_watches(&self) {
        self.shared.breaks.send_modify(|breaks| *breaks += 1);
    }

    fn rule(&self, traffic: &[Traffic], action: Action) -> ActiveRule {
        let mut rules = self.shared.rules.lock();
        let id = rules.last().map_or(0, |rule| rule.id + 1);
        let traffic = traffic.to_vec();
        rules.push(Rule {
            id,
            traffic,
            action,
        });
        let shared = self.shared.clone();
        ActiveRule { id, shared }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Drop for ActiveRule {
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

    /// Answers a watch that its resource version is expired, as the API server does.
    pub fn answer_expired(self) -> Result<()> {
        send(self.reply, reply::expired()?)
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
            RequestOutcome::Refused => status_reply(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// Hands the request to the trap that matches.
    fn decide(self: &Arc<Self>, request: Request<Bytes>) -> Result<RequestOutcome> {
        let rules = self.rules.lock();
        let rule = rules.iter().find(|rule| {
            let mut traffic = rule.traffic.iter();
            traffic.any(|traffic| traffic.is(&request))
        });
        match rule.map(|rule| &rule.action) {
            None => Ok(RequestOutcome::Passes(Box::new(request))),
            Some(Action::Refuse) => Ok(RequestOutcome::Refused),
            Some(Action::Stop(trap)) => {
                let (reply, answer) = oneshot::channel();
                let shared = self.clone();
                let stopped = StoppedRequest {
                    request,
                    shared,
                    reply,
                };
                trap.send(stopped)
                    .ok()
                    .context("the test has dropped the trap")?;
                Ok(RequestOutcome::Waits(answer))
            }
        }
    }

    async fn forward(&self, mut request: Request<Bytes>) -> Result<Reply> {
        let watched = is_watch(&request);
        for header in [HOST, AUTHORIZATION] {
            request.headers_mut().remove(header);
        }
        let response = self.upstream.send(request.map(Body::from)).await?;
        let (parts, body) = response.into_parts();
        let body = BodyStream::new(body).map(|frame| frame.map_err(anyhow::Error::from));
        if !watched {
            let body = StreamBody::new(body).boxed_unsync();
            return Ok(Response::from_parts(parts, body));
        }
        let mut breaks = self.breaks.subscribe();
        let broken = async move { breaks.changed().await };
        let end = stream::once(async { Err(anyhow!("the test broke the watch")) });
        let body = body.take_until(broken).chain(end);
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

/// The sender of a request has given up before it was answered: it waits 3 s for its Binding, and
/// the machine did other work.
#[derive(Clone, Copy, Debug)]
pub struct SenderGaveUp;

impl std::fmt::Display for SenderGaveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the sender of the request no longer waits")
    }
}

impl std::error::Error for SenderGaveUp {}

/// Plays a scenario under a name of its own, and once more, three times at most, where a request's
/// sender had given up before it could be answered, and the machine was to blame.
pub async fn in_time<F: Future<Output = Result<()>>>(
    name: &'static str,
    mut play: impl FnMut(&'static str) -> F,
) -> Result<()> {
    let mut attempts = Attempts::new(name);
    let mut played = name;
    loop {
        let measured = Measurement::of_machine();
        match play(played).await {
            Err(error) if error.is::<SenderGaveUp>() => {
                attempts.again(format!("{error:#}"), measured.starved())?;
            }
            outcome => return outcome,
        }
        played = format!("{played}-again").leak();
    }
}

fn send(to: oneshot::Sender<Reply>, reply: Reply) -> Result<()> {
    if to.send(reply).is_err() {
        return Err(anyhow::Error::new(SenderGaveUp));
    }
    Ok(())
}
