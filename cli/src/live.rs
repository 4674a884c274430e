//! A living cluster: what its scheduler says, or, where that cannot be reached,
//! what nodes and pods say.
//!
//! Fed by: the API server, and through it the scheduler's pods (as a proxy), or
//! a URL. Must not: write anything, or wait without a deadline.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::answer::{PodAnswer, TopAnswer};
use aliquot_core::ledger::Held;
use aliquot_core::top::{Amount, NodeTop};
use aliquot_core::{Defaults, GpuUuid, Ledger, NodeName};
use aliquot_k8s::{node, pod, seats};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::measured;

/// Longest wait for a connection, and for an answer.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// Objects asked for at once.
const PAGE: u32 = 500;
/// The labels that the chart gives the scheduler's pods.
const SCHEDULERS: &str = "app.kubernetes.io/part-of=aliquot,app.kubernetes.io/component=scheduler";

/// Where the documentation installs them.
const NAMESPACE: &str = "aliquot-system";

/// How to reach a cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct Access {
    /// Kubeconfig; that of kubectl when absent
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long)]
    pub context: Option<String>,
    /// Ask the scheduler at this address instead of through the API server
    #[arg(long, value_name = "URL")]
    pub server: Option<http::Uri>,
    /// Namespace of the scheduler's pods; aliquot-system, else where they are, when absent
    #[arg(long, value_name = "NAMESPACE")]
    pub scheduler_namespace: Option<String>,
    /// Port of the scheduler's pods
    #[arg(long, default_value_t = 9395)]
    pub scheduler_port: u16,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum LiveError {
    /// The kubeconfig.
    #[error("cannot read the kubeconfig: {0}; --kubeconfig or KUBECONFIG names one")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The client.
    #[error("cannot make a client: {0}")]
    Client(kube::Error),
    /// A list.
    #[error("cannot list {what}: {source}")]
    List {
        /// Of what.
        what: &'static str,
        /// What the API server said.
        source: kube::Error,
    },
    /// No scheduler runs there.
    #[error(
        "no running pod in namespace {namespace} has the labels {SCHEDULERS}; --scheduler-namespace or --server says where the scheduler is"
    )]
    NoScheduler {
        /// Where it was looked for.
        namespace: String,
    },
    /// It answered, and said no.
    #[error("{0}")]
    Refused(String),
    /// It could not be asked.
    #[error("cannot ask the scheduler at {at}: {why}")]
    Unreachable {
        /// Where.
        at: String,
        /// What happened.
        why: String,
    },
    /// It answered something else.
    #[error("cannot read the scheduler's answer: {0}; is it of this release?")]
    Answer(#[from] serde_json::Error),
}

impl Access {
    /// The client for the API server.
    pub async fn client(&self) -> Result<Client, LiveError> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)?;
                Config::from_custom_kubeconfig(file, &options).await?
            }
            None => Config::from_kubeconfig(&options).await?,
        };
        make(config)
    }

    /// What the scheduler answers to `GET path`: of several, the one that leads.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, LiveError> {
        Ok(serde_json::from_str(&self.text(path).await?)?)
    }

    /// The same as it came.
    pub async fn text(&self, path: &str) -> Result<String, LiveError> {
        if let Some(url) = &self.server {
            let client = make(Config::new(url.clone()))?;
            return get(&client, &url.to_string(), path).await;
        }
        let client = self.client().await?;
        let (namespace, pods) = self.schedulers(&client).await?;
        let mut answer = Err(LiveError::NoScheduler {
            namespace: namespace.clone(),
        });
        for pod in pods.iter().filter(|pod| !pod::ended(pod)) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let port = self.scheduler_port;
            let proxy = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}");
            let got = get(&client, &format!("pod {namespace}/{name}"), &proxy).await;
            let leads = |text: &str| {
                let value: Result<serde_json::Value, _> = serde_json::from_str(text);
                value.is_ok_and(|value| value["leads"] == true)
            };
            if got.as_deref().is_ok_and(leads) {
                answer = got;
                break;
            }
            // Any answer is better than none, a readable one than a refusal.
            if answer.is_err() {
                answer = got;
            }
        }
        answer
    }

    /// Where the scheduler is looked for first.
    pub(crate) fn home(&self) -> &str {
        self.scheduler_namespace.as_deref().unwrap_or(NAMESPACE)
    }

    /// The scheduler's namespace and pods. Where none is named and none is in the usual one,
    /// all are looked through, if that is allowed.
    pub(crate) async fn schedulers(
        &self,
        client: &Client,
    ) -> Result<(String, Vec<Pod>), LiveError> {
        let (given, home) = (&self.scheduler_namespace, self.home());
        let params = ListParams::default().labels(SCHEDULERS);
        let pods: Api<Pod> = Api::namespaced(client.clone(), home);
        let found = pods.list(&params).await;
        let found = found.map_err(|source| LiveError::List {
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
        Ok((home.to_owned(), found.items))
    }

    /// Why the pod waits, or where it is.
    pub async fn explain(&self, namespace: &str, pod: &str) -> Result<PodAnswer, LiveError> {
        self.ask(&format!("/explain/{namespace}/{pod}")).await
    }

    /// All nodes; and why the scheduler was not asked, if it could not be.
    pub async fn top(&self) -> Result<(TopAnswer, Option<LiveError>), LiveError> {
        match self.ask("/top").await {
            Ok(answer) => Ok((answer, None)),
            Err(error) if self.server.is_some() => Err(error),
            Err(error) => Ok((self.computed().await?, Some(error))),
        }
    }

    /// The same from inventories and allocations.
    async fn computed(&self) -> Result<TopAnswer, LiveError> {
        let (nodes, pods) = self.snapshot().await?;
        Ok(top_of(&nodes, &pods))
    }

    /// All nodes and all pods.
    pub async fn snapshot(&self) -> Result<(Vec<Node>, Vec<Pod>), LiveError> {
        let client = self.client().await?;
        Ok((all(&client, "nodes").await?, all(&client, "pods").await?))
    }
}

pub(crate) fn make(mut config: Config) -> Result<Client, LiveError> {
    config.connect_timeout = Some(PATIENCE.0);
    config.read_timeout = Some(PATIENCE.1);
    config.default_retry = false;
    Client::try_from(config).map_err(LiveError::Client)
}

pub(crate) async fn get(client: &Client, at: &str, path: &str) -> Result<String, LiveError> {
    let unreachable = |why: String| LiveError::Unreachable {
        at: at.to_owned(),
        why,
    };
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|error| unreachable(error.to_string()))?;
    match client.request_text(request).await {
        Ok(text) => Ok(text),
        // The scheduler's own words.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(
            LiveError::Refused(status.message.trim_matches('"').to_owned()),
        ),
        Err(kube::Error::Api(status)) => Err(unreachable(status.message)),
        Err(error) => Err(unreachable(error.to_string())),
    }
}

pub(crate) async fn all<K>(client: &Client, what: &'static str) -> Result<Vec<K>, LiveError>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&params).await;
        let page = page.map_err(|source| LiveError::List { what, source })?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// The books as these objects give them: what is being bound right now is missing.
pub fn ledger(nodes: &[Node], pods: &[Pod], settings: &pod::Settings) -> Ledger {
    let mut ledger = Ledger::default();
    for object in nodes {
        let name = object.metadata.name.as_deref().unwrap_or_default().into();
        ledger.publish(&name, Some(node::published(object)));
    }
    for object in pods.iter().filter(|pod| !pod::ended(pod)) {
        // Pods without a share count, too: they use CPU and memory.
        if let Some(node) = pod::node(object) {
            let held = pod::held(object, settings);
            let held = held.map_or_else(Held::nothing, |(_, held)| held);
            ledger.confirm(
                &pod::uid(object),
                &pod::namespace(object),
                &node,
                held,
                seats::requests(object, settings),
            );
        }
    }
    ledger
}

/// All nodes of these books. The defaults of the scheduler are not known here:
/// no compute, as the flags have it.
pub fn top_of(nodes: &[Node], pods: &[Pod]) -> TopAnswer {
    let ledger = ledger(nodes, pods, &pod::Settings::default());
    let default_cores = Defaults::default().cores;
    let lines = ledger.cluster().iter();
    let lines = lines.filter_map(|(_, name, node)| NodeTop::of(name, node, default_cores));
    let mut nodes: Vec<_> = lines.collect();
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    TopAnswer {
        default_cores,
        leads: false,
        nodes,
    }
}

/// A pod that holds shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodTop {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it is.
    pub node: NodeName,
    /// What it holds of which card; `null` when its allocation cannot be read.
    pub gpus: Option<BTreeMap<GpuUuid, Amount>>,
    /// Its clients of MPS on which card, where that was measured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mps: BTreeMap<GpuUuid, measured::Held>,
}

/// The pods that hold shares, by namespace and name.
pub fn holding(pods: &[Pod]) -> Vec<PodTop> {
    let alive = pods.iter().filter(|pod| !pod::ended(pod));
    let line = |object: &Pod| {
        let (node, held) = pod::held(object, &pod::Settings::default())?;
        let gpus = match held {
            Held::Uses(held) => {
                let amounts = held.into_iter();
                Some(amounts.map(|(gpu, used)| (gpu, used.into())).collect())
            }
            Held::Unreadable => None,
        };
        Some(PodTop {
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
            node,
            gpus,
            mps: BTreeMap::new(),
        })
    };
    let mut lines: Vec<PodTop> = alive.filter_map(line).collect();
    lines.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    lines
}
