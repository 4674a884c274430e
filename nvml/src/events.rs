//! An event set by raw calls: the wrapper's own borrows the library, so it cannot be kept beside
//! it. Fed by NVML; must not interpret a code.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError};

use crate::error::NvmlError;

const XID: u64 = nvmlEventTypeXidCriticalError as u64;

/// What the driver says instead of an instance's id when the whole card is meant.
const WHOLE_CARD: u32 = u32::MAX;

/// An XID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) card: String,
    /// The driver's ids of the GPU and the compute instance that it came from.
    pub(crate) instance: Option<(u32, u32)>,
    pub(crate) code: u64,
}

/// A set of the library with which it was made, and the cards registered in it.
pub(crate) struct EventSet {
    set: nvmlEventSet_t,
    /// By handle.
    cards: BTreeMap<usize, String>,
}

// SAFETY: NVML may be called from any thread, and the handle is only passed to it.
unsafe impl Send for EventSet {}

impl EventSet {
    /// A set that hears of the critical errors of these cards. Cards whose driver reports none
    /// are left out.
    pub(crate) fn new(nvml: &Nvml, uuids: &[String]) -> Result<Self, NvmlError> {
        let create =
            nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref()).map_err(NvmlError::EventSet)?;
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        // SAFETY: the symbol has this signature; the place for the answer lives through the call.
        nvml_try(unsafe { create(&raw mut set) }).map_err(NvmlError::EventSet)?;
        let mut made = Self {
            set,
            cards: BTreeMap::new(),
        };
        for uuid in uuids {
            if let Err(source) = made.register(nvml, uuid) {
                made.free(nvml);
                let uuid = uuid.clone();
                return Err(NvmlError::Register { uuid, source });
            }
        }
        Ok(made)
    }

    fn register(&mut self, nvml: &Nvml, uuid: &str) -> Result<(), Cause> {
        let register = nvml_sym(nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
        let device = match nvml.device_by_uuid(uuid) {
            // Lost since it was listed: the next look at its health tells.
            Err(Cause::GpuLost | Cause::NotFound) => return Ok(()),
            other => other?,
        };
        // SAFETY: the handle is fresh from this library and the set is open.
        match nvml_try(unsafe { register(device.handle(), XID, self.set) }) {
            Err(Cause::GpuLost) => return Ok(()),
            // Without events the card is still watched by asking for its health.
            Err(Cause::NotSupported) | Ok(()) => {}
            Err(e) => return Err(e),
        }
        // SAFETY: only the address is taken.
        let handle = unsafe { device.handle() }.addr();
        self.cards.insert(handle, uuid.to_owned());
        Ok(())
    }

    /// Whether exactly these cards are registered.
    pub(crate) fn watches(&self, uuids: &[String]) -> bool {
        self.cards.len() == uuids.len() && self.cards.values().all(|uuid| uuids.contains(uuid))
    }

    /// The cards that are registered.
    pub(crate) fn uuids(&self) -> impl Iterator<Item = &String> {
        self.cards.values()
    }

    /// What has been reported and not yet fetched, up to the first failure.
    pub(crate) fn rest(&self, nvml: &Nvml) -> Vec<Heard> {
        let next = || {
            self.wait(nvml, Duration::ZERO)
                .ok()
                .filter(|next| !next.is_empty())
        };
        std::iter::from_fn(next).flatten().collect()
    }

    /// The next XID with its card (with every card when the driver names one that is not known);
    /// nothing when the time is over.
    pub(crate) fn wait(&self, nvml: &Nvml, timeout: Duration) -> Result<Vec<Heard>, Cause> {
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
                let uuids: Vec<String> = match self.cards.get(&data.device.addr()) {
                    Some(uuid) => vec![uuid.clone()],
                    None => self.cards.values().cloned().collect(),
                };
                let instance = (data.gpuInstanceId, data.computeInstanceId);
                let instance = (instance.0 != WHOLE_CARD).then_some(instance);
                let events = uuids.into_iter().map(|card| Heard {
                    card,
                    instance,
                    code: data.eventData,
                });
                Ok(events.collect())
            }
            Err(Cause::Timeout) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Gives the set back. A failure has no consequence: the set is never used again.
    pub(crate) fn free(self, nvml: &Nvml) {
        if let Ok(free) = nvml_sym(nvml.lib().nvmlEventSetFree.as_ref()) {
            // SAFETY: the set is open, and consumed here.
            let _ = unsafe { free(self.set) };
        }
    }
}
