//! NVML's lists of processes: those of this container, with the ids that it knows them by.
//!
//! Fed by: [`crate::table`], the slots of the counters file.
//! Must not: name a process of another container.

use core::ffi::c_uint;

use aliquot_region::seat::Process as Holder;

use crate::ffi::{Code, Handle, NVML_INSUFFICIENT_SIZE, NVML_INVALID_ARGUMENT, Out, SUCCESS};
use crate::nvml;
use crate::process::Process;
use crate::view;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    pid: c_uint,
    used: u64,
}

/// `nvmlProcessInfo_t` since version 2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct InfoV2 {
    pid: c_uint,
    used: u64,
    instance: c_uint,
    compute_instance: c_uint,
}

/// A record of one process.
pub(crate) trait Listed: Copy {
    fn of(holder: Holder) -> Self;
}

impl Listed for Info {
    fn of(holder: Holder) -> Self {
        Self {
            pid: holder.pid.unwrap_or(0),
            used: holder.used,
        }
    }
}

impl Listed for InfoV2 {
    fn of(holder: Holder) -> Self {
        Self {
            pid: holder.pid.unwrap_or(0),
            used: holder.used,
            // The whole card.
            instance: c_uint::MAX,
            compute_instance: c_uint::MAX,
        }
    }
}

type List<T> = extern "C" fn(Handle, Out<c_uint>, Out<T>) -> Code;

pub(crate) fn compute<T: Listed>(
    real: List<T>,
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
) -> Code {
    listed(real, device, count, infos, |process, card| {
        let _ = process.seat.settle(process.limits.devices());
        process.seat.processes(card).map(T::of).collect()
    })
}

/// The lists in which no process of ours is: graphics and MPS clients.
pub(crate) fn none<T: Listed>(
    real: List<T>,
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
) -> Code {
    listed(real, device, count, infos, |_, _| Vec::new())
}

fn listed<T: Listed>(
    real: List<T>,
    device: Handle,
    count: Out<c_uint>,
    infos: Out<T>,
    list: impl FnOnce(&Process, usize) -> Vec<T>,
) -> Code {
    let card = view::limited().and_then(|process| Some((process, nvml::card(process, device)?)));
    let Some((process, card)) = card else {
        return real(device, count, infos);
    };
    let Some(room) = count.get() else {
        return NVML_INVALID_ARGUMENT;
    };
    let found = list(process, card);
    let needed = c_uint::try_from(found.len()).unwrap_or(c_uint::MAX);
    count.put(needed);
    if needed > room || (infos.is_null() && needed > 0) {
        return NVML_INSUFFICIENT_SIZE;
    }
    for (i, info) in found.into_iter().enumerate() {
        infos.put_at(i, info);
    }
    SUCCESS
}
