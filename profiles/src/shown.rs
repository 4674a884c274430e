//! What a node does with its cards, as a configuration to edit.
//!
//! Fed by: the inventory that the node's agent wrote. Must not: make up a setting
//! that the inventory does not tell: lengths of turns, compute modes, graphics and video are left out.

use aliquot_core::inventory::{self, Gpu, Inventory};
use aliquot_core::mig::published::{self, Mig as Cut};
use aliquot_core::{GpuUuid, Mib, Namespace, Percent};
use serde_json::json;

use crate::choose::built_in;
use crate::config::{Config, Profile, Reserve, Rule};
use crate::fault::{Fault, Faults};
use crate::mode::{Exclusive, Mig, Mode, Mps, On, Part, Scaling, Slice, Strategy, Timeslice, Vgpu};
use crate::select::Select;

/// The resource of cards that have no name of their own.
const USUAL: &str = "nvidia.com/gpu";

/// The profile of this node, under the node's name: cards that are shared alike are
/// one entry, named by uuid unless it has all.
pub fn effective(node: &str, inventory: &Inventory) -> Result<Config, Faults> {
    let mut faults = Vec::new();
    let mut gpus: Vec<Rule> = Vec::new();
    for (place, card) in inventory.gpus.iter().enumerate() {
        if let Some(Cut::Part(part)) = &card.mig {
            instance(card, part, &mut gpus);
            continue;
        }
        let mode = mode(card, place).map_err(|fault| faults.push(fault));
        let Ok(mode) = mode else { continue };
        let reserve = reserve(card);
        let same = |rule: &&mut Rule| rule.mode == mode && rule.reserve == reserve;
        if let Some(rule) = gpus.iter_mut().find(same) {
            rule.select.uuid.push(card.uuid.clone());
            continue;
        }
        gpus.push(Rule {
            reserve,
            ..rule(&card.uuid, mode)
        });
    }
    let mut gpus = alike(gpus);
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let profile = match &mut gpus[..] {
        [] => built_in(),
        [rule] => {
            rule.select = Select::all();
            Profile {
                gpus,
                ..Profile::default()
            }
        }
        _ => Profile {
            gpus,
            ..Profile::default()
        },
    };
    Ok(Config::of(node, profile))
}

fn mode(card: &Gpu, place: usize) -> Result<Mode, Fault> {
    let rename = (card.resource != USUAL).then(|| card.resource.clone());
    Ok(match card.mode {
        inventory::Mode::Vgpu => Mode::Vgpu(Vgpu {
            split: Some(card.seats),
            memory_scaling: Scaling::between(card.memory, card.scaled),
            ..Vgpu::default()
        }),
        inventory::Mode::Exclusive => Mode::Exclusive(Exclusive { rename }),
        inventory::Mode::Timeslice => Mode::Timeslice(Timeslice {
            rename,
            ..timeslice(card)
        }),
        inventory::Mode::Mps => Mode::Mps(Mps {
            rename,
            ..mps(card)
        }),
        inventory::Mode::Mig if card.mig.as_ref().is_some_and(|m| m.dynamic().is_some()) => {
            let found = card.mig.iter().filter_map(Cut::dynamic);
            let names = found.flat_map(|found| found.geometry.profiles());
            Mode::Mig(Mig {
                dynamic: true,
                allow: names.map(|profile| profile.name.clone()).collect(),
                ..Mig::default()
            })
        }
        inventory::Mode::Mig | inventory::Mode::Unknown => {
            let path = format!("gpus[{place}].mode");
            let accepted = "vgpu, exclusive, timeslice, mps";
            return Err(Fault::new(
                path,
                &json!(card.mode),
                "cannot be shown by this release",
                accepted,
            ));
        }
    })
}

fn timeslice(card: &Gpu) -> Timeslice {
    Timeslice {
        strict: card.strict,
        ..Timeslice::new(card.seats)
    }
}

fn mps(card: &Gpu) -> Mps {
    let full = |is: bool| if is { Part::Full } else { Part::Even };
    Mps {
        strict: card.strict,
        memory: full(card.even.is_some_and(|even| even.memory == Mib(0))),
        threads: full(card.even.is_some_and(|even| even.cores == Percent(0))),
        ..Mps::new(card.seats)
    }
}

fn rule(uuid: &GpuUuid, mode: Mode) -> Rule {
    let select = Select {
        uuid: vec![uuid.clone()],
        ..Select::default()
    };
    Rule {
        select,
        optional: false,
        reserve: Vec::new(),
        mode,
    }
}

/// What is kept of a card that is not cut for good.
fn reserve(card: &Gpu) -> Vec<Reserve> {
    let mut all = Vec::new();
    if !card.reserved.is_empty() {
        all.push(Reserve {
            profile: None,
            count: None,
            namespaces: card.reserved.clone(),
        });
    }
    let found = card.mig.as_ref().and_then(Cut::dynamic);
    for kept in found.iter().flat_map(|found| &found.reserved) {
        one_more(&mut all, &kept.place.profile, &kept.namespaces);
    }
    all
}

/// One more instance of this profile is kept for these.
fn one_more(all: &mut Vec<Reserve>, profile: &str, namespaces: &[Namespace]) {
    let same = |kept: &&mut Reserve| {
        kept.profile.as_deref() == Some(profile) && kept.namespaces == namespaces
    };
    match all.iter_mut().find(same) {
        Some(kept) => kept.count = Some(kept.count() + 1),
        None => all.push(Reserve {
            profile: Some(profile.to_owned()),
            count: None,
            namespaces: namespaces.to_vec(),
        }),
    }
}

/// Adds an instance to the layout of its card.
fn instance(unit: &Gpu, part: &published::Part, gpus: &mut Vec<Rule>) {
    let on = match unit.mode {
        inventory::Mode::Timeslice => Some(On::Timeslice(timeslice(unit))),
        inventory::Mode::Mps => Some(On::Mps(mps(unit))),
        inventory::Mode::Vgpu => Some(On::Vgpu(Vgpu {
            split: Some(unit.seats),
            memory_scaling: Scaling::between(unit.memory, unit.scaled),
            ..Vgpu::default()
        })),
        inventory::Mode::Exclusive | inventory::Mode::Mig | inventory::Mode::Unknown => None,
    };
    let own = |rule: &&mut Rule| rule.select.uuid == [part.parent.clone()];
    if gpus.iter_mut().find(own).is_none() {
        let strategy = if unit.resource == USUAL {
            Strategy::Single
        } else {
            Strategy::Mixed
        };
        let mig = Mig {
            strategy,
            ..Mig::default()
        };
        gpus.push(rule(&part.parent, Mode::Mig(mig)));
    }
    let Some(rule) = gpus.iter_mut().find(own) else {
        return;
    };
    if !unit.reserved.is_empty() {
        one_more(&mut rule.reserve, &part.profile, &unit.reserved);
    }
    let Mode::Mig(mig) = &mut rule.mode else {
        return;
    };
    let same = |slice: &&mut Slice| slice.profile == part.profile && slice.on == on;
    match mig.layout.iter_mut().find(same) {
        Some(slice) => slice.count += 1,
        None => mig.layout.push(Slice {
            profile: part.profile.clone(),
            count: 1,
            on,
        }),
    }
}

/// Cards that are cut alike become one entry.
fn alike(gpus: Vec<Rule>) -> Vec<Rule> {
    let mut merged: Vec<Rule> = Vec::new();
    let alike = |one: &Rule, other: &Rule| one.mode == other.mode && one.reserve == other.reserve;
    for rule in gpus {
        match merged.iter_mut().find(|known| alike(known, &rule)) {
            Some(known) => known.select.uuid.extend(rule.select.uuid),
            None => merged.push(rule),
        }
    }
    merged
}
