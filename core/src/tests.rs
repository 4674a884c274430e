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
mod seats;
mod typical;

use std::collections::BTreeMap;

use crate::inventory::{Gpu, Health, Inventory, Mode};
use crate::request::{Ask, Memory};
use crate::units::{Mib, Percent};
use crate::{ContainerDemand, Demand, Stage};

pub(crate) fn gpu(index: u32, memory: u64, seats: u32) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}").into(),
        index,
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: Mib(memory),
        scaled: Mib(memory),
        cores: Percent(100),
        seats,
        mode: Mode::Vgpu,
        resource: "nvidia.com/gpu".to_owned(),
        numa: Some(0),
        health: Health::Ok,
        links: BTreeMap::new(),
        mig: None,
        cordon: None,
        even: None,
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
        topology_scope: crate::inventory::Scope::default(),
        gpus,
        lingering: vec![],
        foreign: vec![],
        refused: vec![],
        evict: Vec::new(),
    }
}

pub(crate) fn ask(count: u32, memory: u64, cores: u32) -> Ask {
    Ask::of(count, Memory::Mib(Mib(memory)), Percent(cores))
}

pub(crate) fn demand(containers: &[(Stage, Option<Ask>)]) -> Demand {
    Demand {
        namespace: "d".into(),
        resources: vec!["nvidia.com/gpu".into()],
        containers: containers
            .iter()
            .enumerate()
            .map(|(number, (stage, ask))| ContainerDemand {
                name: format!("c{number}"),
                stage: *stage,
                asks: ask.iter().copied().collect(),
            })
            .collect(),
        host: crate::Compute::default(),
        priority: 1,
        node_policy: None,
        gpu_policy: None,
        rules: crate::Rules::default(),
    }
}
