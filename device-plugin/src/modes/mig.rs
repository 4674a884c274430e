//! mig: a card cut into instances, for good or as pods come.
//!
//! Fed by: the mode's settings, the instances that the driver tells, a grant. Must not: touch an
//! instance that somebody holds.

pub mod caps;
pub mod check;
pub mod names;
pub mod plan;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_core::mig::place;
use aliquot_core::mig::published::{Cut, Made, Mig as Published, Part, Placed};
use aliquot_core::mig::{Geometry, Instance, resource};
use aliquot_nvml::{self as nvml, Activation, CardFacts, CardHealth, Driver};
use aliquot_profiles::Mode;
use aliquot_profiles::mode::{Exclusive, Mig, Mps, On, Slice, Strategy};
use parking_lot::Mutex;

use super::{ModeError, Outfit, Share, Switch, exclusive, mps, timeslice, vgpu};
use crate::host;
use crate::units::{Offer, health_of};

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

/// What cuts cards.
pub(super) struct Cutter {
    driver: Arc<dyn Driver>,
    /// Where [`names`] are.
    folder: PathBuf,
    /// One change at a time.
    turn: Mutex<()>,
    /// Something was changed that nobody has read yet.
    changed: AtomicBool,
    /// Of instances that are shared by MPS.
    mps: mps::Daemons,
}

impl Cutter {
    pub(super) fn new(driver: Arc<dyn Driver>, folder: PathBuf, mps: mps::Daemons) -> Self {
        Self {
            driver,
            folder,
            turn: Mutex::new(()),
            changed: AtomicBool::new(false),
            mps,
        }
    }

    pub(super) fn cut_since(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    /// Makes the instance of a grant, unless it is there. Idle ones give way.
    pub(super) fn equip(&self, share: &Share<'_>, outfit: &mut Outfit) -> Result<(), ModeError> {
        let card = share.grant.gpu.as_str();
        let Some(wanted) = &share.grant.mig else {
            let text = format!(
                "the pod's share of {card} names no instance: delete the pod and create it again"
            );
            return Err(ModeError::Refused(text));
        };
        let _turn = self.turn.lock();
        let mut cut = self.driver.cut(card)?;
        let Some(geometry) = cut.geometry.take() else {
            return Err(ModeError::Refused(format!("MIG is off on {card}")));
        };
        let here = |one: &&nvml::Instance| plan::place_of(one) == *wanted && one.device().is_some();
        let made = match cut.instances.iter().find(here) {
            Some(found) => found.clone(),
            None => self.make(card, &geometry, &cut.instances, wanted, share.beside)?,
        };
        let Some(device) = made.device() else {
            return Err(ModeError::Refused(format!(
                "{card}: no device of {}",
                made.profile
            )));
        };
        outfit.visible.push(device.current.clone());
        outfit.part = Some(host::Part::of(&made, device));
        Ok(())
    }

    fn make(
        &self,
        card: &str,
        geometry: &Geometry,
        there: &[nvml::Instance],
        wanted: &Placed,
        beside: &[Placed],
    ) -> Result<nvml::Instance, ModeError> {
        let known = there.iter().filter_map(|one| {
            let place = plan::place_of(one);
            let busy = beside.contains(&place) && place != *wanted;
            let profile = geometry.find(&one.profile)?;
            let start = one.start;
            let instance = Instance {
                profile,
                start,
                busy,
            };
            Some((instance, one.id))
        });
        let known: Vec<(Instance, u32)> = known.collect();
        let all: Vec<Instance> = known.iter().map(|(one, _)| *one).collect();
        let (profile, start) = (&wanted.profile, wanted.start);
        let at = geometry.find(profile);
        let needs = at.and_then(|at| place::on_card(geometry, &all, at, |one| one == start));
        let Some((_, needs)) = needs else {
            let text = format!(
                "{card} has no place for {profile} at slice {start} beside what other pods hold"
            );
            return Err(ModeError::Refused(text));
        };
        // One at the very place that is half made goes, too.
        for (one, id) in &known {
            if !one.busy
                && (needs.destroys.contains(&one.start) || (needs.ready && one.start == start))
            {
                tracing::info!(card, id, "an idle MIG instance gives way");
                self.driver.destroy_instance(card, *id)?;
            }
        }
        self.changed.store(true, Ordering::Relaxed);
        let made = self.driver.create_instance(card, profile, start)?;
        tracing::info!(
            card,
            profile,
            start,
            id = made.id,
            "a MIG instance was made"
        );
        Ok(made)
    }

    fn switch_on(&self, card: &CardFacts) -> Result<(), ModeError> {
        let uuid = &card.uuid;
        if !card.mig.capable {
            return Err(ModeError::Refused(format!("card {uuid} has no MIG")));
        }
        if self.driver.cut(uuid)?.geometry.is_some() {
            return Ok(());
        }
        match self.driver.set_mig(uuid, true)? {
            Activation::Now => Ok(()),
            Activation::AtReset => Err(ModeError::Refused(format!(
                "MIG on card {uuid} waits for a reset of the GPU: some process still uses it"
            ))),
        }
    }

    fn cut(&self, card: &CardFacts, settings: &Mig) -> Result<(), ModeError> {
        let uuid = card.uuid.as_str();
        let found = self.driver.cut(uuid)?;
        let Some(geometry) = found.geometry else {
            let text = format!("MIG is on, but card {uuid} tells no profiles");
            return Err(ModeError::Refused(text));
        };
        let plan = if settings.dynamic {
            plan::tidy(&found.instances)
        } else {
            let before = names::places(&self.folder, uuid);
            let plan = plan::plan(&geometry, &settings.layout, &found.instances, &before);
            plan.map_err(|error| ModeError::Refused(format!("card {uuid}: {error}")))?
        };
        for id in plan.destroy {
            self.driver.destroy_instance(uuid, id)?;
        }
        for place in plan.create {
            self.driver
                .create_instance(uuid, &place.profile, place.start)?;
        }
        self.changed.store(true, Ordering::Relaxed);
        let found = self.driver.cut(uuid)?.instances;
        for (settings, instance, device) in with_mps(&settings.layout, &found) {
            let profile = geometry.find(&instance.profile);
            let slices = profile.map(|at| geometry.profiles()[at].compute.into());
            let place = mps::Place {
                unit: &device.uuid,
                current: &device.current,
                memory: instance.memory,
                capability: card.compute_capability,
                slices,
            };
            self.mps.begin(place, settings)?;
        }
        Ok(())
    }
}

/// The instances of a layout that are shared by MPS.
fn with_mps<'a>(
    layout: &'a [Slice],
    found: &'a [nvml::Instance],
) -> impl Iterator<Item = (&'a Mps, &'a nvml::Instance, &'a nvml::Device)> {
    let all = assigned(layout, found).into_iter();
    all.filter_map(|(slice, instance, device)| match &slice.on {
        Some(On::Mps(settings)) => Some((settings, instance, device)),
        _ => None,
    })
}

impl Switch for Cutter {
    fn enter(&self, card: &CardFacts, settings: &Mode) -> Result<(), ModeError> {
        let Mode::Mig(settings) = settings else {
            return Ok(());
        };
        let _turn = self.turn.lock();
        self.switch_on(card)?;
        self.cut(card, settings)
    }

    fn leave(&self, card: &CardFacts, settings: &Mode) -> Result<(), ModeError> {
        let Mode::Mig(settings) = settings else {
            return Ok(());
        };
        if !card.mig.capable {
            return Ok(());
        }
        let _turn = self.turn.lock();
        self.changed.store(true, Ordering::Relaxed);
        let found = self.driver.cut(&card.uuid)?.instances;
        for (_, _, device) in with_mps(&settings.layout, &found) {
            self.mps.end(&device.uuid)?;
        }
        for instance in found {
            self.driver.destroy_instance(&card.uuid, instance.id)?;
        }
        match self.driver.set_mig(&card.uuid, false)? {
            Activation::Now => Ok(()),
            Activation::AtReset => Err(ModeError::Refused(format!(
                "MIG on card {} stays on until a reset of the GPU: some process still uses it",
                card.uuid
            ))),
        }
    }
}
