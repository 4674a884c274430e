//! What cuts cards: the layout of a card, instances for pods as they come, and MIG on and off.
//!
//! Fed by: the mode's settings, the instances that the driver tells, a grant. Must not: touch an
//! instance that somebody holds; let one card wait for another, or for a daemon of MPS.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_core::mig::place;
use aliquot_core::mig::published::Placed;
use aliquot_core::mig::{Geometry, Instance};
use aliquot_nvml::{self as nvml, Activation, CardFacts, Driver};
use aliquot_profiles::Mode;
use aliquot_profiles::mode::{Mig, Mps, On, Slice};
use parking_lot::Mutex;

use super::{assigned, names, plan};
use crate::host;
use crate::modes::{ModeError, Outfit, Share, Switch, mps};

pub(crate) struct Cutter {
    driver: Arc<dyn Driver>,
    /// Where [`names`] are.
    folder: PathBuf,
    /// One change at a time of each card.
    turns: Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
    /// Something was changed that nobody has read yet.
    changed: AtomicBool,
    /// Of instances that are shared by MPS.
    mps: Arc<mps::Daemons>,
}

/// A change that has begun: however it ends, the cards are read anew after it, and not before.
struct Changing<'a>(&'a AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Cutter {
    pub(crate) fn new(driver: Arc<dyn Driver>, folder: PathBuf, mps: Arc<mps::Daemons>) -> Self {
        Self {
            driver,
            folder,
            turns: Mutex::default(),
            changed: AtomicBool::new(false),
            mps,
        }
    }

    pub(crate) fn cut_since(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    fn turn(&self, card: &str) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock();
        Arc::clone(turns.entry(card.to_owned()).or_default())
    }

    /// Makes the instance of a grant, unless it is there. Idle ones give way.
    pub(crate) fn equip(&self, share: &Share<'_>, outfit: &mut Outfit) -> Result<(), ModeError> {
        let card = share.grant.gpu.as_str();
        let Some(wanted) = &share.grant.mig else {
            let text = format!(
                "the pod's share of {card} names no instance: delete the pod and create it again"
            );
            return Err(ModeError::Refused(text));
        };
        let turn = self.turn(card);
        let _turn = turn.lock();
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
        let _changing = Changing(&self.changed);
        // One at the very place that is half made goes, too.
        for (one, id) in &known {
            if !one.busy
                && (needs.destroys.contains(&one.start) || (needs.ready && one.start == start))
            {
                tracing::info!(card, id, "an idle MIG instance gives way");
                self.driver.destroy_instance(card, *id)?;
            }
        }
        let made = self.driver.create_instance(card, profile, start)?;
        told(card, &made);
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
            Activation::AtReset => Err(ModeError::Waits(format!(
                "MIG on card {uuid} waits for a reset of the GPU: some process still has it open"
            ))),
        }
    }

    /// Makes the instances; tells what there is then.
    fn cut(
        &self,
        card: &CardFacts,
        settings: &Mig,
    ) -> Result<(Geometry, Vec<nvml::Instance>), ModeError> {
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
        let _changing = Changing(&self.changed);
        for id in plan.destroy {
            self.driver.destroy_instance(uuid, id)?;
        }
        for place in plan.create {
            let made = self
                .driver
                .create_instance(uuid, &place.profile, place.start)?;
            told(uuid, &made);
        }
        Ok((geometry, self.driver.cut(uuid)?.instances))
    }

    /// Ends the daemons of all instances that the card ever had, by their names: after a reboot
    /// the instances are gone, and the wishes are not.
    fn end_daemons(
        &self,
        card: &str,
        found: &[nvml::Instance],
        stays: impl Fn(&str) -> bool,
    ) -> Result<(), ModeError> {
        let devices = found.iter().flat_map(|one| &one.devices);
        let mut units = names::units(&self.folder, card);
        units.extend(devices.map(|device| device.uuid.clone()));
        for unit in units.iter().filter(|unit| !stays(unit)) {
            self.mps.end(unit)?;
        }
        Ok(())
    }
}

/// Says which instance was made: its uuid and numbers are what users and tools name it by.
fn told(card: &str, made: &nvml::Instance) {
    let device = made.device();
    tracing::info!(
        card,
        profile = made.profile,
        start = made.start,
        uuid = device.map(|device| device.current.as_str()),
        gpu_instance = made.id,
        compute_instance = device.map(|device| device.id),
        "a MIG instance was made"
    );
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
        let turn = self.turn(&card.uuid);
        let turn = turn.lock();
        self.switch_on(card)?;
        let (geometry, found) = self.cut(card, settings)?;
        // Daemons take their time, in which instances of pods must not wait.
        drop(turn);
        let shared: Vec<_> = with_mps(&settings.layout, &found).collect();
        let stays = |unit: &str| shared.iter().any(|(_, _, device)| device.uuid == unit);
        self.end_daemons(&card.uuid, &found, stays)?;
        let slices = |name: &str| {
            geometry
                .find(name)
                .map(|at| geometry.profiles()[at].compute)
        };
        for (settings, instance, device) in &shared {
            let place = mps::Place {
                unit: &device.uuid,
                current: &device.current,
                memory: instance.memory,
                capability: card.compute_capability,
                part: slices(&instance.profile)
                    .map(|slices| (slices.into(), geometry.compute().into())),
            };
            self.mps.begin(place, settings)?;
        }
        Ok(())
    }

    fn leave(&self, card: &CardFacts, settings: &Mode, to: &Mode) -> Result<(), ModeError> {
        let Mode::Mig(_) = settings else {
            return Ok(());
        };
        if !card.mig.capable {
            return Ok(());
        }
        let uuid = card.uuid.as_str();
        let found = self.driver.cut(uuid)?.instances;
        self.end_daemons(uuid, &found, |_| false)?;
        let turn = self.turn(uuid);
        let _turn = turn.lock();
        let _changing = Changing(&self.changed);
        // To be cut otherwise needs no other mode of the card, which some cards take a reset for.
        // What is in a layout's way goes when that is made.
        let stays = |one: &nvml::Instance| match to {
            Mode::Mig(to) => !to.dynamic || to.allow.is_empty() || to.allow.contains(&one.profile),
            _ => false,
        };
        let found = self.driver.cut(uuid)?.instances;
        for instance in found.iter().filter(|one| !stays(one)) {
            self.driver.destroy_instance(uuid, instance.id)?;
        }
        if matches!(to, Mode::Mig(_)) {
            return Ok(());
        }
        match self.driver.set_mig(uuid, false)? {
            Activation::Now => Ok(()),
            Activation::AtReset => Err(ModeError::Waits(format!(
                "MIG on card {uuid} stays on until a reset of the GPU: some process still has it open"
            ))),
        }
    }
}

#[cfg(test)]
#[path = "cutter_tests.rs"]
mod tests;
