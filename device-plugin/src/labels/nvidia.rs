//! NVIDIA's labels.
//!
//! One set of `nvidia.com/gpu.*` describes the whole node, so on a node with several
//! kinds it is that of the kind with the most cards, the lowest index among equals.
//! Fed by: [`super::labels`]. Must not: give a label a value that is not accepted.

use std::collections::BTreeMap;
use std::fmt::Display;

use aliquot_core::inventory::{Gpu, Inventory, Mode};
use aliquot_core::mig::RESOURCES;

use super::{Card, Features, memory, product, profile, strategy, text};

/// Labels as they are collected.
type Labels = BTreeMap<String, String>;

pub(super) fn labels(inventory: &Inventory, features: &Features, usual: &str) -> Labels {
    let mut all = Labels::new();
    let units = &inventory.gpus;
    driver(&mut all, &inventory.driver, features);
    let is_of = |unit: &&Gpu, name: &str| unit.resource == name && profile(unit).is_some();
    let single: Vec<&Gpu> = units.iter().filter(|unit| is_of(unit, usual)).collect();
    let mixed: Vec<&Gpu> = units
        .iter()
        .filter(|unit| profile(unit).is_some() && unit.resource.starts_with(RESOURCES))
        .collect();
    let whole: Vec<&Gpu> = units
        .iter()
        .filter(|unit| profile(unit).is_none() && unit.seats > 0)
        .collect();
    let dynamic = units.iter().any(|unit| unit.mode == Mode::Mig);
    let strategy = match (single.is_empty(), mixed.is_empty() && !dynamic) {
        (false, true) => Some("single"),
        (_, false) => Some("mixed"),
        (true, true) => None,
    };
    if let Some(strategy) = strategy {
        put(&mut all, "mig.strategy", strategy);
    }
    let yes = |found: bool| if found { "true" } else { "false" };
    let cuttable = features.cards.iter().any(|card| card.mig);
    put(&mut all, "mig.capable", yes(cuttable));
    let mps = units.iter().any(|unit| unit.mode == Mode::Mps);
    put(&mut all, "mps.capable", yes(mps));

    let usual_ones: Vec<&Gpu> = whole
        .iter()
        .copied()
        .filter(|unit| unit.resource == usual)
        .collect();
    if single.is_empty() {
        let offered = if usual_ones.is_empty() {
            whole
        } else {
            usual_ones
        };
        cards(&mut all, &offered, features, usual);
    } else {
        let alike =
            usual_ones.is_empty() && single.iter().all(|u| profile(u) == profile(single[0]));
        instances_as_cards(&mut all, &single, alike, features, usual);
    }
    let mut profiles: BTreeMap<&str, Vec<&Gpu>> = BTreeMap::new();
    for unit in mixed {
        profiles.entry(&unit.resource).or_default().push(unit);
    }
    for (resource, units) in profiles {
        let name = resource.trim_start_matches("nvidia.com/");
        put(&mut all, &format!("{name}.count"), units.len());
        describe(&mut all, name, leading(&units), usual);
    }
    all
}

fn put(all: &mut Labels, name: &str, value: impl Display) {
    all.insert(format!("nvidia.com/{name}"), format!("{value}"));
}

fn driver(all: &mut Labels, version: &str, features: &Features) {
    let parts: Vec<&str> = version.split('.').collect();
    put(all, "cuda.driver-version.full", text(version));
    let names = ["major", "minor", "revision"];
    for (name, part) in names.iter().zip(&parts) {
        put(all, &format!("cuda.driver-version.{name}"), text(part));
        // The names before these.
        let old = if *name == "revision" { "rev" } else { name };
        put(all, &format!("cuda.driver.{old}"), text(part));
    }
    if let Some((major, minor)) = features.cuda {
        put(all, "cuda.runtime-version.full", format!("{major}.{minor}"));
        for (name, part) in [("major", major), ("minor", minor)] {
            put(all, &format!("cuda.runtime-version.{name}"), part);
            put(all, &format!("cuda.runtime.{name}"), part);
        }
    }
}

/// The whole cards that are offered, or what the driver says where none is.
fn cards(all: &mut Labels, offered: &[&Gpu], features: &Features, usual: &str) {
    put(all, "gpu.count", features.cards.len());
    let first = features.cards.first();
    let card = if offered.is_empty() {
        let Some(card) = first else { return };
        put(all, "gpu.product", text(&card.product));
        put(all, "gpu.memory", card.memory.0);
        put(all, "gpu.replicas", 1);
        put(all, "gpu.sharing-strategy", "none");
        Some(card)
    } else {
        let unit = leading(offered);
        describe(all, "gpu", unit, usual);
        features.card(unit)
    };
    if let Some(card) = card {
        capability(all, card);
    }
}

/// Strategy `single`: instances under the name of whole cards.
fn instances_as_cards(
    all: &mut Labels,
    units: &[&Gpu],
    alike: bool,
    features: &Features,
    usual: &str,
) {
    let unit = leading(units);
    if alike {
        put(all, "gpu.count", units.len());
        describe(all, "gpu", unit, usual);
    } else {
        put(
            all,
            "gpu.product",
            text(&format!("{}-MIG-INVALID", unit.model)),
        );
        for name in ["gpu.count", "gpu.replicas", "gpu.memory"] {
            put(all, name, 0);
        }
    }
    if let Some(card) = features.card(unit) {
        capability(all, card);
    }
}

/// A unit of the kind that most of them are, the first among equals.
fn leading<'a>(units: &[&'a Gpu]) -> &'a Gpu {
    let alike = |a: &Gpu, b: &Gpu| {
        let kind = |unit: &Gpu| (unit.model.clone(), unit.mode, unit.seats, unit.memory);
        kind(a) == kind(b)
    };
    let count = |unit: &Gpu| units.iter().filter(|other| alike(unit, other)).count();
    let mut best = units[0];
    for unit in units {
        if count(unit) > count(best) {
            best = unit;
        }
    }
    best
}

fn describe(all: &mut Labels, name: &str, unit: &Gpu, usual: &str) {
    put(all, &format!("{name}.product"), product(unit, usual));
    put(all, &format!("{name}.memory"), memory(unit).0);
    put(all, &format!("{name}.replicas"), unit.seats);
    put(all, &format!("{name}.sharing-strategy"), strategy(unit));
    if let Some(slices) = profile(unit).and_then(compute_slices) {
        put(all, &format!("{name}.slices.gi"), slices);
        put(all, &format!("{name}.slices.ci"), slices);
    }
}

/// 3 of `3g.20gb`.
fn compute_slices(profile: &str) -> Option<u8> {
    profile.split_once('g')?.0.parse().ok()
}

fn capability(all: &mut Labels, card: &Card) {
    let Some((major, minor)) = card.capability else {
        return;
    };
    put(all, "gpu.compute.major", major);
    put(all, "gpu.compute.minor", minor);
    put(all, "gpu.family", family(major, minor));
}

fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..=4) => "volta",
        (7, _) => "turing",
        (8, 9) => "ada-lovelace",
        (8, _) => "ampere",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        (13, _) => "rubin",
        _ => "undefined",
    }
}
