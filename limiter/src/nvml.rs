//! NVML: the cards of the seat, numbered without gaps, and their memory as far as the seat goes.
//!
//! Fed by: [`crate::table`]. Must not: show a card or a byte of another container.

use core::ffi::{c_char, c_uint};

use crate::ffi::{
    Code, Handle, NVML_GPU_IS_LOST, NVML_INVALID_ARGUMENT, NVML_NOT_FOUND, Out, SUCCESS, Text,
};
use crate::process::Process;
use crate::table::call;
use crate::view::{self, Seen};

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Bytes that a uuid may have with its closing zero.
const NAME: usize = 96;

/// The seat's card behind a handle; `None`: not limited, or not of this seat.
pub(crate) fn card(process: &Process, device: Handle) -> Option<usize> {
    let mut name = [0_u8; NAME];
    let length = c_uint::try_from(NAME).unwrap_or(0);
    let place = name.as_mut_ptr().cast::<c_char>();
    if call::nvmlDeviceGetUUID(device, place, length) != SUCCESS {
        return None;
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    process.card_named(&name[..end])
}

/// A handle of the seat: of a card, of an instance, or of the card that has such an instance, by
/// which alone NVML leads there.
fn is_ours(process: &Process, device: Handle) -> bool {
    let own = |device| card(process, device).is_some();
    own(device) || instances(device).any(own)
}

/// The MIG devices of a card.
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

/// The seat's cards, in NVML's order: handles, or the error that there is in the place of one that
/// is lost. Of those nobody knows whose they are: so many count as the seat lacks.
fn places(process: &Process) -> impl Iterator<Item = Result<Handle, Code>> {
    let mut count = 0;
    if call::nvmlDeviceGetCount_v2(Out::to(&mut count)) != SUCCESS {
        count = 0;
    }
    let all = (0..count).filter_map(|index| {
        let mut device = 0;
        match call::nvmlDeviceGetHandleByIndex_v2(index, Out::to(&mut device)) {
            SUCCESS => is_ours(process, device).then_some(Ok(device)),
            NVML_GPU_IS_LOST => Some(Err(NVML_GPU_IS_LOST)),
            _ => None,
        }
    });
    let all: Vec<_> = all.collect();
    let there = all.iter().flatten().count();
    let mut lacking = process.limits.devices().saturating_sub(there);
    all.into_iter().filter(move |place| {
        let counts = place.is_ok() || lacking > 0;
        lacking -= usize::from(place.is_err() && counts);
        counts
    })
}

pub(crate) fn count(real: extern "C" fn(Out<c_uint>) -> Code, count: Out<c_uint>) -> Code {
    let code = real(count);
    if let (SUCCESS, Some(process)) = (code, view::limited()) {
        count.put(c_uint::try_from(places(process).count()).unwrap_or(0));
    }
    code
}

pub(crate) fn by_index(
    real: extern "C" fn(c_uint, Out<Handle>) -> Code,
    index: c_uint,
    device: Out<Handle>,
) -> Code {
    let mut count = 0;
    let Some(process) = view::limited().filter(|_| !device.is_null()) else {
        return real(index, device);
    };
    // An error of the library itself is the answer, whatever the index.
    let code = call::nvmlDeviceGetCount_v2(Out::to(&mut count));
    if code != SUCCESS {
        return real(index, device);
    }
    let wanted = usize::try_from(index).ok();
    match wanted.and_then(|index| places(process).nth(index)) {
        Some(Ok(found)) => {
            device.put(found);
            SUCCESS
        }
        Some(Err(code)) => code,
        None => NVML_INVALID_ARGUMENT,
    }
}

pub(crate) fn by_name(
    real: extern "C" fn(Text, Out<Handle>) -> Code,
    name: Text,
    device: Out<Handle>,
) -> Code {
    own(real(name, device), device)
}

/// The driver's answer about a card that it found, unless that is another container's.
pub(crate) fn own(code: Code, device: Out<Handle>) -> Code {
    let found = if code == SUCCESS { device.get() } else { None };
    match (found, view::limited()) {
        (Some(found), Some(process)) if !is_ours(process, found) => {
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
    if let (SUCCESS, Some(process)) = (code, view::limited())
        && let Some(place) = places(process).position(|one| one == Ok(device))
    {
        index.put(c_uint::try_from(place).unwrap_or(0));
    }
    code
}

/// What the container sees of a card's memory; `None`: all of it.
fn seen(code: Code, device: Handle) -> Option<Seen> {
    let process = view::limited().filter(|_| code == SUCCESS)?;
    let card = card(process, device)?;
    Some(view::of_card(process, card))
}

pub(crate) fn memory(
    real: extern "C" fn(Handle, Out<Memory>) -> Code,
    device: Handle,
    memory: Out<Memory>,
) -> Code {
    let code = real(device, memory);
    if let (Some(seen), Some(all)) = (seen(code, device), memory.get()) {
        let total = seen.total_of(all.total);
        let used = seen.used.min(total);
        let free = total - used;
        memory.put(Memory { total, free, used });
    }
    code
}

pub(crate) fn memory_v2(
    real: extern "C" fn(Handle, Out<MemoryV2>) -> Code,
    device: Handle,
    memory: Out<MemoryV2>,
) -> Code {
    let code = real(device, memory);
    if let (Some(seen), Some(all)) = (seen(code, device), memory.get()) {
        let total = seen.total_of(all.total);
        let used = seen.used.min(total);
        memory.put(MemoryV2 {
            total,
            reserved: 0,
            free: total - used,
            used,
            ..all
        });
    }
    code
}
