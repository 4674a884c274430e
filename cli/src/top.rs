//! The tables of `top`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use aliquot_core::inventory::Mode;
use aliquot_core::top::{DeviceAmount, GpuTop, NodeTop};
use aliquot_core::{GpuUuid, Mib, Percent};

use crate::live::PodTop;
use crate::table::{self, aligned, dash};

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
        let held = one.allocated || gpu.mode != Mode::Mig;
        let _ = if held {
            write!(text, " {name}")
        } else {
            write!(text, " [{name}]")
        };
    }
    text
}

/// A line for each device; `wide` adds its UUID, memory that outlives its pods, the largest request
/// that fits with the default cores, and the resource of its replicas.
pub fn gpus(nodes: &[NodeTop], default_cores: Percent, wide: bool) -> String {
    let with = format!("WITH {}", table::counted(default_cores.0, "CORE", "CORES"));
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
            None => vec![line(
                "unreadable: counts as the whole node".to_owned(),
                None,
            )],
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
