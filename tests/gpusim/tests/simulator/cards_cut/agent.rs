//! The agent's parts that cut cards, on a simulated machine. For `cards_cut`; holds no test.

use std::path::Path;
use std::sync::Arc;

use aliquot_core::mig::published::Placed;
use aliquot_core::{Gpu, Grant, Mib, Percent, PodUid, Scaling, inventory};
use aliquot_device_plugin::host::Card;
use aliquot_device_plugin::modes::mig::names::Named;
use aliquot_device_plugin::modes::{Modes, Outfit, Share};
use aliquot_device_plugin::units::{self, Arrangement, Stand};
use aliquot_gpusim::place;
use aliquot_nvml::{CardFacts, Driver, Nvml, Options};
use aliquot_profiles::{Defaults, Plan, read, resolve};

/// The agent's parts, as after a start.
pub(super) struct Agent {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) modes: Modes,
}

impl Agent {
    pub(super) fn start(state: &Path) -> Self {
        let library = place::library_path().unwrap().into();
        let options = Options {
            library,
            ..Options::default()
        };
        let driver = Arc::new(Nvml::open(options).unwrap());
        let driver: Arc<dyn Driver> = Arc::new(Named::new(driver, state.join("mig")));
        let modes = Modes::new(&driver, state);
        Self { driver, modes }
    }

    pub(super) fn cards(&self) -> Vec<CardFacts> {
        self.driver.inventory().unwrap().cards
    }

    /// What each card becomes by a profile in YAML.
    pub(super) fn plans(&self, profile: &str) -> Vec<Plan> {
        let text = format!("{{apiVersion: aliquot.dev/v1alpha1, profiles: {{lab: {profile}}}}}");
        let config = read(&text).unwrap();
        let cards = self.cards().into_iter();
        let cards: Vec<_> = cards
            .map(|card| aliquot_profiles::Card {
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

    pub(super) fn units(&self, plans: &[Plan]) -> Vec<Gpu> {
        let stand = |plan: &Plan| {
            let mode = plan.mode.clone();
            (plan.uuid.clone(), Stand::open(mode))
        };
        let arrangement = Arrangement {
            usual: "nvidia.com/gpu".to_owned(),
            cards: plans.iter().map(stand).collect(),
        };
        let facts = self.driver.inventory().unwrap();
        units::units(&facts, &self.driver.health().unwrap(), &arrangement)
    }

    /// What a container with these grants sees.
    pub(super) fn equip(
        &self,
        grants: &[Grant],
        mode: inventory::Mode,
        beside: &[Placed],
    ) -> Result<Vec<String>, String> {
        let mut outfit = Outfit::default();
        for (place, grant) in grants.iter().enumerate() {
            let share = Share {
                pod: &PodUid::from("u1"),
                container: "main",
                grant,
                place,
                mode,
                card: &Card {
                    uuid: grant.gpu.clone(),
                    index: 0,
                    minor: Some(0),
                    part: None,
                },
                beside,
            };
            self.modes
                .equip(&share, &mut outfit)
                .map_err(|error| error.to_string())?;
        }
        Ok(outfit.visible)
    }

    /// `uuid` of each instance of a card, by start.
    pub(super) fn uuids(&self, card: &str) -> Vec<String> {
        let cut = self.driver.cut(card).unwrap();
        let all = cut.instances.iter().filter_map(|one| one.device());
        all.map(|device| device.uuid.clone()).collect()
    }

    pub(super) fn current(&self, card: &str) -> Vec<String> {
        let cut = self.driver.cut(card).unwrap();
        let all = cut.instances.iter().filter_map(|one| one.device());
        all.map(|device| device.current.clone()).collect()
    }
}

/// Seats by resource.
fn seats(units: &[Gpu]) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    for offer in units.iter().flat_map(units::offers) {
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
        seats: 1,
        mig: mig.map(|(profile, start)| placed(profile, start)),
    }
}

pub(super) fn placed(profile: &str, start: u8) -> Placed {
    Placed {
        profile: profile.to_owned(),
        start,
    }
}
