//! An NVML event set by raw calls: `nvml_wrapper`'s borrows the library, so it cannot be stored
//! beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError};

use crate::error::NvmlError;

const XID: u64 = nvmlEventTypeXidCriticalError as u64;

/// The driver's instance id for the whole GPU.
const WHOLE_GPU: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XidReport {
    pub(crate) gpu: String,
    /// The driver's ids of the GPU and the compute instance that it came from.
    pub(crate) instance: Option<(u32, u32)>,
    pub(crate) code: u64,
}

pub(crate) struct EventSet {
    set: nvmlEventSet_t,
    /// By handle.
    gpus: BTreeMap<usize, String>,
}

// SAFETY: NVML may be called from any thread, and the handle is only passed to it.
unsafe impl Send for EventSet {}

impl EventSet {
    /// Subscribes to critical errors of these GPUs, except those that cannot report any. Also returns
    /// those that refuse to, and why.
    pub(crate) fn new(
        nvml: &Nvml,
        uuids: &[String],
    ) -> Result<(Self, Vec<(String, String)>), NvmlError> {
        nvml_sym(nvml.lib().nvmlDeviceRegisterEvents.as_ref()).map_err(NvmlError::EventSet)?;
        let create =
            nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref()).map_err(NvmlError::EventSet)?;
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        // SAFETY: the symbol has this signature; the place for the answer lives through the call.
        nvml_try(unsafe { create(&raw mut set) }).map_err(NvmlError::EventSet)?;
        let mut made = Self {
            set,
            gpus: BTreeMap::new(),
        };
        let mut unwatched = Vec::new();
        for uuid in uuids {
            if let Err(cause) = made.register(nvml, uuid) {
                unwatched.push((uuid.clone(), cause.to_string()));
            }
        }
        Ok((made, unwatched))
    }

    fn register(&mut self, nvml: &Nvml, uuid: &str) -> Result<(), Cause> {
        let register = nvml_sym(nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
        let device = match nvml.device_by_uuid(uuid) {
            // Lost since it was listed: the next health check reports it.
            Err(Cause::GpuLost | Cause::NotFound) => return Ok(()),
            other => other?,
        };
        // SAFETY: the handle is fresh from this library and the set is open.
        let registered = nvml_try(unsafe { register(device.handle(), XID, self.set) });
        if matches!(registered, Err(Cause::GpuLost)) {
            return Ok(());
        }
        // Without events the GPU's health is still polled.
        // SAFETY: only the address is taken.
        let handle = unsafe { device.handle() }.addr();
        self.gpus.insert(handle, uuid.to_owned());
        match registered {
            Err(Cause::NotSupported) => Ok(()),
            registered => registered,
        }
    }

    /// Whether exactly these GPUs are registered.
    pub(crate) fn watches(&self, uuids: &[String]) -> bool {
        self.gpus.len() == uuids.len() && self.gpus.values().all(|uuid| uuids.contains(uuid))
    }

    pub(crate) fn uuids(&self) -> impl Iterator<Item = &String> {
        self.gpus.values()
    }

    /// All pending reports, up to the first failure.
    pub(crate) fn rest(&self, nvml: &Nvml) -> Vec<XidReport> {
        let next = || {
            self.wait(nvml, Duration::ZERO)
                .ok()
                .filter(|next| !next.is_empty())
        };
        std::iter::from_fn(next).flatten().collect()
    }

    /// The next XID with its GPU (with every GPU if the driver names an unknown one); empty after
    /// the timeout.
    pub(crate) fn wait(&self, nvml: &Nvml, timeout: Duration) -> Result<Vec<XidReport>, Cause> {
        let wait = nvml_sym(nvml.lib().nvmlEventSetWait_v2.as_ref())?;
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let mut data = nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        // SAFETY: the set is open (freeing consumes self) and the struct lives through the call.
        match nvml_try(unsafe { wait(self.set, &raw mut data, milliseconds) }) {
            Ok(()) if data.eventType != XID => Ok(Vec::new()),
            Ok(()) => {
                let uuids: Vec<String> = match self.gpus.get(&data.device.addr()) {
                    Some(uuid) => vec![uuid.clone()],
                    None => self.gpus.values().cloned().collect(),
                };
                let instance = (data.gpuInstanceId, data.computeInstanceId);
                let instance = (instance.0 != WHOLE_GPU).then_some(instance);
                let events = uuids.into_iter().map(|gpu| XidReport {
                    gpu,
                    instance,
                    code: data.eventData,
                });
                Ok(events.collect())
            }
            Err(Cause::Timeout) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Frees the set. A failure has no consequence: the set is never used again.
    pub(crate) fn free(self, nvml: &Nvml) {
        if let Ok(free) = nvml_sym(nvml.lib().nvmlEventSetFree.as_ref()) {
            // SAFETY: the set is open, and consumed here.
            let _ = unsafe { free(self.set) };
        }
    }
}
