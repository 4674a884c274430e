//! The tables of `top`: what is used stands beside what is allocated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write as _};

use aliquot_core::inventory::Mode;
use aliquot_core::measured::{self, GpuUsage, Used};
use aliquot_core::top::{DeviceAmount, GpuTop, NodeTop, TopAnswer};
use aliquot_core::{GpuUuid, Mib, NodeName, Percent};

use super::{Devices, PodTop, SortBy};
use crate::table::{aligned, counted, dash};
use crate::usage::Usage;

/// A row, and what it is sorted by.
struct Row {
    cells: Vec<String>,
    allocated: Mib,
    used: UsedCells,
}

/// What is used of a device or a node; `None` where it is not measured.
#[derive(Clone, Copy, Default)]
struct UsedCells {
    memory: Option<Mib>,
    sm: Option<Percent>,
    /// Percent of the time for a share; for a GPU or a node, how many shares are throttled.
    throttled: Option<u32>,
    processes: Option<u64>,
}

impl UsedCells {
    fn of_share(usage: Used) -> Self {
        Self {
            memory: usage.memory,
            sm: usage.sm,
            throttled: usage.throttled.map(|part| part.0),
            processes: usage.processes,
        }
    }

    /// What is used of a GPU or an instance, if its node answered.
    fn of_gpu(node: &NodeName, gpu: &GpuTop, usage: &Usage) -> Self {
        let Some(used) = usage.gpu(node, &gpu.gpu) else {
            return Self::default();
        };
        let devices = devices(gpu);
        let shares = || usage.on(node, &devices).map(|one| one.used);
        let throttled = shares().filter(|used| used.is_throttled());
        Self {
            memory: used.memory,
            sm: used.sm,
            throttled: u32::try_from(throttled.count()).ok(),
            processes: shares().map(|used| used.processes).sum(),
        }
    }

    /// The sums of memory and of throttled shares over the node's devices, and the mean of their
    /// compute. What is unknown of one device is unknown of the node.
    fn of_node(node: &NodeTop, usage: &Usage) -> Self {
        let gpus = node.gpus.iter();
        let all: Vec<Self> = gpus
            .map(|gpu| Self::of_gpu(&node.node, gpu, usage))
            .collect();
        let Some(count) = u32::try_from(all.len()).ok().filter(|count| *count > 0) else {
            return Self::default();
        };
        let sm: Option<Percent> = all.iter().map(|one| one.sm).sum();
        Self {
            memory: all.iter().map(|one| one.memory).sum(),
            sm: sm.map(|sum| Percent(sum.0 / count)),
            throttled: all.iter().map(|one| one.throttled).sum(),
            processes: all.iter().map(|one| one.processes).sum(),
        }
    }

    fn memory(&self) -> String {
        most(self.memory)
    }

    fn sm(&self) -> String {
        self.sm.map_or_else(dash, |part| part.0.to_string())
    }

    fn throttled(&self, suffix: &str) -> String {
        self.throttled
            .map_or_else(dash, |count| format!("{count}{suffix}"))
    }

    fn processes(&self) -> String {
        self.processes.map_or_else(dash, |count| count.to_string())
    }
}

/// The UUIDs of a GPU and its instances.
fn devices(gpu: &GpuTop) -> BTreeSet<&GpuUuid> {
    let instances = gpu.instances.iter().filter_map(|one| one.uuid.as_ref());
    instances.chain([&gpu.gpu]).collect()
}

/// The largest first; what is unknown last.
fn sorted(mut rows: Vec<Row>, by: SortBy) -> Vec<Vec<String>> {
    let key = |row: &Row| match by {
        SortBy::Name => None,
        SortBy::Allocated => Some(row.allocated.0),
        SortBy::Memory => row.used.memory.map(|memory| memory.0),
        SortBy::Sm => row.used.sm.map(|part| part.0.into()),
        SortBy::Throttled => row.used.throttled.map(u64::from),
    };
    rows.sort_by_key(|row| std::cmp::Reverse(key(row)));
    rows.into_iter().map(|row| row.cells).collect()
}

fn part(used: impl Display, total: impl Display) -> String {
    format!("{used}/{total}")
}

fn most(memory: Option<Mib>) -> String {
    memory.map_or_else(dash, |memory| memory.0.to_string())
}

/// A line for each node; `wide` adds how its devices are shared, and why the node or devices are closed.
pub fn nodes(nodes: &[NodeTop], usage: &Usage, by: SortBy, wide: bool) -> String {
    let row = |node: &NodeTop| {
        let sum = |of: fn(&GpuTop) -> DeviceAmount| {
            let amounts = node.gpus.iter().map(of);
            amounts.fold(DeviceAmount::default(), DeviceAmount::plus)
        };
        let (used, total) = (sum(|gpu| gpu.used), sum(|gpu| gpu.total));
        let closed = |gpu: &&GpuTop| gpu.closed.is_some();
        let beside = UsedCells::of_node(node, usage);
        let mut row = vec![
            node.node.to_string(),
            node.gpus.len().to_string(),
            node.gpus.iter().filter(closed).count().to_string(),
            part(used.replicas, total.replicas),
            part(used.memory.0, total.memory.0),
            beside.memory(),
            part(used.cores.0, total.cores.0),
            beside.sm(),
            beside.throttled(""),
            most(node.gpus.iter().filter_map(|gpu| gpu.largest).max()),
        ];
        if wide {
            // The devices of a closed node have its reason.
            let own = node.closed.iter().filter(|_| node.gpus.is_empty());
            let of_gpus = node.gpus.iter().filter_map(|gpu| gpu.closed.as_ref());
            let why = own.chain(of_gpus).cloned();
            row.push(each(node.gpus.iter().map(|gpu| gpu.model.clone())));
            let modes = node.gpus.iter().map(|gpu| gpu.mode.name().to_owned());
            row.push(each(modes));
            row.push(each(why));
        }
        Row {
            cells: row,
            allocated: used.memory,
            used: beside,
        }
    };
    let mut head = "NODE|GPUS|CLOSED|SHARES|MIB|USED|CORES|SM %|THROTTLED|LARGEST MIB".to_owned();
    if wide {
        head.push_str("|MODELS|MODES|WHY CLOSED");
    }
    let rows = sorted(nodes.iter().map(row).collect(), by);
    aligned(&head, &rows) + &notes(nodes)
}

/// A line for each node that a pod's unreadable allocation closes, for each where the driver does not
/// report the memory of processes, and for each where processes outside every share hold some.
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
    for node in nodes.iter().filter(|node| !node.unmanaged.is_empty()) {
        let held: Vec<String> = node
            .unmanaged
            .iter()
            .map(|(gpu, memory)| format!("{memory} of {gpu}"))
            .collect();
        let (name, held) = (&node.node, held.join(", "));
        let _ = writeln!(text, "{name}: processes outside every share hold {held}");
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

/// How a device is shared, and its MIG instances, idle ones in brackets.
fn mode(gpu: &GpuTop) -> String {
    let mut text = gpu.mode.name().to_owned();
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

/// A line for each device; `wide` adds its pods and their names, their processes, temperature and power, the replicas
/// that the peaks of its containers suggest, its UUID, memory that outlives its pods, the largest request that fits
/// with the default cores, and the resource of its replicas.
pub fn gpus(answer: &TopAnswer, usage: &Usage, by: SortBy, wide: bool) -> String {
    let nodes = &answer.nodes;
    let row = |node: &NodeTop, gpu: &GpuTop| {
        let beside = UsedCells::of_gpu(&node.node, gpu, usage);
        let mut row = vec![
            node.node.to_string(),
            gpu.index.to_string(),
            // All of them are NVIDIA's.
            gpu.model.trim_start_matches("NVIDIA ").to_owned(),
            mode(gpu),
            part(gpu.used.replicas, gpu.total.replicas),
            part(gpu.used.memory.0, gpu.total.memory.0),
            beside.memory(),
            part(gpu.used.cores.0, gpu.total.cores.0),
            beside.sm(),
            beside.throttled(""),
            most(gpu.largest),
            gpu.closed.clone().unwrap_or_else(|| "ok".to_owned()),
        ];
        if wide {
            let heat = usage.gpu(&node.node, &gpu.gpu);
            let figure = |of: fn(&GpuUsage) -> Option<u32>| {
                heat.and_then(of)
                    .map_or_else(dash, |figure| figure.to_string())
            };
            row.extend([
                gpu.pods.to_string(),
                owners(&node.node, gpu, usage),
                beside.processes(),
                figure(|used| used.temperature),
                figure(|used| used.power),
                suggested(&node.node, gpu, usage),
                gpu.gpu.to_string(),
                gpu.orphaned.memory.0.to_string(),
                most(gpu.largest_with_default_cores),
                match &*gpu.resource {
                    "" => dash(),
                    resource => resource.to_owned(),
                },
            ]);
        }
        Row {
            cells: row,
            allocated: gpu.used.memory,
            used: beside,
        }
    };
    let rows = nodes
        .iter()
        .flat_map(|n| n.gpus.iter().map(|gpu| row(n, gpu)));
    let mut head =
        "NODE|GPU|MODEL|MODE|SHARES|MIB|USED|CORES|SM %|THROTTLED|LARGEST MIB|STATE".to_owned();
    if wide {
        let cores = counted(answer.default_cores.0, "CORE", "CORES");
        let _ = write!(
            head,
            "|PODS|OWNERS|PROCESSES|C|W|REPLICAS|UUID|ORPHANED MIB|WITH {cores}|RESOURCE"
        );
    }
    aligned(&head, &sorted(rows.collect(), by)) + &notes(nodes)
}

/// How many replicas of the device its containers' peaks suggest.
fn suggested(node: &NodeName, gpu: &GpuTop, usage: &Usage) -> String {
    let device = [&gpu.gpu].into();
    let peaks = usage.on(node, &device).map(|one| one.peak);
    let replicas = measured::replicas(gpu.total.memory, peaks);
    replicas.map_or_else(dash, |count| count.to_string())
}

/// The pods with a share of the device, by its monitor.
fn owners(node: &NodeName, gpu: &GpuTop, usage: &Usage) -> String {
    let devices = devices(gpu);
    let names: BTreeSet<String> = usage
        .on(node, &devices)
        .map(|one| format!("{}/{}", one.name.namespace, one.name.pod))
        .collect();
    if names.is_empty() {
        return dash();
    }
    names.into_iter().collect::<Vec<_>>().join(",")
}

/// The columns that not every table of pods has.
#[derive(Clone, Copy, Debug)]
pub struct PodColumns {
    pub namespace: bool,
    /// Its processes on the device, and the device's UUID.
    pub wide: bool,
}

/// A line for each device of a pod.
pub fn pods(pods: &[PodTop], devices: &Devices, by: SortBy, shown: PodColumns) -> String {
    let skipped = usize::from(!shown.namespace);
    let rows = pods.iter().flat_map(|pod| {
        let line = |gpu: Option<(&GpuUuid, &DeviceAmount)>| {
            let cell =
                |of: fn(&DeviceAmount) -> String| gpu.map_or_else(dash, |(_, amount)| of(amount));
            let burst = gpu.and_then(|(gpu, _)| pod.limits.get(gpu));
            let limit = burst.map_or_else(String::new, |limit| format!(" ({})", limit.0));
            let memory = cell(|amount| amount.memory.0.to_string()) + &limit;
            let usage = gpu.and_then(|(gpu, _)| pod.usage.get(gpu)).copied();
            let beside = UsedCells::of_share(usage.unwrap_or_default());
            let mut cells = vec![
                pod.namespace.clone(),
                pod.name.clone(),
                pod.node.to_string(),
                gpu.map_or_else(|| "unreadable".to_owned(), |(gpu, _)| devices.place(gpu)),
                cell(|amount| amount.replicas.to_string()),
                memory,
                beside.memory(),
                cell(|amount| amount.cores.0.to_string()),
                beside.sm(),
                beside.throttled(" %"),
                pod.owner.clone().unwrap_or_else(dash),
            ];
            cells.drain(..skipped);
            if shown.wide {
                let uuid = gpu.map(|(gpu, _)| devices.uuid(gpu).to_string());
                cells.extend([beside.processes(), uuid.unwrap_or_else(dash)]);
            }
            Row {
                cells,
                allocated: gpu.map_or(Mib(0), |(_, amount)| amount.memory),
                used: beside,
            }
        };
        match &pod.gpus {
            None => vec![line(None)],
            Some(gpus) => gpus.iter().map(|one| line(Some(one))).collect(),
        }
    });
    let mut head = "POD|NODE|GPU|SHARES|MIB|USED|CORES|SM %|THROTTLED|OWNER".to_owned();
    if shown.namespace {
        head.insert_str(0, "NAMESPACE|");
    }
    if shown.wide {
        head.push_str("|PROCESSES|UUID");
    }
    aligned(&head, &sorted(rows.collect(), by))
}
