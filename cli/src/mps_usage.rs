//! MPS clients and the memory that they use, from `GET /metrics` of the agent of each node with a
//! device in mode mps, through the API server's proxy or at a URL. A node that does not answer is
//! reported, never shown as a node without clients.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::Mode;
use aliquot_core::top::NodeTop;
use aliquot_core::{GpuUuid, Inventory, NodeName};
use aliquot_k8s::{node, pod};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::live::{Access, LiveError, PodRoute, PodTop, get};
use crate::sample::samples;
use crate::table::aligned;

/// The labels that the chart gives the agents' pods.
const AGENTS: &str = "app.kubernetes.io/part-of=aliquot,app.kubernetes.io/component=device-plugin";
/// Agents asked at once.
const AT_ONCE: usize = 16;
const CLIENTS: &str = "aliquot_device_plugin_mps_clients";
const BYTES: &str = "aliquot_device_plugin_mps_used_bytes";

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

fn parse_agent(text: &str) -> Result<(NodeName, http::Uri), String> {
    let parts = text.split_once('=');
    let (node, url) = parts.ok_or_else(|| format!("{text:?}; expected: NODE=URL"))?;
    let url = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    Ok((node.into(), url))
}

/// MPS clients, and the memory that they use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MpsUsage {
    /// Processes.
    pub clients: u64,
    /// Bytes; 0 where the driver does not report them.
    pub bytes: u64,
}

/// The clients of one container on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerUsage {
    /// The node.
    pub node: NodeName,
    /// The device.
    pub gpu: GpuUuid,
    /// The container's pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// Clients and bytes.
    #[serde(flatten)]
    pub usage: MpsUsage,
}

/// What was measured, and which nodes did not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurements {
    /// By node, device, pod and container.
    pub all: Vec<ContainerUsage>,
    /// One for each node that did not answer.
    pub missing: Vec<String>,
}

/// The nodes with a device in mode mps, by the scheduler's answer.
pub fn nodes_of(top: &[NodeTop]) -> BTreeSet<NodeName> {
    let by_mps = |node: &&NodeTop| node.gpus.iter().any(|gpu| gpu.mode == Mode::Mps);
    top.iter()
        .filter(by_mps)
        .map(|node| node.node.clone())
        .collect()
}

/// The same by the nodes' own inventories.
pub fn nodes_among(nodes: &[Node]) -> BTreeSet<NodeName> {
    let by_mps = |inventory: &Inventory| inventory.gpus.iter().any(|gpu| gpu.mode == Mode::Mps);
    let named = nodes.iter().filter_map(|object| {
        let inventory = node::published(object).inventory?;
        let name = object.metadata.name.as_deref()?;
        by_mps(&inventory).then(|| name.into())
    });
    named.collect()
}

/// How to reach an agent, or why there is no way.
type AgentRoute = Result<PodRoute, String>;

impl Agents {
    /// Asks the agents of these nodes.
    pub async fn ask(&self, access: &Access, nodes: &BTreeSet<NodeName>) -> Measurements {
        let mut found = Measurements::default();
        if nodes.is_empty() {
            return found;
        }
        let reached = nodes.iter().all(|node| self.direct(node).is_some());
        let mut routes = BTreeMap::new();
        if reached {
            let direct = nodes.iter().filter_map(|node| self.direct(node));
            routes.extend(nodes.iter().cloned().zip(direct));
        } else {
            match access.client().await {
                Ok(client) => routes = self.routes(access, &client, nodes).await,
                Err(error) => {
                    let failed = |node| format!("{node}: {error}");
                    found.missing.extend(nodes.iter().map(failed));
                }
            }
        }
        let none = |node: &NodeName| {
            format!(
                "{node}: no running pod on the node has the labels {AGENTS}; set --agent-namespace or --agent"
            )
        };
        let missing = nodes.iter().filter(|node| !routes.contains_key(*node));
        if found.missing.is_empty() {
            found.missing.extend(missing.map(none));
        }
        let mut asked = Vec::new();
        for (node, route) in routes {
            match route {
                Ok(route) => asked.push((node, route)),
                Err(why) => found.missing.push(format!("{node}: {why}")),
            }
        }
        for some in asked.chunks(AT_ONCE) {
            let mut answers = JoinSet::new();
            for (node, route) in some.iter().cloned() {
                answers.spawn(async move {
                    let at = format!("the agent of {node}");
                    let text = get(&route.client, &at, &format!("{}/metrics", route.path)).await;
                    (node, text)
                });
            }
            for (node, text) in answers.join_all().await {
                match text {
                    Ok(text) => found.all.extend(read(&node, &text)),
                    Err(error) => found.missing.push(format!("{node}: {error}")),
                }
            }
        }
        found.missing.sort();
        let key = |one: &ContainerUsage| {
            let place = (one.node.clone(), one.gpu.clone());
            (
                place,
                one.namespace.clone(),
                one.pod.clone(),
                one.container.clone(),
            )
        };
        found.all.sort_by_key(key);
        found
    }

    /// The address that the command line gives for this node's agent.
    fn direct(&self, node: &NodeName) -> Option<AgentRoute> {
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
    ) -> Result<Vec<(NodeName, PodRoute)>, LiveError> {
        let namespace = match &self.agent_namespace {
            Some(namespace) => namespace.clone(),
            None => access.schedulers(client).await?.0,
        };
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let list = pods.list(&ListParams::default().labels(AGENTS)).await;
        let list = list.map_err(|source| LiveError::List {
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

/// The clients in an agent's metrics.
fn read(node: &NodeName, metrics: &str) -> Vec<ContainerUsage> {
    type Key = [String; 4];
    let mut found: BTreeMap<Key, MpsUsage> = BTreeMap::new();
    for sample in samples(metrics) {
        let label = |name: &str| sample.label(name);
        let key = ["gpu", "namespace", "pod", "container"].map(label);
        let (Some(key), Ok(value)) = (all(key), sample.value.parse()) else {
            continue;
        };
        match sample.name {
            CLIENTS => found.entry(key).or_default().clients = value,
            BYTES => found.entry(key).or_default().bytes = value,
            _ => {}
        }
    }
    let measured = |([gpu, namespace, pod, container], usage): (Key, MpsUsage)| ContainerUsage {
        node: node.clone(),
        gpu: gpu.as_str().into(),
        namespace,
        pod,
        container,
        usage,
    };
    found.into_iter().map(measured).collect()
}

fn all(key: [Option<String>; 4]) -> Option<[String; 4]> {
    let [a, b, c, d] = key;
    Some([a?, b?, c?, d?])
}

impl MpsUsage {
    fn plus(self, other: Self) -> Self {
        Self {
            clients: self.clients + other.clients,
            bytes: self.bytes + other.bytes,
        }
    }

    fn cells(self) -> [String; 2] {
        [self.clients.to_string(), (self.bytes >> 20).to_string()]
    }
}

/// Sums by node and device.
pub fn by_gpu(all: &[ContainerUsage]) -> BTreeMap<(NodeName, GpuUuid), MpsUsage> {
    let mut sums: BTreeMap<_, MpsUsage> = BTreeMap::new();
    for one in all {
        let sum = sums.entry((one.node.clone(), one.gpu.clone()));
        let sum = sum.or_default();
        *sum = sum.plus(one.usage);
    }
    sums
}

/// Adds to each pod what its clients use.
pub fn add_to_pods(pods: &mut [PodTop], all: &[ContainerUsage]) {
    for pod in pods {
        let name = (&pod.namespace, &pod.name);
        let own = all.iter().filter(|one| (&one.namespace, &one.pod) == name);
        for one in own {
            let sum = pod.mps.entry(one.gpu.clone()).or_default();
            *sum = sum.plus(one.usage);
        }
    }
}

/// A line for each device with clients; empty where there are none.
pub fn gpus(all: &[ContainerUsage]) -> String {
    let rows = by_gpu(all).into_iter().map(|((node, gpu), usage)| {
        let place = vec![node.to_string(), gpu.to_string()];
        [place, usage.cells().to_vec()].concat()
    });
    table(
        &["NODE", "UUID", "MPS CLIENTS", "HOLD MIB"],
        &rows.collect::<Vec<_>>(),
    )
}

/// A line for each pod with clients and each of its devices.
pub fn pods(pods: &[PodTop]) -> String {
    let rows = pods.iter().flat_map(|pod| {
        pod.mps.iter().map(|(gpu, usage)| {
            let place = vec![pod.namespace.clone(), pod.name.clone(), gpu.to_string()];
            [place, usage.cells().to_vec()].concat()
        })
    });
    table(
        &["NAMESPACE", "POD", "GPU", "MPS CLIENTS", "HOLD MIB"],
        &rows.collect::<Vec<_>>(),
    )
}

fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    match rows {
        [] => String::new(),
        some => format!("\n{}", aligned(head, some)),
    }
}

#[cfg(test)]
#[path = "mps_usage_tests.rs"]
mod tests;
