//! Allocations that one process opens in another by the 64 bytes of a handle: the driver has them until
//! both have released them. Each of them is charged, and their container once.

use core::ffi::c_uint;

use aliquot_region::tag;

use super::memory::{free_charged, is_spilled};
use crate::charges::account::Account;
use crate::charges::allocations::{Allocations, in_blocks};
use crate::charges::charge::{self, Charge};
use crate::driver::call;
use crate::ffi::{Code, Handle, NOT_SUPPORTED, OUT_OF_MEMORY, Out, Pointer, SUCCESS, long};
use crate::process::{self, ProcessState};

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpcHandle([u64; 8]);

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_uint = 9;

/// Managed memory cannot be shared with another process, as device memory can.
pub(crate) fn share(
    real: extern "C" fn(Out<IpcHandle>, Pointer) -> Code,
    handle: Out<IpcHandle>,
    pointer: Pointer,
) -> Code {
    if is_spilled("cuIpcGetMemHandle", pointer) {
        return NOT_SUPPORTED;
    }
    let code = real(handle, pointer);
    if let (SUCCESS, Some(made), Some(process)) = (code, handle.get(), process::limited())
        && let Some((base, _)) = range(pointer)
    {
        Allocations::of(process).share(process, base, tag::of_words(made.0));
    }
    code
}

/// Memory of a pool, for which its reserved memory is charged.
pub(crate) fn share_of_pool(
    real: extern "C" fn(Out<IpcHandle>, Pointer) -> Code,
    handle: Out<IpcHandle>,
    pointer: Pointer,
) -> Code {
    let code = real(handle, pointer);
    if let (SUCCESS, Some(made), Some(process)) = (code, handle.get(), process::limited())
        && let Some((base, bytes)) = range(pointer)
        && let Some(device_index) = device_index(process, pointer)
    {
        let account = Account {
            process,
            device_index,
            context: 0,
        };
        let allocations = Allocations::of(process);
        // Its own charge is nothing.
        allocations.insert_once(base, account.allocation(0, false));
        allocations.share_bytes(process, base, (tag::of_words(made.0), bytes));
    }
    code
}

pub(crate) fn open(
    real: extern "C" fn(Out<Pointer>, IpcHandle, c_uint) -> Code,
    pointer: Out<Pointer>,
    handle: IpcHandle,
    flags: c_uint,
) -> Code {
    let undo = |at| call::cuIpcCloseMemHandle(at);
    open_charged(pointer, Some(handle), undo, || real(pointer, handle, flags))
}

/// Opens memory of another process's pool.
pub(crate) fn open_of_pool(
    real: extern "C" fn(Out<Pointer>, Handle, Out<IpcHandle>) -> Code,
    pointer: Out<Pointer>,
    pool: Handle,
    handle: Out<IpcHandle>,
) -> Code {
    let undo = |at| call::cuMemFree_v2(at);
    open_charged(pointer, handle.get(), undo, || real(pointer, pool, handle))
}

fn open_charged(
    pointer: Out<Pointer>,
    handle: Option<IpcHandle>,
    undo: impl FnOnce(Pointer) -> Code,
    call: impl FnOnce() -> Code,
) -> Code {
    let process = match process::required() {
        Ok(process) => process,
        Err(code) => return code,
    };
    // Without a handle the driver refuses.
    let Some(handle) = handle.filter(|_| !process.is_uncontrolled()) else {
        return call();
    };
    let key = tag::of_words(handle.0);
    // Its memory ends with this context.
    let context = match Account::of_current() {
        Ok(account) => account.map_or(0, |account| account.context),
        Err(code) => return code,
    };
    // Before the call: the other process may free it right after.
    let adopted = Charge::adopt(process, key);
    let code = call();
    let (SUCCESS, Some(at)) = (code, pointer.get()) else {
        charge::end(adopted);
        return code;
    };
    let allocations = Allocations::of(process);
    if allocations.open_again(at, key) {
        charge::end(adopted);
        return code;
    }
    let found = match adopted {
        Some(charge) => Ok(Some(charge)),
        None => charge_foreign(process, at, key),
    };
    match found {
        Ok(Some(charge)) => {
            let mut entry = charge.account.allocation(charge.bytes, false);
            entry.context = context;
            allocations.insert_shared(at, entry, charge.holdings);
        }
        Ok(None) => {}
        Err(code) => {
            let _ = undo(at);
            return code;
        }
    }
    code
}

pub(crate) fn close(real: extern "C" fn(Pointer) -> Code, pointer: Pointer) -> Code {
    let closes_once = process::get().is_some_and(|process| {
        let allocations = Allocations::of(process);
        allocations.close_once(pointer)
    });
    if closes_once {
        return real(pointer);
    }
    free_charged(pointer, || real(pointer))
}

/// Charges an allocation that no other process of the container has. `None`: it is not on one of the
/// container's devices.
fn charge_foreign(
    process: &'static ProcessState,
    at: Pointer,
    key: u64,
) -> Result<Option<Charge>, Code> {
    let (Some(device_index), Some((_, bytes))) = (device_index(process, at), range(at)) else {
        return Ok(None);
    };
    let account = Account {
        process,
        device_index,
        context: 0,
    };
    let cost = in_blocks(bytes).ok_or(OUT_OF_MEMORY)?;
    account.reserve("cuIpcOpenMemHandle", cost)?;
    let mut charge = Charge::new(account, cost);
    charge.hold(key, true);
    Ok(Some(charge))
}

/// Index in the limits page of the device on which memory is.
fn device_index(process: &ProcessState, at: Pointer) -> Option<usize> {
    let mut device = 0_u32;
    let code = call::cuPointerGetAttribute(Out::to(&mut device), DEVICE_ORDINAL, at);
    let device = i32::try_from(device).ok().filter(|_| code == SUCCESS)?;
    process.device_index(device).ok()?
}

/// Start and size of the allocation in which an address lies.
fn range(pointer: Pointer) -> Option<(Pointer, u64)> {
    let (mut base, mut bytes) = (0, 0);
    let code = call::cuMemGetAddressRange_v2(Out::to(&mut base), Out::to(&mut bytes), pointer);
    (code == SUCCESS).then_some((base, long(bytes)))
}
