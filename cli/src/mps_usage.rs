//! MPS clients and the memory that they use, from `GET /metrics` of the agent of each node with a
//! device in mode mps, through the API server's proxy or at a URL. A node that does not answer is
//! reported, never shown as a node without clients.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::Mode;
use aliquot_core::top::NodeTop;
use aliquot_core::{GpuUuid, NodeName};
use serde::Serialize;

use crate::access::Access;
use crate::agents::Agents;
use crate::metrics::samples;

const CLIENTS: &str = "aliquot_device_plugin_mps_clients";
const BYTES: &str = "aliquot_device_plugin_mps_used_bytes";

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

/// Asks the agents of these nodes.
pub async fn measure(agents: &Agents, access: &Access, nodes: &BTreeSet<NodeName>) -> Measurements {
    let mut found = Measurements::default();
    if nodes.is_empty() {
        return found;
    }
    let asked = agents.ask(access, nodes, "the agent", "/metrics").await;
    for (node, page) in &asked.texts {
        found.all.extend(read(node, page));
    }
    let missing = asked.missing.iter();
    found.missing = missing
        .map(|(node, why)| format!("{node}: {why}"))
        .collect();
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
    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            clients: self.clients + other.clients,
            bytes: self.bytes + other.bytes,
        }
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

#[cfg(test)]
#[path = "mps_usage_tests.rs"]
mod tests;
