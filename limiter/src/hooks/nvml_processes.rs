//! NVML's lists of processes and samples of their use: only those of this container, with the
//! process ids of its own namespace.
//!
//! A driver that reports process ids which this container does not know has no sample of ours; the
//! answer is then that there is none.

use core::ffi::c_uint;

use aliquot_region::slot::SlotProcess as Holder;

use super::nvml::SharedDevice;
use crate::driver::call;
use crate::ffi::{
    Code, Handle, NVML_INSUFFICIENT_SIZE, NVML_INVALID_ARGUMENT, NVML_NOT_FOUND, Out, SUCCESS,
};

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
    first: ProcessInfo,
    instance: c_uint,
    compute_instance: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UtilizationSample {
    pid: c_uint,
    time: u64,
    used: [c_uint; 4],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UtilizationInfo {
    time: u64,
    pid: c_uint,
    used: [c_uint; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UtilizationInfos {
    version: c_uint,
    count: c_uint,
    last_seen: u64,
    list: Out<UtilizationInfo>,
}

/// `nvmlProcessDetail_v1_t`, and what drivers 535.43 to 535.86 have as `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessDetail {
    first: ProcessInfoV2,
    protected: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessDetails {
    version: c_uint,
    mode: c_uint,
    count: c_uint,
    list: Out<ProcessDetail>,
}

/// `NVML_PROCESS_MODE_COMPUTE` and `NVML_PROCESS_MODE_ALL`: the modes that include our processes.
const COMPUTE_MODES: [c_uint; 2] = [0, 3];

impl From<Holder> for ProcessInfo {
    fn from(process: Holder) -> Self {
        Self {
            pid: process.pid.unwrap_or(0),
            used: process.used,
        }
    }
}

impl From<Holder> for ProcessInfoV2 {
    fn from(process: Holder) -> Self {
        Self {
            first: process.into(),
            // The whole device.
            instance: c_uint::MAX,
            compute_instance: c_uint::MAX,
        }
    }
}

impl From<Holder> for ProcessDetail {
    fn from(process: Holder) -> Self {
        Self {
            first: process.into(),
            protected: 0,
        }
    }
}

pub(crate) fn compute<T: From<Holder> + Copy>(
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
    call: impl FnOnce() -> Code,
) -> Code {
    list(device, count, infos, call, |device| {
        device.processes().map(T::from).collect()
    })
}

/// Version 3 of the list has the records of version 2, but on drivers 535.43 to 535.86.
pub(crate) fn compute_v3(
    device: Handle,
    count: Out<c_uint>,
    infos: Out<ProcessInfoV2>,
    call: impl FnOnce() -> Code,
) -> Code {
    if has_long_records() {
        compute(device, count, infos.cast::<ProcessDetail>(), call)
    } else {
        compute(device, count, infos, call)
    }
}

fn has_long_records() -> bool {
    let mut version = [0_u8; 80];
    let length = c_uint::try_from(version.len()).unwrap_or(0);
    if call::nvmlSystemGetDriverVersion(version.as_mut_ptr().cast(), length) != SUCCESS {
        return false;
    }
    let mut parts = version.split(|byte| *byte == b'.');
    let mut number = || str::from_utf8(parts.next()?).ok()?.parse().ok();
    matches!((number(), number()), (Some(535), Some(43..=86)))
}

/// The lists that contain none of our processes: graphics and MPS clients.
pub(crate) fn empty<T: Copy>(
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
    call: impl FnOnce() -> Code,
) -> Code {
    list(device, count, infos, call, |_| Vec::new())
}

fn list<T: Copy>(
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
    call: impl FnOnce() -> Code,
    shown: impl FnOnce(SharedDevice) -> Vec<T>,
) -> Code {
    let Some(device) = SharedDevice::new(device) else {
        return call();
    };
    let Some(capacity) = count.get() else {
        return NVML_INVALID_ARGUMENT;
    };
    let found = shown(device);
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

/// Keeps only the records of this container's processes, in their order; how many they are, and the
/// answer.
fn retain_own<T: Copy>(
    device: SharedDevice,
    list: Out<T>,
    count: c_uint,
    pid: impl Fn(T) -> c_uint,
) -> (c_uint, Code) {
    let own: Vec<u32> = device.processes().filter_map(|one| one.pid).collect();
    let count = usize::try_from(count).unwrap_or(0);
    let mut kept = 0;
    for i in 0..count {
        if let Some(record) = list.get_at(i).filter(|record| own.contains(&pid(*record))) {
            list.put_at(kept, record);
            kept += 1;
        }
    }
    for i in kept..count {
        list.wipe_at(i);
    }
    let code = if kept == 0 { NVML_NOT_FOUND } else { SUCCESS };
    (c_uint::try_from(kept).unwrap_or(0), code)
}

pub(crate) fn samples(
    code: Code,
    device: Handle,
    samples: Out<UtilizationSample>,
    count: Out<c_uint>,
) -> Code {
    let (SUCCESS, Some(device)) = (code, SharedDevice::new(device)) else {
        return code;
    };
    let listed = count.get().unwrap_or(0);
    let (kept, code) = retain_own(device, samples, listed, |one| one.pid);
    count.put(kept);
    code
}

pub(crate) fn infos(code: Code, device: Handle, infos: Out<UtilizationInfos>) -> Code {
    let (SUCCESS, Some(device)) = (code, SharedDevice::new(device)) else {
        return code;
    };
    let Some(mut found) = infos.get() else {
        return code;
    };
    let (kept, code) = retain_own(device, found.list, found.count, |one| one.pid);
    found.count = kept;
    infos.put(found);
    code
}

pub(crate) fn details(code: Code, device: Handle, details: Out<ProcessDetails>) -> Code {
    let (SUCCESS, Some(device)) = (code, SharedDevice::new(device)) else {
        return code;
    };
    let Some(mut found) = details.get() else {
        return code;
    };
    // Every process of the container is among all of the device's, so the caller's list is long
    // enough.
    let listed = usize::try_from(found.count).unwrap_or(0);
    let own: Vec<_> = device.processes().collect();
    let shown = if COMPUTE_MODES.contains(&found.mode) {
        own.len()
    } else {
        0
    };
    if shown > listed {
        return NVML_INSUFFICIENT_SIZE;
    }
    for (i, one) in own.iter().take(shown).enumerate() {
        found.list.put_at(i, ProcessDetail::from(*one));
    }
    for i in shown..listed {
        found.list.wipe_at(i);
    }
    found.count = c_uint::try_from(shown).unwrap_or(0);
    details.put(found);
    SUCCESS
}
