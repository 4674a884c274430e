//! Our own labels: cards by product, by mode, and what can be cut on demand.
//!
//! Fed by: [`super::labels`]. Must not: use NVIDIA's prefix.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::{Inventory, Mode};
use aliquot_core::mig::RESOURCES;

use super::{Features, profile, text};

/// A comma list could not be selected on, so each product and mode has a label.
pub(super) fn labels(inventory: &Inventory, features: &Features) -> BTreeMap<String, String> {
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    let mut memory: BTreeMap<String, u64> = BTreeMap::new();
    for card in &features.cards {
        let product = text(&card.product);
        *numbers.entry(format!("product.{product}")).or_default() += 1;
        let least = memory.entry(format!("memory.{product}"));
        let least = least.or_insert(card.memory.0);
        *least = (*least).min(card.memory.0);
    }
    let mut seen = BTreeSet::new();
    for unit in &inventory.gpus {
        let cut = profile(unit).is_some() || unit.mode == Mode::Mig;
        let name = match unit.mode {
            _ if cut => "mig",
            Mode::Vgpu => "vgpu",
            Mode::Exclusive => "exclusive",
            Mode::Timeslice => "timeslice",
            Mode::Mps => "mps",
            Mode::Mig | Mode::Unknown => continue,
        };
        let card = features.card(unit).map(|card| &card.uuid);
        if seen.insert(card.unwrap_or(&unit.uuid)) {
            *numbers.entry(format!("mode.{name}")).or_default() += 1;
        }
        let geometry = unit.mig.as_ref().and_then(|mig| mig.dynamic());
        for kind in geometry.iter().flat_map(|cut| cut.geometry.profiles()) {
            let resource = aliquot_core::mig::resource(&kind.name);
            let name = resource.trim_start_matches(RESOURCES);
            let most = numbers.entry(format!("mig-{name}.most")).or_default();
            *most += u64::from(kind.most);
        }
    }
    numbers.extend(memory);
    let all = numbers.into_iter();
    all.map(|(name, number)| (format!("aliquot.dev/{name}"), number.to_string()))
        .collect()
}
