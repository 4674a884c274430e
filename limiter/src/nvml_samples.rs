//! NVML's utilisation samples of processes, and its most detailed list of processes, without the
//! records of other containers.
//!
//! A driver that reports process ids which this container does not know has no sample of ours; the
//! answer is then that there is none.

use core::ffi::{c_uint, c_void};

use crate::ffi::{Code, Handle, NVML_INSUFFICIENT_SIZE, NVML_NOT_FOUND, Out, SUCCESS};
use crate::nvml;
use crate::process::ProcessState;
use crate::view;

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UtilizationSample {
    pid: c_uint,
    time: u64,
    used: [c_uint; 4],
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UtilizationInfo {
    time: u64,
    pid: c_uint,
    used: [c_uint; 6],
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UtilizationInfos {
    version: c_uint,
    count: c_uint,
    last_seen: u64,
    list: Out<UtilizationInfo>,
}

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessDetail {
    pid: c_uint,
    used: u64,
    instance: c_uint,
    compute_instance: c_uint,
    protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
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

fn limited(device: Handle) -> Option<(&'static ProcessState, usize)> {
    let process = view::limited()?;
    Some((process, nvml::device_index(process, device)?))
}

/// Keeps only the records of this container's processes, in their order; how many they are.
fn retain_own<T: Copy>(
    (process, device_index): (&ProcessState, usize),
    list: Out<T>,
    count: c_uint,
    pid: impl Fn(T) -> c_uint,
) -> c_uint {
    let own: Vec<u32> = process
        .slot
        .processes(device_index)
        .filter_map(|one| one.pid)
        .collect();
    let count = usize::try_from(count).unwrap_or(0);
    let mut retained = 0;
    for i in 0..count {
        if let Some(record) = list.get_at(i).filter(|record| own.contains(&pid(*record))) {
            list.put_at(retained, record);
            retained += 1;
        }
    }
    for i in retained..count {
        list.wipe_at(i);
    }
    c_uint::try_from(retained).unwrap_or(0)
}

pub(crate) fn samples(
    real: extern "C" fn(Handle, Out<UtilizationSample>, Out<c_uint>, u64) -> Code,
    device: Handle,
    samples: Out<UtilizationSample>,
    count: Out<c_uint>,
    last_seen: u64,
) -> Code {
    let code = real(device, samples, count, last_seen);
    let (SUCCESS, Some(place)) = (code, limited(device)) else {
        return code;
    };
    let retained = retain_own(place, samples, count.get().unwrap_or(0), |one| one.pid);
    count.put(retained);
    if retained == 0 {
        NVML_NOT_FOUND
    } else {
        SUCCESS
    }
}

pub(crate) fn infos(
    real: extern "C" fn(Handle, Out<UtilizationInfos>) -> Code,
    device: Handle,
    infos: Out<UtilizationInfos>,
) -> Code {
    let code = real(device, infos);
    let (SUCCESS, Some(place)) = (code, limited(device)) else {
        return code;
    };
    let Some(mut found) = infos.get() else {
        return code;
    };
    found.count = retain_own(place, found.list, found.count, |one| one.pid);
    infos.put(found);
    if found.count == 0 {
        NVML_NOT_FOUND
    } else {
        SUCCESS
    }
}

pub(crate) fn details(
    real: extern "C" fn(Handle, Out<ProcessDetails>) -> Code,
    device: Handle,
    details: Out<ProcessDetails>,
) -> Code {
    let list_if_successful = |code| if code == SUCCESS { details.get() } else { None };
    let code = real(device, details);
    let Some((process, device_index)) = limited(device) else {
        return code;
    };
    let Some(mut found) = list_if_successful(code) else {
        return code;
    };
    // Every process of the container is among all of the device's, so the caller's list is long
    // enough.
    let listed = usize::try_from(found.count).unwrap_or(0);
    let own: Vec<_> = process.slot.processes(device_index).collect();
    let shown = if COMPUTE_MODES.contains(&found.mode) {
        own.len()
    } else {
        0
    };
    if shown > listed {
        return NVML_INSUFFICIENT_SIZE;
    }
    for (i, one) in own.iter().take(shown).enumerate() {
        let pid = one.pid.unwrap_or(0);
        let (instance, compute_instance) = (c_uint::MAX, c_uint::MAX);
        let (used, protected) = (one.used, 0);
        found.list.put_at(
            i,
            ProcessDetail {
                pid,
                used,
                instance,
                compute_instance,
                protected,
            },
        );
    }
    for i in shown..listed {
        found.list.wipe_at(i);
    }
    found.count = c_uint::try_from(shown).unwrap_or(0);
    details.put(found);
    SUCCESS
}

/// A device by a UUID in a struct that has its form.
pub(crate) fn by_uuid(
    real: extern "C" fn(*const c_void, Out<Handle>) -> Code,
    uuid: *const c_void,
    device: Out<Handle>,
) -> Code {
    nvml::hide_unassigned(real(uuid, device), device)
}
