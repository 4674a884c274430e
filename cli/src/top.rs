//! `top`: the capacity of nodes and GPUs, what is allocated, and what is free, by the scheduler's answer or
//! computed from inventories and allocations; and the pods with an allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write as _};

use aliquot_core::inventory::Mode;
use aliquot_core::top::{DeviceAmount, GpuTop, NodeTop, TopAnswer};
use aliquot_core::usage::DeviceUses;
use aliquot_core::{Defaults, GpuUuid, Mib, NodeName, Percent};
use aliquot_k8s::pod;
use anyhow::Result;
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use serde_json::json;

use crate::access::{Access, AccessError};
use crate::agents::Agents;
use crate::components::name;
use crate::mps_usage::{self, ContainerUsage, MpsUsage};
use crate::output::Output;
use crate::snapshot::{ledger, settings, unreadable, without_control};
use crate::table::{aligned, counted, dash};

/// The flags of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// What to list
    #[arg(value_enum, default_value = "nodes")]
    pub of: Of,
    /// Output format; wide adds how devices are shared, why they are closed, and resources
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
    /// How to reach the agents
    #[command(flatten)]
    pub agents: Agents,
}

/// What `top` has a line for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Of {
    /// Nodes
    Nodes,
    /// GPUs and MIG instances
    Gpus,
    /// Pods with an allocation
    Pods,
}

impl Top {
    /// What the command prints. `note` gets what is missing in it: which nodes and why.
    pub async fn run(&self, note: impl Fn(&str)) -> Result<String> {
        if self.of == Of::Pods {
            let (nodes, pods) = self.access.snapshot().await?;
            let mut pods = pods_with_allocations(&pods);
            let found = self.mps(&mps_usage::nodes_among(&nodes), note).await;
            add_to_pods(&mut pods, &found);
            let tables = |_| format!("{}{}", self::pods(&pods), mps_by_pod(&pods));
            return Ok(self.output.text(&pods, tables)?);
        }
        let (answer, unasked) = self.answer().await?;
        if let Some(error) = unasked {
            note(&error.to_string());
            note(
                "computed from the nodes' inventories and the pods' allocations, without pods that are being bound",
            );
        }
        let mut value = serde_json::to_value(&answer)?;
        let mut found = Vec::new();
        if self.of == Of::Gpus {
            found = self.mps(&mps_usage::nodes_of(&answer.nodes), note).await;
            value["mps"] = json!(found);
        }
        let tables = |wide| match self.of {
            Of::Gpus => {
                let devices = gpus(&answer.nodes, answer.default_cores, wide);
                devices + &mps_by_gpu(&found)
            }
            Of::Nodes | Of::Pods => nodes(&answer.nodes, wide),
        };
        Ok(self.output.text(&value, tables)?)
    }

    /// All nodes; and the error, if the scheduler could not be reached.
    async fn answer(&self) -> Result<(TopAnswer, Option<AccessError>), AccessError> {
        match self.access.ask("/top").await {
            Ok(answer) => Ok((answer, None)),
            Err(error) if self.access.server.is_some() => Err(error),
            Err(error) => {
                let (nodes, pods) = self.access.snapshot().await?;
                Ok((top_of(&nodes, &pods), Some(error)))
            }
        }
    }

    /// What the MPS clients on these nodes use.
    async fn mps(&self, nodes: &BTreeSet<NodeName>, note: impl Fn(&str)) -> Vec<ContainerUsage> {
        let found = mps_usage::measure(&self.agents, &self.access, nodes).await;
        for missing in &found.missing {
            note(&format!("MPS usage is unknown for node {missing}"));
        }
        found.all
    }
}

/// All nodes, by inventories and allocations; pods that are being bound are missing.
pub fn top_of(nodes: &[Node], pods: &[Pod]) -> TopAnswer {
    let ledger = ledger(nodes, pods, &settings(pods));
    let default_cores = Defaults::default().cores;
    let lines = ledger.cluster().iter();
    let lines = lines.filter_map(|(_, name, node)| {
        let mut top = NodeTop::of(name, node, default_cores)?;
        top.unreadable = unreadable(&ledger, name, pods);
        Some(top)
    });
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
    /// Its containers without limits (`CUDA_DISABLE_CONTROL`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncontrolled: Vec<String>,
    /// Its MPS clients by device, where they were measured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mps: BTreeMap<GpuUuid, MpsUsage>,
}

/// The pods with an allocation, by namespace and name.
pub fn pods_with_allocations(pods: &[Pod]) -> Vec<PodTop> {
    let alive = pods.iter().filter(|pod| !pod::is_finished(pod));
    let settings = settings(pods);
    let without_control = without_control(pods);
    let line = |object: &Pod| {
        let prefix = format!("{}/{} ", pod::namespace(object), name(object));
        let uncontrolled = without_control.iter();
        let uncontrolled = uncontrolled.filter_map(|one| one.strip_prefix(&prefix));
        let (node, allocated) = pod::allocated(object, &settings)?;
        let amounts = |uses: &DeviceUses| {
            let uses = uses.iter();
            uses.map(|(gpu, used)| (gpu.clone(), (*used).into()))
                .collect()
        };
        let gpus = allocated.uses().map(amounts);
        Some(PodTop {
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
            node,
            gpus,
            uncontrolled: uncontrolled.map(str::to_owned).collect(),
            mps: BTreeMap::new(),
        })
    };
    let mut lines: Vec<PodTop> = alive.filter_map(line).collect();
    lines.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    lines
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

fn part(used: impl Display, total: impl Display) -> String {
    format!("{used}/{total}")
}

fn most(memory: Option<Mib>) -> String {
    memory.map_or_else(dash, |memory| memory.0.to_string())
}

/// A line for each node; `wide` adds how its devices are shared, and why the node or devices are closed.
pub fn nodes(nodes: &[NodeTop], wide: bool) -> String {
    let row = |node: &NodeTop| {
        let sum = |of: fn(&GpuTop) -> DeviceAmount| {
            let amounts = node.gpus.iter().map(of);
            amounts.fold(DeviceAmount::default(), DeviceAmount::plus)
        };
        let (used, total) = (sum(|gpu| gpu.used), sum(|gpu| gpu.total));
        let closed = |gpu: &&GpuTop| gpu.closed.is_some();
        let mut row = vec![
            node.node.to_string(),
            node.gpus.len().to_string(),
            node.gpus.iter().filter(closed).count().to_string(),
            part(used.replicas, total.replicas),
            part(used.memory.0, total.memory.0),
            part(used.cores.0, total.cores.0),
            most(node.gpus.iter().filter_map(|gpu| gpu.largest).max()),
        ];
        if wide {
            // The devices of a closed node have its reason.
            let own = node.closed.iter().filter(|_| node.gpus.is_empty());
            let why = node.gpus.iter().filter_map(|gpu| gpu.closed.as_ref());
            let why = own.chain(why).cloned();
            row.push(each(node.gpus.iter().map(|gpu| gpu.model.clone())));
            row.push(each(node.gpus.iter().map(name_of_mode)));
            row.push(each(why));
        }
        row
    };
    let mut columns = vec![
        "NODE",
        "GPUS",
        "CLOSED",
        "SHARES",
        "MIB",
        "CORES",
        "LARGEST MIB",
    ];
    if wide {
        columns.extend(["MODELS", "MODES", "WHY CLOSED"]);
    }
    let table = aligned(&columns, &nodes.iter().map(row).collect::<Vec<_>>());
    table + &notes(nodes)
}

/// A line for each node that a pod's unreadable allocation closes, and for each where the driver does
/// not report the memory of processes.
fn notes(nodes: &[NodeTop]) -> String {
    let mut text = String::new();
    for node in nodes.iter().filter(|node| !node.unreadable.is_empty()) {
        let (name, pods) = (&node.node, node.unreadable.join(", "));
        let _ = writeln!(
            text,
            "{name} counts as full: the allocation of {pods} cannot be read; delete the pod"
        );
    }
    for node in nodes.iter().filter(|node| !node.unmeasured.is_empty()) {
        let uuids: Vec<&str> = node.unmeasured.iter().map(GpuUuid::as_str).collect();
        let (name, uuids) = (&node.node, uuids.join(", "));
        let _ = writeln!(
            text,
            "{name}: the driver does not report the memory of processes on {uuids}; the limiter enforces limits, but the host charges nothing beyond its count, and kills nobody"
        );
    }
    text
}

/// Each text once, with its count.
fn each(texts: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    if counts.is_empty() {
        return dash();
    }
    let texts = counts.iter().map(|(text, count)| format!("{count} {text}"));
    texts.collect::<Vec<_>>().join(", ")
}

fn name_of_mode(gpu: &GpuTop) -> String {
    let mode = serde_json::to_value(gpu.mode).unwrap_or_default();
    mode.as_str().unwrap_or("unknown").to_owned()
}

/// How a device is shared, and its MIG instances, idle ones in brackets.
fn mode(gpu: &GpuTop) -> String {
    let mut text = name_of_mode(gpu);
    for one in &gpu.instances {
        let name = format!("{}@{}", one.profile, one.start);
        let is_idle = !one.allocated && gpu.mode == Mode::Mig;
        let _ = if is_idle {
            write!(text, " [{name}]")
        } else {
            write!(text, " {name}")
        };
    }
    text
}

/// A line for each device; `wide` adds its UUID, memory that outlives its pods, the largest request
/// that fits with the default cores, and the resource of its replicas.
pub fn gpus(nodes: &[NodeTop], default_cores: Percent, wide: bool) -> String {
    let with = format!("WITH {}", counted(default_cores.0, "CORE", "CORES"));
    let row = |node: &NodeTop, gpu: &GpuTop| {
        let mut row = vec![
            node.node.to_string(),
            gpu.index.to_string(),
            gpu.model.clone(),
            mode(gpu),
            gpu.pods.to_string(),
            part(gpu.used.replicas, gpu.total.replicas),
            part(gpu.used.memory.0, gpu.total.memory.0),
            part(gpu.used.cores.0, gpu.total.cores.0),
            most(gpu.largest),
            gpu.closed.clone().unwrap_or_else(|| "ok".to_owned()),
        ];
        if wide {
            row.extend([
                gpu.gpu.to_string(),
                gpu.lingering.memory.0.to_string(),
                most(gpu.largest_with_default_cores),
                match &*gpu.resource {
                    "" => dash(),
                    resource => resource.to_owned(),
                },
            ]);
        }
        row
    };
    let rows = nodes
        .iter()
        .flat_map(|n| n.gpus.iter().map(|gpu| row(n, gpu)));
    let mut columns = vec![
        "NODE",
        "GPU",
        "MODEL",
        "MODE",
        "PODS",
        "SHARES",
        "MIB",
        "CORES",
        "LARGEST MIB",
        "STATE",
    ];
    if wide {
        columns.extend(["UUID", "LINGERING MIB", &with, "RESOURCE"]);
    }
    aligned(&columns, &rows.collect::<Vec<_>>()) + &notes(nodes)
}

/// A line for each device of a pod.
pub fn pods(pods: &[PodTop]) -> String {
    let rows = pods.iter().flat_map(|pod| {
        let line = |gpu: String, amount: Option<&DeviceAmount>| {
            let cell = |of: fn(&DeviceAmount) -> String| amount.map_or_else(dash, of);
            vec![
                pod.namespace.clone(),
                pod.name.clone(),
                pod.node.to_string(),
                gpu,
                cell(|amount| amount.replicas.to_string()),
                cell(|amount| amount.memory.0.to_string()),
                cell(|amount| amount.cores.0.to_string()),
            ]
        };
        match &pod.gpus {
            None => vec![line("unreadable".to_owned(), None)],
            Some(gpus) => gpus
                .iter()
                .map(|(gpu, a)| line(gpu.to_string(), Some(a)))
                .collect(),
        }
    });
    let columns = ["NAMESPACE", "POD", "NODE", "GPU", "SHARES", "MIB", "CORES"];
    let mut text = aligned(&columns, &rows.collect::<Vec<_>>());
    for pod in pods {
        for container in &pod.uncontrolled {
            let _ = writeln!(
                text,
                "{}/{}: container {container} has no limits (CUDA_DISABLE_CONTROL)",
                pod.namespace, pod.name
            );
        }
    }
    text
}

/// A line for each device with clients; empty where there are none.
pub fn mps_by_gpu(all: &[ContainerUsage]) -> String {
    let rows = mps_usage::by_gpu(all)
        .into_iter()
        .map(|((node, gpu), usage)| {
            let place = vec![node.to_string(), gpu.to_string()];
            [place, mps_cells(usage).to_vec()].concat()
        });
    mps_table(
        &["NODE", "UUID", "MPS CLIENTS", "HOLD MIB"],
        &rows.collect::<Vec<_>>(),
    )
}

/// A line for each pod with clients and each of its devices.
pub fn mps_by_pod(pods: &[PodTop]) -> String {
    let rows = pods.iter().flat_map(|pod| {
        pod.mps.iter().map(|(gpu, usage)| {
            let place = vec![pod.namespace.clone(), pod.name.clone(), gpu.to_string()];
            [place, mps_cells(*usage).to_vec()].concat()
        })
    });
    mps_table(
        &["NAMESPACE", "POD", "GPU", "MPS CLIENTS", "HOLD MIB"],
        &rows.collect::<Vec<_>>(),
    )
}

fn mps_cells(usage: MpsUsage) -> [String; 2] {
    [usage.clients.to_string(), (usage.bytes >> 20).to_string()]
}

fn mps_table(head: &[&str], rows: &[Vec<String>]) -> String {
    match rows {
        [] => String::new(),
        some => format!("\n{}", aligned(head, some)),
    }
}
