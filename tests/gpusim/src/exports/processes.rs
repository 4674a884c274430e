//! The processes on a GPU: the three lists in their three versions, and utilisation by process.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessDetail_v1_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t,
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
};

use super::calls;
use crate::edit;
use crate::ffi::{Answer, Out, put_list};
use crate::library;
use crate::model::{
    Gpu, ON, PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED, PROCESS_UTILISATION_OK, Process,
    ProcessKind, text,
};

/// `NVML_VALUE_NOT_AVAILABLE` of 64 bits.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Of a process that has ended: more than the kernel gives.
const ENDED: u32 = 1 << 22;
/// Microseconds between samples of a process, and between those of processes with the next id.
const SAMPLE_PERIOD: u64 = 1_000_000 / 6;
const SAMPLE_STEP: u64 = 61_803;
/// Percent of a strange sample of a process that lives, and of one that has ended.
const ABOVE_ALL: u32 = 135;
const OF_ENDED: u32 = 60;

macro_rules! lists {
    ($($name:ident: $info:ty = $kind:expr, $convert:expr;)*) => {
        calls! {
            $($name(device: nvmlDevice_t, count: Out<c_uint>, infos: Out<$info>) {
                let found: Vec<$info> = of_kind(device, $kind)?.iter().map($convert).collect();
                put_list(&count, &infos, &found)
            })*
        }
    };
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: nvmlProcessInfo_v1_t = ProcessKind::Compute, info_v1;
    nvmlDeviceGetComputeRunningProcesses_v2: nvmlProcessInfo_v2_t = ProcessKind::Compute, info_v2;
    nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t = ProcessKind::Graphics, info_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_v2_t = ProcessKind::Graphics, info_v2;
    nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t = ProcessKind::Mps, info_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_v2_t = ProcessKind::Mps, info_v2;
}

macro_rules! third_lists {
    ($($name:ident = $kind:expr;)*) => {
        calls! {
            $($name(device: nvmlDevice_t, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) {
                let found = of_kind(device, $kind)?;
                if has_long_records()? {
                    let found: Vec<_> = found.iter().map(long_info).collect();
                    return put_list(&count, &infos.cast(), &found);
                }
                let found: Vec<_> = found.iter().map(info_v2).collect();
                put_list(&count, &infos, &found)
            })*
        }
    };
}

third_lists! {
    nvmlDeviceGetComputeRunningProcesses_v3 = ProcessKind::Compute;
    nvmlDeviceGetGraphicsRunningProcesses_v3 = ProcessKind::Graphics;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = ProcessKind::Mps;
}

/// Drivers 535.43 to 535.86 have a size of protected memory in version 3 of the records.
fn has_long_records() -> Answer<bool> {
    let machine = library::machine()?;
    let version = text(&machine.driver);
    let mut numbers = version.split('.').map(str::parse::<u32>);
    let (major, minor) = (numbers.next(), numbers.next());
    Ok(major == Some(Ok(535)) && matches!(minor, Some(Ok(43..=86))))
}

fn of_kind(device: nvmlDevice_t, kind: ProcessKind) -> Answer<Vec<Process>> {
    let device = library::device(device)?;
    let here = |process: &&Process| device.has(process) && process.kind == kind as u32;
    let found = device.gpu.running().iter().filter(here);
    let shown = |process: &Process| Process {
        memory: bytes(&device.gpu, process),
        ..*process
    };
    Ok(found.map(shown).collect())
}

/// The bytes of a process as NVML knows them.
fn bytes(gpu: &Gpu, process: &Process) -> u64 {
    if gpu.bytes_not_available != 0 {
        return NOT_AVAILABLE;
    }
    let when = |setting: u32, bytes: u64| if setting == 0 { 0 } else { bytes };
    let left_out = when(gpu.bytes_without_managed, process.managed);
    process.memory.saturating_sub(left_out) + when(gpu.imported_twice, process.imported)
}

fn info_v1(process: &Process) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.memory,
    }
}

fn info_v2(process: &Process) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.memory,
        gpuInstanceId: process.gpu_instance,
        computeInstanceId: process.compute_instance,
    }
}

fn long_info(process: &Process) -> nvmlProcessDetail_v1_t {
    nvmlProcessDetail_v1_t {
        pid: process.pid,
        usedGpuMemory: process.memory,
        gpuInstanceId: process.gpu_instance,
        computeInstanceId: process.compute_instance,
        usedGpuCcProtectedMemory: 0,
    }
}

calls! {
    /// What each process used since `last_seen`; nothing is "not found", as NVML reports an idle GPU.
    nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t, samples: Out<nvmlProcessUtilizationSample_t>, count: Out<c_uint>,
        last_seen: c_ulonglong,
    ) {
        let found = utilisation(device, last_seen, PROCESS_UTILISATION_OK)?;
        let found: Vec<_> = found
            .iter()
            .map(|(now, process)| nvmlProcessUtilizationSample_t {
                pid: process.pid,
                timeStamp: *now,
                smUtil: process.sm,
                memUtil: process.bandwidth,
                encUtil: 0,
                decUtil: 0,
            })
            .collect();
        if samples.is_null() {
            count.put(c_uint::try_from(found.len()).map_err(|_| UNKNOWN)?)?;
            return Err(INSUFFICIENT_SIZE);
        }
        put_list(&count, &samples, &found)
    }

    nvmlDeviceGetProcessesUtilizationInfo(
        device: nvmlDevice_t, out: Out<nvmlProcessesUtilizationInfo_t>,
    ) {
        out.check_version(1)?;
        let asked = out.get()?;
        let last_seen = asked.lastSeenTimeStamp;
        let found = utilisation(device, last_seen, PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED)?;
        let found: Vec<_> = found
            .iter()
            .map(|(now, process)| nvmlProcessUtilizationInfo_v1_t {
                timeStamp: *now,
                pid: process.pid,
                smUtil: process.sm,
                memUtil: process.bandwidth,
                encUtil: 0,
                decUtil: 0,
                jpgUtil: 0,
                ofaUtil: 0,
            })
            .collect();
        let needed = c_uint::try_from(found.len()).map_err(|_| UNKNOWN)?;
        out.put(nvmlProcessesUtilizationInfo_t {
            processSamplesCount: needed,
            ..asked
        })?;
        if asked.processSamplesCount < needed {
            return Err(INSUFFICIENT_SIZE);
        }
        Out::array(asked.procUtilArray).put_all(&found)
    }
}

/// Each process that worked since `last_seen`, with the mean of its samples since then and the time of
/// the newest in microseconds since 1970: every process is sampled at moments of its own. The call works
/// up to the value `most` of `Gpu::process_utilisation`, and not in MIG mode.
fn utilisation(
    device: nvmlDevice_t,
    last_seen: c_ulonglong,
    most: u32,
) -> Answer<Vec<(u64, Process)>> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(|_| UNKNOWN)?;
    let now = u64::try_from(now.as_micros()).map_err(|_| UNKNOWN)?;
    let since = now.checked_sub(last_seen).map(Duration::from_micros);
    let gpu = library::gpu_over(device, since.unwrap_or_default())?;
    if gpu.process_utilisation > most || gpu.mig == ON {
        return Err(NOT_SUPPORTED);
    }
    if since.is_none() {
        return Err(INVALID_ARGUMENT);
    }
    let works = |process: &&Process| process.sm > 0 || process.bandwidth > 0;
    let mut found: Vec<Process> = gpu.running().iter().filter(works).copied().collect();
    if gpu.strange_samples != 0 {
        found.extend(strange(&found));
    }
    let sampled_at = |process: &Process| {
        let moment = u64::from(process.pid) * SAMPLE_STEP;
        now - (now + moment) % SAMPLE_PERIOD
    };
    let all = found.into_iter().map(|one| (sampled_at(&one), one));
    let new: Vec<_> = all.filter(|(at, _)| *at > last_seen).collect();
    if new.is_empty() {
        return Err(NOT_FOUND);
    }
    Ok(new)
}

/// Samples that mean nothing: one above 100 of each process, and one of a process that has ended.
fn strange(found: &[Process]) -> Vec<Process> {
    let above = |process: &Process| Process {
        sm: ABOVE_ALL,
        ..*process
    };
    let ended = Process {
        sm: OF_ENDED,
        ..edit::compute_process(ENDED, 0)
    };
    found.iter().map(above).chain([ended]).collect()
}
