//! `top`: the capacity of nodes and GPUs, what is allocated, and what is free, by the scheduler's answer or
//! computed from inventories and allocations; the pods with an allocation; and what is used, by the nodes'
//! monitors.

pub mod tables;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::measured::Used;
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::top::{DeviceAmount, NodeTop, TopAnswer};
use aliquot_core::{GpuUuid, Mib, NodeName};
use aliquot_k8s::pod;
use aliquot_k8s::view::PodView;
use anyhow::Result;
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde::Serialize;
use serde_json::json;

use crate::access::{Access, AccessError, all_pods, pods_of};
use crate::agents::{MONITOR, parse_address};
use crate::output::{Output, with_causes};
use crate::snapshot::{ledger, settings, unreadable};
use crate::usage::Usage;

/// The flags of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// What to list
    #[arg(value_enum, default_value = "nodes")]
    pub of: Of,
    /// Output format; wide adds how devices are shared, why they are closed, processes and resources
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Namespace of the pods; defaults to that of the context
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// The pods of all namespaces, whatever --namespace names
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Order of the rows of tables: by name, or the largest first
    #[arg(long, value_enum, default_value = "name")]
    pub sort_by: SortBy,
    /// Show only what is allocated; ask no monitor
    #[arg(long)]
    pub no_usage: bool,
    #[command(flatten)]
    pub access: Access,
    /// Ask the monitor of a node at this address instead of through the API server; repeatable, or
    /// separated by commas in the variable `ALIQUOT_MONITORS`
    #[arg(
        long = "monitor",
        value_name = "NODE=URL",
        value_parser = parse_address,
        value_delimiter = ',',
        env = "ALIQUOT_MONITORS"
    )]
    pub monitors: Vec<(NodeName, http::Uri)>,
}

/// By what the rows of a table are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// Node, GPU, or namespace and pod
    #[default]
    Name,
    /// Allocated memory
    Allocated,
    /// Used memory
    Memory,
    /// Used compute
    Sm,
    /// Throttling
    Throttled,
}

/// What `top` has a line for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Of {
    /// Nodes
    #[value(aliases = ["node", "no"])]
    Nodes,
    /// GPUs and MIG instances
    #[value(alias = "gpu")]
    Gpus,
    /// Pods with an allocation
    #[value(aliases = ["pod", "po"])]
    Pods,
}

impl Top {
    /// Which of the flags do not go together.
    pub fn conflict(&self) -> Option<&'static str> {
        if self.of != Of::Pods && (self.namespace.is_some() || self.all_namespaces) {
            return Some(
                "nodes and GPUs have no namespace; expected: --namespace and --all-namespaces with top pods only",
            );
        }
        None
    }

    /// What the command prints: what is allocated and used now. `note` gets what is missing in it: which nodes
    /// and why.
    pub async fn run(&self, note: &impl Fn(&str)) -> Result<String> {
        if self.of == Of::Pods {
            return self.pods(note).await;
        }
        let answer = self.answer(note).await?;
        let nodes = answer.nodes.iter().filter(|node| !node.gpus.is_empty());
        let with_gpus = nodes.map(|node| node.node.clone()).collect();
        let usage = self.usage(&with_gpus).await;
        let mut value = serde_json::to_value(&answer)?;
        value["usage"] = json!(usage);
        let tables = |wide| {
            let rows = match self.of {
                Of::Gpus => tables::gpus(&answer, &usage, self.sort_by, wide),
                Of::Nodes | Of::Pods => tables::nodes(&answer.nodes, &usage, self.sort_by, wide),
            };
            rows + &usage.notes()
        };
        Ok(self.output.text(&value, tables)?)
    }

    /// The pods of the namespace, or of all.
    async fn pods(&self, note: &impl Fn(&str)) -> Result<String> {
        let client = self.access.client().await?;
        let namespace = if self.all_namespaces {
            None
        } else {
            Some(self.access.namespace(self.namespace.as_deref()).await?)
        };
        let pods: Vec<Pod> = match &namespace {
            None => all_pods(&client).await?,
            Some(one) => pods_of(&Api::namespaced(client.clone(), one)).await?,
        };
        let (_, schedulers) = self.access.schedulers(&client).await?;
        let mut pods = pods_with_allocations(&pods, &settings(&schedulers));
        if pods.is_empty() && matches!(self.output, Output::Table | Output::Wide) {
            // As kubectl does, instead of a table without rows.
            note(&match &namespace {
                None => "No pods with a share found".to_owned(),
                Some(one) => format!("No pods with a share found in namespace {one}"),
            });
            return Ok(String::new());
        }
        let answer = self.answer(note).await?;
        let devices = Devices::new(&answer.nodes);
        let on = pods.iter().map(|pod| pod.node.clone()).collect();
        let usage = self.usage(&on).await;
        add_usage(&mut pods, &usage, &devices);
        let tables = |wide| {
            let columns = tables::PodColumns {
                namespace: namespace.is_none(),
                wide,
            };
            tables::pods(&pods, &devices, self.sort_by, columns) + &usage.notes()
        };
        Ok(self.output.text(&pods, tables)?)
    }

    /// All nodes. If the scheduler could not be reached, `note` gets the error.
    async fn answer(&self, note: &impl Fn(&str)) -> Result<TopAnswer, AccessError> {
        match self.access.ask("/top").await {
            Ok(answer) => Ok(answer),
            Err(error) if self.access.scheduler.is_some() => Err(error),
            Err(error) => {
                // Also where nodes and pods cannot be read either: then this is what to mend.
                note(&with_causes(&error));
                let (nodes, pods) = self.access.snapshot().await?;
                note(
                    "computed from the nodes' inventories and the pods' allocations, without pods that are being bound",
                );
                Ok(top_of(&nodes, &pods))
            }
        }
    }

    /// What the monitors of these nodes measure.
    async fn usage(&self, nodes: &BTreeSet<NodeName>) -> Usage {
        if self.no_usage || nodes.is_empty() {
            return Usage::default();
        }
        let answers = MONITOR.ask(&self.access, &self.monitors, nodes, "/usage");
        Usage::read(answers.await)
    }
}

/// All nodes, by inventories and allocations; pods that are being bound are missing.
pub fn top_of(nodes: &[Node], pods: &[Pod]) -> TopAnswer {
    let settings = settings(pods);
    let ledger = ledger(nodes, pods, &settings);
    let default_cores = settings.defaults.cores;
    let unreadable = unreadable(&ledger, pods);
    let states = ledger.cluster().iter();
    let lines = states.filter_map(|(_, name, node)| {
        let mut top = NodeTop::new(name, node, default_cores)?;
        top.unreadable = unreadable.get(name).cloned().unwrap_or_default();
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodTop {
    pub namespace: String,
    pub name: String,
    pub node: NodeName,
    /// Its allocation by device; `null` when the annotation cannot be read.
    pub gpus: Option<BTreeMap<GpuUuid, DeviceAmount>>,
    /// The most memory in MiB that it may use, by device, where that is more than its allocation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<GpuUuid, Mib>,
    /// The controller that created it, such as `Job/train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What it uses of each device, where it was measured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub usage: BTreeMap<GpuUuid, Used>,
}

/// The pods with an allocation, by namespace and name.
pub fn pods_with_allocations(pods: &[Pod], settings: &pod::Settings) -> Vec<PodTop> {
    let alive = pods.iter().filter(|pod| !pod::is_finished(pod));
    let line = |object: &Pod| {
        let view = PodView::from(object);
        let (node, allocated) = pod::allocated(&view, settings)?;
        Some(PodTop {
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
            node,
            gpus: DeviceAmount::of_each(&allocated),
            limits: pod::memory_limits(&view),
            owner: owner(object),
            usage: BTreeMap::new(),
        })
    };
    let mut lines: Vec<PodTop> = alive.filter_map(line).collect();
    lines.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    lines
}

/// The pod's controller as `Kind/name`; for a pod of a Deployment, the Deployment.
fn owner(object: &Pod) -> Option<String> {
    let owners = object.metadata.owner_references.iter().flatten();
    let controller = owners
        .into_iter()
        .find(|one| one.controller == Some(true))?;
    let labels = object.metadata.labels.as_ref();
    let hash = labels.and_then(|labels| labels.get("pod-template-hash"));
    let deployment = hash.and_then(|hash| {
        let name = controller.name.strip_suffix(hash.as_str())?;
        name.strip_suffix('-')
    });
    Some(match deployment {
        Some(name) if controller.kind == "ReplicaSet" => format!("Deployment/{name}"),
        _ => format!("{}/{}", controller.kind, controller.name),
    })
}

#[derive(Clone, Debug, Default)]
pub struct Devices {
    indexes: BTreeMap<GpuUuid, u32>,
    /// The UUIDs of the instances that exist on GPUs under dynamic MIG, by the keys of allocations.
    instances: BTreeMap<GpuUuid, GpuUuid>,
}

impl Devices {
    pub fn new(nodes: &[NodeTop]) -> Self {
        let mut devices = Self::default();
        for gpu in nodes.iter().flat_map(|node| &node.gpus) {
            devices.indexes.insert(gpu.gpu.clone(), gpu.index);
            for one in &gpu.instances {
                let placement = MigPlacement {
                    profile: one.profile.clone(),
                    start: one.start,
                };
                if let Some(uuid) = &one.uuid {
                    let key = placement.device_key(&gpu.gpu);
                    devices.instances.insert(key, uuid.clone());
                }
            }
        }
        devices
    }

    /// The UUID by which a monitor knows the device of an allocation.
    fn uuid<'a>(&'a self, device: &'a GpuUuid) -> &'a GpuUuid {
        self.instances.get(device).unwrap_or(device)
    }

    /// The index of its GPU, and the instance on it; the UUID where no inventory has it.
    fn place(&self, device: &GpuUuid) -> String {
        let (uuid, placed) = MigPlacement::split_device_key(device);
        let index = self.indexes.get(&GpuUuid::from(uuid));
        let gpu = index.map_or_else(|| uuid.to_owned(), u32::to_string);
        match placed {
            Some(one) => format!("{gpu} {}@{}", one.profile, one.start),
            None => gpu,
        }
    }
}

/// Adds to each pod what it uses of its devices.
pub fn add_usage(pods: &mut [PodTop], usage: &Usage, devices: &Devices) {
    for pod in pods {
        let gpus = pod.gpus.iter().flat_map(BTreeMap::keys);
        let used = gpus.filter_map(|gpu| {
            let name = (&*pod.namespace, &*pod.name);
            let used = usage.of_pod(&pod.node, name, devices.uuid(gpu))?;
            Some((gpu.clone(), used))
        });
        pod.usage = used.collect();
    }
}
