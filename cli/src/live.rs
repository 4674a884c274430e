//! Reads a cluster: from its scheduler, through the API server's proxy or at a URL, or, where the
//! scheduler cannot be reached, from nodes and pods. Every call has a deadline.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::answer::{PodAnswer, TopAnswer};
use aliquot_core::ledger::AllocatedUse;
use aliquot_core::top::{DeviceAmount, NodeTop};
use aliquot_core::{Defaults, GpuUuid, Ledger, NodeName};
use aliquot_k8s::{node, pod, replicas};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::mps_usage;

/// Timeouts of connecting and of reading an answer.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// Objects per list request.
const PAGE: u32 = 500;
/// The labels that the chart gives the scheduler's pods.
const SCHEDULERS: &str = "app.kubernetes.io/part-of=aliquot,app.kubernetes.io/component=scheduler";

/// The namespace of the documented installation.
const NAMESPACE: &str = "aliquot-system";

/// How to reach a cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct Access {
    /// Path of the kubeconfig; defaults to kubectl's
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig
    #[arg(long)]
    pub context: Option<String>,
    /// Ask the scheduler at this address instead of through the API server
    #[arg(long, value_name = "URL")]
    pub server: Option<http::Uri>,
    /// Namespace of the scheduler's pods; defaults to aliquot-system, then to where they are found
    #[arg(long, value_name = "NAMESPACE")]
    pub scheduler_namespace: Option<String>,
    /// Port of the scheduler's pods
    #[arg(long, default_value_t = 9395)]
    pub scheduler_port: u16,
}

/// Why the cluster could not be read.
#[derive(Debug, Error)]
pub enum LiveError {
    /// The kubeconfig.
    #[error("cannot read the kubeconfig: {0}; set --kubeconfig or KUBECONFIG")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The client.
    #[error("cannot create a client for the cluster: {0}")]
    Client(kube::Error),
    /// A list.
    #[error("cannot list {what}: {source}")]
    List {
        /// The kind of objects.
        what: &'static str,
        /// The API server's error.
        source: kube::Error,
    },
    /// No scheduler runs there.
    #[error(
        "no running pod in namespace {namespace} has the labels {SCHEDULERS}; set --scheduler-namespace or --server"
    )]
    NoScheduler {
        /// The namespace that was searched.
        namespace: String,
    },
    /// The scheduler refused the request, with this message.
    #[error("{0}")]
    Refused(String),
    /// It could not be reached.
    #[error("cannot reach {at}: {why}")]
    Unreachable {
        /// Its name or address.
        at: String,
        /// The error.
        why: String,
    },
    /// Its answer cannot be parsed.
    #[error(
        "cannot parse the scheduler's answer: {0}; check that it is of the same release as this program"
    )]
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

    /// The scheduler's answer to `GET path`; with several replicas, the leader's.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, LiveError> {
        Ok(serde_json::from_str(&self.text(path).await?)?)
    }

    /// The same, as text.
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
        for pod in pods.iter().filter(|pod| !pod::is_finished(pod)) {
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
            // Any answer is better than none, and an answer better than a refusal.
            if answer.is_err() {
                answer = got;
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
    ) -> Result<(String, Vec<Pod>), LiveError> {
        let (given, namespace) = (&self.scheduler_namespace, self.usual_namespace());
        let params = ListParams::default().labels(SCHEDULERS);
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
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
        Ok((namespace.to_owned(), found.items))
    }

    /// Why the pod is pending, or where it runs.
    pub async fn explain(&self, namespace: &str, pod: &str) -> Result<PodAnswer, LiveError> {
        self.ask(&format!("/explain/{namespace}/{pod}")).await
    }

    /// All nodes; and the error, if the scheduler could not be reached.
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
    config.connect_timeout = Some(TIMEOUTS.0);
    config.read_timeout = Some(TIMEOUTS.1);
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
        // The scheduler's own message.
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

/// The ledger from nodes and pods; pods that are being bound are missing.
pub fn ledger(nodes: &[Node], pods: &[Pod], settings: &pod::Settings) -> Ledger {
    let mut ledger = Ledger::default();
    for object in nodes {
        let name = object.metadata.name.as_deref().unwrap_or_default().into();
        ledger.publish(&name, Some(node::published(object)));
    }
    for object in pods.iter().filter(|pod| !pod::is_finished(pod)) {
        // Pods without a share count, too: they use CPU and memory.
        if let Some(node) = pod::node(object) {
            let held = pod::allocated(object, settings);
            let held = held.map_or_else(AllocatedUse::nothing, |(_, held)| held);
            ledger.confirm(
                &pod::uid(object),
                &pod::namespace(object),
                &node,
                held,
                replicas::requests(object, settings),
            );
        }
    }
    ledger
}

/// All nodes of this ledger. The scheduler's defaults are not known here; the flags' defaults are used.
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

/// A pod with an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodTop {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: NodeName,
    /// Its allocation by device; `null` when the annotation cannot be read.
    pub gpus: Option<BTreeMap<GpuUuid, DeviceAmount>>,
    /// Its MPS clients by device, where they were measured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mps: BTreeMap<GpuUuid, mps_usage::MpsUsage>,
}

/// The pods with an allocation, by namespace and name.
pub fn pods_with_allocations(pods: &[Pod]) -> Vec<PodTop> {
    let alive = pods.iter().filter(|pod| !pod::is_finished(pod));
    let line = |object: &Pod| {
        let (node, held) = pod::allocated(object, &pod::Settings::default())?;
        let gpus = match held {
            AllocatedUse::Known(held) => {
                let amounts = held.into_iter();
                Some(amounts.map(|(gpu, used)| (gpu, used.into())).collect())
            }
            AllocatedUse::Unreadable => None,
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
