//! Utilization, memory and processes of GPUs, for the monitor. Each value is read on its own; one
//! that the driver does not report is `None`.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use nvml_wrapper_sys::bindings::{
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessesUtilizationInfo_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
};

use crate::Driver as _;
use crate::calls::{is_missing, struct_version};
use crate::driver::Nvml;
use crate::error::NvmlError;
use crate::facts::DriverInventory;
use crate::processes::{self, GpuProcess};

/// NVML's number for version 1 of the struct.
const V1: c_uint = struct_version::<nvmlProcessesUtilizationInfo_t>(1);
/// Samples of processes that begin to work between the two calls.
const MORE_SAMPLES: c_uint = 16;
const NO_SAMPLE: nvmlProcessUtilizationInfo_v1_t = nvmlProcessUtilizationInfo_v1_t {
    timeStamp: 0,
    pid: 0,
    smUtil: 0,
    memUtil: 0,
    encUtil: 0,
    decUtil: 0,
    jpgUtil: 0,
    ofaUtil: 0,
};

/// Utilization of a GPU. What the driver does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUtilization {
    /// Percent of the time in which a kernel ran.
    pub busy: Option<u32>,
    /// Percent of the time in which memory was read or written.
    pub memory_busy: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Milliwatts.
    pub power: Option<u32>,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub total: u64,
    /// In use, without what the driver reserves where it reports that separately.
    pub used: u64,
    pub reserved: u64,
}

/// One sample of a process's use of a GPU, as the driver reports it: its process may have ended, and
/// its value may be above 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUtilization {
    /// In this PID namespace.
    pub pid: u32,
    /// Percent of the GPU's compute.
    pub busy: u32,
    /// Time of the sample, in the driver's microseconds.
    pub at: u64,
}

/// The monitor's queries. Calls block.
pub trait Usage: Send + Sync {
    /// As [`Driver::inventory`](crate::Driver::inventory).
    fn gpus(&self) -> Result<DriverInventory, NvmlError>;

    /// The processes on a GPU, once for each instance, including graphics and MPS clients.
    fn processes(&self, gpu: &str) -> Result<Vec<GpuProcess>, NvmlError>;

    fn utilization(&self, gpu: &str) -> Result<GpuUtilization, NvmlError>;

    fn memory(&self, uuid: &str) -> Result<DeviceMemory, NvmlError>;

    /// Samples of the processes on a GPU after `since`, in the driver's microseconds; `None`: the
    /// driver reports none of this GPU, as of a partitioned one.
    fn process_utilization(
        &self,
        gpu: &str,
        since: u64,
    ) -> Result<Option<Vec<ProcessUtilization>>, NvmlError>;
}

impl Usage for Nvml {
    fn gpus(&self) -> Result<DriverInventory, NvmlError> {
        self.inventory()
    }

    fn processes(&self, gpu: &str) -> Result<Vec<GpuProcess>, NvmlError> {
        let failed = |source| NvmlError::Processes {
            uuid: gpu.to_owned(),
            source,
        };
        let device = self.library().device_by_uuid(gpu).map_err(failed)?;
        processes::all(self.library(), &device).map_err(failed)
    }

    fn utilization(&self, gpu: &str) -> Result<GpuUtilization, NvmlError> {
        let device = self.device(gpu, "utilization")?;
        let rates = device.utilization_rates().ok();
        Ok(GpuUtilization {
            busy: rates.as_ref().map(|rates| rates.gpu),
            memory_busy: rates.map(|rates| rates.memory),
            temperature: device.temperature(TemperatureSensor::Gpu).ok(),
            power: device.power_usage().ok(),
        })
    }

    fn memory(&self, uuid: &str) -> Result<DeviceMemory, NvmlError> {
        let device = self.device(uuid, "memory")?;
        let info = device
            .memory_info()
            .map_err(|source| usage(uuid, "memory", source))?;
        Ok(DeviceMemory {
            total: info.total,
            used: info.used,
            reserved: info.reserved,
        })
    }

    fn process_utilization(
        &self,
        gpu: &str,
        since: u64,
    ) -> Result<Option<Vec<ProcessUtilization>>, NvmlError> {
        let device = self.device(gpu, "process utilization")?;
        samples(self.library(), &device, since)
            .map_err(|source| usage(gpu, "process utilization", source))
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

/// The samples after `since`, in the driver's microseconds; `None`: the driver reports none of this
/// GPU. Newer GPUs do not support the call that older drivers have for it, but its successor, which
/// `nvml_wrapper` lacks; partitioned ones support neither.
fn samples(
    nvml: &nvml_wrapper::Nvml,
    device: &Device,
    since: u64,
) -> Result<Option<Vec<ProcessUtilization>>, Cause> {
    let is_unsupported = |cause: &Cause| matches!(cause, Cause::NotSupported) || is_missing(cause);
    let found = match legacy(device, since) {
        Err(cause) if is_unsupported(&cause) => current(nvml, device, since),
        answer => answer,
    };
    match found {
        Ok(found) => Ok(Some(found)),
        // An idle GPU.
        Err(Cause::NotFound) => Ok(Some(Vec::new())),
        Err(cause) if is_unsupported(&cause) => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn legacy(device: &Device, since: u64) -> Result<Vec<ProcessUtilization>, Cause> {
    let found = device.process_utilization_stats(since)?;
    let sample = |one: ProcessUtilizationSample| ProcessUtilization {
        pid: one.pid,
        busy: one.sm_util,
        at: one.timestamp,
    };
    Ok(found.into_iter().map(sample).collect())
}

fn current(
    nvml: &nvml_wrapper::Nvml,
    device: &Device,
    since: u64,
) -> Result<Vec<ProcessUtilization>, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetProcessesUtilizationInfo.as_ref())?;
    let mut list = nvmlProcessesUtilizationInfo_t {
        version: V1,
        processSamplesCount: 0,
        lastSeenTimeStamp: since,
        procUtilArray: std::ptr::null_mut(),
    };
    // SAFETY: the symbol has this signature; the handle is this library's; the struct lives through
    // the call and declares an array of no elements.
    let code = unsafe { call(device.handle(), &raw mut list) };
    if code != INSUFFICIENT_SIZE {
        nvml_try(code)?;
    }
    if list.processSamplesCount == 0 {
        return Ok(Vec::new());
    }
    let length = list.processSamplesCount.saturating_add(MORE_SAMPLES);
    let mut found = vec![NO_SAMPLE; usize::try_from(length).unwrap_or(usize::MAX)];
    list.processSamplesCount = length;
    list.procUtilArray = found.as_mut_ptr();
    // SAFETY: as above; the array has as many elements as the struct declares, and lives as long.
    nvml_try(unsafe { call(device.handle(), &raw mut list) })?;
    found.truncate(usize::try_from(list.processSamplesCount).unwrap_or(usize::MAX));
    let sample = |one: nvmlProcessUtilizationInfo_v1_t| ProcessUtilization {
        pid: one.pid,
        busy: one.smUtil,
        at: one.timeStamp,
    };
    Ok(found.into_iter().map(sample).collect())
}
