//! Samples of the utilization of processes. Newer GPUs do not support the call that older drivers
//! have for it, but its successor, which `nvml_wrapper` lacks; partitioned ones support neither.

use std::ffi::c_uint;

use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessesUtilizationInfo_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
};

use crate::inventory::is_missing;
use crate::usage::ProcessUtilization;

/// NVML's number for version 1 of the struct.
const V1: c_uint = {
    let size = size_of::<nvmlProcessesUtilizationInfo_t>();
    assert!(size < 1 << 24);
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let size = size as u32;
    size | 1 << 24
};
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

/// The samples after `since`, in the driver's microseconds; `None`: the driver reports none of this
/// GPU.
pub(crate) fn samples(
    nvml: &Nvml,
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
    let sample =
        |one: nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample| ProcessUtilization {
            pid: one.pid,
            busy: one.sm_util,
            at: one.timestamp,
        };
    Ok(found.into_iter().map(sample).collect())
}

fn current(nvml: &Nvml, device: &Device, since: u64) -> Result<Vec<ProcessUtilization>, Cause> {
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
