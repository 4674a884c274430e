//! [`Driver`] over NVML: opens the library, tracks GPUs and their health.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aliquot_core::Mib;
use parking_lot::Mutex;

use crate::Driver;
use crate::calls::{self, memory};
use crate::error::NvmlError;
use crate::events::{self, EventSet};
use crate::facts::{
    DeviceHealth, DriverHealth, DriverInventory, GpuEvent, GpuFacts, Note, RecordedError,
};
use crate::inventory::{omission, read_gpu};
use crate::links::fill_links;
use crate::mig::{self, Activation, GpuInstance, MigError, MigLayout};
use crate::xid::XidActions;

mod health;

/// The driver's library as the loader finds it.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// How often NVML is initialised again while a GPU is lost.
pub(crate) const REOPEN_INTERVAL: Duration = Duration::from_secs(30);

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
    /// The last inventory lacks a GPU that was never read and may be readable later.
    has_unread_gpus: AtomicBool,
    xids: XidActions,
    library: nvml_wrapper::Nvml,
}

#[derive(Default)]
struct EventSubscription {
    set: Option<EventSet>,
    /// Reported by a freed event set and not yet returned.
    undelivered: Vec<events::XidReport>,
    /// When NVML was last initialised again.
    reopened: Option<Instant>,
}

/// The last state of a GPU since it was first seen.
struct KnownGpu {
    facts: GpuFacts,
    /// Its own error and those of its MIG instances, by the device's uuid.
    errors: BTreeMap<String, RecordedError>,
    /// Since when every call about it has failed.
    silent_since: Option<Instant>,
    /// Its health and that of its instances, as last returned.
    health: Vec<DeviceHealth>,
}

impl KnownGpu {
    fn new(facts: GpuFacts) -> Self {
        let health = DeviceHealth {
            uuid: facts.uuid.clone(),
            health: DriverHealth::Ok,
        };
        Self {
            facts,
            errors: BTreeMap::new(),
            silent_since: None,
            health: vec![health],
        }
    }

    fn is_lost(&self) -> bool {
        let mut devices = self.health.iter();
        devices.any(|device| matches!(device.health, DriverHealth::Lost(_)))
    }
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
            has_unread_gpus: AtomicBool::new(false),
            xids: options.xids,
            library,
        })
    }

    pub(crate) fn library(&self) -> &nvml_wrapper::Nvml {
        &self.library
    }

    /// The GPUs that can be read now, how many others may be readable later, and notes.
    fn read_all_gpus(&self) -> Result<(Vec<GpuFacts>, usize, Vec<Note>), NvmlError> {
        let count = self.library.device_count().map_err(NvmlError::Count)?;
        let (mut gpus, mut devices, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        let mut unread = 0;
        for index in 0..count {
            let device = self.library.device_by_index(index).map_err(|e| {
                let place = format!("index {index}");
                omission(&place, "nvmlDeviceGetHandleByIndex_v2", &e)
            });
            let read = device.and_then(|device| {
                let facts = read_gpu(&self.library, &device, index, &mut notes)?;
                Ok((facts, device))
            });
            match read {
                Ok((facts, device)) => {
                    gpus.push(facts);
                    devices.push(device);
                }
                Err(omission) => {
                    unread += usize::from(!omission.is_unsupported);
                    notes.push(omission.note);
                }
            }
        }
        fill_links(&self.library, &mut gpus, &devices, &mut notes);
        Ok((gpus, unread, notes))
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
        let (fresh, unwatched) = EventSet::new(&self.library, gpus)?;
        let mut reported = WaitResult {
            unwatched,
            ..WaitResult::default()
        };
        if let Some(old) = slot.replace(fresh) {
            reported.xids = old.rest(&self.library);
            let lost = old.uuids().filter(|uuid| !gpus.contains(uuid));
            reported.lost = lost.cloned().collect();
            old.free(&self.library);
        }
        Ok(reported)
    }

    /// Ends the subscription to events; the next wait subscribes again.
    fn unsubscribe(&self, subscription: &mut EventSubscription) {
        if let Some(set) = subscription.set.take() {
            let rest = set.rest(&self.library);
            subscription.undelivered.extend(rest);
            set.free(&self.library);
        }
    }

    /// Initialises NVML again while a GPU is lost, or was never read: one that was reset or put back
    /// since may be reported as lost for as long as NVML stays initialised.
    fn reopen_for_lost_gpus(&self) -> Result<(), NvmlError> {
        let is_unread = self.has_unread_gpus.load(Ordering::Relaxed);
        if !is_unread && !self.gpus.lock().values().any(KnownGpu::is_lost) {
            return Ok(());
        }
        // Held, so that nobody waits for events of a set that this ends.
        let mut subscription = self.subscription.lock();
        let last = subscription.reopened;
        if last.is_some_and(|last| last.elapsed() < REOPEN_INTERVAL) {
            return Ok(());
        }
        self.unsubscribe(&mut subscription);
        calls::reopen(&self.library).map_err(NvmlError::Reopen)?;
        subscription.reopened = Some(Instant::now());
        Ok(())
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
        let (gpus, unread, notes) = self.read_all_gpus()?;
        let listed = gpus.len() + unread;
        let mut known = self.gpus.lock();
        for facts in gpus {
            if let Some(gpu) = known.get_mut(&facts.uuid) {
                gpu.facts = facts;
            } else {
                known.insert(facts.uuid.clone(), KnownGpu::new(facts));
            }
        }
        self.has_unread_gpus
            .store(known.len() < listed, Ordering::Relaxed);
        let mut gpus: Vec<GpuFacts> = known.values().map(|gpu| gpu.facts.clone()).collect();
        gpus.sort_by_key(|gpu| gpu.index);
        Ok(DriverInventory {
            driver_version,
            gpus,
            notes,
        })
    }

    fn health(&self) -> Result<Vec<DeviceHealth>, NvmlError> {
        self.reopen_for_lost_gpus()?;
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
                known.errors.clear();
            }
            known.errors.remove(uuid);
        }
    }

    fn errors(&self) -> Vec<RecordedError> {
        let gpus = self.gpus.lock();
        let errors = gpus.values().flat_map(|known| known.errors.values());
        errors.cloned().collect()
    }

    fn restore_errors(&self, errors: Vec<RecordedError>) {
        let mut gpus = self.gpus.lock();
        for error in errors {
            if let Some(gpu) = gpus.get_mut(&error.gpu) {
                gpu.errors.insert(error.uuid.clone(), error);
            }
        }
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<GpuEvent>, NvmlError> {
        self.ensure_inventory()?;
        let mut subscription = self.subscription.lock();
        let EventSubscription {
            set: slot,
            undelivered,
            ..
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
        let unwatched = reported
            .unwatched
            .into_iter()
            .map(|(uuid, reason)| GpuEvent::Unwatched { uuid, reason });
        Ok(xids.chain(lost).chain(unwatched).collect())
    }

    fn mig_layout(&self, gpu: &str) -> Result<MigLayout, MigError> {
        let (device, memory) = self.device_and_memory(gpu)?;
        mig::layout(&self.library, &device, gpu, memory)
    }

    fn set_mig(&self, gpu: &str, on: bool) -> Result<Activation, MigError> {
        // Some GPUs are reset for this, which fails while anybody has them open: the next wait
        // subscribes again.
        let mut subscription = self.subscription.lock();
        self.unsubscribe(&mut subscription);
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
                known.errors.remove(&device.uuid);
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
    /// GPUs that refuse to report events, and why.
    unwatched: Vec<(String, String)>,
}

impl WaitResult {
    fn is_empty(&self) -> bool {
        self.xids.is_empty() && self.lost.is_empty() && self.unwatched.is_empty()
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Some(set) = self.subscription.get_mut().set.take() {
            set.free(&self.library);
        }
    }
}
