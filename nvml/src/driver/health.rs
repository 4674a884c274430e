//! The recorded errors of GPUs and MIG instances, and the health that follows from them.

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
            let all = known
                .error
                .iter_mut()
                .chain(known.instance_errors.values_mut());
            all.for_each(|error| error.was_lost = true);
        }
        let gpu = lost.clone();
        let gpu = gpu.unwrap_or_else(|| settled_health(action, &mut known.error));
        let devices = known
            .facts
            .layout
            .instances
            .iter()
            .flat_map(|one| &one.devices);
        let devices: Vec<&String> = devices.map(|device| &device.uuid).collect();
        known
            .instance_errors
            .retain(|uuid, _| devices.contains(&uuid));
        let mut found = Vec::new();
        for device in devices {
            let mut own = known.instance_errors.remove(device);
            let health = match (&gpu, &lost) {
                (DriverHealth::Xid(_), _) | (_, Some(_)) => gpu.clone(),
                _ => settled_health(action, &mut own),
            };
            known
                .instance_errors
                .extend(own.map(|own| (device.clone(), own)));
            found.push(DeviceHealth {
                uuid: device.clone(),
                health: unless_unregistered(health, unfinished),
            });
        }
        let whole = DeviceHealth {
            uuid: uuid.to_owned(),
            health: unless_unregistered(gpu, unfinished),
        };
        found.insert(0, whole);
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
                known.record(RecordedError {
                    gpu,
                    uuid: uuid.clone(),
                    code,
                    recovery_requested,
                    was_lost: false,
                });
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

impl KnownGpu {
    /// Records an error of this GPU or of an instance of it.
    pub(super) fn record(&mut self, recorded: RecordedError) {
        let error = CriticalError {
            code: recorded.code,
            recovery_requested: recorded.recovery_requested,
            was_lost: recorded.was_lost,
        };
        if recorded.uuid == recorded.gpu {
            self.error = Some(error);
        } else {
            self.instance_errors.insert(recorded.uuid, error);
        }
    }

    /// All that are recorded.
    pub(super) fn errors(&self) -> Vec<RecordedError> {
        let whole = self.error.iter().map(|error| (&self.facts.uuid, error));
        let recorded = whole.chain(&self.instance_errors);
        let recorded = recorded.map(|(uuid, error)| RecordedError {
            gpu: self.facts.uuid.clone(),
            uuid: uuid.clone(),
            code: error.code,
            recovery_requested: error.recovery_requested,
            was_lost: error.was_lost,
        });
        recorded.collect()
    }
}

/// Whether a GPU is lost about which every call has failed for this long, the last one for this cause.
fn is_lost(cause: &Cause, silent: Duration) -> bool {
    matches!(cause, Cause::GpuLost | Cause::NotFound) || silent >= SILENCE
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CriticalError {
    pub(super) code: u64,
    /// The driver has requested a reset or reboot since.
    pub(super) recovery_requested: bool,
    /// The GPU has been off the bus since: it was reset, or removed and put back.
    pub(super) was_lost: bool,
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

/// The health of a GPU that answers, where the driver requests the recovery `action` (0: none;
/// `None`: not reported). Clears an error that is over.
fn settled_health(action: Option<u64>, known: &mut Option<CriticalError>) -> DriverHealth {
    match (action, *known) {
        (Some(0) | None, None) => DriverHealth::Ok,
        (
            Some(0),
            Some(CriticalError {
                recovery_requested: true,
                ..
            }),
        )
        | (Some(0) | None, Some(CriticalError { was_lost: true, .. })) => {
            *known = None;
            DriverHealth::Ok
        }
        (Some(0) | None, Some(CriticalError { code, .. })) => DriverHealth::Xid(code),
        (Some(action), None) => DriverHealth::RecoveryRequested(action),
        (Some(_), Some(error)) => {
            *known = Some(CriticalError {
                recovery_requested: true,
                ..error
            });
            DriverHealth::Xid(error.code)
        }
    }
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
