//! Creating and destroying MIG instances, as functions of the model, by the driver's rules: a
//! placement must be one of the profile's and free, compute slices must be left, and an instance
//! that is in use stays.

use aliquot_gpusim_model::mig::{ComputeInstance, GpuInstance, WHOLE_GPU};

use super::profiles::{self, Profile};
use crate::model::{Gpu, Machine, OFF, ON, text};

/// The first generation (`nvmlDeviceArchitecture_t`) that switches MIG without a reset, and
/// forgets it at a reboot.
const AFTER_AMPERE: u32 = 8;

/// Why the driver refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstanceError {
    /// The GPU has no MIG, it is off, or there is no such profile.
    NotSupported,
    /// A placement that the profile does not have.
    Invalid,
    /// The slices are taken.
    NoFreePlacement,
    InUse,
    /// No such instance (any more).
    NotFound,
}

/// The result of switching MIG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigModeChange {
    /// The mode changed.
    Now,
    /// The mode changes at the next reset: the GPU is in use.
    Pending,
}

/// Whether a switch of MIG resets the GPU: up to Ampere.
pub(crate) fn resets(gpu: &Gpu) -> bool {
    gpu.architecture < AFTER_AMPERE
}

/// Switches MIG; `used`: some process is on the GPU or, if the GPU is reset for it, has it open. The
/// reset waits until it is unused.
pub(crate) fn switch(gpu: &mut Gpu, on: bool, used: bool) -> Result<MigModeChange, InstanceError> {
    if gpu.mig != OFF && gpu.mig != ON {
        return Err(InstanceError::NotSupported);
    }
    let desired = if on { ON } else { OFF };
    if !on && !gpu.gpu_instances().is_empty() {
        return Err(InstanceError::InUse);
    }
    if used && gpu.mig != desired && !resets(gpu) {
        return Err(InstanceError::InUse);
    }
    gpu.mig_pending = desired;
    if used && gpu.mig != desired {
        return Ok(MigModeChange::Pending);
    }
    gpu.mig = desired;
    Ok(MigModeChange::Now)
}

/// A GPU reset: a pending MIG mode takes effect, and no MIG instance is left.
pub(crate) fn reset(gpu: &mut Gpu) {
    gpu.mig = gpu.mig_pending;
    (gpu.lost, gpu.recovery_action) = (0, 0);
    gpu.gpu_instance_slots
        .iter_mut()
        .for_each(|one| one.serial = 0);
    gpu.compute_instance_slots
        .iter_mut()
        .for_each(|one| one.serial = 0);
}

/// A reboot: no process, no instance. The MIG mode survives on GPUs that retain it, which later
/// models than Ampere do not.
pub(crate) fn reboot(gpu: &mut Gpu) {
    reset(gpu);
    gpu.process_count = 0;
    if gpu.mig == ON && !resets(gpu) {
        (gpu.mig, gpu.mig_pending) = (OFF, OFF);
    }
}

/// The GPU's profile of this driver id; only while MIG is on.
pub(crate) fn enabled_profile(gpu: &Gpu, id: u32) -> Result<Profile, InstanceError> {
    if gpu.mig != ON {
        return Err(InstanceError::NotSupported);
    }
    profile_by_id(gpu, id)
}

/// The same whether or not MIG is on: what a GPU could be partitioned into is always reported.
pub(crate) fn profile_by_id(gpu: &Gpu, id: u32) -> Result<Profile, InstanceError> {
    let mut all = profiles::of(text(&gpu.model)).into_iter();
    all.find(|one| one.id == id)
        .ok_or(InstanceError::NotSupported)
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

/// Creates a GPU instance, at a start or at the driver's default placement, and returns its serial.
pub(crate) fn create(
    machine: &mut Machine,
    gpu_index: usize,
    id: u32,
    placement: Option<(u32, u32)>,
) -> Result<u64, InstanceError> {
    let serial = machine.new_serial();
    let gpu = &mut machine.gpus[gpu_index];
    let profile = enabled_profile(gpu, id)?;
    let start = match placement {
        // The driver's default placement: the highest free start.
        None => {
            let mut starts = profile.starts.iter().rev().copied();
            let free = starts.find(|start| fits(gpu, &profile, *start));
            free.ok_or(InstanceError::NoFreePlacement)?
        }
        Some((start, size)) if size == profile.size && profile.starts.contains(&start) => start,
        Some(_) => return Err(InstanceError::Invalid),
    };
    if !fits(gpu, &profile, start) {
        return Err(InstanceError::NoFreePlacement);
    }
    let profiles = profiles::of(text(&gpu.model));
    let whole = profiles.iter().map(|one| one.size).max().unwrap_or(0);
    let place = gpu
        .gpu_instance_slots
        .iter_mut()
        .find(|one| one.serial == 0);
    *place.ok_or(InstanceError::NoFreePlacement)? = GpuInstance {
        serial,
        memory: profile.memory << 20,
        id: number(whole, &profile, start),
        profile: profile.id,
        start,
        size: profile.size,
        slices: profile.slices,
        sms: profile.sms,
    };
    Ok(serial)
}

/// The driver numbers instances by their place: the whole GPU 0, its halves 2 and 1, its
/// quarters from 3, its eighths from 7.
fn number(whole: u32, profile: &Profile, start: u32) -> u32 {
    let (size, parts) = (profile.size, whole / profile.size.max(1));
    match parts {
        0 | 1 => 0,
        2 => 2 - start / size,
        _ => parts - 1 + start / size,
    }
}

/// Destroys a GPU instance without compute instances.
pub(crate) fn destroy(machine: &mut Machine, serial: u64) -> Result<(), InstanceError> {
    let (gpu_index, found) = gpu_instance(machine, serial).ok_or(InstanceError::NotFound)?;
    let gpu = &mut machine.gpus[gpu_index];
    if !gpu.compute_instances(found.id).is_empty() {
        return Err(InstanceError::InUse);
    }
    let same = |one: &&mut GpuInstance| one.serial == serial;
    gpu.gpu_instance_slots
        .iter_mut()
        .filter(same)
        .for_each(|one| one.serial = 0);
    Ok(())
}

/// The GPU instance of this serial and its GPU.
pub(crate) fn gpu_instance(machine: &Machine, serial: u64) -> Option<(usize, GpuInstance)> {
    let mut gpus = machine.existing_gpus().iter().enumerate();
    gpus.find_map(|(gpu_index, gpu)| {
        let mut all = gpu.gpu_instances().into_iter();
        all.find(|one| one.serial == serial)
            .map(|one| (gpu_index, one))
    })
}

/// A device's name as the driver makes it: `3g.20gb`, or `1c.3g.20gb` where it has only a part of
/// the compute slices.
pub(crate) fn name(gpu: &Gpu, outer: &GpuInstance, inner: &ComputeInstance) -> String {
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
pub(crate) fn compute_slices(id: u32) -> Option<u32> {
    match id {
        0..=3 => Some(id + 1),
        4 => Some(7),
        _ => None,
    }
}

/// The lowest start at which a compute instance of so many slices fits in a GPU instance.
fn compute_start(gpu: &Gpu, inside: &GpuInstance, slices: u32) -> Option<u32> {
    let there = gpu.compute_instances(inside.id);
    let apart = |start: u32| {
        there
            .iter()
            .all(|one| one.start + one.slices <= start || start + slices <= one.start)
    };
    let last = inside.slices.checked_sub(slices)?;
    (0..=last).find(|start| apart(*start))
}

/// Whether this creation of a compute instance shall fail (`creation_failures`).
pub(crate) fn take_creation_failure(machine: &mut Machine, inside: u64) -> bool {
    let Some((gpu_index, _)) = gpu_instance(machine, inside) else {
        return false;
    };
    let left = &mut machine.gpus[gpu_index].creation_failures;
    let fails = *left > 0;
    *left = left.saturating_sub(1);
    fails
}

/// Creates a compute instance in a GPU instance, and returns its serial.
pub(crate) fn create_compute(
    machine: &mut Machine,
    inside: u64,
    id: u32,
) -> Result<u64, InstanceError> {
    let serial = machine.new_serial();
    let (gpu_index, found) = gpu_instance(machine, inside).ok_or(InstanceError::NotFound)?;
    let gpu = &mut machine.gpus[gpu_index];
    let slices = compute_slices(id).filter(|slices| *slices <= found.slices);
    let slices = slices.ok_or(InstanceError::NotSupported)?;
    let start = compute_start(gpu, &found, slices).ok_or(InstanceError::NoFreePlacement)?;
    let taken: Vec<u32> = gpu
        .compute_instances(found.id)
        .iter()
        .map(|one| one.id)
        .collect();
    let number = (0..found.slices)
        .find(|id| !taken.contains(id))
        .unwrap_or(0);
    let place = gpu
        .compute_instance_slots
        .iter_mut()
        .find(|one| one.serial == 0);
    *place.ok_or(InstanceError::NoFreePlacement)? = ComputeInstance {
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

/// Destroys a compute instance; `used`: whether a process visible here is on it.
pub(crate) fn destroy_compute(
    machine: &mut Machine,
    serial: u64,
    used: impl Fn(u32, u32) -> bool,
) -> Result<(), InstanceError> {
    let found = machine
        .instances()
        .into_iter()
        .find(|one| one.compute.serial == serial);
    let found = found.ok_or(InstanceError::NotFound)?;
    if used(found.gpu.id, found.compute.id) {
        return Err(InstanceError::InUse);
    }
    let same = |one: &&mut ComputeInstance| one.serial == serial;
    let gpu = &mut machine.gpus[found.gpu_index];
    gpu.compute_instance_slots
        .iter_mut()
        .filter(same)
        .for_each(|one| one.serial = 0);
    Ok(())
}

/// Whether a process with these instance numbers uses the instance; one on the whole GPU uses all.
pub(crate) fn uses_instance(process: (u32, u32), instance: (u32, u32)) -> bool {
    let same = |mine: u32, its: u32| mine == its || mine == WHOLE_GPU;
    same(process.0, instance.0) && same(process.1, instance.1)
}
