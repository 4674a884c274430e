//! The parts of the agent that partition GPUs, on a simulated machine. For `partitioned_gpus`.

use std::path::Path;
use std::sync::Arc;

use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{Gpu, Grant, Mib, Percent, Scaling, inventory};
use aliquot_device_plugin::gpus::allocatable::{self, GpuLayout, NodeLayout};
use aliquot_device_plugin::modes::{self, ContainerGrant, ModeSetup, SharingModes};
use aliquot_nvml::{Driver, GpuFacts};
use aliquot_profiles::{Defaults, GpuPlan, read, resolve};

use crate::driver::open;

/// The agent's parts, as after a start.
pub(super) struct Agent {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) modes: SharingModes,
}

impl Agent {
    pub(super) fn start(state: &Path) -> Self {
        let driver: Arc<dyn Driver> = Arc::new(open());
        let modes = SharingModes::new(&driver, state);
        Self { driver, modes }
    }

    pub(super) fn gpus(&self) -> Vec<GpuFacts> {
        self.driver.inventory().unwrap().gpus
    }

    /// The plan of each GPU for a profile in YAML.
    pub(super) fn plans(&self, profile: &str) -> Vec<GpuPlan> {
        let text = format!("{{apiVersion: aliquot.dev/v1alpha1, profiles: {{lab: {profile}}}}}");
        let config = read(&text).unwrap();
        let gpus = self.gpus().into_iter();
        let gpus: Vec<_> = gpus
            .map(|gpu| aliquot_profiles::PhysicalGpu {
                uuid: gpu.uuid.into(),
                index: gpu.index,
                product: gpu.model,
                pci: None,
                model: None,
                capability: gpu.compute_capability,
                mig: gpu.mig.capable,
            })
            .collect();
        let defaults = Defaults {
            split: 10,
            memory_scaling: Scaling::ONE,
        };
        resolve("lab", &config.profiles["lab"], &gpus, &defaults).unwrap()
    }

    /// Applies the profile, and returns the allocatable devices.
    pub(super) fn enter(&self, profile: &str) -> Vec<Gpu> {
        let plans = self.plans(profile);
        for (gpu, plan) in self.gpus().iter().zip(&plans) {
            modes::of(&plan.mode).enter(&self.modes, gpu).unwrap();
        }
        self.devices(&plans)
    }

    pub(super) fn devices(&self, plans: &[GpuPlan]) -> Vec<Gpu> {
        let serving = |plan: &GpuPlan| {
            let mode = plan.mode.clone();
            (plan.uuid.clone(), GpuLayout::serving(mode))
        };
        let layout = NodeLayout {
            default_resource: "nvidia.com/gpu".to_owned(),
            gpus: plans.iter().map(serving).collect(),
            ..NodeLayout::default()
        };
        let facts = self.driver.inventory().unwrap();
        allocatable::allocatable_devices(&facts, &self.driver.health().unwrap(), &layout)
    }

    /// What a container with these grants sees.
    pub(super) fn prepare(
        &self,
        grants: &[Grant],
        mode: inventory::Mode,
        beside: &[MigPlacement],
    ) -> Result<Vec<String>, String> {
        let mut setup = ModeSetup::default();
        for grant in grants {
            let share = ContainerGrant {
                grant,
                device: None,
                other_instances: beside,
            };
            modes::of_device(mode)
                .prepare(&self.modes, &share, &mut setup)
                .map_err(|error| error.to_string())?;
        }
        Ok(setup.visible)
    }

    /// `uuid` of each instance of a GPU, by start.
    pub(super) fn uuids(&self, gpu: &str) -> Vec<String> {
        let layout = self.driver.mig_layout(gpu).unwrap();
        let all = layout.instances.iter().filter_map(|one| one.device());
        all.map(|device| device.uuid.clone()).collect()
    }
}

fn replicas(devices: &[Gpu]) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    for offer in devices.iter().flat_map(allocatable::replicas_by_resource) {
        match found
            .iter_mut()
            .find(|(resource, _)| *resource == offer.resource)
        {
            Some((_, replicas)) => *replicas += offer.numbers.len(),
            None => found.push((offer.resource, offer.numbers.len())),
        }
    }
    found
}

pub(super) fn expect(devices: &[Gpu], expected: &[(&str, usize)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, replicas)| ((*name).to_owned(), *replicas))
        .collect();
    assert_eq!(replicas(devices), expected);
}

pub(super) fn grant(gpu: &str, mig: Option<(&str, u8)>) -> Grant {
    Grant {
        resource: "nvidia.com/mig".to_owned(),
        gpu: gpu.into(),
        memory: Mib(1),
        cores: Percent(100),
        replicas: 1,
        burst: None,
        mig: mig.map(|(profile, start)| placed(profile, start)),
    }
}

pub(super) fn placed(profile: &str, start: u8) -> MigPlacement {
    MigPlacement {
        profile: profile.to_owned(),
        start,
    }
}
