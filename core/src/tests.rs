//! Tests that span modules, with builders for their values.

mod arrivals;
mod codec;
mod decide;
mod explain;
mod fit;
mod fragmentation;
mod hami;
mod mig;
mod modes;
mod preemption;
mod replicas;
mod resize;
mod scale_up;
mod scarcity;
mod typical;
mod unmanaged;

use std::sync::Arc;

use crate::decide::{Memo, NodeQuery, best, refusal_text};
use crate::inventory::{Gpu, Inventory};
use crate::ledger::{NotReserved, PodEntry};
use crate::node::NodePublication;
use crate::preemption::{CandidateNode, Occupant, OccupantState};
use crate::quota::{Limit, LimitValue, LimitedResource, Quota};
use crate::request::{GpuRequest, Memory};
use crate::score::Policies;
use crate::units::{Mib, Percent};
use crate::usage::{AllocatedUse, DeviceUse};
use crate::{Allocation, Cluster, ContainerDemand, Demand, Ledger, PodUid, Replicas, Stage};

pub(crate) fn gpu(index: u32, memory: u64, replicas: u32) -> Gpu {
    let uuid = format!("GPU-{index}").into();
    let model = "NVIDIA A100-SXM4-80GB".to_owned();
    Gpu {
        replicas,
        numa: Some(0),
        ..Gpu::vgpu(uuid, index, model, Mib(memory))
    }
}

pub(crate) fn inventory(gpus: Vec<Gpu>) -> Inventory {
    Inventory {
        driver: "580.82".to_owned(),
        topology_policy: "none".to_owned(),
        ..Inventory::new(gpus)
    }
}

pub(crate) fn request(count: u32, memory: u64, cores: u32) -> GpuRequest {
    GpuRequest::new(count, Memory::Mib(Mib(memory)), Percent(cores))
}

pub(crate) fn demand(containers: &[(Stage, Option<GpuRequest>)]) -> Demand {
    Demand {
        namespace: "d".into(),
        resources: vec!["nvidia.com/gpu".into()],
        containers: containers
            .iter()
            .enumerate()
            .map(|(number, (stage, request))| ContainerDemand {
                name: format!("c{number}"),
                stage: *stage,
                requests: request.iter().copied().collect(),
            })
            .collect(),
        host: crate::HostResources::default(),
        priority: 1,
        node_policy: None,
        gpu_policy: None,
        rules: crate::DeviceRules::default(),
    }
}

/// A pod with one container that asks for this.
pub(crate) fn app(count: u32, memory: u64, cores: u32) -> Demand {
    demand(&[(Stage::App, Some(request(count, memory, cores)))])
}

pub(crate) fn publication(inventory: Inventory) -> NodePublication {
    NodePublication {
        inventory: Some(Arc::new(inventory)),
        ..NodePublication::default()
    }
}

pub(crate) fn published(gpus: Vec<Gpu>) -> NodePublication {
    publication(inventory(gpus))
}

/// A ledger of one node, `n`.
pub(crate) fn ledger(gpus: Vec<Gpu>) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.publish(&"n".into(), Some(published(gpus)));
    ledger
}

/// Reserves for a pod of namespace `team`.
pub(crate) fn reserve(
    ledger: &mut Ledger,
    pod: &str,
    node: &str,
    demand: &Demand,
) -> Result<Allocation, NotReserved> {
    let policies = Policies::default();
    ledger.reserve(&pod.into(), &"team".into(), &node.into(), demand, &policies)
}

/// What a recorded plan assumes on a node.
pub(crate) fn planned(
    node: &str,
    taken: (AllocatedUse, Replicas),
    victims: Vec<PodUid>,
) -> PodEntry {
    PodEntry::planned(node.into(), "team".into(), taken, (victims, true))
}

/// A quota of memory alone.
pub(crate) fn memory_quota(most: u64) -> Quota {
    Quota {
        name: "q".into(),
        limits: vec![Limit {
            on: LimitedResource::Memory,
            key: "limits.nvidia.com/gpumem".into(),
            most: LimitValue::Number(most),
            counted: None,
        }],
    }
}

pub(crate) fn query<'a>(
    cluster: &'a Cluster,
    demand: &'a Demand,
    policies: &'a Policies,
) -> NodeQuery<'a> {
    NodeQuery {
        cluster,
        demand,
        policies,
        without_own: None,
        headroom: None,
    }
}

/// At most so many of the nodes that fit, the best one first, or why none does.
pub(crate) fn answer(
    query: &NodeQuery<'_>,
    memo: &mut Memo,
    names: &[&str],
    most: usize,
) -> String {
    match best(query, memo, names, most) {
        Ok(fits) => fits.join(" "),
        Err(refusal) => refusal_text(names.len(), &refusal),
    }
}

/// Known to use this of one device.
pub(crate) fn uses(key: &str, memory: u64, cores: u32) -> AllocatedUse {
    let used = DeviceUse::new(Mib(memory), Percent(cores));
    AllocatedUse::Known([(key.into(), used)].into())
}

/// A node whose pods, of priority 0, use these devices.
pub(crate) fn candidate(gpus: Vec<Gpu>, pods: &[(&str, &str)]) -> CandidateNode {
    let occupant = |(name, key): &(&str, &str)| Occupant {
        uid: (*name).into(),
        allocated: uses(key, 1, 1),
        replicas: Replicas::default(),
        priority: 0,
        started: 0,
        budgets: vec![],
        state: OccupantState::Running,
    };
    CandidateNode {
        name: "n".into(),
        published: published(gpus),
        requested: crate::Requests::default(),
        occupants: pods.iter().map(occupant).collect(),
    }
}
