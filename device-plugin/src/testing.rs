//! Values for tests: a pod, cards, grants, with defaults that a test overrides.
//!
//! Fed by: nothing. Must not: be compiled into the product.

use aliquot_core::demand::Stage;
use aliquot_core::inventory::{self, Gpu, Health, Mode};
use aliquot_core::{Allocation, Grant, Inventory, Mib, Percent, Scaling};
use aliquot_profiles::Defaults;

use crate::checkpoint::Entry;
use crate::mps::folder::{Phase as MpsPhase, Status, Wish};
use crate::pod::{Container, Phase, Pod};
use crate::seat::Name;
use crate::units::Arrangement;

/// The resource of all test values.
pub(crate) const RESOURCE: &str = "nvidia.com/gpu";

/// A running pod on node `n1` with one app container `main`, named like its uid.
pub(crate) fn pod(uid: &str) -> Pod {
    Pod {
        uid: uid.into(),
        kubelet_uid: uid.into(),
        namespace: "default".to_owned(),
        name: uid.to_owned(),
        node: "n1".into(),
        phase: Phase::Running,
        created: 0,
        mirror: false,
        allocation: None,
        hamis: None,
        ids: std::collections::BTreeMap::new(),
        containers: vec![container("main", Stage::App)],
    }
}

/// A checkpoint entry of a pod's container `main`.
pub(crate) fn entry(pod: &str, name: Option<&str>, ids: &[&str]) -> Entry {
    Entry {
        pod: pod.into(),
        container: "main".to_owned(),
        resource: RESOURCE.to_owned(),
        ids: ids.iter().map(|&id| id.to_owned()).collect(),
        name: name.and_then(Name::parse),
        by_env: None,
    }
}

/// A container without environment.
pub(crate) fn container(name: &str, stage: Stage) -> Container {
    Container {
        name: name.to_owned(),
        stage,
        env: std::collections::BTreeMap::new(),
        env_from: false,
        asked: std::collections::BTreeMap::new(),
    }
}

impl Pod {
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    pub(crate) fn created_at(mut self, seconds: i64) -> Self {
        self.created = seconds;
        self
    }

    pub(crate) fn with(mut self, allocation: &Allocation) -> Self {
        self.allocation = Some(allocation.encode().expect("json"));
        self
    }
}

/// A share of a card.
pub(crate) fn grant(gpu: &str, memory: u64, cores: u32) -> Grant {
    Grant {
        resource: RESOURCE.to_owned(),
        gpu: gpu.into(),
        memory: Mib(memory),
        cores: Percent(cores),
        seats: 1,
        mig: None,
    }
}

/// An allocation on `n1` with these app containers.
pub(crate) fn allocation(containers: &[(&str, &[Grant])]) -> Allocation {
    Allocation {
        v: 1,
        node: "n1".into(),
        containers: containers
            .iter()
            .map(|(name, grants)| ((*name).to_owned(), grants.to_vec()))
            .collect(),
        init: std::collections::BTreeMap::new(),
        priority: 1,
    }
}

/// A healthy card of 10,000 MiB with 10 seats.
pub(crate) fn gpu(uuid: &str, index: u32) -> Gpu {
    Gpu {
        uuid: uuid.into(),
        index,
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: Mib(10_000),
        scaled: Mib(10_000),
        cores: Percent(100),
        seats: 10,
        mode: Mode::Vgpu,
        resource: RESOURCE.to_owned(),
        numa: None,
        health: Health::Ok,
        links: std::collections::BTreeMap::new(),
        mig: None,
        cordon: None,
        even: None,
        strict: false,
        reserved: Vec::new(),
    }
}

/// An inventory of healthy cards with these uuids.
pub(crate) fn inventory(uuids: &[&str]) -> Inventory {
    Inventory {
        v: inventory::VERSION,
        reads: vec![1],
        driver: "580.82".to_owned(),
        topology_policy: "none".to_owned(),
        topology_scope: aliquot_core::inventory::Scope::default(),
        gpus: (0..)
            .zip(uuids)
            .map(|(index, uuid)| gpu(uuid, index))
            .collect(),
        lingering: Vec::new(),
        foreign: Vec::new(),
        refused: Vec::new(),
        evict: Vec::new(),
    }
}

/// An accepted share of a pod.
pub(crate) fn accepted(uid: &str, allocation: Allocation) -> crate::accepted::Accepted {
    let name = uid.to_owned();
    crate::accepted::Accepted::new(
        uid.into(),
        "default".to_owned(),
        name,
        allocation,
        Vec::new(),
    )
}

/// vgpu of two seats on each of these cards.
pub(crate) fn arrangement(uuids: &[&str]) -> Arrangement {
    let defaults = Defaults {
        split: 2,
        memory_scaling: Scaling::ONE,
    };
    Arrangement::built_in(&facts(uuids), RESOURCE, &defaults)
}

/// The driver's facts about healthy cards of 10,000 MiB with these uuids.
pub(crate) fn facts(uuids: &[&str]) -> aliquot_nvml::Inventory {
    let card = |(index, uuid): (u32, &&str)| aliquot_nvml::CardFacts {
        uuid: (*uuid).to_owned(),
        index,
        minor: Some(index),
        pci_bus_id: None,
        pci_device_id: None,
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: Mib(10_000),
        reserved: None,
        compute_capability: None,
        numa: None,
        mig: aliquot_nvml::Mig::default(),
        cut: aliquot_nvml::Cut::default(),
        links: std::collections::BTreeMap::new(),
    };
    aliquot_nvml::Inventory {
        driver_version: "580.82".to_owned(),
        cuda_version: None,
        cards: (0..).zip(uuids).map(card).collect(),
        notes: Vec::new(),
    }
}

/// A driver of a node without cards, on which nothing happens.
pub(crate) struct Still;

impl aliquot_nvml::Driver for Still {
    fn inventory(&self) -> Result<aliquot_nvml::Inventory, aliquot_nvml::NvmlError> {
        Ok(facts(&[]))
    }

    fn health(&self) -> Result<Vec<aliquot_nvml::CardHealth>, aliquot_nvml::NvmlError> {
        Ok(Vec::new())
    }

    fn wait_events(
        &self,
        timeout: std::time::Duration,
    ) -> Result<Vec<aliquot_nvml::Event>, aliquot_nvml::NvmlError> {
        std::thread::park_timeout(timeout);
        Ok(Vec::new())
    }
}

/// What a keeper says of a daemon that serves.
pub(crate) fn served(wish: Wish) -> Status {
    Status {
        v: 1,
        phase: MpsPhase::Running,
        wish: Some(wish),
        daemon: Some(7),
        since: 0,
        restarts: 0,
        losses: 0,
        faults: 0,
        servers: Vec::new(),
        shm: None,
        one_user: false,
    }
}
