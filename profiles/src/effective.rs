//! The current configuration of a node, from the inventory that its agent published, as a profile to
//! edit. Settings that the inventory lacks are left out: compute modes, graphics, video.

use std::collections::BTreeSet;

use aliquot_core::inventory::{self, Gpu, Inventory};
use aliquot_core::mig;
use aliquot_core::mig::published::{self, Mig as PublishedMig};
use aliquot_core::{GpuUuid, Mib, Namespace, Percent};
use serde_json::json;

use crate::config::{Config, Profile, Reservation, Rule};
use crate::error::{ProfileError, ProfileErrors};
use crate::gpu_selector::GpuSelector;
use crate::mode::{
    DefaultShare, Exclusive, InstanceSharing, LayoutEntry, Mig, Mode, Mps, Scaling, Strategy,
    Timeslice, Vgpu,
};
use crate::profile_selection::built_in;

/// The resource of GPUs without a name of their own.
const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";

/// The profile of this node, under the node's name: GPUs with the same mode form one entry, selected
/// by uuid unless the entry has all GPUs.
pub fn effective(node: &str, inventory: &Inventory) -> Result<Config, ProfileErrors> {
    let mut errors = Vec::new();
    let mut gpus: Vec<Rule> = Vec::new();
    for (index, gpu) in inventory.gpus.iter().enumerate() {
        if let Some(PublishedMig::Fixed(instance)) = &gpu.mig {
            add_instance(gpu, instance, &mut gpus);
            continue;
        }
        let mode = mode(gpu, index).map_err(|error| errors.push(error));
        let Ok(mode) = mode else { continue };
        gpus.push(Rule {
            reserve: reserve(gpu),
            ..rule(&gpu.uuid, mode)
        });
    }
    let mut gpus = merge_same(gpus);
    if !errors.is_empty() {
        return Err(ProfileErrors(errors));
    }
    let profile = match &mut gpus[..] {
        [] => built_in(),
        [rule] if offers_all_gpus(inventory) => {
            rule.select = GpuSelector::all();
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
    Ok(Config::new(node, profile))
}

/// Whether the inventory has every GPU of its node, as far as indices and links tell: unmanaged ones are not in it.
fn offers_all_gpus(inventory: &Inventory) -> bool {
    let indices: BTreeSet<u32> = inventory.gpus.iter().map(|gpu| gpu.index).collect();
    let mut linked = inventory.gpus.iter().flat_map(|gpu| gpu.links.keys());
    (0..).zip(indices).all(|(place, index)| place == index)
        && linked.all(|uuid| inventory.gpu(uuid).is_some())
}

fn mode(gpu: &Gpu, index: usize) -> Result<Mode, ProfileError> {
    let rename = (gpu.resource != DEFAULT_RESOURCE).then(|| gpu.resource.clone());
    Ok(match gpu.mode {
        inventory::Mode::Vgpu => Mode::Vgpu(Vgpu {
            split: Some(gpu.replicas),
            memory_scaling: Scaling::between(gpu.memory, gpu.scaled),
            ..Vgpu::default()
        }),
        inventory::Mode::Exclusive => Mode::Exclusive(Exclusive { rename }),
        inventory::Mode::Timeslice => Mode::Timeslice(Timeslice {
            rename,
            ..timeslice(gpu)
        }),
        inventory::Mode::Mps => Mode::Mps(Mps { rename, ..mps(gpu) }),
        inventory::Mode::Mig if gpu.mig.as_ref().is_some_and(|m| m.dynamic().is_some()) => {
            let found = gpu.mig.iter().filter_map(PublishedMig::dynamic);
            let names = found.flat_map(|found| found.geometry.profiles());
            Mode::Mig(Mig {
                dynamic: true,
                allow: names.map(|profile| profile.name.clone()).collect(),
                ..Mig::default()
            })
        }
        inventory::Mode::Mig | inventory::Mode::Unknown => {
            let path = format!("gpus[{index}].mode");
            let expected = "vgpu, exclusive, timeslice, mps";
            return Err(ProfileError::new(
                path,
                &json!(gpu.mode),
                "cannot be expressed by this release",
                expected,
            ));
        }
    })
}

fn timeslice(gpu: &Gpu) -> Timeslice {
    Timeslice {
        strict: gpu.strict,
        ..Timeslice::new(gpu.replicas)
    }
}

fn mps(gpu: &Gpu) -> Mps {
    let full = |is: bool| {
        if is {
            DefaultShare::Full
        } else {
            DefaultShare::Even
        }
    };
    Mps {
        strict: gpu.strict,
        memory: full(gpu.even_share.is_some_and(|even| even.memory == Mib(0))),
        threads: full(gpu.even_share.is_some_and(|even| even.cores == Percent(0))),
        ..Mps::new(gpu.replicas)
    }
}

fn rule(uuid: &GpuUuid, mode: Mode) -> Rule {
    let select = GpuSelector {
        uuid: vec![uuid.clone()],
        ..GpuSelector::default()
    };
    Rule::new(select, mode)
}

/// The reservations of a GPU without a fixed MIG layout.
fn reserve(gpu: &Gpu) -> Vec<Reservation> {
    let mut all = Vec::new();
    if !gpu.reserved.is_empty() {
        all.push(Reservation {
            profile: None,
            count: None,
            namespaces: gpu.reserved.clone(),
        });
    }
    let found = gpu.mig.as_ref().and_then(PublishedMig::dynamic);
    for reservation in found.iter().flat_map(|found| &found.reserved) {
        add_reservation(
            &mut all,
            &reservation.placement.profile,
            &reservation.namespaces,
        );
    }
    all
}

/// Reserves one more instance of this profile for these namespaces.
fn add_reservation(all: &mut Vec<Reservation>, profile: &str, namespaces: &[Namespace]) {
    let same = |one: &&mut Reservation| {
        one.profile.as_deref() == Some(profile) && one.namespaces == namespaces
    };
    match all.iter_mut().find(same) {
        Some(found) => found.count = Some(found.count() + 1),
        None => all.push(Reservation {
            profile: Some(profile.to_owned()),
            count: None,
            namespaces: namespaces.to_vec(),
        }),
    }
}

/// Adds an instance to the layout of its GPU.
fn add_instance(gpu: &Gpu, instance: &published::FixedInstance, gpus: &mut Vec<Rule>) {
    let is_of_profile = gpu.resource == mig::resource(&instance.profile);
    let may_be_renamed = matches!(gpu.mode, inventory::Mode::Timeslice | inventory::Mode::Mps);
    // Without a name of its own it has that of whole GPUs, whatever that is in this cluster.
    let is_single = gpu.resource == DEFAULT_RESOURCE || !(is_of_profile || may_be_renamed);
    let rename = (!is_of_profile && !is_single).then(|| gpu.resource.clone());
    let on = match gpu.mode {
        inventory::Mode::Timeslice => Some(InstanceSharing::Timeslice(Timeslice {
            rename,
            ..timeslice(gpu)
        })),
        inventory::Mode::Mps => Some(InstanceSharing::Mps(Mps { rename, ..mps(gpu) })),
        inventory::Mode::Vgpu => Some(InstanceSharing::Vgpu(Vgpu {
            split: Some(gpu.replicas),
            memory_scaling: Scaling::between(gpu.memory, gpu.scaled),
            ..Vgpu::default()
        })),
        inventory::Mode::Exclusive | inventory::Mode::Mig | inventory::Mode::Unknown => None,
    };
    let own = |rule: &&mut Rule| rule.select.uuid == [instance.parent.clone()];
    if gpus.iter_mut().find(own).is_none() {
        gpus.push(rule(&instance.parent, Mode::Mig(Mig::default())));
    }
    let Some(rule) = gpus.iter_mut().find(own) else {
        return;
    };
    if !gpu.reserved.is_empty() {
        add_reservation(&mut rule.reserve, &instance.profile, &gpu.reserved);
    }
    let Mode::Mig(mig) = &mut rule.mode else {
        return;
    };
    if is_single {
        mig.strategy = Strategy::Single;
    }
    let same = |slice: &&mut LayoutEntry| slice.profile == instance.profile && slice.on == on;
    match mig.layout.iter_mut().find(same) {
        Some(slice) => slice.count += 1,
        None => mig.layout.push(LayoutEntry {
            profile: instance.profile.clone(),
            count: 1,
            on,
        }),
    }
}

/// Merges GPUs with the same mode and reservations into one entry.
fn merge_same(gpus: Vec<Rule>) -> Vec<Rule> {
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
