//! Memory and memory errors.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::{calls, getters};
use crate::ffi::{Answer, Out, struct_version};
use crate::library;
use crate::model::{ABSENT, Gpu, ON};

getters! {
    nvmlDeviceGetBAR1MemoryInfo: nvmlBAR1Memory_t = |gpu| Ok(nvmlBAR1Memory_t {
        bar1Total: gpu.bar1_total,
        bar1Free: gpu.bar1_total - (gpu.bar1_total >> 10),
        bar1Used: gpu.bar1_total >> 10,
    });
    nvmlDeviceGetDefaultEccMode: c_uint = |gpu| ecc(gpu).map(|_| 1);
}

calls! {
    /// Version 1 counts the driver's own part as used.
    nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, out: Out<nvmlMemory_t>) {
        let (total, reserved, used) = library::device(device)?.memory();
        let used = used + reserved;
        let free = total - used;
        out.put(nvmlMemory_t { total, free, used })
    }

    nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, out: Out<nvmlMemory_v2_t>) {
        let found = library::device(device)?;
        let (mut total, mut reserved, mut used) = found.memory();
        out.check_version(2)?;
        let own = || {
            library::cuda_processes()
                .ok()?
                .member()?
                .own_memory_limit(library::index(device).ok()?)
        };
        // A process in a cgroup with a limit sees the limit.
        if let Some(limit) = own().filter(|_| found.instance.is_none()) {
            total = total.min(limit.hard);
            (reserved, used) = (0, limit.used.min(total));
        }
        out.put(nvmlMemory_v2_t {
            version: struct_version::<nvmlMemory_v2_t>(2),
            total,
            reserved,
            free: total - reserved - used,
            used,
        })
    }

    nvmlDeviceGetEccMode(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>) {
        let mode = ecc(&*library::gpu(device)?)?;
        current.put(mode)?;
        pending.put(mode)
    }

    nvmlDeviceGetTotalEccErrors(
        device: nvmlDevice_t, error_type: c_uint, counter_type: c_uint, count: Out<c_ulonglong>,
    ) {
        let gpu = library::gpu(device)?;
        if counter_type > 1 {
            return Err(INVALID_ARGUMENT);
        }
        if ecc(&gpu)? == 0 {
            return Err(NOT_SUPPORTED);
        }
        count.put(match error_type {
            0 => gpu.ecc_corrected,
            1 => gpu.ecc_uncorrected,
            _ => return Err(INVALID_ARGUMENT),
        })
    }

    /// Rows are remapped by GPUs from Ampere on.
    nvmlDeviceGetRemappedRows(
        device: nvmlDevice_t, correctable: Out<c_uint>, uncorrectable: Out<c_uint>,
        pending: Out<c_uint>, failure: Out<c_uint>,
    ) {
        if library::gpu(device)?.architecture < 7 {
            return Err(NOT_SUPPORTED);
        }
        [correctable, uncorrectable, pending, failure]
            .iter()
            .try_for_each(|out| out.put(0))
    }
}

/// 0 or 1.
pub(super) fn ecc(gpu: &Gpu) -> Answer<c_uint> {
    if gpu.ecc == ABSENT {
        return Err(NOT_SUPPORTED);
    }
    Ok(u32::from(gpu.ecc == ON))
}
