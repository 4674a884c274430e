//! Partitions GPUs: creates the instances of a layout, creates instances for pods under dynamic
//! MIG, and turns MIG mode on and off.
//!
//! Never touches an instance in use, and never lets one GPU wait for another or for an MPS daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aliquot_core::GpuUuid;
use aliquot_core::mig::place;
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::mig::{Geometry, Instance};
use aliquot_nvml::{self as nvml, Activation, Driver, DriverAccess, GpuFacts};
use aliquot_profiles::Mode;
use aliquot_profiles::mode::{InstanceSharing, LayoutEntry, Mig, Mps};
use parking_lot::Mutex;

use super::last_instances::LastInstances;
use super::{assign_instances, plan};
use crate::host_device::{InstanceIds, placement_of};
use crate::modes::{ContainerGrant, ModeError, ModeSetup, mps};

/// How long to wait until the monitor has closed the driver: it samples twice a second.
const MONITOR_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct MigPartitioner {
    driver: Arc<dyn Driver>,
    /// By which the monitor closes the driver for a change of the MIG mode.
    access: DriverAccess,
    last: LastInstances,
    /// One lock for each GPU, so that it is changed by one thread at a time.
    gpu_locks: Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
    /// Instances changed and were not reread yet.
    changed: AtomicBool,
    /// The daemons of instances that are shared by MPS.
    mps: Arc<mps::MpsDaemons>,
}

/// A change in progress: however it ends, the GPUs are reread after it, and not before.
struct LayoutChange<'a>(&'a AtomicBool);

impl Drop for LayoutChange<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl MigPartitioner {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        access: DriverAccess,
        directory: PathBuf,
        mps: Arc<mps::MpsDaemons>,
    ) -> Self {
        Self {
            driver,
            access,
            last: LastInstances::read(directory),
            gpu_locks: Mutex::default(),
            changed: AtomicBool::new(false),
            mps,
        }
    }

    pub(crate) fn take_layout_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn gpu_of_instance(&self, uuid: &str) -> Option<GpuUuid> {
        self.last.gpu_of(uuid)
    }

    fn gpu_lock(&self, gpu: &str) -> Arc<Mutex<()>> {
        let mut locks = self.gpu_locks.lock();
        Arc::clone(locks.entry(gpu.to_owned()).or_default())
    }

    /// Creates the instance of a grant, unless it exists. Unused instances are destroyed where they
    /// are in the way.
    pub(crate) fn prepare(
        &self,
        share: &ContainerGrant<'_>,
        setup: &mut ModeSetup,
    ) -> Result<InstanceIds, ModeError> {
        let gpu = share.grant.gpu.as_str();
        let Some(placement) = &share.grant.mig else {
            let text = format!(
                "the pod's allocation on {gpu} names no MIG instance: delete the pod and create it again"
            );
            return Err(ModeError::Refused(gpu.into(), text));
        };
        let lock = self.gpu_lock(gpu);
        let _guard = lock.lock();
        let mut layout = self.driver.mig_layout(gpu)?;
        let Some(geometry) = layout.geometry.take() else {
            let text = format!(
                "MIG mode is disabled on {gpu} of the pod's allocation: delete the pod and create it again"
            );
            return Err(ModeError::Refused(gpu.into(), text));
        };
        let matches =
            |one: &&nvml::GpuInstance| placement_of(one) == *placement && one.device().is_some();
        let made = match layout.instances.iter().find(matches) {
            Some(found) => found.clone(),
            None => self.make(
                gpu,
                &geometry,
                &layout.instances,
                placement,
                share.other_instances,
            )?,
        };
        let Some(device) = made.device() else {
            return Err(ModeError::Failed(format!(
                "{gpu}: the new MIG instance {} has no device",
                made.profile
            )));
        };
        setup.show(&device.uuid, share.grant.clone());
        Ok(InstanceIds::new(&made, device))
    }

    fn make(
        &self,
        gpu: &str,
        geometry: &Geometry,
        existing: &[nvml::GpuInstance],
        placement: &MigPlacement,
        in_use: &[MigPlacement],
    ) -> Result<nvml::GpuInstance, ModeError> {
        let known = existing.iter().filter_map(|one| {
            let place = placement_of(one);
            let busy = in_use.contains(&place) && place != *placement;
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
        let (profile, start) = (&placement.profile, placement.start);
        let at = geometry.find(profile);
        let needs = at.and_then(|at| place::on_gpu(geometry, &all, at, |one| one == start));
        let Some((_, needs)) = needs else {
            let text = format!(
                "{gpu} has no room for {profile} at slice {start} beside the instances of other pods: delete the pod and create it again"
            );
            return Err(ModeError::Refused(gpu.into(), text));
        };
        let _changing = LayoutChange(&self.changed);
        // An incomplete instance at the same placement is destroyed, too.
        for (one, id) in &known {
            if !one.busy
                && (needs.destroys.contains(&one.start) || (needs.ready && one.start == start))
            {
                tracing::info!(gpu, id, "destroying an unused MIG instance to make room");
                self.driver.destroy_instance(gpu, *id)?;
            }
        }
        let made = self.driver.create_instance(gpu, profile, start)?;
        log_created(gpu, &made);
        Ok(made)
    }

    /// Switches MIG mode while the monitor has the driver closed: some GPUs are reset for it.
    fn set_mig(&self, gpu: &str, on: bool) -> Result<Activation, nvml::MigError> {
        let access = self.access.request(MONITOR_PATIENCE);
        match &access {
            Ok(access) if access.is_alone() => {}
            Ok(_) => tracing::warn!(
                gpu,
                wait = ?MONITOR_PATIENCE,
                "the monitor has not closed the driver for the change of the MIG mode"
            ),
            Err(error) => tracing::warn!(
                gpu, %error,
                "cannot ask the monitor to close the driver for the change of the MIG mode"
            ),
        }
        self.driver.set_mig(gpu, on)
    }

    fn switch_on(&self, gpu: &GpuFacts) -> Result<(), ModeError> {
        let uuid = &gpu.uuid;
        if !gpu.mig.capable {
            return Err(ModeError::Failed(format!("{uuid} does not support MIG")));
        }
        if self.driver.mig_layout(uuid)?.geometry.is_some() {
            return Ok(());
        }
        match self.set_mig(uuid, true)? {
            Activation::Now => Ok(()),
            Activation::AtReset => Err(ModeError::NeedsAction(format!(
                "enabling MIG on {uuid} needs a reset of the GPU: a process still has it open"
            ))),
        }
    }

    /// Creates the instances of the layout; returns those that exist then.
    fn apply_layout(
        &self,
        gpu: &GpuFacts,
        settings: &Mig,
    ) -> Result<(Geometry, Vec<nvml::GpuInstance>), ModeError> {
        let uuid = gpu.uuid.as_str();
        let found = self.driver.mig_layout(uuid)?;
        let Some(geometry) = found.geometry else {
            let text =
                format!("MIG mode is enabled on {uuid}, but the driver reports no profiles for it");
            return Err(ModeError::Failed(text));
        };
        let plan = if settings.dynamic {
            plan::plan_cleanup(&found.instances)
        } else {
            let before = self.last.of(uuid).into_iter().map(|one| one.place);
            let before: Vec<MigPlacement> = before.collect();
            let plan = plan::plan_layout(&geometry, &settings.layout, &found.instances, &before);
            plan.map_err(|error| ModeError::Failed(format!("{uuid}: {error}")))?
        };
        let _changing = LayoutChange(&self.changed);
        for id in plan.destroy {
            self.driver.destroy_instance(uuid, id)?;
        }
        for place in plan.create {
            let made = self
                .driver
                .create_instance(uuid, &place.profile, place.start)?;
            log_created(uuid, &made);
        }
        Ok((geometry, self.driver.mig_layout(uuid)?.instances))
    }

    /// Stops the daemons of all instances that the GPU has or had last: after a reboot the
    /// instances are gone, but their daemon specs are not.
    fn stop_daemons(
        &self,
        gpu: &str,
        found: &[nvml::GpuInstance],
        stays: impl Fn(&str) -> bool,
    ) -> Result<(), ModeError> {
        let devices = found.iter().flat_map(|one| &one.devices);
        let last = self.last.of(gpu).into_iter().map(|one| one.uuid);
        let all: BTreeSet<String> = last
            .chain(devices.map(|device| device.uuid.clone()))
            .collect();
        for uuid in all.iter().filter(|uuid| !stays(uuid)) {
            self.mps.stop(uuid)?;
        }
        Ok(())
    }
}

/// Logs the UUID and numbers of a new instance, by which users and tools name it.
fn log_created(gpu: &str, made: &nvml::GpuInstance) {
    let device = made.device();
    tracing::info!(
        gpu,
        profile = made.profile,
        start = made.start,
        uuid = device.map(|device| device.uuid.as_str()),
        gpu_instance = made.id,
        compute_instance = device.map(|device| device.id),
        "created a MIG instance"
    );
}

/// The instances of a layout that are shared by MPS.
fn with_mps<'a>(
    layout: &'a [LayoutEntry],
    found: &'a [nvml::GpuInstance],
) -> impl Iterator<Item = (&'a Mps, &'a nvml::GpuInstance, &'a nvml::MigDevice)> {
    let all = assign_instances(layout, found).into_iter();
    all.filter_map(|(slice, instance, device)| match &slice.on {
        Some(InstanceSharing::Mps(settings)) => Some((settings, instance, device)),
        _ => None,
    })
}

impl MigPartitioner {
    pub(super) fn enter(&self, gpu: &GpuFacts, settings: &Mig) -> Result<(), ModeError> {
        let lock = self.gpu_lock(&gpu.uuid);
        let guard = lock.lock();
        self.switch_on(gpu)?;
        let (geometry, found) = self.apply_layout(gpu, settings)?;
        // Instances of pods must not wait while daemons start.
        drop(guard);
        let shared: Vec<_> = with_mps(&settings.layout, &found).collect();
        let stays = |uuid: &str| shared.iter().any(|(_, _, device)| device.uuid == uuid);
        self.stop_daemons(&gpu.uuid, &found, stays)?;
        self.last.store(&gpu.uuid, &found);
        let slices = |name: &str| {
            geometry
                .find(name)
                .map(|at| geometry.profiles()[at].compute)
        };
        for (settings, instance, device) in &shared {
            let place = mps::DaemonTarget {
                device: &device.uuid,
                memory: instance.memory,
                capability: gpu.compute_capability,
                slices: slices(&instance.profile)
                    .map(|slices| (slices.into(), geometry.compute().into())),
            };
            self.mps.start(place, settings)?;
        }
        Ok(())
    }

    /// Removes what is in the way of this mode.
    pub(super) fn leave(&self, gpu: &GpuFacts, to: &Mode) -> Result<(), ModeError> {
        if !gpu.mig.capable {
            return Ok(());
        }
        let uuid = gpu.uuid.as_str();
        let found = self.driver.mig_layout(uuid)?.instances;
        self.stop_daemons(uuid, &found, |_| false)?;
        let lock = self.gpu_lock(uuid);
        let _guard = lock.lock();
        let _changing = LayoutChange(&self.changed);
        // Another layout needs no change of MIG mode, which takes a reset on some GPUs. Entering it
        // removes what is in its way.
        let stays = |one: &nvml::GpuInstance| match to {
            Mode::Mig(to) => !to.dynamic || to.allow.is_empty() || to.allow.contains(&one.profile),
            _ => false,
        };
        let found = self.driver.mig_layout(uuid)?.instances;
        for instance in found.iter().filter(|one| !stays(one)) {
            self.driver.destroy_instance(uuid, instance.id)?;
        }
        if matches!(to, Mode::Mig(_)) {
            return Ok(());
        }
        match self.set_mig(uuid, false)? {
            Activation::Now => Ok(()),
            Activation::AtReset => Err(ModeError::NeedsAction(format!(
                "disabling MIG on {uuid} needs a reset of the GPU: a process still has it open"
            ))),
        }
    }
}

#[cfg(test)]
#[path = "partitioner_tests.rs"]
mod tests;
