//! Memory of one process opened in another, which keeps it after its owner has freed it or has died.
//! It is charged to its owner; the contents are not shared.

use crate::calls::calls;
use crate::codes::{
    ERROR_INVALID_CONTEXT, ERROR_INVALID_VALUE, ERROR_MAP_FAILED, ERROR_OPERATING_SYSTEM,
};
use crate::context::current;
use crate::driver::{Driver, driver};
use crate::ffi::{Answer, Out};
use crate::heap::{self, Kind};
use crate::types::{DevicePointer, IpcHandle};

const MARK: u64 = u64::from_ne_bytes(*b"ALQGPUIP");

calls! { CALLS:
    cuIpcGetMemHandle 4010 cuIpcGetMemHandle(handle: Out<IpcHandle>, pointer: DevicePointer) {
        current()?;
        let driver = driver()?;
        let found = driver.heap.find(pointer).ok_or(ERROR_INVALID_VALUE)?;
        // Only memory of cuMemAlloc can be shared this way.
        if found.kind != Kind::Device {
            return Err(ERROR_INVALID_VALUE);
        }
        handle.put(describe(driver, found.base)?)
    }

    cuIpcOpenMemHandle 4010 cuIpcOpenMemHandle(
        pointer: Out<DevicePointer>, handle: IpcHandle, flags: u32,
    ), 11000 cuIpcOpenMemHandle_v2 {
        if flags != 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        open(&pointer, handle, Kind::Foreign)
    }

    cuIpcCloseMemHandle 4010 cuIpcCloseMemHandle(pointer: DevicePointer) {
        current()?;
        let driver = driver()?;
        let gone = driver.heap.remove(pointer, |kind| kind == Kind::Foreign);
        heap::release(driver, &gone.ok_or(ERROR_INVALID_VALUE)?);
        Ok(())
    }
}

/// An allocation as another process opens it.
pub(super) fn describe(driver: &Driver, base: u64) -> Answer<IpcHandle> {
    let found = driver.heap.share(driver, base)?;
    let owner = driver.member().token();
    let [base, size, id, number] = [found.base, found.size, found.id, found.number];
    let words = [MARK, owner, base, size, id, number, 0, 0];
    Ok(IpcHandle { words })
}

pub(super) fn open(pointer: &Out<DevicePointer>, handle: IpcHandle, kind: Kind) -> Answer {
    let (driver, context) = (driver()?, current()?);
    let [mark, owner, _, size, _, number, ..] = handle.words;
    if mark != MARK || pointer.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let member = driver.member();
    if owner == member.token() {
        return Err(ERROR_INVALID_CONTEXT);
    }
    if member.is_dead(owner) {
        return Err(ERROR_MAP_FAILED);
    }
    let keeper = match number {
        0 => None,
        number => {
            let keeper = member.descriptor(number);
            // It may have ended meanwhile.
            member.shared_memory(number).ok_or(ERROR_MAP_FAILED)?;
            Some(keeper.map_err(|_| ERROR_OPERATING_SYSTEM)?)
        }
    };
    pointer.put(driver.heap.open(driver, context, (size, kind), keeper)?)
}
