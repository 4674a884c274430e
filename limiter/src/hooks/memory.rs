//! Linear, pitched and managed memory: reserved first, then requested from the driver; what the
//! driver really allocated is charged. Where a container was granted more than its part of the
//! device, what exceeds that part becomes managed memory.

use core::ffi::{c_uint, c_void};

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

/// `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: c_uint = 1;
/// `CU_MEM_ADVISE_SET_ACCESSED_BY`.
const ACCESSED_BY: i32 = 5;
/// Rows of pitched memory start at multiples of this, at most.
const PITCH: u64 = 512;

pub(crate) fn allocate(
    real: extern "C" fn(Out<Pointer>, usize) -> Code,
    pointer: Out<Pointer>,
    bytes: usize,
) -> Code {
    allocate_charged("cuMemAlloc", long(bytes), pointer, |spilled| {
        if let Some(account) = spilled {
            return allocate_spilled(account, pointer, bytes);
        }
        (real(pointer, bytes), AllocatedSize::InBlocks(long(bytes)))
    })
}

/// Managed memory moves in blocks of its own, which it shares with nothing.
pub(crate) fn allocate_managed(
    real: extern "C" fn(Out<Pointer>, usize, c_uint) -> Code,
    pointer: Out<Pointer>,
    bytes: usize,
    flags: c_uint,
) -> Code {
    allocate_charged("cuMemAllocManaged", long(bytes), pointer, |_| {
        (
            real(pointer, bytes, flags),
            AllocatedSize::Managed(whole_blocks(bytes)),
        )
    })
}

pub(crate) fn allocate_pitch(
    real: extern "C" fn(Out<Pointer>, Out<usize>, usize, usize, c_uint) -> Code,
    pointer: Out<Pointer>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    let row = long(width).checked_next_multiple_of(PITCH);
    let most = row.and_then(|row| row.checked_mul(long(height)));
    let most = most.unwrap_or(u64::MAX);
    allocate_charged("cuMemAllocPitch", most, pointer, |spilled| {
        if let Some(account) = spilled
            && matches!(element, 4 | 8 | 16)
            && !pitch.is_null()
        {
            let made = allocate_spilled(account, pointer, size(most));
            if made.0 == SUCCESS {
                pitch.put(size(row.unwrap_or(0)));
            }
            return made;
        }
        let code = real(pointer, pitch, width, height, element);
        let bytes = long(pitch.get().unwrap_or(0)).saturating_mul(long(height));
        (code, AllocatedSize::InBlocks(bytes))
    })
}

/// Managed memory in place of device memory: it is on the device while there is room.
fn allocate_spilled(
    account: &Account,
    pointer: Out<Pointer>,
    bytes: usize,
) -> (Code, AllocatedSize) {
    let code = call::cuMemAllocManaged(pointer, bytes, ATTACH_GLOBAL);
    let mut device = 0;
    if let (SUCCESS, Some(made)) = (code, pointer.get())
        && call::cuCtxGetDevice(Out::to(&mut device)) == SUCCESS
    {
        Allocations::of(account.process).insert_spilled(made, long(bytes));
        // A hint: without it the memory is usable all the same.
        let _ = call::cuMemAdvise(made, bytes, ACCESSED_BY, device);
    }
    (code, AllocatedSize::Spilled(whole_blocks(bytes)))
}

fn whole_blocks(bytes: usize) -> u64 {
    in_blocks(long(bytes)).unwrap_or(u64::MAX)
}

/// What was allocated.
#[derive(Clone, Copy, Debug)]
enum AllocatedSize {
    /// In blocks that other allocations share.
    InBlocks(u64),
    /// Managed memory, in blocks of its own.
    Managed(u64),
    /// The same, in place of device memory.
    Spilled(u64),
}

/// Reserves `most` bytes, makes the call and charges what it says was allocated. `make` gets the
/// account if the device has no room and the memory must be spilled to the host.
fn allocate_charged(
    name: &str,
    most: u64,
    pointer: Out<Pointer>,
    make: impl Fn(Option<&Account>) -> (Code, AllocatedSize),
) -> Code {
    let account = match Account::of_current() {
        Ok(Some(account)) => account,
        Ok(None) => return make(None).0,
        Err(code) => return code,
    };
    if pointer.is_null() {
        return INVALID_VALUE;
    }
    let Some(reserved) = in_blocks(most) else {
        return OUT_OF_MEMORY;
    };
    let spilled = match account.reserve_or_spill(name, reserved) {
        Ok(spilled) => spilled,
        Err(code) => return code,
    };
    let mut size = AllocatedSize::InBlocks(0);
    let mut code = account.call_until_lent_memory_returns(reserved, || {
        let (code, allocated) = make(spilled.then_some(&account));
        size = allocated;
        code
    });
    if code == OUT_OF_MEMORY && !spilled && account.process.is_oversubscribed() {
        // Others took more of the device than was counted; what was granted is given all the same.
        (code, size) = make(Some(&account));
    }
    let (SUCCESS, Some(at)) = (code, pointer.get()) else {
        account.release(reserved);
        return code;
    };
    let allocations = Allocations::of(account.process);
    if matches!(size, AllocatedSize::InBlocks(_)) {
        // The previous allocation at this address may have ended with its context.
        allocations.forget_spilled(account.process, at);
    }
    let entry = match size {
        AllocatedSize::InBlocks(bytes) => account.allocation(bytes, true),
        AllocatedSize::Managed(bytes) => DeviceAllocation {
            managed: true,
            ..account.allocation(bytes, false)
        },
        AllocatedSize::Spilled(bytes) => account.allocation(bytes, false),
    };
    let cost = allocations.insert(at, entry);
    account.correct_reservation(reserved, cost);
    if entry.managed {
        let slot = &account.process.slot;
        slot.note_managed(account.device_index, entry.size);
    }
    SUCCESS
}

/// Another device cannot reach managed memory at a fixed address, as for RDMA.
pub(crate) fn export_range(
    real: extern "C" fn(*mut c_void, Pointer, usize, i32, u64) -> Code,
    handle: *mut c_void,
    pointer: Pointer,
    bytes: usize,
    kind: i32,
    flags: u64,
) -> Code {
    if is_spilled("cuMemGetHandleForAddressRange", pointer) {
        return NOT_SUPPORTED;
    }
    real(handle, pointer, bytes, kind, flags)
}

pub(crate) fn is_spilled(name: &str, pointer: Pointer) -> bool {
    let found = process::get().is_some_and(|process| Allocations::of(process).is_spilled(pointer));
    if found {
        log::line(
            log::ERROR,
            format_args!(
                "{name}: this memory is beyond the container's part of the device and cannot be shared"
            ),
        );
    }
    found
}

/// Makes a call that cannot be counted only if there is no limit.
pub(crate) fn reject_uncounted(call: impl FnOnce() -> Code) -> Code {
    match process::required() {
        Ok(process) if process.is_uncontrolled() => call(),
        Ok(_) => NOT_SUPPORTED,
        Err(code) => code,
    }
}

/// Like [`reject_uncounted`], for memory at an unknown location: it may be on a device.
pub(crate) fn reject_unknown_location(
    name: &str,
    place: MemoryLocation,
    call: impl FnOnce() -> Code,
) -> Code {
    let mut called = false;
    let code = reject_uncounted(|| {
        called = true;
        call()
    });
    if !called {
        log::line(
            log::ERROR,
            format_args!(
                "{name}: cannot count memory at location {place:?}; expected: a device or the host"
            ),
        );
    }
    code
}

pub(crate) fn free(real: extern "C" fn(Pointer) -> Code, pointer: Pointer) -> Code {
    free_charged(pointer, || real(pointer))
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
