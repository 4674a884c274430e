//! Memory of one process opened in another. It is charged to its owner; the contents are not
//! shared.

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_CONTEXT, ERROR_INVALID_VALUE, ERROR_MAP_FAILED};
use crate::context::current;
use crate::driver::driver;
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
        let (slot, generation) = driver.identity();
        handle.put(IpcHandle {
            words: [MARK, slot, generation, found.base, found.size, found.id, 0, 0],
        })
    }

    cuIpcOpenMemHandle 11000 cuIpcOpenMemHandle_v2(
        pointer: Out<DevicePointer>, handle: IpcHandle, flags: u32,
    ) {
        open(&pointer, handle, flags)
    }

    cuIpcOpenMemHandle 4010 cuIpcOpenMemHandle(
        pointer: Out<DevicePointer>, handle: IpcHandle, flags: u32,
    ) {
        open(&pointer, handle, flags)
    }

    cuIpcCloseMemHandle 4010 cuIpcCloseMemHandle(pointer: DevicePointer) {
        current()?;
        let driver = driver()?;
        let gone = driver.heap.remove(pointer, |kind| kind == Kind::Foreign);
        heap::release(driver, &gone.ok_or(ERROR_INVALID_VALUE)?);
        Ok(())
    }
}

fn open(pointer: &Out<DevicePointer>, handle: IpcHandle, flags: u32) -> Answer {
    let (driver, context) = (driver()?, current()?);
    let [mark, slot, generation, _, size, ..] = handle.words;
    if mark != MARK || flags != 1 || pointer.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    if (slot, generation) == driver.identity() {
        return Err(ERROR_INVALID_CONTEXT);
    }
    if !driver.is_other((slot, generation)) {
        return Err(ERROR_MAP_FAILED);
    }
    let base = driver
        .heap
        .allocate_unbacked(driver, context, size, Kind::Foreign)?;
    driver.count_import(context.gpu_index, size);
    pointer.put(base)
}
