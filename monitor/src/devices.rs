//! This node's GPUs, their MIG instances and utilization, read from the driver no more often than
//! they change. A failed call does not discard what is known.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aliquot_nvml::{
    DeviceMemory, DriverInventory, GpuFacts, GpuUtilization, Note, NvmlError, Usage,
};

/// The inventory is read again after this, and when a process is on an unknown MIG instance: it
/// changes with MIG and at a reset.
const INVENTORY_INTERVAL: Duration = Duration::from_mins(1);
/// While a GPU is missing, the inventory is read at once, after this, and then after twice as long
/// each time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Utilization and memory are read after this, in every second sample.
const UTILIZATION_INTERVAL: Duration = Duration::from_millis(900);

#[derive(Clone, Debug, Default)]
pub struct GpuSample {
    pub uuid: String,
    pub index: u32,
    pub model: String,
    pub load: GpuUtilization,
    /// Its memory; `None` while it does not answer.
    pub bytes: Option<DeviceMemory>,
    pub instances: Vec<InstanceSample>,
}

#[derive(Clone, Debug, Default)]
pub struct InstanceSample {
    pub uuid: String,
    /// Such as `3g.20gb`.
    pub profile: String,
    /// The driver's ids of the GPU instance and the compute instance.
    pub numbers: (u32, u32),
    pub bytes: Option<DeviceMemory>,
}

#[derive(Default)]
pub struct InventoryCache {
    inventory: Option<(Instant, DriverInventory)>,
    stale: bool,
    /// A container has a device that is not in it.
    missing: bool,
    /// Time until the inventory is read again while a GPU is missing.
    pause: Duration,
    now: Option<(Instant, Vec<GpuSample>)>,
}

impl InventoryCache {
    /// The GPUs now, and the error if the inventory could not be read: then they are the last known
    /// ones. Blocks.
    pub fn now(&mut self, driver: &dyn Usage) -> (Vec<GpuSample>, Option<NvmlError>) {
        let is_old = |then: Instant, age: Duration| then.elapsed() > age;
        let after = if self.is_incomplete() {
            self.pause
        } else {
            INVENTORY_INTERVAL
        };
        let known = self.inventory.as_ref();
        let is_due = self.stale || known.is_none_or(|(read, _)| is_old(*read, after));
        let mut failed = None;
        if is_due {
            match driver.gpus() {
                Ok(found) => {
                    self.inventory = Some((Instant::now(), found));
                    self.stale = false;
                    self.pause = (self.pause * 2).clamp(RETRY_INTERVAL, INVENTORY_INTERVAL);
                }
                Err(error) => failed = Some(error),
            }
            self.now = None;
        }
        if let Some((read, gpus)) = &self.now
            && !is_old(*read, UTILIZATION_INTERVAL)
        {
            return (gpus.clone(), failed);
        }
        let known = self.inventory.iter().flat_map(|(_, known)| &known.gpus);
        let gpus: Vec<_> = known.map(|facts| read_gpu(driver, facts)).collect();
        self.now = Some((Instant::now(), gpus.clone()));
        (gpus, failed)
    }

    /// Reads the inventory again in the next sample.
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    /// Sets whether a container has a device that is not in the inventory.
    pub fn set_missing(&mut self, is_missing: bool) {
        self.missing = is_missing;
        if !self.is_incomplete() {
            self.pause = Duration::ZERO;
        }
    }

    fn is_incomplete(&self) -> bool {
        let known = self.inventory.iter();
        let mut notes = known.flat_map(|(_, known)| &known.notes);
        self.missing || notes.any(is_left_out)
    }
}

/// Whether the failed call keeps a GPU out of the inventory.
fn is_left_out(note: &Note) -> bool {
    matches!(
        note.call,
        "nvmlDeviceGetHandleByIndex_v2"
            | "nvmlDeviceGetUUID"
            | "nvmlDeviceGetName"
            | "nvmlDeviceGetMemoryInfo"
    )
}

fn read_gpu(driver: &dyn Usage, facts: &GpuFacts) -> GpuSample {
    let instances = facts.layout.instances.iter().flat_map(|outer| {
        outer.devices.iter().map(|inner| InstanceSample {
            uuid: inner.uuid.clone(),
            profile: outer.profile.clone(),
            numbers: (outer.id, inner.id),
            bytes: driver.memory(&inner.uuid).ok(),
        })
    });
    GpuSample {
        uuid: facts.uuid.clone(),
        index: facts.index,
        model: facts.model.clone(),
        load: driver.utilization(&facts.uuid).unwrap_or_default(),
        bytes: driver.memory(&facts.uuid).ok(),
        instances: instances.collect(),
    }
}

/// The uuids of the GPUs for which `which` holds, and of their MIG instances.
pub fn devices<'a>(gpus: &'a [GpuSample], which: impl Fn(&GpuSample) -> bool) -> BTreeSet<&'a str> {
    let gpus = gpus.iter().filter(|gpu| which(gpu));
    let with_instances = |gpu: &'a GpuSample| {
        let instances = gpu.instances.iter().map(|one| one.uuid.as_str());
        instances.chain([gpu.uuid.as_str()])
    };
    gpus.flat_map(with_instances).collect()
}
