//! The processes on a device, by the driver's three lists.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_v2_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE, nvmlReturn_t,
};

use crate::calls::is_missing;

/// Processes that start between two calls.
const MORE: c_uint = 16;

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

/// Merges the driver's three lists; a process in several of them gets the largest size.
pub(crate) fn all(nvml: &nvml_wrapper::Nvml, device: &Device) -> Result<Vec<GpuProcess>, Cause> {
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
