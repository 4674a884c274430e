//! The answers of `GET /explain` and `GET /top`, as types shared by the scheduler, which
//! writes them part by part, and `kubectl-aliquot`, which reads them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::demand::{Demand, Stage};
use crate::explain::NodeAnswer;
use crate::id::{GpuUuid, NodeName, PodUid};
use crate::reason::Refusal;
use crate::request::Memory;
use crate::top::{DeviceAmount, NodeTop};
use crate::units::Percent;

/// The part about the pod itself, before its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodHeader {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: PodUid,
    /// This scheduler replica may bind: it is the one that kube-scheduler asks.
    pub leads: bool,
    /// What its containers ask for; containers without a GPU are left out.
    #[serde(rename = "asks")]
    pub requests: Vec<ContainerRequest>,
    /// Its refusals, if this scheduler replica refused it.
    pub refused: Option<RefusalHistory>,
    /// Where it is allocated; then no node is evaluated.
    #[serde(rename = "booked")]
    pub placement: Option<PodPlacement>,
}

/// What one container asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRequest {
    /// Its name.
    pub container: String,
    /// `app`, `init` or `sidecar`.
    pub stage: String,
    /// The resource; empty in the answer of an older scheduler.
    #[serde(default)]
    pub resource: String,
    /// Number of devices.
    pub count: u32,
    /// Memory of each, with its unit.
    pub memory: String,
    /// Compute of each.
    pub cores: Percent,
}

/// Refusals of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusalHistory {
    /// The number of refusals.
    pub times: u32,
    /// Seconds since the first.
    pub first_seconds_ago: f64,
    /// Seconds since the last.
    pub last_seconds_ago: f64,
    /// The text of the last.
    pub text: String,
}

/// Where a pod is allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPlacement {
    /// The node.
    pub node: NodeName,
    /// The API server confirmed it; otherwise its Binding is under way.
    pub confirmed: bool,
    /// What it uses of each device; `null` if its allocation is unreadable.
    pub gpus: Option<BTreeMap<GpuUuid, DeviceAmount>>,
}

/// The part about all nodes together, after the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeTotals {
    /// Nodes that kube-scheduler offered.
    pub offered: u32,
    /// Those of them that can take the pod now.
    pub fitting: u32,
    /// Why the others cannot, counted.
    pub why: String,
    #[serde(skip)]
    refusal: Refusal,
}

impl NodeTotals {
    /// Adds a node.
    pub fn add(&mut self, node: &NodeAnswer, refusal: Option<&Refusal>) {
        if !node.offered {
            return;
        }
        self.offered += 1;
        match refusal {
            None => self.fitting += 1,
            Some(refusal) => self.refusal.merge(refusal),
        }
        self.why = self.refusal.to_string();
    }
}

/// The whole answer of `GET /explain/<namespace>/<pod>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodAnswer {
    /// The pod.
    #[serde(flatten)]
    pub head: PodHeader,
    /// Every node, by name.
    pub nodes: Vec<NodeAnswer>,
    /// All of them together.
    #[serde(flatten)]
    pub tail: NodeTotals,
}

/// The whole answer of `GET /top`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopAnswer {
    /// The compute of a container that asks for none.
    pub default_cores: Percent,
    /// This scheduler replica may bind.
    pub leads: bool,
    /// Every node with an inventory, by name.
    pub nodes: Vec<NodeTop>,
}

/// What the containers ask for.
pub fn container_requests(demand: &Demand) -> Vec<ContainerRequest> {
    let containers = demand.containers.iter();
    let asking = containers.flat_map(|c| c.requests.iter().map(move |request| (c, request)));
    let line =
        |(container, request): (&crate::ContainerDemand, &crate::GpuRequest)| ContainerRequest {
            container: container.name.clone(),
            stage: match container.stage {
                Stage::App => "app",
                Stage::Init => "init",
                Stage::Sidecar => "sidecar",
            }
            .to_owned(),
            resource: demand.resource(request).to_owned(),
            count: request.count,
            memory: match request.memory {
                Memory::Mib(memory) => memory.to_string(),
                Memory::Share(part) => part.to_string(),
            },
            cores: request.cores,
        };
    asking.map(line).collect()
}
