//! NVML: shows the container's devices, numbered without gaps, and their memory within the
//! container's limit. No device and no byte of another container is visible.

use core::ffi::{c_char, c_uint};

use aliquot_region::slot::SlotProcess;

use super::view;
use crate::driver::call;
use crate::ffi::{
    Code, Handle, NVML_GPU_IS_LOST, NVML_INVALID_ARGUMENT, NVML_NOT_FOUND, Out, SUCCESS,
};
use crate::process::{ProcessState, Share, access};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct NvmlMemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Longest UUID, with its closing zero.
const NAME: usize = 96;

/// Index in the limits page of the device behind a handle; `None`: not limited, or not of this
/// container.
fn device_index(share: &Share, device: Handle) -> Option<usize> {
    let mut name = [0_u8; NAME];
    let length = c_uint::try_from(NAME).unwrap_or(0);
    let place = name.as_mut_ptr().cast::<c_char>();
    if call::nvmlDeviceGetUUID(device, place, length) != SUCCESS {
        return None;
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    share.device_index_of_uuid(&name[..end])
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedDevice {
    share: &'static Share,
    /// Unless this process may have and know nothing of it.
    process: Option<&'static ProcessState>,
    index: usize,
}

impl SharedDevice {
    /// The device behind a handle, if the container is limited and has it.
    pub(crate) fn new(device: Handle) -> Option<Self> {
        let access = access();
        let share = access.share()?;
        Some(Self {
            share,
            process: access.limited(),
            index: device_index(share, device)?,
        })
    }

    /// The container's processes that use it; none where this process may know nothing of them.
    pub(crate) fn processes(self) -> impl Iterator<Item = SlotProcess> {
        let processes = self.process.map(|process| {
            let _ = process.reclaim_dead_slots();
            process.slot.processes(self.index)
        });
        processes.into_iter().flatten()
    }

    /// What is shown of a device that has this much memory: its size, and what of it is used.
    fn memory(self, available: u64) -> (u64, u64) {
        let remaining = self
            .process
            .map_or(0, |process| view::remaining_memory(process, self.index));
        let limit = self.share.limits.memory(self.index);
        let used = limit.saturating_sub(remaining);
        let total = view::shown_total(self.share, self.index, available);
        (total, used.min(total))
    }
}

/// Whether a handle belongs to the container: a device, a MIG instance, or the GPU that has such an
/// instance, which is NVML's only way to reach it.
fn is_assigned(share: &Share, device: Handle) -> bool {
    let is_own = |device| device_index(share, device).is_some();
    is_own(device) || instances(device).any(is_own)
}

fn instances(device: Handle) -> impl Iterator<Item = Handle> {
    let mut most = 0;
    if call::nvmlDeviceGetMaxMigDeviceCount(device, Out::to(&mut most)) != SUCCESS {
        most = 0;
    }
    (0..most).filter_map(move |index| {
        let mut found = 0;
        let code = call::nvmlDeviceGetMigDeviceHandleByIndex(device, index, Out::to(&mut found));
        (code == SUCCESS).then_some(found)
    })
}

/// The container's devices, in NVML's order: handles, or the error in place of one that is lost.
/// Nobody knows to whom a lost one belongs, so as many of them count as the container lacks devices.
fn visible_devices(share: &Share) -> impl Iterator<Item = Result<Handle, Code>> {
    let mut count = 0;
    if call::nvmlDeviceGetCount_v2(Out::to(&mut count)) != SUCCESS {
        count = 0;
    }
    let places = (0..count).filter_map(|index| {
        let mut device = 0;
        match call::nvmlDeviceGetHandleByIndex_v2(index, Out::to(&mut device)) {
            SUCCESS => is_assigned(share, device).then_some(Ok(device)),
            NVML_GPU_IS_LOST => Some(Err(NVML_GPU_IS_LOST)),
            _ => None,
        }
    });
    let all: Vec<_> = places.collect();
    let present = all.iter().flatten().count();
    let mut missing = share.limits.devices().saturating_sub(present);
    all.into_iter().filter(move |place| {
        let counts = place.is_ok() || missing > 0;
        missing -= usize::from(place.is_err() && counts);
        counts
    })
}

pub(crate) fn count(code: Code, count: Out<c_uint>) -> Code {
    if let (SUCCESS, Some(share)) = (code, access().share()) {
        count.put(c_uint::try_from(visible_devices(share).count()).unwrap_or(0));
    }
    code
}

pub(crate) fn by_index(index: c_uint, device: Out<Handle>, call: impl FnOnce() -> Code) -> Code {
    let mut count = 0;
    let Some(share) = access().share().filter(|_| !device.is_null()) else {
        return call();
    };
    // An error of the library itself is the answer, whatever the index.
    let code = call::nvmlDeviceGetCount_v2(Out::to(&mut count));
    if code != SUCCESS {
        return call();
    }
    let position = usize::try_from(index).ok();
    match position.and_then(|index| visible_devices(share).nth(index)) {
        Some(Ok(found)) => {
            device.put(found);
            SUCCESS
        }
        Some(Err(code)) => code,
        None => NVML_INVALID_ARGUMENT,
    }
}

/// The driver's answer about a device that it found, unless that belongs to another container.
pub(crate) fn hide_unassigned(code: Code, device: Out<Handle>) -> Code {
    let found = if code == SUCCESS { device.get() } else { None };
    match (found, access().share()) {
        (Some(found), Some(share)) if !is_assigned(share, found) => {
            device.put(0);
            NVML_NOT_FOUND
        }
        _ => code,
    }
}

pub(crate) fn index(code: Code, device: Handle, index: Out<c_uint>) -> Code {
    if let (SUCCESS, Some(share)) = (code, access().share())
        && let Some(place) = visible_devices(share).position(|one| one == Ok(device))
    {
        index.put(c_uint::try_from(place).unwrap_or(0));
    }
    code
}

pub(crate) fn memory(code: Code, device: Handle, memory: Out<NvmlMemory>) -> Code {
    if code == SUCCESS
        && let (Some(all), Some(device)) = (memory.get(), SharedDevice::new(device))
    {
        let (total, used) = device.memory(all.total);
        let free = total - used;
        memory.put(NvmlMemory { total, free, used });
    }
    code
}

pub(crate) fn memory_v2(code: Code, device: Handle, memory: Out<NvmlMemoryV2>) -> Code {
    if code == SUCCESS
        && let (Some(all), Some(device)) = (memory.get(), SharedDevice::new(device))
    {
        let (total, used) = device.memory(all.total);
        memory.put(NvmlMemoryV2 {
            total,
            reserved: 0,
            free: total - used,
            used,
            ..all
        });
    }
    code
}
