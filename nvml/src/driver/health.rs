//! The recorded errors of GPUs and MIG instances, and the health that follows from them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;

use super::{KnownGpu, Nvml};
use crate::Driver as _;
use crate::events;
use crate::fabric;
use crate::facts::{DeviceHealth, DriverHealth, GpuEvent, RecordedError, UnfinishedRegistration};
use crate::mig::MigLayout;

/// A GPU about which every call has failed for this long is lost.
const SILENCE: Duration = Duration::from_secs(10);
/// The recovery action of a GPU that must be reset.
const RESET_GPU: u64 = 1;

impl Nvml {
    pub(super) fn answers(&self, uuid: &str) -> Result<(), Cause> {
        self.library.device_by_uuid(uuid)?.uuid().map(drop)
    }

    /// The recovery that the driver requests after an error: 0 is none; `None` if not reported.
    fn recovery_action(&self, uuid: &str) -> Option<u64> {
        let device = self.library.device_by_uuid(uuid).ok()?;
        let ids = [FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)];
        let sample = device.field_values_for(&ids).ok()?.pop()?.ok()?;
        match sample.value.ok()? {
            SampleValue::U32(action) => Some(action.into()),
            SampleValue::U64(action) => Some(action),
            _ => None,
        }
    }

    /// The GPU's registration with its `NVLink` fabric, while it is not complete.
    fn unfinished_registration(&self, uuid: &str) -> Option<UnfinishedRegistration> {
        let device = self.library.device_by_uuid(uuid).ok()?;
        fabric::unfinished_registration(&self.library, &device)
    }

    /// Updates the recorded errors of a GPU and returns its health and that of its instances: an
    /// error of the GPU is an error of each instance, and so is a fabric that is not ready. The last
    /// health stays while calls fail for a reason of their own.
    pub(super) fn examine(&self, uuid: &str, known: &mut KnownGpu) -> Vec<DeviceHealth> {
        let (action, unfinished, lost) = match self.answers(uuid) {
            Ok(()) => (
                self.recovery_action(uuid),
                self.unfinished_registration(uuid),
                None,
            ),
            Err(Cause::ResetRequired) => (Some(RESET_GPU), None, None),
            Err(cause) => {
                let since = *known.silent_since.get_or_insert_with(Instant::now);
                if !is_lost(&cause, since.elapsed()) {
                    return known.health.clone();
                }
                (None, None, Some(DriverHealth::Lost(cause.to_string())))
            }
        };
        if lost.is_none() {
            known.silent_since = None;
        } else {
            for error in known.errors.values_mut() {
                error.was_lost = true;
            }
        }
        let instances = known.facts.layout.instances.iter();
        let devices = instances.flat_map(|one| &one.devices);
        let devices: Vec<&String> = devices.map(|device| &device.uuid).collect();
        known
            .errors
            .retain(|device, _| device == uuid || devices.contains(&device));
        let gpu = lost.clone();
        let gpu = gpu.unwrap_or_else(|| settled_health(action, &mut known.errors, uuid));
        let mut found = vec![DeviceHealth {
            uuid: uuid.to_owned(),
            health: unless_unregistered(gpu.clone(), unfinished),
        }];
        for device in devices {
            let health = match (&gpu, &lost) {
                (DriverHealth::Xid(_), _) | (_, Some(_)) => gpu.clone(),
                _ => settled_health(action, &mut known.errors, device),
            };
            found.push(DeviceHealth {
                uuid: device.clone(),
                health: unless_unregistered(health, unfinished),
            });
        }
        known.health.clone_from(&found);
        found
    }

    /// Records an XID and returns its event. An XID of an unknown instance counts for the GPU.
    pub(super) fn note_xid(&self, reported: events::XidReport) -> GpuEvent {
        let events::XidReport {
            gpu,
            instance,
            code,
        } = reported;
        let ignored = self.xids.of(code).keeps_gpu_in_service();
        let recovery_requested = self.recovery_action(&gpu).is_some_and(|action| action != 0);
        let mut uuid = gpu.clone();
        if let Some(known) = self.gpus.lock().get_mut(&gpu) {
            if let Some(instance) = instance {
                uuid = self.device_of(known, instance).unwrap_or(uuid);
            }
            if !ignored {
                let error = RecordedError {
                    gpu,
                    uuid: uuid.clone(),
                    code,
                    recovery_requested,
                    was_lost: false,
                };
                known.errors.insert(uuid.clone(), error);
            }
        }
        GpuEvent::Xid {
            uuid,
            code,
            ignored,
        }
    }

    /// The MIG instance with these ids. The GPU may have been partitioned since it was last read.
    fn device_of(&self, known: &mut KnownGpu, (outer, inner): (u32, u32)) -> Option<String> {
        let find = |layout: &MigLayout| {
            let outer = layout.instances.iter().find(|one| one.id == outer)?;
            let inner = outer.devices.iter().find(|one| one.id == inner)?;
            Some(inner.uuid.clone())
        };
        find(&known.facts.layout).or_else(|| {
            known.facts.layout = self.mig_layout(&known.facts.uuid).ok()?;
            find(&known.facts.layout)
        })
    }
}

/// Whether a GPU is lost about which every call has failed for this long, the last one for this cause.
fn is_lost(cause: &Cause, silent: Duration) -> bool {
    matches!(cause, Cause::GpuLost | Cause::NotFound) || silent >= SILENCE
}

/// The health of a device whose GPU may not be registered with its fabric. Errors come first: they
/// require an action.
fn unless_unregistered(
    health: DriverHealth,
    unfinished: Option<UnfinishedRegistration>,
) -> DriverHealth {
    match (health, unfinished) {
        (DriverHealth::Ok, Some(registration)) => DriverHealth::FabricNotReady(registration),
        (health, _) => health,
    }
}

/// The health of a device whose GPU answers, where the driver requests the recovery `action` (0:
/// none; `None`: not reported). Removes an error that is over: the driver requests the recovery no
/// longer, or the GPU was lost since and is back.
fn settled_health(
    action: Option<u64>,
    errors: &mut BTreeMap<String, RecordedError>,
    device: &str,
) -> DriverHealth {
    let requested = action.filter(|action| *action != 0);
    let Some(error) = errors.get_mut(device) else {
        return requested.map_or(DriverHealth::Ok, DriverHealth::RecoveryRequested);
    };
    let is_recovered = error.recovery_requested && action.is_some();
    if requested.is_none() && (is_recovered || error.was_lost) {
        errors.remove(device);
        return DriverHealth::Ok;
    }
    error.recovery_requested |= requested.is_some();
    DriverHealth::Xid(error.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_is_lost_by_the_drivers_word_or_after_silence() {
        let moment = Duration::from_secs(1);
        for cause in [Cause::GpuLost, Cause::NotFound] {
            assert!(is_lost(&cause, moment), "{cause}");
        }
        for cause in [Cause::Unknown, Cause::Uninitialized, Cause::NoPermission] {
            assert!(!is_lost(&cause, moment), "{cause}");
            assert!(is_lost(&cause, SILENCE), "{cause}");
        }
    }
}
