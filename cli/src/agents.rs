//! How to reach the agents of nodes: through the API server's proxy, or at URLs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aliquot_core::NodeName;
use aliquot_k8s::pod;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access::{Access, AccessError, PodRoute, get};
use crate::components::{COMPONENT, PART};

/// Agents asked at once.
const AT_ONCE: usize = 16;
/// How long one may take to answer: the API server's proxy waits longer for a node that is gone.
const ANSWER: Duration = Duration::from_secs(10);

/// How to reach the nodes' agents.
#[derive(Clone, Debug, Default, Args)]
pub struct Agents {
    /// Namespace of the agents' pods; defaults to that of the scheduler's pods
    #[arg(long)]
    pub agent_namespace: Option<String>,
    /// Port of the agents' pods
    #[arg(long, default_value_t = 9394)]
    pub agent_port: u16,
    /// Ask the agent of a node at this address instead of through the API server; repeatable, or
    /// separated by commas in the variable `ALIQUOT_AGENTS`
    #[arg(
        long = "agent",
        value_name = "NODE=URL",
        value_parser = parse_agent,
        value_delimiter = ',',
        env = "ALIQUOT_AGENTS"
    )]
    pub agents: Vec<(NodeName, http::Uri)>,
    /// Whether these are the monitors.
    #[arg(skip)]
    pub(crate) of_monitors: bool,
}

/// How to reach the nodes' monitors.
#[derive(Clone, Debug, Default, Args)]
pub struct Monitors {
    /// Port of the monitors' pods
    #[arg(long, default_value_t = 9396)]
    pub monitor_port: u16,
    /// Ask the monitor of a node at this address instead of through the API server; repeatable, or
    /// separated by commas in the variable `ALIQUOT_MONITORS`
    #[arg(
        long = "monitor",
        value_name = "NODE=URL",
        value_parser = parse_agent,
        value_delimiter = ',',
        env = "ALIQUOT_MONITORS"
    )]
    pub monitors: Vec<(NodeName, http::Uri)>,
}

impl Monitors {
    /// The monitors beside these agents.
    pub(crate) fn of(&self, agents: &Agents) -> Agents {
        Agents {
            agent_namespace: agents.agent_namespace.clone(),
            agent_port: self.monitor_port,
            agents: self.monitors.clone(),
            of_monitors: true,
        }
    }
}

/// What nodes answered.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// By node.
    pub(crate) texts: Vec<(NodeName, String)>,
    /// Why a node did not answer.
    pub(crate) missing: BTreeMap<NodeName, String>,
}

pub(crate) fn parse_agent(text: &str) -> Result<(NodeName, http::Uri), String> {
    let parts = text.split_once('=');
    let (node, url) = parts.ok_or_else(|| format!("{text:?}; expected: NODE=URL"))?;
    let url = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    Ok((node.into(), url))
}

impl Agents {
    /// The labels that the chart gives their pods.
    fn labels(&self) -> String {
        let component = if self.of_monitors {
            "monitor"
        } else {
            "device-plugin"
        };
        format!("{PART}=aliquot,{COMPONENT}={component}")
    }

    /// Gets this path of each of these nodes; `who` is asked.
    pub(crate) async fn ask(
        &self,
        access: &Access,
        nodes: &BTreeSet<NodeName>,
        who: &'static str,
        path: &'static str,
    ) -> Answers {
        let mut found = Answers::default();
        let routes = self.routes(access, nodes, &mut found.missing).await;
        for some in routes.chunks(AT_ONCE) {
            let mut answers = JoinSet::new();
            for (node, route) in some.iter().cloned() {
                answers.spawn(async move {
                    let at = format!("{who} of {node}");
                    let path = format!("{}{path}", route.path);
                    let text = timeout(ANSWER, get(&route.client, &at, &path)).await;
                    (node, text)
                });
            }
            for (node, text) in answers.join_all().await {
                match text {
                    Ok(Ok(text)) => found.texts.push((node, text)),
                    Ok(Err(error)) => drop(found.missing.insert(node, error.to_string())),
                    Err(_) => drop(found.missing.insert(node, format!("{who} does not answer"))),
                }
            }
        }
        found
    }

    /// How to reach the agents of these nodes: at the addresses that the command line gives, and else through the
    /// API server's proxy. `missing` gets why there is no way to a node.
    async fn routes(
        &self,
        access: &Access,
        nodes: &BTreeSet<NodeName>,
        missing: &mut BTreeMap<NodeName, String>,
    ) -> Vec<(NodeName, PodRoute)> {
        let mut routes = Vec::new();
        let mut others = nodes.clone();
        for (node, url) in self.agents.iter().filter(|(node, _)| nodes.contains(node)) {
            others.remove(node);
            match PodRoute::at(url) {
                Ok(route) => routes.push((node.clone(), route)),
                Err(error) => drop(missing.insert(node.clone(), error.to_string())),
            }
        }
        if others.is_empty() {
            return routes;
        }
        let why = match self.proxies(access, &others).await {
            Ok(found) => {
                for (node, _) in &found {
                    others.remove(node);
                }
                routes.extend(found);
                format!(
                    "no running pod on the node has the labels {}; set --agent-namespace or --agent",
                    self.labels()
                )
            }
            Err(error) => error.to_string(),
        };
        missing.extend(others.into_iter().map(|node| (node, why.clone())));
        routes
    }

    /// The agents' namespace and pods.
    pub(crate) async fn pods(
        &self,
        access: &Access,
        client: &kube::Client,
    ) -> Result<(String, Vec<Pod>), AccessError> {
        let namespace = match &self.agent_namespace {
            Some(namespace) => namespace.clone(),
            None => access.schedulers(client).await?.0,
        };
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let labelled = ListParams::default().labels(&self.labels());
        let list = pods.list(&labelled).await;
        let list = list.map_err(|source| AccessError::List {
            what: "the agents' pods",
            source,
        })?;
        Ok((namespace, list.items))
    }

    /// The agents' pods on these nodes, through the API server's proxy.
    async fn proxies(
        &self,
        access: &Access,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<Vec<(NodeName, PodRoute)>, AccessError> {
        let client = access.client().await?;
        let (namespace, pods) = self.pods(access, &client).await?;
        let alive = pods.iter().filter(|object| !pod::is_finished(object));
        let node_of = |object: &Pod| pod::node(object).filter(|node| nodes.contains(node));
        let (names, pods): (Vec<NodeName>, Vec<&Pod>) = alive
            .filter_map(|object| Some((node_of(object)?, object)))
            .unzip();
        let routes = access.routes(&client, &namespace, &pods, self.agent_port);
        Ok(names.into_iter().zip(routes.await?).collect())
    }
}
