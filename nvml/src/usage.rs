//! Utilization, memory and processes of GPUs, for the monitor. Each value is read on its own; one
//! that the driver does not report is `None`.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessesUtilizationInfo_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE, nvmlReturn_t,
};

use crate::calls::{is_missing, struct_version};
use crate::driver::Nvml;
use crate::error::NvmlError;

/// NVML's number for version 1 of the struct.
const V1: c_uint = struct_version::<nvmlProcessesUtilizationInfo_t>(1);
/// Processes that begin to work between two calls.
const MORE: c_uint = 16;
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

/// A process that has a device open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// In this PID namespace.
    pub pid: u32,
    /// Bytes allocated; `None` where the driver does not report them.
    pub bytes: Option<u64>,
    /// The driver's ids of its GPU instance and compute instance, on a partitioned GPU.
    pub instance: Option<(u32, u32)>,
}

/// Utilization of a GPU. What the driver does not report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUtilization {
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

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Total.
    pub total: u64,
    /// In use, without what the driver reserves where it reports that separately.
    pub used: u64,
    /// Reserved by the driver.
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

/// Queries about use. Calls block.
pub trait Usage: Send + Sync {
    /// The processes on a GPU, once for each instance, including graphics and MPS clients.
    fn processes(&self, gpu: &str) -> Result<Vec<GpuProcess>, NvmlError>;

    /// Utilization of a GPU.
    fn utilization(&self, gpu: &str) -> Result<GpuUtilization, NvmlError>;

    /// Memory of a device.
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
    fn processes(&self, gpu: &str) -> Result<Vec<GpuProcess>, NvmlError> {
        let failed = |source| NvmlError::Processes {
            uuid: gpu.to_owned(),
            source,
        };
        let device = self.library().device_by_uuid(gpu).map_err(failed)?;
        merged(self.library(), &device).map_err(failed)
    }

    fn utilization(&self, gpu: &str) -> Result<GpuUtilization, NvmlError> {
        let device = self.device(gpu, "utilization")?;
        let rates = device.utilization_rates().ok();
        Ok(GpuUtilization {
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

/// Merges the driver's three lists; a process in several of them gets the largest size.
fn merged(nvml: &nvml_wrapper::Nvml, device: &Device) -> Result<Vec<GpuProcess>, Cause> {
    let lib = nvml.lib();
    let compute = nvml_sym(lib.nvmlDeviceGetComputeRunningProcesses_v2.as_ref())?;
    let graphics = nvml_sym(lib.nvmlDeviceGetGraphicsRunningProcesses_v2.as_ref());
    let lists = [
        list(device, *compute)?,
        optional(graphics.and_then(|call| list(device, *call)))?,
        optional(mps_clients(nvml, device))?,
    ];
    let mut found: Vec<GpuProcess> = lists.into_iter().flatten().collect();
    let key = |one: &GpuProcess| (one.pid, one.instance);
    found.sort_by_key(|one| (key(one), std::cmp::Reverse(one.bytes)));
    found.dedup_by_key(|one| key(one));
    Ok(found)
}

/// The clients of MPS servers on a device.
pub(crate) fn mps_clients(
    nvml: &nvml_wrapper::Nvml,
    device: &Device,
) -> Result<Vec<GpuProcess>, Cause> {
    let call = nvml_sym(
        nvml.lib()
            .nvmlDeviceGetMPSComputeRunningProcesses_v2
            .as_ref(),
    )?;
    list(device, *call)
}

/// Version 2 of a list of processes: the records of version 3 are longer on drivers 535.43 to 535.86.
type ProcessList =
    unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t;

fn list(device: &Device, call: ProcessList) -> Result<Vec<GpuProcess>, Cause> {
    const NO_PROCESS: nvmlProcessInfo_v2_t = nvmlProcessInfo_v2_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    let mut length = MORE;
    loop {
        let mut found = vec![NO_PROCESS; usize::try_from(length).unwrap_or(usize::MAX)];
        let mut count = length;
        // SAFETY: the symbol has this signature; the handle is this library's; the array has `count`
        // elements and lives through the call.
        let code = unsafe { call(device.handle(), &raw mut count, found.as_mut_ptr()) };
        if code == INSUFFICIENT_SIZE && count > length {
            length = count.saturating_add(MORE);
            continue;
        }
        nvml_try(code)?;
        found.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        return Ok(found.into_iter().map(process).collect());
    }
}

fn process(one: nvmlProcessInfo_v2_t) -> GpuProcess {
    let known = |id: c_uint| (id != c_uint::MAX).then_some(id);
    GpuProcess {
        pid: one.pid,
        // NVML_VALUE_NOT_AVAILABLE
        bytes: (one.usedGpuMemory != u64::MAX).then_some(one.usedGpuMemory),
        instance: known(one.gpuInstanceId).zip(known(one.computeInstanceId)),
    }
}

/// A list that a driver may lack.
fn optional(list: Result<Vec<GpuProcess>, Cause>) -> Result<Vec<GpuProcess>, Cause> {
    match list {
        Err(Cause::NotSupported) => Ok(Vec::new()),
        Err(error) if is_missing(&error) => Ok(Vec::new()),
        list => list,
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
    let length = list.processSamplesCount.saturating_add(MORE);
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
