//! What `GET /explain` and `GET /top` answer, as types that both ends share.
//!
//! Fed by: the scheduler, which writes the parts one after the other, and
//! `kubectl-aliquot`, which reads the whole.
//! Must not: hold anything that [`crate::explain`] and [`crate::top`] do not say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::demand::{Demand, Stage};
use crate::explain::NodeAnswer;
use crate::id::{GpuUuid, NodeName, PodUid};
use crate::reason::Refusal;
use crate::request::Memory;
use crate::top::{Amount, NodeTop};
use crate::units::Percent;

/// What is said of a pod before its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: PodUid,
    /// This replica may bind: it is the one that kube-scheduler asks.
    pub leads: bool,
    /// What its containers ask for; those that ask for nothing are left out.
    pub asks: Vec<Asked>,
    /// What filter told it last, where it was refused by this replica.
    pub refused: Option<Told>,
    /// Where it is, once it is booked; then no node is judged.
    pub booked: Option<Booked>,
}

/// What one container asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its name.
    pub container: String,
    /// `app`, `init` or `sidecar`.
    pub stage: String,
    /// Under which resource; empty in the answer of an older scheduler.
    #[serde(default)]
    pub resource: String,
    /// On how many cards.
    pub count: u32,
    /// Of each, with its unit.
    pub memory: String,
    /// Of each.
    pub cores: Percent,
}

/// Refusals of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// How often.
    pub times: u32,
    /// Seconds since the first one.
    pub first_seconds_ago: f64,
    /// Seconds since the last one.
    pub last_seconds_ago: f64,
    /// What the last one said.
    pub text: String,
}

/// A booking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booked {
    /// The node.
    pub node: NodeName,
    /// The API server has it; otherwise its Binding is on the way.
    pub confirmed: bool,
    /// What it holds of which card; `null` when its allocation cannot be read.
    pub gpus: Option<BTreeMap<GpuUuid, Amount>>,
}

/// What is said of a pod after its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tail {
    /// Nodes that kube-scheduler offers.
    pub offered: u32,
    /// Those of them that take the pod now.
    pub fitting: u32,
    /// Why the others do not, counted.
    pub why: String,
    #[serde(skip)]
    refusal: Refusal,
}

impl Tail {
    /// One more node.
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
    pub head: Head,
    /// Every node, by name.
    pub nodes: Vec<NodeAnswer>,
    /// All of them together.
    #[serde(flatten)]
    pub tail: Tail,
}

/// The whole answer of `GET /top`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopAnswer {
    /// What a container gets that says no compute.
    pub default_cores: Percent,
    /// This replica may bind.
    pub leads: bool,
    /// Every node with an inventory, by name.
    pub nodes: Vec<NodeTop>,
}

/// What the containers ask for.
pub fn asked(demand: &Demand) -> Vec<Asked> {
    let containers = demand.containers.iter();
    let asking = containers.flat_map(|c| c.asks.iter().map(move |ask| (c, ask)));
    let line = |(container, ask): (&crate::ContainerDemand, &crate::Ask)| Asked {
        container: container.name.clone(),
        stage: match container.stage {
            Stage::App => "app",
            Stage::Init => "init",
            Stage::Sidecar => "sidecar",
        }
        .to_owned(),
        resource: demand.resource(ask).to_owned(),
        count: ask.count,
        memory: match ask.memory {
            Memory::Mib(memory) => memory.to_string(),
            Memory::Share(part) => part.to_string(),
        },
        cores: ask.cores,
    };
    asking.map(line).collect()
}
