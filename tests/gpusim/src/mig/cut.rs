//! Making and ending instances, as functions of the model. The rules are the driver's: a start
//! that is taken or of no profile, compute slices that are used up, instances that still hold
//! something. Fed by NVML's calls, which turn a refusal into a code.

use aliquot_gpusim_model::mig::{ComputeInstance, GpuInstance, WHOLE_CARD};

use super::profiles::{self, Profile};
use crate::model::{Gpu, Machine, OFF, ON, text};

/// The first generation (`nvmlDeviceArchitecture_t`) that switches MIG without a reset, and
/// forgets it at a reboot.
const AFTER_AMPERE: u32 = 8;

/// Why the driver does not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The card has no MIG, it is off, or there is no such profile.
    NotSupported,
    /// A placement that the profile does not have.
    Invalid,
    /// The slices are taken.
    Taken,
    /// Something still uses it.
    InUse,
    /// No such instance (any more).
    Gone,
}

/// What switching MIG came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// It is so now.
    Now,
    /// It will be so after the next reset: the card is used.
    Pending,
}

/// Switches MIG; `used`: some process is on the card. Cards up to Ampere are reset for it, which
/// waits until nobody uses them.
pub fn switch(gpu: &mut Gpu, on: bool, used: bool) -> Result<Switched, Refusal> {
    if gpu.mig != OFF && gpu.mig != ON {
        return Err(Refusal::NotSupported);
    }
    let wanted = if on { ON } else { OFF };
    if !on && !gpu.gpu_instances().is_empty() {
        return Err(Refusal::InUse);
    }
    let resets = gpu.architecture < AFTER_AMPERE;
    if used && gpu.mig != wanted && !resets {
        return Err(Refusal::InUse);
    }
    gpu.mig_pending = wanted;
    if used && gpu.mig != wanted {
        return Ok(Switched::Pending);
    }
    gpu.mig = wanted;
    Ok(Switched::Now)
}

/// A GPU reset: what was pending holds, and nothing is cut any more.
pub fn reset(gpu: &mut Gpu) {
    gpu.mig = gpu.mig_pending;
    (gpu.lost, gpu.recovery_action) = (0, 0);
    clear(gpu);
}

/// A reboot: no process, no instance. The mode outlives it where the card keeps it, which later
/// ones than Ampere do not.
pub fn reboot(gpu: &mut Gpu) {
    reset(gpu);
    gpu.process_count = 0;
    if gpu.mig == ON && gpu.architecture >= AFTER_AMPERE {
        (gpu.mig, gpu.mig_pending) = (OFF, OFF);
    }
}

fn clear(gpu: &mut Gpu) {
    gpu.cut.iter_mut().for_each(|one| one.serial = 0);
    gpu.compute.iter_mut().for_each(|one| one.serial = 0);
}

/// The card's profile of this driver id; only while it is cut.
pub fn profile(gpu: &Gpu, id: u32) -> Result<Profile, Refusal> {
    if gpu.mig != ON {
        return Err(Refusal::NotSupported);
    }
    known(gpu, id)
}

/// The same whether or not it is cut: what a card could be cut into is always told.
pub fn known(gpu: &Gpu, id: u32) -> Result<Profile, Refusal> {
    let mut all = profiles::of(text(&gpu.model)).into_iter();
    all.find(|one| one.id == id).ok_or(Refusal::NotSupported)
}

/// How many more instances of a profile there can be.
#[must_use]
pub fn remaining(gpu: &Gpu, profile: &Profile) -> u32 {
    let mut card = *gpu;
    let mut count = 0;
    while let Some(start) = free_start(&card, profile) {
        let Some(place) = card.cut.iter_mut().find(|one| one.serial == 0) else {
            break;
        };
        *place = instance(profile, start, u64::MAX, 0);
        count += 1;
    }
    count
}

/// Where the driver puts an instance when nobody says: as far up as it goes.
fn free_start(gpu: &Gpu, profile: &Profile) -> Option<u32> {
    let mut starts = profile.starts.iter().rev().copied();
    starts.find(|start| fits(gpu, profile, *start))
}

fn fits(gpu: &Gpu, profile: &Profile, start: u32) -> bool {
    let there = gpu.gpu_instances();
    let apart =
        |one: &GpuInstance| one.start + one.size <= start || start + profile.size <= one.start;
    let slices: u32 = there.iter().map(|one| one.slices).sum();
    let alike = there.iter().filter(|one| one.profile == profile.id).count();
    let all = profiles::slices_of(&profiles::of(text(&gpu.model)));
    there.iter().all(apart)
        && slices + profile.slices <= all
        && u32::try_from(alike).is_ok_and(|alike| alike < profile.most)
}

/// Makes a GPU instance, at a start or where the driver likes, and tells its serial.
pub fn create(
    machine: &mut Machine,
    card: usize,
    id: u32,
    placement: Option<(u32, u32)>,
) -> Result<u64, Refusal> {
    let serial = machine.new_serial();
    let gpu = &mut machine.gpus[card];
    let profile = profile(gpu, id)?;
    let start = match placement {
        None => free_start(gpu, &profile).ok_or(Refusal::Taken)?,
        Some((start, size)) if size == profile.size && profile.starts.contains(&start) => start,
        Some(_) => return Err(Refusal::Invalid),
    };
    if !fits(gpu, &profile, start) {
        return Err(Refusal::Taken);
    }
    let slices = profiles::of(text(&gpu.model));
    let whole = slices.iter().map(|one| one.size).max().unwrap_or(0);
    let place = gpu.cut.iter_mut().find(|one| one.serial == 0);
    *place.ok_or(Refusal::Taken)? =
        instance(&profile, start, serial, number(whole, &profile, start));
    Ok(serial)
}

/// The driver numbers instances by their place: the whole card 0, its halves 2 and 1, its
/// quarters from 3, its eighths from 7.
fn number(whole: u32, profile: &Profile, start: u32) -> u32 {
    let (size, parts) = (profile.size, whole / profile.size.max(1));
    match parts {
        0 | 1 => 0,
        2 => 2 - start / size,
        _ => parts - 1 + start / size,
    }
}

fn instance(profile: &Profile, start: u32, serial: u64, id: u32) -> GpuInstance {
    GpuInstance {
        serial,
        memory: profile.memory << 20,
        id,
        profile: profile.id,
        start,
        size: profile.size,
        slices: profile.slices,
        sms: profile.sms,
    }
}

/// Ends a GPU instance without compute instances.
pub fn destroy(machine: &mut Machine, serial: u64) -> Result<(), Refusal> {
    let (card, found) = gpu_instance(machine, serial).ok_or(Refusal::Gone)?;
    let gpu = &mut machine.gpus[card];
    if !gpu.compute_instances(found.id).is_empty() {
        return Err(Refusal::InUse);
    }
    let same = |one: &&mut GpuInstance| one.serial == serial;
    gpu.cut
        .iter_mut()
        .filter(same)
        .for_each(|one| one.serial = 0);
    Ok(())
}

/// The GPU instance of this serial and its card.
#[must_use]
pub fn gpu_instance(machine: &Machine, serial: u64) -> Option<(usize, GpuInstance)> {
    let mut cards = machine.cards().iter().enumerate();
    cards.find_map(|(card, gpu)| {
        let mut all = gpu.gpu_instances().into_iter();
        all.find(|one| one.serial == serial).map(|one| (card, one))
    })
}

/// A device's name as the driver makes it: `3g.20gb`, or `1c.3g.20gb` where it has only a part of
/// the compute slices.
#[must_use]
pub fn name(gpu: &Gpu, outer: &GpuInstance, inner: &ComputeInstance) -> String {
    let all = profiles::of(text(&gpu.model));
    let profile = all.into_iter().find(|one| one.id == outer.profile);
    let name = profile.map(|one| one.name).unwrap_or_default();
    if inner.slices == outer.slices {
        name
    } else {
        format!("{}c.{name}", inner.slices)
    }
}

/// Compute slices of a compute-instance profile; its id is NVML's name for the kind.
#[must_use]
pub fn compute_slices(id: u32) -> Option<u32> {
    match id {
        0..=3 => Some(id + 1),
        4 => Some(7),
        _ => None,
    }
}

/// Where a compute instance of so many slices may start in a GPU instance: the lowest first.
#[must_use]
pub fn compute_starts(gpu: &Gpu, inside: &GpuInstance, slices: u32) -> Vec<u32> {
    let there = gpu.compute_instances(inside.id);
    let apart = |start: u32| {
        there
            .iter()
            .all(|one| one.start + one.slices <= start || start + slices <= one.start)
    };
    let last = inside.slices.checked_sub(slices);
    let starts = last.into_iter().flat_map(|last| 0..=last);
    starts.filter(|start| apart(*start)).collect()
}

/// Whether making a compute instance in this GPU instance shall fail once more.
pub fn fails(machine: &mut Machine, inside: u64) -> bool {
    let Some((card, _)) = gpu_instance(machine, inside) else {
        return false;
    };
    let left = &mut machine.gpus[card].cut_faults;
    let fails = *left > 0;
    *left = left.saturating_sub(1);
    fails
}

/// Makes a compute instance in a GPU instance, and tells its serial.
pub fn create_compute(
    machine: &mut Machine,
    inside: u64,
    id: u32,
    placement: Option<(u32, u32)>,
) -> Result<u64, Refusal> {
    let serial = machine.new_serial();
    let (card, found) = gpu_instance(machine, inside).ok_or(Refusal::Gone)?;
    let gpu = &mut machine.gpus[card];
    let slices = compute_slices(id).filter(|slices| *slices <= found.slices);
    let slices = slices.ok_or(Refusal::NotSupported)?;
    let free = compute_starts(gpu, &found, slices);
    let start = match placement {
        None => free.first().copied(),
        Some((_, size)) if size != slices => return Err(Refusal::Invalid),
        Some((start, _)) => free.contains(&start).then_some(start),
    };
    let start = start.ok_or(Refusal::Taken)?;
    let taken: Vec<u32> = gpu
        .compute_instances(found.id)
        .iter()
        .map(|one| one.id)
        .collect();
    let number = (0..found.slices)
        .find(|id| !taken.contains(id))
        .unwrap_or(0);
    let place = gpu.compute.iter_mut().find(|one| one.serial == 0);
    *place.ok_or(Refusal::Taken)? = ComputeInstance {
        serial,
        gpu_instance: found.id,
        id: number,
        profile: id,
        start,
        slices,
        reserved: 0,
    };
    Ok(serial)
}

/// Ends a compute instance that no process is on; `used`: those seen from here.
pub fn destroy_compute(
    machine: &mut Machine,
    serial: u64,
    used: impl Fn(u32, u32) -> bool,
) -> Result<(), Refusal> {
    let found = machine
        .instances()
        .into_iter()
        .find(|one| one.compute.serial == serial);
    let found = found.ok_or(Refusal::Gone)?;
    if used(found.gpu.id, found.compute.id) {
        return Err(Refusal::InUse);
    }
    let same = |one: &&mut ComputeInstance| one.serial == serial;
    let gpu = &mut machine.gpus[found.card];
    gpu.compute
        .iter_mut()
        .filter(same)
        .for_each(|one| one.serial = 0);
    Ok(())
}

/// Whether a process that says to be there holds the instance; one on the whole card holds all.
#[must_use]
pub fn holds(process: (u32, u32), instance: (u32, u32)) -> bool {
    let same = |mine: u32, its: u32| mine == its || mine == WHOLE_CARD;
    same(process.0, instance.0) && same(process.1, instance.1)
}
