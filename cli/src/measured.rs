//! What the clients of MPS hold, as the agents of their nodes measure it: `GET /metrics` of each
//! node that has a unit in mode mps, through the API server as a proxy, or at a URL.
//!
//! Fed by: the flags of `top`. Must not: call a node without an answer one without clients.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::Mode;
use aliquot_core::top::NodeTop;
use aliquot_core::{GpuUuid, Inventory, NodeName};
use aliquot_k8s::{node, pod};
use clap::Args;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Config};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::live::{Access, LiveError, PodTop, get, make};
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
    /// Namespace of the agents' pods; that of the scheduler's when absent
    #[arg(long)]
    pub agent_namespace: Option<String>,
    /// Port of the agents' pods
    #[arg(long, default_value_t = 9394)]
    pub agent_port: u16,
    /// Ask the agent of a node at this address instead of through the API server; once for each
    #[arg(long = "agent", value_name = "NODE=URL", value_parser = at)]
    pub agents: Vec<(NodeName, http::Uri)>,
}

fn at(text: &str) -> Result<(NodeName, http::Uri), String> {
    let parts = text.split_once('=');
    let (node, url) = parts.ok_or("accepted: a node's name, = and a URL")?;
    let url = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    Ok((node.into(), url))
}

/// Clients of MPS, and what they hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Processes.
    pub clients: u64,
    /// Bytes; 0 where the driver does not say.
    pub bytes: u64,
}

/// The clients of one container on one unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Where.
    pub node: NodeName,
    /// The unit.
    pub gpu: GpuUuid,
    /// The container's pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// How many, and how much.
    #[serde(flatten)]
    pub held: Held,
}

/// What was measured, and why not all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// By node, unit, pod and container.
    pub all: Vec<Measured>,
    /// One for each node that did not answer.
    pub missing: Vec<String>,
}

/// The nodes with a unit in mode mps, by the scheduler's answer.
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

/// A client, and the path of an agent's root behind it.
type Way = Result<(kube::Client, String), String>;

impl Agents {
    /// Asks the agents of these nodes.
    pub async fn ask(&self, access: &Access, nodes: &BTreeSet<NodeName>) -> Found {
        let mut found = Found::default();
        if nodes.is_empty() {
            return found;
        }
        let reached = nodes.iter().all(|node| self.direct(node).is_some());
        let mut ways = BTreeMap::new();
        if reached {
            let direct = nodes.iter().filter_map(|node| self.direct(node));
            ways.extend(nodes.iter().cloned().zip(direct));
        } else {
            match access.client().await {
                Ok(client) => ways = self.ways(access, &client, nodes).await,
                Err(error) => {
                    let told = |node| format!("{node}: {error}");
                    found.missing.extend(nodes.iter().map(told));
                }
            }
        }
        let none = |node: &NodeName| {
            format!(
                "{node}: no running pod there has the labels {AGENTS}; --agent-namespace or --agent says where its agent is"
            )
        };
        let missing = nodes.iter().filter(|node| !ways.contains_key(*node));
        if found.missing.is_empty() {
            found.missing.extend(missing.map(none));
        }
        let mut asked = Vec::new();
        for (node, way) in ways {
            match way {
                Ok((client, path)) => asked.push((node, client, path)),
                Err(why) => found.missing.push(format!("{node}: {why}")),
            }
        }
        for some in asked.chunks(AT_ONCE) {
            let mut answers = JoinSet::new();
            for (node, client, path) in some.iter().cloned() {
                answers.spawn(async move {
                    let at = format!("the agent of {node}");
                    let text = get(&client, &at, &format!("{path}/metrics")).await;
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
        let key = |one: &Measured| {
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
    fn direct(&self, node: &NodeName) -> Option<Way> {
        let (_, url) = self.agents.iter().find(|(known, _)| known == node)?;
        let client = make(Config::new(url.clone()));
        let client = client.map_err(|error| error.to_string());
        Some(client.map(|client| (client, String::new())))
    }

    /// How to reach the agents of these nodes, or why not; those without one are left out.
    pub(crate) async fn ways(
        &self,
        access: &Access,
        client: &kube::Client,
        nodes: &BTreeSet<NodeName>,
    ) -> BTreeMap<NodeName, Way> {
        let mut ways: BTreeMap<NodeName, Way> = BTreeMap::new();
        let mut others = BTreeSet::new();
        for node in nodes {
            match self.direct(node) {
                Some(way) => drop(ways.insert(node.clone(), way)),
                None => drop(others.insert(node.clone())),
            }
        }
        if others.is_empty() {
            return ways;
        }
        match self.proxies(access, client, &others).await {
            Ok(known) => {
                let way = |(node, path)| (node, Ok((client.clone(), path)));
                ways.extend(known.into_iter().map(way));
            }
            Err(error) => {
                let why = error.to_string();
                ways.extend(others.into_iter().map(|node| (node, Err(why.clone()))));
            }
        }
        ways
    }

    /// The agents' pods on these nodes, by way of the API server.
    async fn proxies(
        &self,
        access: &Access,
        client: &kube::Client,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<Vec<(NodeName, String)>, LiveError> {
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
        let alive = list.items.iter().filter(|object| !pod::ended(object));
        let agents = alive.filter_map(|object| {
            let node = pod::node(object).filter(|node| nodes.contains(node))?;
            let (name, port) = (object.metadata.name.as_deref()?, self.agent_port);
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy");
            Some((node, path))
        });
        Ok(agents.collect())
    }
}

/// The clients in an agent's metrics.
fn read(node: &NodeName, metrics: &str) -> Vec<Measured> {
    type Key = [String; 4];
    let mut found: BTreeMap<Key, Held> = BTreeMap::new();
    for sample in samples(metrics) {
        let label = |wanted: &str| sample.label(wanted);
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
    let measured = |([gpu, namespace, pod, container], held): (Key, Held)| Measured {
        node: node.clone(),
        gpu: gpu.as_str().into(),
        namespace,
        pod,
        container,
        held,
    };
    found.into_iter().map(measured).collect()
}

fn all(key: [Option<String>; 4]) -> Option<[String; 4]> {
    let [a, b, c, d] = key;
    Some([a?, b?, c?, d?])
}

impl Held {
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

/// Sums by node and unit.
pub fn by_gpu(all: &[Measured]) -> BTreeMap<(NodeName, GpuUuid), Held> {
    let mut sums: BTreeMap<_, Held> = BTreeMap::new();
    for one in all {
        let sum = sums.entry((one.node.clone(), one.gpu.clone()));
        let sum = sum.or_default();
        *sum = sum.plus(one.held);
    }
    sums
}

/// Gives each pod what its clients hold.
pub fn give(pods: &mut [PodTop], all: &[Measured]) {
    for pod in pods {
        let name = (&pod.namespace, &pod.name);
        let own = all.iter().filter(|one| (&one.namespace, &one.pod) == name);
        for one in own {
            let sum = pod.mps.entry(one.gpu.clone()).or_default();
            *sum = sum.plus(one.held);
        }
    }
}

/// A line for each unit with clients; nothing where there are none.
pub fn gpus(all: &[Measured]) -> String {
    let rows = by_gpu(all).into_iter().map(|((node, gpu), held)| {
        let place = vec![node.to_string(), gpu.to_string()];
        [place, held.cells().to_vec()].concat()
    });
    table(
        &["NODE", "UUID", "MPS CLIENTS", "HOLD MIB"],
        &rows.collect::<Vec<_>>(),
    )
}

/// A line for each pod with clients and each of its units.
pub fn pods(pods: &[PodTop]) -> String {
    let rows = pods.iter().flat_map(|pod| {
        pod.mps.iter().map(|(gpu, held)| {
            let place = vec![pod.namespace.clone(), pod.name.clone(), gpu.to_string()];
            [place, held.cells().to_vec()].concat()
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
#[path = "measured_tests.rs"]
mod tests;
