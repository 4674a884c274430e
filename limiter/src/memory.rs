//! Plain, pitched and managed memory. Reserved first, then asked of the driver; what the driver
//! really took is charged.
//!
//! Fed by: [`crate::table`]. Must not: ask the driver for what the limit does not give.

use core::ffi::c_uint;

use crate::account::Account;
use crate::ffi::{Code, INVALID_VALUE, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::ledger::in_blocks;
use crate::process;

type Pointer = u64;

/// Rows of pitched memory start at multiples of this, at most.
const PITCH: u64 = 512;

pub(crate) fn allocate(
    real: extern "C" fn(Out<Pointer>, usize) -> Code,
    pointer: Out<Pointer>,
    bytes: usize,
) -> Code {
    counted(long(bytes), pointer, || {
        (real(pointer, bytes), Size::InBlocks(long(bytes)))
    })
}

/// Managed memory moves in blocks of its own, which it shares with nothing.
pub(crate) fn allocate_managed(
    real: extern "C" fn(Out<Pointer>, usize, c_uint) -> Code,
    pointer: Out<Pointer>,
    bytes: usize,
    flags: c_uint,
) -> Code {
    counted(long(bytes), pointer, || {
        let whole = in_blocks(long(bytes)).unwrap_or(u64::MAX);
        (real(pointer, bytes, flags), Size::Own(whole))
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
    counted(most.unwrap_or(u64::MAX), pointer, || {
        let code = real(pointer, pitch, width, height, element);
        let bytes = long(pitch.get().unwrap_or(0)).saturating_mul(long(height));
        (code, Size::InBlocks(bytes))
    })
}

/// What was allocated.
#[derive(Clone, Copy, Debug)]
enum Size {
    /// In blocks that others share.
    InBlocks(u64),
    /// Not shared.
    Own(u64),
}

/// Reserves for `most` bytes, makes the call, which says what was allocated, and charges that.
fn counted(most: u64, pointer: Out<Pointer>, call: impl FnOnce() -> (Code, Size)) -> Code {
    let account = match Account::of_current() {
        Ok(Some(account)) => account,
        Ok(None) => return call().0,
        Err(code) => return code,
    };
    if pointer.is_null() {
        return INVALID_VALUE;
    }
    let Some(reserved) = in_blocks(most) else {
        return OUT_OF_MEMORY;
    };
    if let Err(code) = account.reserve(reserved) {
        return code;
    }
    let (code, size) = call();
    let (SUCCESS, Some(at)) = (code, pointer.get()) else {
        account.release(reserved);
        return code;
    };
    let entry = match size {
        Size::InBlocks(bytes) => account.entry(bytes, true),
        Size::Own(bytes) => account.entry(bytes, false),
    };
    let cost = account.process.ledger.insert(at, entry);
    account.settle(reserved, cost);
    SUCCESS
}

pub(crate) fn free(real: extern "C" fn(Pointer) -> Code, pointer: Pointer) -> Code {
    freed(pointer, || real(pointer))
}

/// Frees what the ledger may know under this address or handle.
pub(crate) fn freed(at: u64, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let Some(entry) = process.ledger.take(at) else {
        let code = call();
        process.pools.look();
        return code;
    };
    let code = call();
    if code == SUCCESS {
        let back = process.ledger.leave(at, entry);
        if back > 0 {
            process.seat.release(entry.card, back);
        }
    } else {
        process.ledger.put_back(at, entry);
    }
    code
}
