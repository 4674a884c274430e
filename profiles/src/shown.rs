//! What a node does with its cards, as a configuration to edit.
//!
//! Fed by: the inventory that the node's agent wrote. Must not: make up a setting
//! that the inventory does not tell.

use aliquot_core::inventory::{self, Gpu, Inventory};
use serde_json::json;

use crate::choose::built_in;
use crate::config::{Config, Profile, Rule};
use crate::fault::{Fault, Faults};
use crate::mode::{Exclusive, Mode, Mps, Scaling, Timeslice, Vgpu};
use crate::select::Select;

/// The resource of cards that have no name of their own.
const USUAL: &str = "nvidia.com/gpu";

/// The profile of this node, under the node's name: cards that are shared alike are
/// one entry, named by uuid unless it has all.
pub fn effective(node: &str, inventory: &Inventory) -> Result<Config, Faults> {
    let mut faults = Vec::new();
    let mut gpus: Vec<Rule> = Vec::new();
    for (place, card) in inventory.gpus.iter().enumerate() {
        let mode = mode(card, place).map_err(|fault| faults.push(fault));
        let Ok(mode) = mode else { continue };
        if let Some(rule) = gpus.iter_mut().find(|rule| rule.mode == mode) {
            rule.select.uuid.push(card.uuid.clone());
            continue;
        }
        let uuid = vec![card.uuid.clone()];
        gpus.push(Rule {
            select: Select {
                uuid,
                ..Select::default()
            },
            optional: false,
            mode,
        });
    }
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
        }),
        inventory::Mode::Exclusive => Mode::Exclusive(Exclusive { rename }),
        inventory::Mode::Timeslice => Mode::Timeslice(Timeslice {
            rename,
            ..Timeslice::new(card.seats)
        }),
        inventory::Mode::Mps => Mode::Mps(Mps {
            rename,
            ..Mps::new(card.seats)
        }),
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
