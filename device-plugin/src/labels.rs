//! The labels that tell what a node's cards are, for node selectors: NVIDIA's names,
//! and names of our own for what those cannot say.
//!
//! Source: the labels of NVIDIA's gpu-feature-discovery, as its documentation lists them.
//! Fed by: the published inventory and what the driver says of the physical cards.
//! Must not: know who wrote what on the node; that is [`owned`].

mod nvidia;
mod own;
pub mod owned;

use std::collections::BTreeMap;

use aliquot_core::inventory::{Gpu, Inventory, Mode};
use aliquot_core::mig::RESOURCES;
use aliquot_core::{GpuUuid, Mib};
use aliquot_nvml as nvml;

/// The longest label value, and the longest key after its prefix.
const LONGEST: usize = 63;

/// What the driver says of the physical cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Newest CUDA version that the driver runs, (major, minor).
    pub cuda: Option<(u32, u32)>,
    /// The cards, by index.
    pub cards: Vec<Card>,
}

/// A physical card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its uuid.
    pub uuid: GpuUuid,
    /// NVML's product name.
    pub product: String,
    /// Its memory.
    pub memory: Mib,
    /// Compute capability, (major, minor).
    pub capability: Option<(u32, u32)>,
    /// It can be cut into instances.
    pub mig: bool,
}

impl Features {
    /// Those of these cards.
    pub fn of(facts: &nvml::Inventory) -> Self {
        let card = |card: &nvml::CardFacts| Card {
            uuid: card.uuid.as_str().into(),
            product: card.model.clone(),
            memory: card.memory,
            capability: card.compute_capability,
            mig: card.mig.capable,
        };
        Self {
            cuda: facts.cuda_version,
            cards: facts.cards.iter().map(card).collect(),
        }
    }

    /// The physical card of a unit.
    fn card(&self, unit: &Gpu) -> Option<&Card> {
        let part = unit.mig.as_ref().and_then(|mig| mig.part());
        let uuid = part.map_or(&unit.uuid, |part| &part.parent);
        self.cards.iter().find(|card| card.uuid == *uuid)
    }
}

/// All labels of a node. `usual` is the resource of whole cards.
pub fn labels(inventory: &Inventory, features: &Features, usual: &str) -> BTreeMap<String, String> {
    if features.cards.is_empty() {
        return BTreeMap::new();
    }
    let mut all = nvidia::labels(inventory, features, usual);
    all.extend(own::labels(inventory, features));
    let fits = |(key, value): &(String, String)| {
        let name = key.split_once('/').map_or("", |(_, name)| name);
        name.len() <= LONGEST && *value == text(value)
    };
    all.into_iter().filter(fits).collect()
}

/// As a label may say it: spaces as `-`, what else is not accepted left out.
fn text(words: &str) -> String {
    let words = words.replace(' ', "-");
    let accepted = |c: &char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(c);
    let kept: String = words.chars().filter(accepted).take(LONGEST).collect();
    let end = |c: char| !c.is_ascii_alphanumeric();
    kept.trim_matches(end).to_owned()
}

/// The instance's profile.
fn profile(unit: &Gpu) -> Option<&str> {
    let part = unit.mig.as_ref()?.part()?;
    Some(part.profile.as_str())
}

/// How a unit is shared, in NVIDIA's words where there is one.
fn strategy(unit: &Gpu) -> &'static str {
    match unit.mode {
        Mode::Vgpu => "vgpu",
        Mode::Timeslice => "time-slicing",
        Mode::Mps => "mps",
        Mode::Exclusive | Mode::Mig | Mode::Unknown => "none",
    }
}

/// `NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED`: the last part where NVIDIA's own modes
/// share the unit under the resource that it has without sharing.
fn product(unit: &Gpu, usual: &str) -> String {
    let mut words = unit.model.clone();
    if let Some(profile) = profile(unit) {
        words = format!("{words}-MIG-{}", profile.replace('+', "."));
    }
    let shared = matches!(unit.mode, Mode::Timeslice | Mode::Mps);
    if shared && (unit.resource == usual || unit.resource.starts_with(RESOURCES)) {
        words.push_str("-SHARED");
    }
    text(&words)
}

/// Memory of one client.
fn memory(unit: &Gpu) -> Mib {
    match &unit.even {
        Some(even) if unit.mode == Mode::Mps => even.memory,
        _ => unit.memory,
    }
}

#[cfg(test)]
#[path = "labels/tests.rs"]
mod tests;
