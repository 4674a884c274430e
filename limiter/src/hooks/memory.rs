//! Linear, pitched and managed memory: reserved first, then requested from the driver; what the
//! driver really allocated is charged. Where a container was granted more than its part of the
//! device, what exceeds that part becomes managed memory.

use core::ffi::c_uint;

use crate::charges::account::Account;
use crate::charges::allocations::{Allocations, DeviceAllocation, in_blocks};
use crate::charges::pools::Pools;
use crate::driver::call;
use crate::ffi::{
    Code, INVALID_VALUE, MemoryLocation, NOT_SUPPORTED, OUT_OF_MEMORY, Out, Pointer, SUCCESS, long,
    size,
};
use crate::log;
use crate::process::{self, ProcessState};

const ATTACH_GLOBAL: c_uint = 1;
const ACCESSED_BY: i32 = 5;
/// Rows of pitched memory start at multiples of this, at most.
const PITCH: u64 = 512;

pub(crate) fn allocate(
    pointer: Out<Pointer>,
    bytes: usize,
    call: impl Fn() -> Code,
) -> Result<Code, Code> {
    allocate_charged("cuMemAlloc", long(bytes), pointer, false, |spilled| {
        let code = match spilled {
            Some(account) => allocate_spilled(account, pointer, bytes),
            None => call(),
        };
        (code, long(bytes))
    })
}

pub(crate) fn allocate_managed(
    pointer: Out<Pointer>,
    bytes: usize,
    call: impl Fn() -> Code,
) -> Result<Code, Code> {
    let make = |_: Option<&Account>| (call(), long(bytes));
    allocate_charged("cuMemAllocManaged", long(bytes), pointer, true, make)
}

pub(crate) fn allocate_pitch(
    pointer: Out<Pointer>,
    pitch: Out<usize>,
    [width, height]: [usize; 2],
    element: c_uint,
    call: impl Fn() -> Code,
) -> Result<Code, Code> {
    let row = long(width).checked_next_multiple_of(PITCH);
    let rows = row.and_then(|row| row.checked_mul(long(height)));
    let most = rows.unwrap_or(u64::MAX);
    allocate_charged("cuMemAllocPitch", most, pointer, false, |spilled| {
        if let Some(account) = spilled
            && matches!(element, 4 | 8 | 16)
            && !pitch.is_null()
        {
            let code = allocate_spilled(account, pointer, size(most));
            if code == SUCCESS {
                pitch.put(size(row.unwrap_or(0)));
            }
            return (code, most);
        }
        let code = call();
        let bytes = long(pitch.get().unwrap_or(0)).saturating_mul(long(height));
        (code, bytes)
    })
}

/// Managed memory in place of device memory: it is on the device while there is room.
fn allocate_spilled(account: &Account, pointer: Out<Pointer>, bytes: usize) -> Code {
    let code = call::cuMemAllocManaged(pointer, bytes, ATTACH_GLOBAL);
    let mut device = 0;
    if let (SUCCESS, Some(made)) = (code, pointer.get())
        && call::cuCtxGetDevice(Out::to(&mut device)) == SUCCESS
    {
        Allocations::of(account.process).insert_spilled(made, long(bytes));
        // A hint: without it the memory is usable all the same.
        let _ = call::cuMemAdvise(made, bytes, ACCESSED_BY, device);
    }
    code
}

/// Reserves `most` bytes, makes the call and charges what it says was allocated. `make` gets the
/// account if the device has no room and the memory must be spilled to the host: then it is managed
/// memory, too.
fn allocate_charged(
    name: &str,
    most: u64,
    pointer: Out<Pointer>,
    managed: bool,
    make: impl Fn(Option<&Account>) -> (Code, u64),
) -> Result<Code, Code> {
    let Some(account) = Account::of_current()? else {
        return Ok(make(None).0);
    };
    if pointer.is_null() {
        return Err(INVALID_VALUE);
    }
    let reserved = in_blocks(most).ok_or(OUT_OF_MEMORY)?;
    let mut spilled = account.reserve_or_spill(name, reserved)?;
    let mut bytes = 0;
    let mut code = account.call_until_lent_memory_returns(reserved, || {
        let (code, allocated) = make(spilled.then_some(&account));
        bytes = allocated;
        code
    });
    if code == OUT_OF_MEMORY && !spilled && account.process.is_oversubscribed() {
        // Others took more of the device than was counted; what was granted is given all the same.
        spilled = true;
        (code, bytes) = make(Some(&account));
    }
    let (SUCCESS, Some(at)) = (code, pointer.get()) else {
        account.release(reserved);
        return Err(code);
    };
    let allocations = Allocations::of(account.process);
    // Managed memory moves in blocks of its own, which it shares with nothing.
    let by_blocks = !managed && !spilled;
    if by_blocks {
        // The previous allocation at this address may have ended with its context.
        allocations.forget_spilled(account.process, at);
    } else {
        bytes = in_blocks(bytes).unwrap_or(u64::MAX);
    }
    let entry = DeviceAllocation {
        managed,
        ..account.allocation(bytes, by_blocks)
    };
    let cost = allocations.insert(at, entry);
    account.correct_reservation(reserved, cost);
    if entry.managed {
        let slot = &account.process.slot;
        slot.note_managed(account.device_index, entry.size);
    }
    Ok(SUCCESS)
}

/// Managed memory in place of device memory cannot be shared with another process, nor be reached at
/// a fixed address, as for RDMA.
pub(crate) fn refuse_spilled(name: &str, pointer: Pointer) -> Result<(), Code> {
    let found = process::get().is_some_and(|process| Allocations::of(process).is_spilled(pointer));
    if !found {
        return Ok(());
    }
    log::line(
        log::ERROR,
        format_args!(
            "{name}: this memory is beyond the container's part of the device and cannot be shared"
        ),
    );
    Err(NOT_SUPPORTED)
}

/// Makes a call that nothing counts only if there is no limit: one of CUDA 3.1, with addresses and
/// sizes of 32 bits, or of graphics that share a device. The error is ours: it was not made.
pub(crate) fn reject_uncounted(call: impl FnOnce() -> Code) -> Result<Code, Code> {
    match process::required()? {
        None => Ok(call()),
        Some(_) => Err(NOT_SUPPORTED),
    }
}

/// Like [`reject_uncounted`], for memory at an unknown location: it may be on a device.
pub(crate) fn reject_unknown_location(
    name: &str,
    place: MemoryLocation,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    reject_uncounted(call).inspect_err(|_| {
        log::line(
            log::ERROR,
            format_args!(
                "{name}: cannot count memory at location {place:?}; expected: a device or the host"
            ),
        );
    })
}

/// Frees what may be recorded under this address or handle.
pub(crate) fn free_charged(at: u64, call: impl FnOnce() -> Code) -> Code {
    free_with(at, call, |process, entry| {
        Allocations::of(process).end(process, at, entry);
    })
}

/// The same; `freed` handles the charge of what was freed.
pub(crate) fn free_with(
    at: u64,
    call: impl FnOnce() -> Code,
    freed: impl FnOnce(&'static ProcessState, DeviceAllocation),
) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let allocations = Allocations::of(process);
    let Some(entry) = allocations.remove(at) else {
        let code = call();
        Pools::of(process).refresh();
        return code;
    };
    let code = call();
    if code == SUCCESS {
        allocations.forget_spilled(process, at);
        freed(process, entry);
    } else {
        allocations.put_back(at, entry);
    }
    code
}
