//! [`Driver`] over NVML: opens the library, tracks GPUs and their health.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use aliquot_core::Mib;
use parking_lot::Mutex;

use crate::Driver;
use crate::calls::memory;
use crate::error::NvmlError;
use crate::events::{self, EventSet};
use crate::facts::{DeviceHealth, DriverInventory, GpuEvent, GpuFacts, Note};
use crate::inventory::{note, read_gpu};
use crate::links::fill_links;
use crate::mig::{self, Activation, GpuInstance, MigError, MigLayout};
use crate::xid::XidActions;

mod health;

use health::CriticalError;

/// The driver's library as the loader finds it.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the library, or its name for the loader to find.
    pub library: OsString,
    /// Which XIDs make a GPU unhealthy.
    pub xids: XidActions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            library: DEFAULT_LIBRARY.into(),
            xids: XidActions::default(),
        }
    }
}

/// The driver through NVML. Shut down when dropped.
pub struct Nvml {
    // Before `library`, so that the set is gone before the library.
    subscription: Mutex<EventSubscription>,
    gpus: Mutex<BTreeMap<String, KnownGpu>>,
    xids: XidActions,
    library: nvml_wrapper::Nvml,
}

#[derive(Default)]
struct EventSubscription {
    set: Option<EventSet>,
    /// Reported by a freed event set and not yet returned.
    undelivered: Vec<events::XidReport>,
}

/// The last state of a GPU since it was first seen.
struct KnownGpu {
    facts: GpuFacts,
    error: Option<CriticalError>,
    /// By the MIG instance's uuid.
    instance_errors: BTreeMap<String, CriticalError>,
}

impl Nvml {
    /// Loads and initialises the library.
    pub fn open(options: Options) -> Result<Self, NvmlError> {
        let opened = nvml_wrapper::Nvml::builder()
            .lib_path(&options.library)
            .init();
        let library = opened.map_err(|source| NvmlError::Open {
            library: Path::new(&options.library).display().to_string(),
            source,
        })?;
        Ok(Self {
            subscription: Mutex::default(),
            gpus: Mutex::new(BTreeMap::new()),
            xids: options.xids,
            library,
        })
    }

    pub(crate) fn library(&self) -> &nvml_wrapper::Nvml {
        &self.library
    }

    fn read_all_gpus(&self) -> Result<(Vec<GpuFacts>, Vec<Note>), NvmlError> {
        let count = self.library.device_count().map_err(NvmlError::Count)?;
        let (mut gpus, mut devices, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..count {
            let device = match self.library.device_by_index(index) {
                Ok(device) => device,
                Err(e) => {
                    let place = format!("index {index}");
                    notes.push(note(&place, "nvmlDeviceGetHandleByIndex_v2", &e));
                    continue;
                }
            };
            match read_gpu(&self.library, &device, index, &mut notes) {
                Ok(facts) => {
                    gpus.push(facts);
                    devices.push(device);
                }
                Err(left_out) => notes.push(left_out),
            }
        }
        fill_links(&self.library, &mut gpus, &devices, &mut notes);
        Ok((gpus, notes))
    }

    /// The GPUs that answer now, so that events can be registered.
    fn watchable(&self) -> Vec<String> {
        let gpus = self.gpus.lock();
        gpus.keys()
            .filter(|uuid| self.answers(uuid).is_ok())
            .cloned()
            .collect()
    }

    /// Subscribes to these GPUs and returns the rest of the previous set's events. That set is
    /// drained after the new one is registered: an event may be reported twice, but none is lost.
    fn watch(&self, slot: &mut Option<EventSet>, gpus: &[String]) -> Result<WaitResult, NvmlError> {
        let fresh = EventSet::new(&self.library, gpus)?;
        let Some(old) = slot.replace(fresh) else {
            return Ok(WaitResult::default());
        };
        let reported = WaitResult {
            xids: old.rest(&self.library),
            lost: old
                .uuids()
                .filter(|uuid| !gpus.contains(uuid))
                .cloned()
                .collect(),
        };
        old.free(&self.library);
        Ok(reported)
    }

    fn device_and_memory(&self, uuid: &str) -> Result<(nvml_wrapper::Device<'_>, Mib), MigError> {
        let failed = |source| {
            let gpu = uuid.to_owned();
            MigError::Unreachable { gpu, source }
        };
        let device = self.library.device_by_uuid(uuid).map_err(failed)?;
        let (memory, _) = memory(&self.library, &device).map_err(failed)?;
        Ok((device, memory))
    }

    fn ensure_inventory(&self) -> Result<(), NvmlError> {
        if self.gpus.lock().is_empty() {
            self.inventory()?;
        }
        Ok(())
    }
}

impl Driver for Nvml {
    fn inventory(&self) -> Result<DriverInventory, NvmlError> {
        let driver_version = self
            .library
            .sys_driver_version()
            .map_err(NvmlError::DriverVersion)?;
        let (gpus, notes) = self.read_all_gpus()?;
        let mut known = self.gpus.lock();
        for facts in gpus {
            let uuid = facts.uuid.clone();
            let before = known.remove(&uuid);
            let (error, instance_errors) =
                before.map_or_else(Default::default, |gpu| (gpu.error, gpu.instance_errors));
            let gpu = KnownGpu {
                facts,
                error,
                instance_errors,
            };
            known.insert(uuid, gpu);
        }
        let mut gpus: Vec<GpuFacts> = known.values().map(|gpu| gpu.facts.clone()).collect();
        gpus.sort_by_key(|gpu| gpu.index);
        Ok(DriverInventory {
            driver_version,
            gpus,
            notes,
        })
    }

    fn health(&self) -> Result<Vec<DeviceHealth>, NvmlError> {
        self.ensure_inventory()?;
        let mut gpus = self.gpus.lock();
        let all = gpus.iter_mut();
        Ok(all
            .flat_map(|(uuid, known)| self.examine(uuid, known))
            .collect())
    }

    fn mps_clients(&self, uuid: &str) -> Result<Vec<(u32, u64)>, NvmlError> {
        let read = || {
            let device = self.library.device_by_uuid(uuid)?;
            crate::processes::mps_clients(&self.library, &device)
        };
        let found = read().map_err(|source| NvmlError::Processes {
            uuid: uuid.to_owned(),
            source,
        })?;
        // The driver may not report a client's bytes.
        let found = found.into_iter();
        Ok(found.map(|one| (one.pid, one.bytes.unwrap_or(0))).collect())
    }

    fn clear_errors(&self, uuid: &str) {
        for (gpu, known) in self.gpus.lock().iter_mut() {
            if gpu == uuid {
                known.error = None;
                known.instance_errors.clear();
            }
            known.instance_errors.remove(uuid);
        }
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<GpuEvent>, NvmlError> {
        self.ensure_inventory()?;
        let mut subscription = self.subscription.lock();
        let EventSubscription {
            set: slot,
            undelivered,
        } = &mut *subscription;
        let watchable = self.watchable();
        let mut reported = WaitResult::default();
        if slot.as_ref().is_none_or(|set| !set.watches(&watchable)) {
            reported = self.watch(slot, &watchable)?;
        }
        reported.xids.append(undelivered);
        if reported.is_empty() && watchable.is_empty() {
            // No GPU to wait for; one that comes back is registered by the next call.
            let deadline = Instant::now() + timeout;
            while let Some(left) = deadline.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
        } else if reported.is_empty() {
            let set = slot.as_ref().expect("made above");
            match set.wait(&self.library, timeout) {
                Ok(first) => {
                    reported.xids = first;
                    reported.xids.extend(set.rest(&self.library));
                }
                Err(e) => {
                    reported = self.watch(slot, &self.watchable())?;
                    if reported.is_empty() {
                        return Err(NvmlError::Wait(e));
                    }
                }
            }
        }
        let xids = reported.xids.into_iter().map(|xid| self.note_xid(xid));
        let lost = reported
            .lost
            .into_iter()
            .map(|uuid| GpuEvent::Lost { uuid });
        Ok(xids.chain(lost).collect())
    }

    fn mig_layout(&self, gpu: &str) -> Result<MigLayout, MigError> {
        let (device, memory) = self.device_and_memory(gpu)?;
        mig::layout(&self.library, &device, gpu, memory)
    }

    fn set_mig(&self, gpu: &str, on: bool) -> Result<Activation, MigError> {
        // Some GPUs are reset for this, which fails while anybody has them open: the next wait
        // subscribes again.
        let mut subscription = self.subscription.lock();
        if let Some(set) = subscription.set.take() {
            let rest = set.rest(&self.library);
            subscription.undelivered.extend(rest);
            set.free(&self.library);
        }
        let (device, _) = self.device_and_memory(gpu)?;
        mig::switch(&self.library, &device, gpu, on)
    }

    fn create_instance(
        &self,
        gpu: &str,
        profile: &str,
        start: u8,
    ) -> Result<GpuInstance, MigError> {
        let (device, memory) = self.device_and_memory(gpu)?;
        mig::create(&self.library, &device, (gpu, memory), profile, start)
    }

    fn destroy_instance(&self, gpu: &str, id: u32) -> Result<(), MigError> {
        let (device, _) = self.device_and_memory(gpu)?;
        mig::destroy(&self.library, &device, gpu, id)?;
        // One that is created again at its place has its UUID, but not its errors.
        if let Some(known) = self.gpus.lock().get_mut(gpu) {
            let instances = &known.facts.layout.instances;
            let gone = instances.iter().filter(|one| one.id == id);
            for device in gone.flat_map(|one| &one.devices) {
                known.instance_errors.remove(&device.uuid);
            }
        }
        Ok(())
    }
}

/// What one wait returns.
#[derive(Default)]
struct WaitResult {
    xids: Vec<events::XidReport>,
    lost: Vec<String>,
}

impl WaitResult {
    fn is_empty(&self) -> bool {
        self.xids.is_empty() && self.lost.is_empty()
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Some(set) = self.subscription.get_mut().set.take() {
            set.free(&self.library);
        }
    }
}
