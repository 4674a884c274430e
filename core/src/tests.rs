//! Tests that span modules, with builders for their values.

mod arrivals;
mod codec;
mod decide;
mod explain;
mod fit;
mod fragmentation;
mod hami;
mod ledger_machine;
mod mig;
mod modes;
mod preemption;
mod replicas;
mod resize;
mod scale_up;
mod scarcity;
mod typical;

use std::collections::BTreeMap;

use crate::inventory::{Gpu, Health, Inventory, Mode};
use crate::request::{GpuRequest, Memory};
use crate::units::{Mib, Percent};
use crate::{ContainerDemand, Demand, Stage};

pub(crate) fn gpu(index: u32, memory: u64, replicas: u32) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}").into(),
        index,
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: Mib(memory),
        scaled: Mib(memory),
        cores: Percent(100),
        replicas,
        mode: Mode::Vgpu,
        resource: "nvidia.com/gpu".to_owned(),
        numa: Some(0),
        health: Health::Ok,
        links: BTreeMap::new(),
        mig: None,
        cordon: None,
        even_share: None,
        strict: false,
        reserved: Vec::new(),
    }
}

pub(crate) fn inventory(gpus: Vec<Gpu>) -> Inventory {
    Inventory {
        v: 1,
        reads: vec![1],
        driver: "580.82".to_owned(),
        topology_policy: "none".to_owned(),
        topology_scope: crate::inventory::TopologyScope::default(),
        gpus,
        lingering: vec![],
        foreign: vec![],
        refused: vec![],
        evict: Vec::new(),
        unmeasured: Vec::new(),
        unreadable: Vec::new(),
        resizes: Vec::new(),
    }
}

pub(crate) fn request(count: u32, memory: u64, cores: u32) -> GpuRequest {
    GpuRequest::of(count, Memory::Mib(Mib(memory)), Percent(cores))
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
