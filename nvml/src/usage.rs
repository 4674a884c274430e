//! What cards do and who is on them now, for the monitor. Fed by NVML; each question is answered
//! on its own, and a driver that does not know one says so. Must not: say whose a process is.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use crate::driver::Nvml;
use crate::error::NvmlError;
use crate::inventory::is_missing;

/// A process that has a card or an instance open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// As seen from here.
    pub pid: u32,
    /// Bytes that it holds; `None` where the driver does not say.
    pub bytes: Option<u64>,
    /// The driver's numbers of its GPU instance and compute instance, on a card that is cut.
    pub instance: Option<(u32, u32)>,
}

/// What a card does. What the driver does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Percent of the time in which a kernel ran.
    pub busy: Option<u32>,
    /// Percent of the time in which memory was read or written.
    pub memory_busy: Option<u32>,
    /// Percent of the time in which the encoder worked.
    pub encoder: Option<u32>,
    /// Percent of the time in which the decoder worked.
    pub decoder: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
    /// Millijoules since the driver was loaded.
    pub energy: Option<u64>,
    /// MHz of the multiprocessors.
    pub sm_clock: Option<u32>,
    /// MHz of the memory.
    pub memory_clock: Option<u32>,
}

/// Bytes of a card or an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// All.
    pub total: u64,
    /// In use, without the driver's own part where the driver tells it apart.
    pub used: u64,
    /// The driver's own part.
    pub reserved: u64,
}

/// How busy a process kept a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// As seen from here.
    pub pid: u32,
    /// Percent of the card's compute.
    pub busy: u32,
    /// When, in the driver's microseconds.
    pub at: u64,
}

/// What is asked of the driver about use. Calls block.
pub trait Usage: Send + Sync {
    /// The processes on a card, each once for each instance, graphics and clients of MPS included.
    fn processes(&self, card: &str) -> Result<Vec<Process>, NvmlError>;

    /// What a card does.
    fn load(&self, card: &str) -> Result<Load, NvmlError>;

    /// Memory of a card or of an instance.
    fn bytes(&self, uuid: &str) -> Result<Bytes, NvmlError>;

    /// How busy each process kept a card, by samples after `since`.
    fn shares(&self, card: &str, since: u64) -> Result<Vec<Share>, NvmlError>;
}

impl Usage for Nvml {
    fn processes(&self, card: &str) -> Result<Vec<Process>, NvmlError> {
        let failed = |source| NvmlError::Processes {
            uuid: card.to_owned(),
            source,
        };
        let device = self.library().device_by_uuid(card).map_err(failed)?;
        merged(&device).map_err(failed)
    }

    fn load(&self, card: &str) -> Result<Load, NvmlError> {
        let device = self.device(card, "load")?;
        let rates = device.utilization_rates().ok();
        Ok(Load {
            busy: rates.as_ref().map(|rates| rates.gpu),
            memory_busy: rates.map(|rates| rates.memory),
            encoder: device.encoder_utilization().ok().map(|of| of.utilization),
            decoder: device.decoder_utilization().ok().map(|of| of.utilization),
            temperature: device.temperature(TemperatureSensor::Gpu).ok(),
            power: device.power_usage().ok(),
            energy: device.total_energy_consumption().ok(),
            sm_clock: device.clock_info(Clock::SM).ok(),
            memory_clock: device.clock_info(Clock::Memory).ok(),
        })
    }

    fn bytes(&self, uuid: &str) -> Result<Bytes, NvmlError> {
        let device = self.device(uuid, "memory")?;
        let info = device
            .memory_info()
            .map_err(|source| usage(uuid, "memory", source))?;
        Ok(Bytes {
            total: info.total,
            used: info.used,
            reserved: info.reserved,
        })
    }

    fn shares(&self, card: &str, since: u64) -> Result<Vec<Share>, NvmlError> {
        let device = self.device(card, "processes' shares")?;
        let found = match device.process_utilization_stats(since) {
            Ok(found) => found,
            // An idle card has none; one that is cut, or an old one, tells none.
            Err(Cause::NotFound | Cause::NotSupported) => Vec::new(),
            Err(source) => return Err(usage(card, "processes' shares", source)),
        };
        let of = |one: nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample| Share {
            pid: one.pid,
            busy: one.sm_util,
            at: one.timestamp,
        };
        Ok(found.into_iter().map(of).collect())
    }
}

impl Nvml {
    fn device(&self, uuid: &str, what: &'static str) -> Result<Device<'_>, NvmlError> {
        let found = self.library().device_by_uuid(uuid);
        found.map_err(|source| usage(uuid, what, source))
    }
}

fn usage(uuid: &str, what: &'static str, source: Cause) -> NvmlError {
    NvmlError::Usage {
        what,
        uuid: uuid.to_owned(),
        source,
    }
}

/// The three lists as one; who is on several holds what the largest says.
fn merged(device: &Device) -> Result<Vec<Process>, Cause> {
    let lists = [
        device.running_compute_processes()?,
        optional(device.running_graphics_processes())?,
        optional(device.mps_running_compute_processes())?,
    ];
    let process = |one: ProcessInfo| Process {
        pid: one.pid,
        bytes: match one.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
        instance: one.gpu_instance_id.zip(one.compute_instance_id),
    };
    let mut found: Vec<Process> = lists.into_iter().flatten().map(process).collect();
    let key = |one: &Process| (one.pid, one.instance);
    found.sort_by_key(|one| (key(one), std::cmp::Reverse(one.bytes)));
    found.dedup_by_key(|one| key(one));
    Ok(found)
}

/// A list that a driver may not have.
fn optional(list: Result<Vec<ProcessInfo>, Cause>) -> Result<Vec<ProcessInfo>, Cause> {
    match list {
        Err(Cause::NotSupported) => Ok(Vec::new()),
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        list => list,
    }
}
