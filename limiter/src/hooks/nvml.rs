//! NVML: shows the container's devices, numbered without gaps, and their memory within the
//! container's limit. No device and no byte of another container is visible.

use core::ffi::{c_char, c_uint, c_void};

use aliquot_region::slot::SlotProcess;

use super::view::{self, MemoryView};
use crate::driver::call;
use crate::ffi::{
    Code, Handle, NVML_GPU_IS_LOST, NVML_INVALID_ARGUMENT, NVML_NOT_FOUND, Out, SUCCESS, Text,
};
use crate::process::{Access, Share, access};

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
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

/// A device of the container's share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedDevice {
    access: Access,
    index: usize,
}

impl SharedDevice {
    /// The device behind a handle, if the container is limited and has it.
    pub(crate) fn new(device: Handle) -> Option<Self> {
        let access = access();
        let index = device_index(access.share()?, device)?;
        Some(Self { access, index })
    }

    /// The container's processes that use it; none where this process may know nothing of them.
    pub(crate) fn processes(self) -> impl Iterator<Item = SlotProcess> {
        let processes = self.access.limited().map(|process| {
            let _ = process.reclaim_dead_slots();
            process.slot.processes(self.index)
        });
        processes.into_iter().flatten()
    }

    fn memory(self) -> Option<MemoryView> {
        match self.access {
            Access::Uncontrolled => None,
            Access::Limited(process) => Some(view::memory_view(process, self.index)),
            Access::Refused(share) => Some(MemoryView::used_up(share, self.index)),
        }
    }
}

/// Whether a handle belongs to the container: a device, a MIG instance, or the GPU that has such an
/// instance, which is NVML's only way to reach it.
fn is_assigned(share: &Share, device: Handle) -> bool {
    let is_own = |device| device_index(share, device).is_some();
    is_own(device) || instances(device).any(is_own)
}

/// The MIG instances of a GPU.
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
/// Nobody knows to whom a lost one belongs, so as many count as the container is missing.
fn visible_devices(share: &Share) -> impl Iterator<Item = Result<Handle, Code>> {
    let mut count = 0;
    if call::nvmlDeviceGetCount_v2(Out::to(&mut count)) != SUCCESS {
        count = 0;
    }
    let all = (0..count).filter_map(|index| {
        let mut device = 0;
        match call::nvmlDeviceGetHandleByIndex_v2(index, Out::to(&mut device)) {
            SUCCESS => is_assigned(share, device).then_some(Ok(device)),
            NVML_GPU_IS_LOST => Some(Err(NVML_GPU_IS_LOST)),
            _ => None,
        }
    });
    let all: Vec<_> = all.collect();
    let present = all.iter().flatten().count();
    let mut missing = share.limits.devices().saturating_sub(present);
    all.into_iter().filter(move |place| {
        let counts = place.is_ok() || missing > 0;
        missing -= usize::from(place.is_err() && counts);
        counts
    })
}

pub(crate) fn count(real: extern "C" fn(Out<c_uint>) -> Code, count: Out<c_uint>) -> Code {
    let code = real(count);
    if let (SUCCESS, Some(share)) = (code, access().share()) {
        count.put(c_uint::try_from(visible_devices(share).count()).unwrap_or(0));
    }
    code
}

pub(crate) fn by_index(
    real: extern "C" fn(c_uint, Out<Handle>) -> Code,
    index: c_uint,
    device: Out<Handle>,
) -> Code {
    let mut count = 0;
    let Some(share) = access().share().filter(|_| !device.is_null()) else {
        return real(index, device);
    };
    // An error of the library itself is the answer, whatever the index.
    let code = call::nvmlDeviceGetCount_v2(Out::to(&mut count));
    if code != SUCCESS {
        return real(index, device);
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

pub(crate) fn by_identifier(
    real: extern "C" fn(Text, Out<Handle>) -> Code,
    name: Text,
    device: Out<Handle>,
) -> Code {
    hide_unassigned(real(name, device), device)
}

/// A device by a UUID in a struct that has its form.
pub(crate) fn by_uuid(
    real: extern "C" fn(*const c_void, Out<Handle>) -> Code,
    uuid: *const c_void,
    device: Out<Handle>,
) -> Code {
    hide_unassigned(real(uuid, device), device)
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

pub(crate) fn index(
    real: extern "C" fn(Handle, Out<c_uint>) -> Code,
    device: Handle,
    index: Out<c_uint>,
) -> Code {
    let code = real(device, index);
    if let (SUCCESS, Some(share)) = (code, access().share())
        && let Some(place) = visible_devices(share).position(|one| one == Ok(device))
    {
        index.put(c_uint::try_from(place).unwrap_or(0));
    }
    code
}

/// What the container sees of a device's memory; `None`: all of it.
fn shown(code: Code, device: Handle) -> Option<MemoryView> {
    let device = (code == SUCCESS).then(|| SharedDevice::new(device))??;
    device.memory()
}

pub(crate) fn memory(
    real: extern "C" fn(Handle, Out<NvmlMemory>) -> Code,
    device: Handle,
    memory: Out<NvmlMemory>,
) -> Code {
    let code = real(device, memory);
    if let (Some(shown), Some(all)) = (shown(code, device), memory.get()) {
        let total = shown.total_of(all.total);
        let used = shown.used.min(total);
        let free = total - used;
        memory.put(NvmlMemory { total, free, used });
    }
    code
}

pub(crate) fn memory_v2(
    real: extern "C" fn(Handle, Out<NvmlMemoryV2>) -> Code,
    device: Handle,
    memory: Out<NvmlMemoryV2>,
) -> Code {
    let code = real(device, memory);
    if let (Some(shown), Some(all)) = (shown(code, device), memory.get()) {
        let total = shown.total_of(all.total);
        let used = shown.used.min(total);
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
