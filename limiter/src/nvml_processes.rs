//! NVML's lists of processes: only those of this container, with the process ids of its own
//! namespace.

use core::ffi::c_uint;

use aliquot_region::slot::SlotProcess as Holder;

use crate::ffi::{Code, Handle, NVML_INSUFFICIENT_SIZE, NVML_INVALID_ARGUMENT, Out, SUCCESS};
use crate::nvml;
use crate::process::ProcessState;
use crate::view;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessInfo {
    pid: c_uint,
    used: u64,
}

/// `nvmlProcessInfo_t` since version 2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessInfoV2 {
    pid: c_uint,
    used: u64,
    instance: c_uint,
    compute_instance: c_uint,
}

/// A record of one process.
pub(crate) trait ProcessRecord: Copy {
    fn of(process: Holder) -> Self;
}

impl ProcessRecord for ProcessInfo {
    fn of(process: Holder) -> Self {
        Self {
            pid: process.pid.unwrap_or(0),
            used: process.used,
        }
    }
}

impl ProcessRecord for ProcessInfoV2 {
    fn of(process: Holder) -> Self {
        Self {
            pid: process.pid.unwrap_or(0),
            used: process.used,
            // The whole device.
            instance: c_uint::MAX,
            compute_instance: c_uint::MAX,
        }
    }
}

type List<T> = extern "C" fn(Handle, Out<c_uint>, Out<T>) -> Code;

pub(crate) fn compute<T: ProcessRecord>(
    real: List<T>,
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
) -> Code {
    listed(real, device, count, infos, |process, device_index| {
        let _ = process.slot.settle(process.limits.devices());
        process.slot.processes(device_index).map(T::of).collect()
    })
}

/// The lists that contain none of our processes: graphics and MPS clients.
pub(crate) fn empty<T: ProcessRecord>(
    real: List<T>,
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
) -> Code {
    listed(real, device, count, infos, |_, _| Vec::new())
}

fn listed<T: ProcessRecord>(
    real: List<T>,
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
    list: impl FnOnce(&ProcessState, usize) -> Vec<T>,
) -> Code {
    let device_index =
        view::limited().and_then(|process| Some((process, nvml::device_index(process, device)?)));
    let Some((process, device_index)) = device_index else {
        return real(device, count, infos);
    };
    let Some(capacity) = count.get() else {
        return NVML_INVALID_ARGUMENT;
    };
    let found = list(process, device_index);
    let needed = c_uint::try_from(found.len()).unwrap_or(c_uint::MAX);
    count.put(needed);
    if needed > capacity || (infos.is_null() && needed > 0) {
        return NVML_INSUFFICIENT_SIZE;
    }
    for (i, info) in found.into_iter().enumerate() {
        infos.put_at(i, info);
    }
    SUCCESS
}
