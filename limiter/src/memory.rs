//! Plain, pitched and managed memory. Reserved first, then asked of the driver; what the driver
//! really took is charged. Where a seat was promised more than its part of the card, what goes
//! beyond that part is managed memory.
//!
//! Fed by: [`crate::table`]. Must not: ask the driver for what the limit does not give.

use core::ffi::{c_uint, c_void};

use crate::account::Account;
use crate::ffi::{
    Code, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Out, SUCCESS, Where, long, size,
};
use crate::ledger::in_blocks;
use crate::log;
use crate::process;
use crate::table::call;

type Pointer = u64;

/// `CUipcMemHandle`.
pub(crate) type IpcHandle = [u64; 8];

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
    counted("cuMemAlloc", long(bytes), pointer, |elsewhere| {
        if let Some(account) = elsewhere {
            return on_the_host(account, pointer, bytes);
        }
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
    counted("cuMemAllocManaged", long(bytes), pointer, |_| {
        (real(pointer, bytes, flags), whole(bytes))
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
    counted("cuMemAllocPitch", most, pointer, |elsewhere| {
        if let Some(account) = elsewhere
            && matches!(element, 4 | 8 | 16)
            && !pitch.is_null()
        {
            let made = on_the_host(account, pointer, size(most));
            if made.0 == SUCCESS {
                pitch.put(size(row.unwrap_or(0)));
            }
            return made;
        }
        let code = real(pointer, pitch, width, height, element);
        let bytes = long(pitch.get().unwrap_or(0)).saturating_mul(long(height));
        (code, Size::InBlocks(bytes))
    })
}

/// Managed memory in the place of the card's: it lies there while there is room.
fn on_the_host(account: &Account, pointer: Out<Pointer>, bytes: usize) -> (Code, Size) {
    let code = call::cuMemAllocManaged(pointer, bytes, ATTACH_GLOBAL);
    let mut device = 0;
    if let (SUCCESS, Some(made)) = (code, pointer.get())
        && call::cuCtxGetDevice(Out::to(&mut device)) == SUCCESS
    {
        let mut elsewhere = account.process.elsewhere.lock();
        elsewhere.insert(made, long(bytes));
        drop(elsewhere);
        // A wish: where it is not granted the memory is there all the same.
        let _ = call::cuMemAdvise(made, bytes, ACCESSED_BY, device);
    }
    (code, whole(bytes))
}

fn whole(bytes: usize) -> Size {
    Size::Own(in_blocks(long(bytes)).unwrap_or(u64::MAX))
}

/// What was allocated.
#[derive(Clone, Copy, Debug)]
enum Size {
    /// In blocks that others share.
    InBlocks(u64),
    /// Not shared.
    Own(u64),
}

/// Reserves for `most` bytes, makes the call, which is given the account where the card has no room
/// for them and says what was allocated, and charges that.
fn counted(
    name: &str,
    most: u64,
    pointer: Out<Pointer>,
    make: impl Fn(Option<&Account>) -> (Code, Size),
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
    let elsewhere = match account.reserve_anywhere(name, reserved) {
        Ok(elsewhere) => elsewhere,
        Err(code) => return code,
    };
    let (mut code, mut size) = make(elsewhere.then_some(&account));
    if code == OUT_OF_MEMORY && !elsewhere && account.process.is_scaled() {
        // Others took more of the card than was reckoned; what was promised is given all the same.
        (code, size) = make(Some(&account));
    }
    let (SUCCESS, Some(at)) = (code, pointer.get()) else {
        account.release(reserved);
        return code;
    };
    if matches!(size, Size::InBlocks(_)) {
        // What lay there may have gone with its context.
        account.process.forget_elsewhere(at);
    }
    let entry = match size {
        Size::InBlocks(bytes) => account.entry(bytes, true),
        Size::Own(bytes) => account.entry(bytes, false),
    };
    let cost = account.process.ledger.insert(at, entry);
    account.settle(reserved, cost);
    SUCCESS
}

/// Managed memory cannot be handed to another process, as memory of the card can.
pub(crate) fn share(
    real: extern "C" fn(Out<IpcHandle>, Pointer) -> Code,
    handle: Out<IpcHandle>,
    pointer: Pointer,
) -> Code {
    if lies_elsewhere("cuIpcGetMemHandle", pointer) {
        return NOT_SUPPORTED;
    }
    real(handle, pointer)
}

/// Nor can another device reach it at a fixed place, as for RDMA.
pub(crate) fn export_range(
    real: extern "C" fn(*mut c_void, Pointer, usize, i32, u64) -> Code,
    handle: *mut c_void,
    pointer: Pointer,
    bytes: usize,
    kind: i32,
    flags: u64,
) -> Code {
    if lies_elsewhere("cuMemGetHandleForAddressRange", pointer) {
        return NOT_SUPPORTED;
    }
    real(handle, pointer, bytes, kind, flags)
}

fn lies_elsewhere(name: &str, pointer: Pointer) -> bool {
    let known = |process: &process::Process| {
        let elsewhere = process.elsewhere.lock();
        let before = elsewhere.range(..=pointer).next_back();
        before.is_some_and(|(at, bytes)| pointer - at < *bytes)
    };
    let found = process::get().is_some_and(known);
    if found {
        log::line(
            log::ERROR,
            format_args!(
                "{name}: this memory lies beyond the container's part of the card and cannot be shared"
            ),
        );
    }
    found
}

/// The forms of CUDA 3.1, with addresses of 32 bits, which no card of today can give: not counted,
/// so not let through where something is limited.
pub(crate) fn too_old(
    real: extern "C" fn(Out<c_uint>, c_uint) -> Code,
    pointer: Out<c_uint>,
    bytes: c_uint,
) -> Code {
    uncounted(|| real(pointer, bytes))
}

/// As [`too_old`].
pub(crate) fn too_old_pitch(
    real: extern "C" fn(Out<c_uint>, Out<c_uint>, c_uint, c_uint, c_uint) -> Code,
    pointer: Out<c_uint>,
    pitch: Out<c_uint>,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> Code {
    uncounted(|| real(pointer, pitch, width, height, element))
}

/// A call that cannot be counted passes only where nothing is limited.
pub(crate) fn uncounted(call: impl FnOnce() -> Code) -> Code {
    match process::required() {
        Ok(process) if process.is_uncontrolled() => call(),
        Ok(_) => NOT_SUPPORTED,
        Err(code) => code,
    }
}

/// As [`uncounted`], for what shall lie where we do not know: it may be of a card.
pub(crate) fn at_unknown_place(name: &str, place: Where, call: impl FnOnce() -> Code) -> Code {
    let mut asked = false;
    let code = uncounted(|| {
        asked = true;
        call()
    });
    if !asked {
        log::line(
            log::ERROR,
            format_args!("{name}: {place:?} is a place that cannot be counted: no memory is made"),
        );
    }
    code
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
        process.forget_elsewhere(at);
        process.left(at, entry);
    } else {
        process.ledger.put_back(at, entry);
    }
    code
}
