//! How to reach the agents of nodes: through the API server's proxy, or at URLs.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::NodeName;
use aliquot_k8s::pod;
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use crate::access::{Access, AccessError, PodRoute};

/// The labels that the chart gives the agents' pods.
pub(crate) const AGENTS: &str =
    "app.kubernetes.io/part-of=aliquot,app.kubernetes.io/component=device-plugin";

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
}

pub(crate) fn parse_agent(text: &str) -> Result<(NodeName, http::Uri), String> {
    let parts = text.split_once('=');
    let (node, url) = parts.ok_or_else(|| format!("{text:?}; expected: NODE=URL"))?;
    let url = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    Ok((node.into(), url))
}

/// How to reach an agent, or why there is no way.
pub(crate) type AgentRoute = Result<PodRoute, String>;

impl Agents {
    /// The address that the command line gives for this node's agent.
    pub(crate) fn direct(&self, node: &NodeName) -> Option<AgentRoute> {
        let (_, url) = self.agents.iter().find(|(known, _)| known == node)?;
        Some(PodRoute::at(url).map_err(|error| error.to_string()))
    }

    /// How to reach the agents of these nodes, or why not; those without one are left out.
    pub(crate) async fn routes(
        &self,
        access: &Access,
        client: &kube::Client,
        nodes: &BTreeSet<NodeName>,
    ) -> BTreeMap<NodeName, AgentRoute> {
        let mut routes: BTreeMap<NodeName, AgentRoute> = BTreeMap::new();
        let mut others = BTreeSet::new();
        for node in nodes {
            match self.direct(node) {
                Some(route) => drop(routes.insert(node.clone(), route)),
                None => drop(others.insert(node.clone())),
            }
        }
        if others.is_empty() {
            return routes;
        }
        match self.proxies(access, client, &others).await {
            Ok(known) => {
                let route = |(node, route)| (node, Ok(route));
                routes.extend(known.into_iter().map(route));
            }
            Err(error) => {
                let why = error.to_string();
                routes.extend(others.into_iter().map(|node| (node, Err(why.clone()))));
            }
        }
        routes
    }

    /// The agents' pods on these nodes, through the API server's proxy.
    async fn proxies(
        &self,
        access: &Access,
        client: &kube::Client,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<Vec<(NodeName, PodRoute)>, AccessError> {
        let namespace = match &self.agent_namespace {
            Some(namespace) => namespace.clone(),
            None => access.schedulers(client).await?.0,
        };
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let list = pods.list(&ListParams::default().labels(AGENTS)).await;
        let list = list.map_err(|source| AccessError::List {
            what: "the agents' pods",
            source,
        })?;
        let alive = list.items.iter().filter(|object| !pod::is_finished(object));
        let node_of = |object: &Pod| pod::node(object).filter(|node| nodes.contains(node));
        let (names, pods): (Vec<NodeName>, Vec<&Pod>) = alive
            .filter_map(|object| Some((node_of(object)?, object)))
            .unzip();
        let routes = access.routes(client, &namespace, &pods, self.agent_port);
        Ok(names.into_iter().zip(routes.await?).collect())
    }
}
