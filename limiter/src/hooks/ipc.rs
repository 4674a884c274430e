//! Allocations that one process opens in another by the 64 bytes of a handle: the driver has them until
//! both have released them. Each of them is charged, and their container once.

use core::ffi::c_uint;

use aliquot_region::tag;

use super::memory::{free_charged, refuse_spilled};
use crate::charges::account::Account;
use crate::charges::allocations::{Allocations, in_blocks};
use crate::charges::charge::{self, Charge};
use crate::driver::call;
use crate::ffi::{Code, OUT_OF_MEMORY, Out, Pointer, SUCCESS, long};
use crate::process::{self, ProcessState};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpcHandle([u64; 8]);

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
pub(super) const DEVICE_ORDINAL: c_uint = 9;

pub(crate) fn share(
    handle: Out<IpcHandle>,
    pointer: Pointer,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    refuse_spilled("cuIpcGetMemHandle", pointer)?;
    let code = call();
    if let (SUCCESS, Some(made), Some(process)) = (code, handle.get(), process::limited())
        && let Some((base, _)) = range(pointer)
    {
        Allocations::of(process).share(process, base, tag::of_words(made.0));
    }
    Ok(code)
}

/// Memory of a pool, for which its reserved memory is charged, got a handle.
pub(crate) fn share_of_pool(code: Code, handle: Out<IpcHandle>, pointer: Pointer) -> Code {
    if let (SUCCESS, Some(made), Some(process)) = (code, handle.get(), process::limited())
        && let Some((base, bytes)) = range(pointer)
        && let Some(device_index) = device_index(process, pointer)
    {
        let allocations = Allocations::of(process);
        // Its own charge is nothing.
        let entry = Account::new(process, device_index).allocation(0, false);
        allocations.insert_once(base, entry);
        allocations.share_bytes(process, base, (tag::of_words(made.0), bytes));
    }
    code
}

pub(crate) fn open(
    pointer: Out<Pointer>,
    handle: IpcHandle,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    open_charged(pointer, Some(handle), call::cuIpcCloseMemHandle, call)
}

pub(crate) fn open_of_pool(
    pointer: Out<Pointer>,
    handle: Out<IpcHandle>,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    open_charged(pointer, handle.get(), call::cuMemFree_v2, call)
}

fn open_charged(
    pointer: Out<Pointer>,
    handle: Option<IpcHandle>,
    undo: impl FnOnce(Pointer) -> Code,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    // Without a handle the driver refuses.
    let (Some(process), Some(handle)) = (process::required()?, handle) else {
        return Ok(call());
    };
    let key = tag::of_words(handle.0);
    // Its memory ends with this context.
    let context = Account::of_current()?.map_or(0, |account| account.context);
    // Before the call: the other process may free it right after.
    let adopted = Charge::adopt(process, key);
    let code = call();
    let (SUCCESS, Some(at)) = (code, pointer.get()) else {
        charge::end(adopted);
        return Ok(code);
    };
    let allocations = Allocations::of(process);
    if allocations.open_again(at, key) {
        charge::end(adopted);
        return Ok(code);
    }
    let charged = match adopted {
        Some(charge) => Ok(Some(charge)),
        None => charge_foreign(process, at, key),
    };
    let found = charged.inspect_err(|_| {
        let _ = undo(at);
    })?;
    if let Some(charge) = found {
        let mut entry = charge.account.allocation(charge.bytes, false);
        entry.context = context;
        allocations.insert_shared(at, entry, charge.holdings);
    }
    Ok(code)
}

pub(crate) fn close(pointer: Pointer, call: impl FnOnce() -> Code) -> Code {
    let stays_open = |process| Allocations::of(process).close_once(pointer);
    if process::get().is_some_and(stays_open) {
        return call();
    }
    free_charged(pointer, call)
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
    let account = Account::new(process, device_index);
    let cost = in_blocks(bytes).ok_or(OUT_OF_MEMORY)?;
    account.reserve("cuIpcOpenMemHandle", cost)?;
    let mut charge = Charge::new(account, cost);
    charge.hold(key, true);
    Ok(Some(charge))
}

/// Index in the limits page of the device on which memory is.
fn device_index(process: &ProcessState, at: Pointer) -> Option<usize> {
    let mut ordinal = 0_u32;
    let code = call::cuPointerGetAttribute(Out::to(&mut ordinal), DEVICE_ORDINAL, at);
    let device = i32::try_from(ordinal).ok().filter(|_| code == SUCCESS)?;
    process.device_index(device).ok()?
}

fn range(pointer: Pointer) -> Option<(Pointer, u64)> {
    let (mut base, mut bytes) = (0, 0);
    let code = call::cuMemGetAddressRange_v2(Out::to(&mut base), Out::to(&mut bytes), pointer);
    (code == SUCCESS).then_some((base, long(bytes)))
}
