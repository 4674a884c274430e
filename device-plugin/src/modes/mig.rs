//! mig: a card cut into instances, for good or as pods come.
//!
//! Fed by: the mode's settings, the instances that the driver tells. Must not: touch an instance;
//! [`cutter`] does.

pub mod caps;
pub mod check;
mod cutter;
pub mod names;
pub mod plan;

use std::collections::BTreeMap;

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_core::mig::published::{Cut, Made, Mig as Published, Part};
use aliquot_core::mig::resource;
use aliquot_nvml::{self as nvml, CardFacts, CardHealth};
use aliquot_profiles::mode::{Exclusive, Mig, On, Slice, Strategy};

use super::{exclusive, mps, timeslice, vgpu};
use crate::units::{Offer, health_of};

pub(super) use cutter::Cutter;

/// The units of a card: `whole` is what they have in common.
pub fn units(whole: &Gpu, card: &CardFacts, health: &[CardHealth], settings: &Mig) -> Vec<Gpu> {
    if settings.dynamic {
        return dynamic(whole, card, &settings.allow).into_iter().collect();
    }
    if settings.strategy == Strategy::None {
        return Vec::new();
    }
    let mut units = Vec::new();
    for (slice, instance, device) in assigned(&settings.layout, &card.cut.instances) {
        let uuid = device.uuid.as_str();
        let part = Gpu {
            uuid: uuid.into(),
            memory: instance.memory,
            scaled: instance.memory,
            resource: match settings.strategy {
                Strategy::Single => whole.resource.clone(),
                _ => resource(&instance.profile),
            },
            health: health_of(uuid, health).unwrap_or_else(|| whole.health.clone()),
            links: BTreeMap::new(),
            mig: Some(Published::Part(Part {
                parent: whole.uuid.clone(),
                profile: instance.profile.clone(),
                start: instance.start,
                gi: instance.id,
                ci: device.id,
            })),
            ..whole.clone()
        };
        units.extend(match &slice.on {
            None => vec![exclusive::unit(part, &Exclusive::default())],
            Some(On::Vgpu(settings)) => vec![vgpu::part(part, settings)],
            Some(On::Timeslice(settings)) => vec![timeslice::unit(part, settings)],
            Some(On::Mps(settings)) => vec![mps::unit(part, settings)],
        });
    }
    units
}

/// Which instance is whose of a layout: those of one profile in the order of their starts.
pub fn assigned<'a>(
    layout: &'a [Slice],
    instances: &'a [nvml::Instance],
) -> Vec<(&'a Slice, &'a nvml::Instance, &'a nvml::Device)> {
    let whole = |one: &'a nvml::Instance| Some((one, one.device()?));
    let mut left: Vec<_> = instances.iter().filter_map(whole).collect();
    left.sort_by_key(|(one, _)| one.start);
    let mut found = Vec::new();
    for slice in layout {
        for _ in 0..slice.count {
            if let Some(at) = left
                .iter()
                .position(|(one, _)| one.profile == slice.profile)
            {
                let (instance, device) = left.remove(at);
                found.push((slice, instance, device));
            }
        }
    }
    found
}

/// One unit, unless the driver does not tell how it can be cut.
fn dynamic(whole: &Gpu, card: &CardFacts, allow: &[String]) -> Option<Gpu> {
    let allowed = |name: &str| allow.is_empty() || allow.iter().any(|one| one == name);
    let geometry = card.cut.geometry.as_ref()?.only(allowed);
    let made = card.cut.instances.iter().filter_map(|one| {
        let device = one.device()?;
        Some(Made {
            profile: one.profile.clone(),
            start: one.start,
            uuid: device.uuid.as_str().into(),
            gi: one.id,
            ci: device.id,
        })
    });
    let instances = made.collect();
    Some(Gpu {
        mode: Shared::Mig,
        seats: 0,
        mig: Some(Published::Dynamic(Cut {
            geometry,
            instances,
            reserved: Vec::new(),
        })),
        ..whole.clone()
    })
}

/// The seats of a card whose instances are made when needed: each start of each profile. The
/// kubelet knows no more than this upper bound; what fits beside what is known to the scheduler.
pub fn offers(unit: &Gpu) -> Vec<Offer> {
    let cut = unit.mig.as_ref().and_then(Published::dynamic);
    let profiles = cut.into_iter().flat_map(|cut| cut.geometry.profiles());
    let offer = |profile: &aliquot_core::mig::Profile| Offer {
        resource: resource(&profile.name),
        numbers: profile.starts.iter().copied().map(u32::from).collect(),
    };
    profiles.map(offer).collect()
}
