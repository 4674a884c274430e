//! The agent's parts that cut cards, on a simulated machine. For `cards_cut`; holds no test.

use std::path::Path;
use std::sync::Arc;

use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{Gpu, Grant, Mib, Percent, PodUid, Scaling, inventory};
use aliquot_device_plugin::allocatable::{self, GpuLayout, NodeLayout};
use aliquot_device_plugin::host::HostDevice;
use aliquot_device_plugin::modes::mig::instance_names::StableNameDriver;
use aliquot_device_plugin::modes::{ContainerGrant, ModeEdits, SharingModes};
use aliquot_gpusim::place;
use aliquot_nvml::{Driver, GpuFacts, Nvml, Options};
use aliquot_profiles::{Defaults, GpuPlan, read, resolve};

/// The agent's parts, as after a start.
pub(super) struct Agent {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) modes: SharingModes,
}

impl Agent {
    pub(super) fn start(state: &Path) -> Self {
        let library = place::library_path().unwrap().into();
        let options = Options {
            library,
            ..Options::default()
        };
        let driver = Arc::new(Nvml::open(options).unwrap());
        let driver: Arc<dyn Driver> = Arc::new(StableNameDriver::new(driver, state.join("mig")));
        let modes = SharingModes::new(&driver, state);
        Self { driver, modes }
    }

    pub(super) fn cards(&self) -> Vec<GpuFacts> {
        self.driver.inventory().unwrap().gpus
    }

    /// What each card becomes by a profile in YAML.
    pub(super) fn plans(&self, profile: &str) -> Vec<GpuPlan> {
        let text = format!("{{apiVersion: aliquot.dev/v1alpha1, profiles: {{lab: {profile}}}}}");
        let config = read(&text).unwrap();
        let cards = self.cards().into_iter();
        let cards: Vec<_> = cards
            .map(|card| aliquot_profiles::PhysicalGpu {
                uuid: card.uuid.into(),
                index: card.index,
                product: card.model,
                pci: None,
                model: None,
                capability: card.compute_capability,
                mig: Some(card.mig.capable),
            })
            .collect();
        let defaults = Defaults {
            split: 10,
            memory_scaling: Scaling::ONE,
        };
        resolve("lab", &config.profiles["lab"], &cards, &defaults).unwrap()
    }

    /// Makes the cards so, and tells their units.
    pub(super) fn enter(&self, profile: &str) -> Vec<Gpu> {
        let plans = self.plans(profile);
        for (card, plan) in self.cards().iter().zip(&plans) {
            self.modes
                .switch(&plan.mode)
                .enter(card, &plan.mode)
                .unwrap();
        }
        self.units(&plans)
    }

    pub(super) fn units(&self, plans: &[GpuPlan]) -> Vec<Gpu> {
        let stand = |plan: &GpuPlan| {
            let mode = plan.mode.clone();
            (plan.uuid.clone(), GpuLayout::serving(mode))
        };
        let arrangement = NodeLayout {
            default_resource: "nvidia.com/gpu".to_owned(),
            gpus: plans.iter().map(stand).collect(),
        };
        let facts = self.driver.inventory().unwrap();
        allocatable::allocatable_devices(&facts, &self.driver.health().unwrap(), &arrangement)
    }

    /// What a container with these grants sees.
    pub(super) fn equip(
        &self,
        grants: &[Grant],
        mode: inventory::Mode,
        beside: &[MigPlacement],
    ) -> Result<Vec<String>, String> {
        let mut outfit = ModeEdits::default();
        for (place, grant) in grants.iter().enumerate() {
            let share = ContainerGrant {
                pod: &PodUid::from("u1"),
                container: "main",
                grant,
                index: place,
                mode,
                device: &HostDevice {
                    uuid: grant.gpu.clone(),
                    index: 0,
                    minor: Some(0),
                    instance: None,
                },
                other_instances: beside,
            };
            self.modes
                .add_edits(&share, &mut outfit)
                .map_err(|error| error.to_string())?;
        }
        Ok(outfit.visible)
    }

    /// `uuid` of each instance of a card, by start.
    pub(super) fn uuids(&self, card: &str) -> Vec<String> {
        let cut = self.driver.mig_layout(card).unwrap();
        let all = cut.instances.iter().filter_map(|one| one.device());
        all.map(|device| device.uuid.clone()).collect()
    }

    pub(super) fn current(&self, card: &str) -> Vec<String> {
        let cut = self.driver.mig_layout(card).unwrap();
        let all = cut.instances.iter().filter_map(|one| one.device());
        all.map(|device| device.current.clone()).collect()
    }
}

/// Seats by resource.
fn seats(units: &[Gpu]) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    for offer in units.iter().flat_map(allocatable::replicas_by_resource) {
        match found
            .iter_mut()
            .find(|(resource, _)| *resource == offer.resource)
        {
            Some((_, seats)) => *seats += offer.numbers.len(),
            None => found.push((offer.resource, offer.numbers.len())),
        }
    }
    found
}

pub(super) fn expect(units: &[Gpu], expected: &[(&str, usize)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, seats)| ((*name).to_owned(), *seats))
        .collect();
    assert_eq!(seats(units), expected);
}

pub(super) fn grant(gpu: &str, mig: Option<(&str, u8)>) -> Grant {
    Grant {
        resource: "nvidia.com/mig".to_owned(),
        gpu: gpu.into(),
        memory: Mib(1),
        cores: Percent(100),
        replicas: 1,
        mig: mig.map(|(profile, start)| placed(profile, start)),
    }
}

pub(super) fn placed(profile: &str, start: u8) -> MigPlacement {
    MigPlacement {
        profile: profile.to_owned(),
        start,
    }
}
