//! NVML's samples of processes, and the list that tells most of them: what is of another container
//! is taken out.
//!
//! A driver that tells processes by ids that this container does not know has no sample of ours;
//! then there is none. Fed by: [`crate::table`], the slots of the counters file.
//! Must not: leave a record of another container in a place of the caller's.

use core::ffi::{c_uint, c_void};

use crate::ffi::{Code, Handle, NVML_INSUFFICIENT_SIZE, NVML_NOT_FOUND, Out, SUCCESS};
use crate::nvml;
use crate::process::Process;
use crate::view;

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pid: c_uint,
    time: u64,
    used: [c_uint; 4],
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    time: u64,
    pid: c_uint,
    used: [c_uint; 6],
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Infos {
    version: c_uint,
    count: c_uint,
    last_seen: u64,
    list: Out<Info>,
}

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    pid: c_uint,
    used: u64,
    instance: c_uint,
    compute_instance: c_uint,
    protected: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Details {
    version: c_uint,
    mode: c_uint,
    count: c_uint,
    list: Out<Detail>,
}

/// `NVML_PROCESS_MODE_COMPUTE` and `NVML_PROCESS_MODE_ALL`: the modes in which ours are.
const OURS: [c_uint; 2] = [0, 3];

fn limited(device: Handle) -> Option<(&'static Process, usize)> {
    let process = view::limited()?;
    Some((process, nvml::card(process, device)?))
}

/// Keeps the records of this container's processes, in their order; how many they are.
fn keep<T: Copy>(
    (process, card): (&Process, usize),
    list: Out<T>,
    count: c_uint,
    pid: impl Fn(T) -> c_uint,
) -> c_uint {
    let own: Vec<u32> = process
        .seat
        .processes(card)
        .filter_map(|one| one.pid)
        .collect();
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
    c_uint::try_from(kept).unwrap_or(0)
}

pub(crate) fn samples(
    real: extern "C" fn(Handle, Out<Sample>, Out<c_uint>, u64) -> Code,
    device: Handle,
    samples: Out<Sample>,
    count: Out<c_uint>,
    last_seen: u64,
) -> Code {
    let code = real(device, samples, count, last_seen);
    let (SUCCESS, Some(place)) = (code, limited(device)) else {
        return code;
    };
    let kept = keep(place, samples, count.get().unwrap_or(0), |one| one.pid);
    count.put(kept);
    if kept == 0 { NVML_NOT_FOUND } else { SUCCESS }
}

pub(crate) fn infos(
    real: extern "C" fn(Handle, Out<Infos>) -> Code,
    device: Handle,
    infos: Out<Infos>,
) -> Code {
    let code = real(device, infos);
    let (SUCCESS, Some(place)) = (code, limited(device)) else {
        return code;
    };
    let Some(mut found) = infos.get() else {
        return code;
    };
    found.count = keep(place, found.list, found.count, |one| one.pid);
    infos.put(found);
    if found.count == 0 {
        NVML_NOT_FOUND
    } else {
        SUCCESS
    }
}

pub(crate) fn details(
    real: extern "C" fn(Handle, Out<Details>) -> Code,
    device: Handle,
    details: Out<Details>,
) -> Code {
    let room = |code| if code == SUCCESS { details.get() } else { None };
    let code = real(device, details);
    let Some((process, card)) = limited(device) else {
        return code;
    };
    let Some(mut found) = room(code) else {
        return code;
    };
    // Every one of the container is among all of the card's, so the caller's places suffice.
    let listed = usize::try_from(found.count).unwrap_or(0);
    let own: Vec<_> = process.seat.processes(card).collect();
    let shown = if OURS.contains(&found.mode) {
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
            Detail {
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

/// A card by a uuid in a struct that says its form.
pub(crate) fn by_uuid(
    real: extern "C" fn(*const c_void, Out<Handle>) -> Code,
    uuid: *const c_void,
    device: Out<Handle>,
) -> Code {
    nvml::own(real(uuid, device), device)
}
