//! How to reach a cluster: its API server, and its scheduler and other parts, through the API server's
//! proxy or at a URL. Every call has a deadline.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_k8s::bare::Bare;
use aliquot_k8s::pod;
use clap::Args;
use http::header::{AUTHORIZATION, InvalidHeaderValue};
use http::{HeaderName, HeaderValue, Request, Response, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::SignedDuration;
use kube::api::{ListParams, PostParams};
use kube::client::{Body, ConfigExt as _};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::sync::{Mutex, OnceCell};
use tower::{BoxError, Layer as _, ServiceExt as _};

use crate::components::{distrust_others, is_ready, name};
use crate::metrics;
use crate::output::with_causes;

/// Longest wait for a connection, and for an answer unless the user says otherwise.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);
/// The metric that is 1 where a replica leads.
pub(crate) const LEADS: &str = "aliquot_scheduler_leads";
/// Objects per list request.
const PAGE: u32 = 500;
/// The labels that the chart gives the scheduler's pods.
const SCHEDULERS: &str = "app.kubernetes.io/part-of=aliquot,app.kubernetes.io/component=scheduler";

/// The account, beside the scheduler's pods, that may read what Aliquot's parts serve.
const VIEWER: &str = "aliquot-viewer";
/// Seconds for which its tokens are valid: the shortest time that Kubernetes allows.
const TOKEN_LIFETIME: i64 = 600;
/// How long a client with such a token is used.
const TOKEN_USE: Duration = Duration::from_mins(5);
/// The header in which the token passes the API server's proxy.
const TOKEN_HEADER: HeaderName = HeaderName::from_static("aliquot-token");
/// The variable with the token for an address that the user gives.
const TOKEN_VARIABLE: &str = "ALIQUOT_TOKEN";

/// The namespace of the documented installation.
const NAMESPACE: &str = "aliquot-system";
/// The namespace of a context that names none.
const DEFAULT_NAMESPACE: &str = "default";
/// How the API server's proxy begins its own 503, where nothing answers.
const PROXY_FAILED: &str = "error trying to reach service";
/// The variable with kubectl's kubeconfigs.
const FILES: &str = "KUBECONFIG";
/// The variable by which kubectl knows that it runs in a pod.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// How to reach a cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct Access {
    /// Path of the kubeconfig; defaults to kubectl's
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig
    #[arg(long)]
    pub context: Option<String>,
    /// Cluster in the kubeconfig, instead of the context's
    #[arg(long)]
    pub cluster: Option<String>,
    /// User in the kubeconfig, instead of the context's
    #[arg(long)]
    pub user: Option<String>,
    /// User to act as, such as system:serviceaccount:NAMESPACE:NAME
    #[arg(long = "as", value_name = "USER")]
    pub impersonate: Option<String>,
    /// Longest wait for an answer of the API server, such as 10s or 2m; 0 for no limit
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, default_value = "30s")]
    pub request_timeout: Duration,
    /// Ask the scheduler at this address, or that in the variable `ALIQUOT_SCHEDULER`, instead of through
    /// the API server; over https with the token in the variable `ALIQUOT_TOKEN`
    #[arg(long, value_name = "URL", env = "ALIQUOT_SCHEDULER")]
    pub scheduler: Option<Uri>,
    /// Namespace of the scheduler's pods; defaults to aliquot-system, then to where they are found
    #[arg(long, value_name = "NAMESPACE")]
    pub scheduler_namespace: Option<String>,
    /// Port of the scheduler's pods
    #[arg(long, default_value_t = 9395)]
    pub scheduler_port: u16,
    #[arg(skip)]
    pub clients: Arc<Clients>,
}

/// The clients of a command that asks again and again: a new one may run a login program, and a new token
/// is written by the API server.
#[derive(Default)]
pub struct Clients {
    user: OnceCell<Client>,
    /// The client with a token of [`VIEWER`]: the account's namespace, and since when.
    viewer: Mutex<Option<(String, Instant, Client)>>,
}

impl fmt::Debug for Clients {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Clients")
    }
}

/// Why the cluster could not be read.
#[derive(Debug, Error)]
pub enum AccessError {
    #[error("cannot read the kubeconfig: {0}; set --kubeconfig or KUBECONFIG")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("the kubeconfig has no {what} {given:?}; expected for --{what}: {known}")]
    Name {
        what: &'static str,
        given: String,
        known: String,
    },
    /// No kubeconfig, and no account of the pod either.
    #[error("there is no kubeconfig, and the pod's service account cannot be used: {0}")]
    InPod(#[from] InClusterError),
    #[error("cannot create a client for the cluster: {0}")]
    Client(kube::Error),
    #[error("cannot list {what}")]
    List {
        what: &'static str,
        source: kube::Error,
    },
    #[error(
        "no running pod in namespace {namespace} has the labels {SCHEDULERS}; set --scheduler-namespace or --scheduler"
    )]
    NoScheduler { namespace: String },
    /// No token for the scheduler's or an agent's port.
    #[error("cannot get a token of account {namespace}/{VIEWER}: {why}")]
    Token { namespace: String, why: String },
    /// The user may not create one.
    #[error(
        "you may not create a token of account {namespace}/{VIEWER}; expected: the verb create for serviceaccounts/token of that account, or, to explain a pod that you may get, a kubeconfig with a token of yours"
    )]
    TokenForbidden { namespace: String },
    /// A part of Aliquot refused the request, is not ready, or was not reached.
    #[error("{0}")]
    NoAnswer(String),
    #[error(
        "cannot parse the scheduler's answer: {0}; check that it is of the same release as this program"
    )]
    Answer(#[from] serde_json::Error),
}

impl Access {
    pub async fn client(&self) -> Result<Client, AccessError> {
        let made = async { make(self.config().await?, self.request_timeout) };
        self.clients.user.get_or_try_init(|| made).await.cloned()
    }

    /// A client whose requests carry a token of the account `aliquot-viewer` in this namespace: the API
    /// server's proxy does not pass the user's own identity on.
    async fn viewer(&self, client: &Client, namespace: &str) -> Result<Client, AccessError> {
        let mut known = self.clients.viewer.lock().await;
        if let Some((of, since, viewer)) = &*known
            && of == namespace
            && since.elapsed() < TOKEN_USE
        {
            return Ok(viewer.clone());
        }
        let refused = |why: String| AccessError::Token {
            namespace: namespace.to_owned(),
            why,
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_LIFETIME),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let params = PostParams::default();
        let answer = accounts
            .create_token_request(VIEWER, &params, &request)
            .await
            .map_err(|error| match error {
                kube::Error::Api(status) if status.code == 403 => AccessError::TokenForbidden {
                    namespace: namespace.to_owned(),
                },
                error => refused(with_causes(&error)),
            })?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();
        let mut config = self.config().await?;
        let header = token_header(&token).map_err(|error| refused(error.to_string()))?;
        config.headers.push(header);
        let viewer = make(config, self.request_timeout)?;
        *known = Some((namespace.to_owned(), Instant::now(), viewer.clone()));
        Ok(viewer)
    }

    /// A client whose requests carry the user's own token. `None` where there is none, where `--as` names another
    /// user, and for pods in a namespace that was only found by its labels: a tenant may have made it.
    async fn tenant(&self, namespace: &str) -> Result<Option<Client>, AccessError> {
        if self.impersonate.is_some() || namespace != self.usual_namespace() {
            return Ok(None);
        }
        let mut config = self.config().await?;
        let Some(header) = own_token(&config).await? else {
            return Ok(None);
        };
        config.headers.push(header);
        make(config, self.request_timeout).map(Some)
    }

    /// The routes to a port of each of these pods, through the API server's proxy.
    pub(crate) async fn routes(
        &self,
        client: &Client,
        namespace: &str,
        pods: &[&Pod],
        port: u16,
    ) -> Result<Vec<PodRoute>, AccessError> {
        let viewer = if pods.iter().any(|pod| serves_tls(pod, port)) {
            Some(self.viewer(client, namespace).await?)
        } else {
            None
        };
        let route = |pod: &&Pod| PodRoute::through(client, viewer.as_ref(), pod, port);
        Ok(pods.iter().map(route).collect())
    }

    /// The configuration of the kubeconfig; in a pod without one, that of its service account, as
    /// kubectl does.
    async fn config(&self) -> Result<Config, AccessError> {
        let mut config = self.config_of_user().await?;
        if let Some(user) = &self.impersonate {
            config.auth_info.impersonate = Some(user.clone());
        }
        Ok(config)
    }

    pub(crate) fn file(&self) -> Result<Kubeconfig, KubeconfigError> {
        if let Some(path) = &self.kubeconfig {
            return Kubeconfig::read_from(path);
        }
        // As for kubectl, some of several files may be missing, and a context without a name is none.
        let listed = std::env::var_os(FILES).unwrap_or_default();
        let mut there = std::env::split_paths(&listed)
            .filter(|path| path.exists())
            .peekable();
        if there.peek().is_none() {
            return Kubeconfig::read();
        }
        there.try_fold(Kubeconfig::default(), |merged, path| {
            let mut file = Kubeconfig::read_from(path)?;
            file.current_context = file.current_context.filter(|name| !name.is_empty());
            merged.merge(file)
        })
    }

    /// The same without `--as`.
    async fn config_of_user(&self) -> Result<Config, AccessError> {
        let file = match self.file() {
            Err(error) if self.is_optional(&error) && std::env::var_os(IN_POD).is_some() => {
                return Ok(Config::incluster()?);
            }
            read => read?,
        };
        let context = self.context.as_ref().or(file.current_context.as_ref());
        exists(
            "context",
            context,
            file.contexts.iter().map(|one| &one.name),
        )?;
        let clusters = file.clusters.iter().map(|one| &one.name);
        exists("cluster", self.cluster.as_ref(), clusters)?;
        let users = file.auth_infos.iter().map(|one| &one.name);
        exists("user", self.user.as_ref(), users)?;
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let named = context.and_then(|name| file.contexts.iter().find(|one| one.name == *name));
        let of_context = named.and_then(|one| Some(&one.context.as_ref()?.cluster));
        let used = self.cluster.as_ref().or(of_context);
        let cluster = file.clusters.iter().find(|one| Some(&one.name) == used);
        let proxy = cluster.and_then(|one| one.cluster.as_ref()?.proxy_url.as_ref());
        let has_proxy = proxy.is_some_and(|url| !url.is_empty());
        let mut config = Config::from_custom_kubeconfig(file, &options).await?;
        // kube takes the environment's proxy for every server.
        if !has_proxy && !is_proxied(&config.cluster_url, &Matcher::from_env()) {
            config.proxy_url = None;
        }
        Ok(config)
    }

    /// Whether the kubeconfig does not exist, and the command line names nothing of it.
    fn is_optional(&self, error: &KubeconfigError) -> bool {
        let missing = match error {
            KubeconfigError::FindPath => true,
            KubeconfigError::ReadConfig(source, _) => source.kind() == ErrorKind::NotFound,
            _ => false,
        };
        let names = [&self.context, &self.cluster, &self.user];
        missing && self.kubeconfig.is_none() && names.into_iter().all(Option::is_none)
    }

    /// The namespace that `--namespace` gives, or that of the context; in a pod without a kubeconfig, the
    /// pod's own.
    pub async fn namespace(&self, given: Option<&str>) -> Result<String, AccessError> {
        if let Some(given) = given.filter(|given| !given.is_empty()) {
            return Ok(given.to_owned());
        }
        let config = match self.config().await {
            // --scheduler needs no kubeconfig.
            Err(AccessError::Kubeconfig(error))
                if self.scheduler.is_some() && self.is_optional(&error) =>
            {
                return Ok(DEFAULT_NAMESPACE.to_owned());
            }
            config => config?,
        };
        Ok(match config.default_namespace.trim() {
            "" => DEFAULT_NAMESPACE.to_owned(),
            named => named.to_owned(),
        })
    }

    /// The scheduler's answer to `GET path`; with several replicas, the leader's.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, AccessError> {
        Ok(serde_json::from_str(&self.text(path).await?)?)
    }

    /// The same, as text.
    pub async fn text(&self, path: &str) -> Result<String, AccessError> {
        Ok(self.answer(path).await?.1)
    }

    /// The same, with the route by which it came.
    pub(crate) async fn answer(&self, path: &str) -> Result<(PodRoute, String), AccessError> {
        if let Some(url) = &self.scheduler {
            let route = PodRoute::at(url)?;
            let text = get(&route.client, &url.to_string(), path).await?;
            return Ok((route, text));
        }
        let client = self.client().await?;
        let (namespace, pods) = self.schedulers(&client).await?;
        let mut answer = Err(AccessError::NoScheduler {
            namespace: namespace.clone(),
        });
        let pods = to_ask(&pods);
        let port = self.scheduler_port;
        let routes = match self.routes(&client, &namespace, &pods, port).await {
            // The scheduler lets whoever may get a pod read why it waits.
            Err(refused @ AccessError::TokenForbidden { .. }) if path.starts_with("/explain/") => {
                let tenant = Box::pin(self.tenant(&namespace)).await?.ok_or(refused)?;
                let route = |pod: &&Pod| PodRoute::through(&client, Some(&tenant), pod, port);
                pods.iter().map(route).collect()
            }
            routes => routes?,
        };
        for (pod, route) in pods.iter().zip(routes) {
            let at = format!("pod {namespace}/{}", name(pod));
            let got = get(&route.client, &at, &format!("{}{path}", route.path)).await;
            let leads = |text: &str| {
                let value: Result<serde_json::Value, _> = serde_json::from_str(text);
                value.is_ok_and(|value| value["leads"] == true)
                    || metrics::sum(text, LEADS).is_some_and(|leads| leads > 0.0)
            };
            let is_leader = got.as_deref().is_ok_and(leads);
            // Until the leader answers, the first answer is kept: any is better than an error.
            if is_leader || answer.is_err() {
                answer = got.map(|text| (route, text));
            }
            if is_leader {
                break;
            }
        }
        answer
    }

    /// The namespace in which the scheduler is searched first.
    pub(crate) fn usual_namespace(&self) -> &str {
        self.scheduler_namespace.as_deref().unwrap_or(NAMESPACE)
    }

    /// The scheduler's namespace and pods. Without --scheduler-namespace and without pods in the usual
    /// one, all namespaces are searched, if that is permitted.
    pub(crate) async fn schedulers(
        &self,
        client: &Client,
    ) -> Result<(String, Vec<Pod>), AccessError> {
        let (given, namespace) = (&self.scheduler_namespace, self.usual_namespace());
        let params = ListParams::default().labels(SCHEDULERS);
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let found = pods
            .list(&params)
            .await
            .map_err(|source| AccessError::List {
                what: "the scheduler's pods",
                source,
            })?;
        if found.items.is_empty() && given.is_none() {
            let all: Api<Pod> = Api::all(client.clone());
            if let Ok(all) = all.list(&params).await
                && let Some(first) = all.items.first()
            {
                let namespace = pod::namespace(first);
                let mut pods = all.items;
                pods.retain(|pod| pod::namespace(pod) == namespace);
                return Ok((namespace.as_str().to_owned(), pods));
            }
        }
        Ok((namespace.to_owned(), found.items))
    }

    /// The namespace of Aliquot's parts.
    pub(crate) async fn system_namespace(&self, client: &Client) -> String {
        match self.schedulers(client).await {
            Ok((namespace, _)) => namespace,
            Err(_) => self.usual_namespace().to_owned(),
        }
    }

    pub async fn snapshot(&self) -> Result<(Vec<Node>, Vec<Pod>), AccessError> {
        let client = self.client().await?;
        let (nodes, mut pods) = (all(&client, "nodes").await?, all_pods(&client).await?);
        distrust_others(&mut pods, &self.system_namespace(&client).await);
        Ok((nodes, pods))
    }
}

/// A client, and the path under which it reaches a pod.
#[derive(Clone)]
pub(crate) struct PodRoute {
    pub(crate) client: Client,
    pub(crate) path: String,
}

impl PodRoute {
    /// The route to a port of a pod, through the API server's proxy. The token is sent only to a
    /// port with TLS.
    fn through(client: &Client, with_token: Option<&Client>, pod: &Pod, port: u16) -> Self {
        let with_token = with_token.filter(|_| serves_tls(pod, port));
        let scheme = if with_token.is_some() { "https:" } else { "" };
        let (namespace, name) = (pod::namespace(pod), name(pod));
        Self {
            client: with_token.unwrap_or(client).clone(),
            path: format!("/api/v1/namespaces/{namespace}/pods/{scheme}{name}:{port}/proxy"),
        }
    }

    /// To an address that the user gives.
    pub(crate) fn at(url: &Uri) -> Result<Self, AccessError> {
        Ok(Self {
            client: direct(url)?,
            path: String::new(),
        })
    }
}

/// The pods that have not ended, first those that are ready: one on a node that is gone answers nothing for as long
/// as a request may take.
fn to_ask(pods: &[Pod]) -> Vec<&Pod> {
    let alive = pods.iter().filter(|pod| !pod::is_finished(pod));
    let mut alive: Vec<&Pod> = alive.collect();
    alive.sort_by_key(|pod| !is_ready(pod));
    alive
}

/// Whether a pod serves this port with TLS: its readiness probe says so.
fn serves_tls(object: &Pod, port: u16) -> bool {
    let containers = object.spec.iter().flat_map(|spec| &spec.containers);
    let mut probes = containers.filter_map(|container| {
        let probe = container.readiness_probe.as_ref()?.http_get.as_ref()?;
        let number = match &probe.port {
            IntOrString::Int(number) => *number,
            IntOrString::String(name) => {
                let mut ports = container.ports.iter().flatten();
                let named = ports.find(|port| port.name.as_ref() == Some(name))?;
                named.container_port
            }
        };
        Some((number, probe.scheme.as_deref() == Some("HTTPS")))
    });
    probes.any(|(number, tls)| number == i32::from(port) && tls)
}

fn token_header(token: &str) -> Result<(HeaderName, HeaderValue), InvalidHeaderValue> {
    let mut value = HeaderValue::from_str(token)?;
    value.set_sensitive(true);
    Ok((TOKEN_HEADER, value))
}

/// The token of this configuration's user, as the header that passes the proxy. It may come from a file or a login
/// program, so it is taken from a request that kube prepares.
async fn own_token(config: &Config) -> Result<Option<(HeaderName, HeaderValue)>, AccessError> {
    let Some(layer) = config.auth_layer().map_err(AccessError::Client)? else {
        return Ok(None);
    };
    let echo = tower::service_fn(|request: Request<Body>| async move {
        let mut answer = Response::new(());
        *answer.headers_mut() = request.into_parts().0.headers;
        Ok::<_, BoxError>(answer)
    });
    // Its type says `Send`, because the compiler cannot infer it for a future that holds this one.
    let echoed: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(layer.layer(echo).oneshot(Request::new(Body::empty())));
    let result: Result<Response<()>, BoxError> = echoed.await;
    let answer = result.map_err(|error| AccessError::Client(kube::Error::Service(error)))?;
    let header = answer.headers().get(AUTHORIZATION);
    let bearer = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    Ok(bearer.and_then(|token| token_header(token).ok()))
}

/// A client for an address that the user gives; over https with the token in `ALIQUOT_TOKEN`. The
/// certificate of a part is its own, and is accepted where `kubectl port-forward` listens.
pub(crate) fn direct(url: &Uri) -> Result<Client, AccessError> {
    let mut config = Config::new(url.clone());
    if url.scheme_str() == Some("https") {
        config.accept_invalid_certs = is_here(url);
        if let Ok(token) = std::env::var(TOKEN_VARIABLE) {
            let header = token_header(&token).map_err(|error| {
                AccessError::NoAnswer(format!("cannot reach {url}: {TOKEN_VARIABLE}: {error}"))
            })?;
            config.headers.push(header);
        }
    }
    make(config, ANSWER)
}

/// Whether `kubectl port-forward` may listen there.
fn is_here(url: &Uri) -> bool {
    matches!(url.host(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// Whether these proxies are for this server. As for kubectl, none is for this machine.
fn is_proxied(server: &Uri, proxies: &Matcher) -> bool {
    !is_here(server) && proxies.intercept(server).is_some()
}

/// Whether the kubeconfig has what the flag `what` names.
fn exists<'a>(
    what: &'static str,
    given: Option<&String>,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), AccessError> {
    let names: Vec<&str> = names.map(String::as_str).collect();
    match given {
        Some(given) if !names.contains(&given.as_str()) => Err(AccessError::Name {
            what,
            given: given.clone(),
            known: names.join(", "),
        }),
        _ => Ok(()),
    }
}

/// A duration as kubectl takes it: a number of seconds, or with units.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::from_secs).ok();
    let with_units = || Duration::try_from(text.parse::<SignedDuration>().ok()?).ok();
    seconds
        .or_else(with_units)
        .ok_or_else(|| "expected: numbers with units, such as 10s, 1m30s or 500ms, or 0".to_owned())
}

/// Makes a client of this configuration; a `timeout` of 0 is no limit.
fn make(mut config: Config, timeout: Duration) -> Result<Client, AccessError> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
    config.default_retry = false;
    Client::try_from(config).map_err(AccessError::Client)
}

pub(crate) async fn get(client: &Client, at: &str, path: &str) -> Result<String, AccessError> {
    let unreachable = |why: String| AccessError::NoAnswer(format!("cannot reach {at}: {why}"));
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|error| unreachable(error.to_string()))?;
    match client.request_text(request).await {
        Ok(text) => Ok(text),
        // A message of the scheduler's own, or of the API server's about a right.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409) => {
            let why = status.message.trim_matches('"');
            Err(AccessError::NoAnswer(why.to_owned()))
        }
        Err(kube::Error::Api(status))
            if status.code == 503 && !status.message.starts_with(PROXY_FAILED) =>
        {
            let why = status.message.trim().replace('\n', "; ");
            Err(AccessError::NoAnswer(format!("{at} is not ready: {why}")))
        }
        Err(kube::Error::Api(status)) => Err(unreachable(status.message)),
        Err(error) => Err(unreachable(with_causes(&error))),
    }
}

/// All pods.
pub(crate) async fn all_pods(client: &Client) -> Result<Vec<Pod>, AccessError> {
    pods_of(&Api::all(client.clone())).await
}

/// The pods of this API, whatever tenants wrote into their managed fields.
pub(crate) async fn pods_of(api: &Api<Bare<Pod>>) -> Result<Vec<Pod>, AccessError> {
    let pods = list(api, "pods").await?;
    Ok(pods.into_iter().map(Pod::from).collect())
}

/// All objects of a kind; `what` names them.
pub(crate) async fn all<K>(client: &Client, what: &'static str) -> Result<Vec<K>, AccessError>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug,
{
    list(&Api::all(client.clone()), what).await
}

async fn list<K>(api: &Api<K>, what: &'static str) -> Result<Vec<K>, AccessError>
where
    K: Clone + DeserializeOwned + fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api
            .list(&params)
            .await
            .map_err(|source| AccessError::List { what, source })?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_timeouts_as_kubectl_does() {
        for (text, expected) in [
            ("10s", Some(10_000)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("1m30s", Some(90_000)),
            ("500ms", Some(500)),
            ("7", Some(7_000)),
            ("0", Some(0)),
            ("", None),
            ("-1s", None),
            ("soon", None),
        ] {
            let found = parse_timeout(text).ok();
            assert_eq!(found, expected.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn accepts_own_certificate_on_this_machine_alone() {
        for (url, expected) in [
            ("https://localhost:9395", true),
            ("https://127.0.0.1:9395", true),
            ("https://[::1]:9395", true),
            ("https://scheduler:9395", false),
            ("https://[fd00::1]:9395", false),
        ] {
            assert_eq!(is_here(&Uri::from_static(url)), expected, "{url}");
        }
    }

    #[tokio::test]
    async fn asks_through_proxy_of_environment_unless_no_proxy_exempts() {
        let proxies = Matcher::builder().https("http://proxy:3128");
        let proxies = proxies.no("10.0.0.0/8,.corp").build();
        for (server, expected) in [
            ("https://api.example.com:6443", true),
            ("https://api.corp:6443", false),
            ("https://10.1.2.3:6443", false),
            ("https://127.0.0.1:6443", false),
        ] {
            let server = Uri::from_static(server);
            assert_eq!(is_proxied(&server, &proxies), expected, "{server}");
        }
        for proxy in ["http://proxy:3128", "https://proxy", "socks5://proxy:1080"] {
            let mut config = Config::new(Uri::from_static("https://api.example.com"));
            config.proxy_url = Some(Uri::from_static(proxy));
            assert!(make(config, ANSWER).is_ok(), "{proxy}");
        }
    }

    #[test]
    fn says_why_the_api_server_did_not_list() {
        #[derive(Debug, Error)]
        #[error("client error (Connect)")]
        struct Connect(#[source] std::io::Error);
        let check = |source: kube::Error, expected: &str| {
            let what = "pods";
            assert_eq!(with_causes(&AccessError::List { what, source }), expected);
        };
        let status = json!({"message": "pods is forbidden", "reason": "Forbidden", "code": 403});
        let status = serde_json::from_value(status).expect("a status");
        check(
            kube::Error::Api(Box::new(status)),
            "cannot list pods: pods is forbidden",
        );
        let refused = Connect(ErrorKind::ConnectionRefused.into());
        check(
            kube::Error::Service(refused.into()),
            "cannot list pods: ServiceError: client error (Connect): connection refused",
        );
    }

    #[tokio::test]
    async fn reads_token_of_user_from_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, "secret").expect("written");
        let mut config = Config::new(Uri::from_static("https://127.0.0.1"));
        assert_eq!(own_token(&config).await.expect("read"), None);
        config.auth_info.token_file = Some(file.path().display().to_string());
        let (name, value) = own_token(&config).await.expect("read").expect("a token");
        assert_eq!((name, &value), (TOKEN_HEADER, &"secret".parse().unwrap()));
        assert!(value.is_sensitive());
    }

    #[test]
    fn asks_scheduler_on_a_node_that_is_gone_last() {
        let pod = |name: &str, phase: &str, ready: &str| -> Pod {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let status = json!({"phase": phase, "conditions": conditions});
            serde_json::from_value(json!({"metadata": {"name": name}, "status": status}))
                .expect("a pod")
        };
        let pods = [
            pod("gone", "Running", "False"),
            pod("ended", "Failed", "False"),
            pod("well", "Running", "True"),
        ];
        let names: Vec<&str> = to_ask(&pods).into_iter().map(name).collect();
        assert_eq!(names, ["well", "gone"]);
    }

    #[test]
    fn sends_tokens_only_to_ports_with_tls() {
        let pod = |scheme: &str| -> Pod {
            let probe =
                |port: &str, scheme: &str| json!({"httpGet": {"port": port, "scheme": scheme}});
            let container = |name: &str, port: u16, scheme: &str| {
                json!({
                    "name": name, "readinessProbe": probe(name, scheme),
                    "ports": [{"name": name, "containerPort": port}],
                })
            };
            let containers = [
                container("other", 10259, "HTTPS"),
                container("metrics", 9395, scheme),
            ];
            serde_json::from_value(json!({"spec": {"containers": containers}})).expect("a pod")
        };
        assert!(serves_tls(&pod("HTTPS"), 9395));
        assert!(!serves_tls(&pod("HTTP"), 9395));
        assert!(!serves_tls(&pod("HTTPS"), 9397));
    }
}
