//! Host memory that the GPU can reach: the driver's own and the program's registered one.

use std::ffi::c_void;

use crate::calls::calls;
use crate::codes::{
    ERROR_HOST_MEMORY_ALREADY_REGISTERED, ERROR_HOST_MEMORY_NOT_REGISTERED, ERROR_INVALID_VALUE,
};
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out, as_pointer};
use crate::heap::{self, Kind};
use crate::types::DevicePointer;

calls! { CALLS:
    cuMemHostAlloc 2020 cuMemHostAlloc(pointer: Out<*mut c_void>, bytes: usize, flags: u32) {
        allocate(&pointer, bytes, flags)
    }

    cuMemAllocHost 2000 cuMemAllocHost(pointer: Out<*mut c_void>, bytes: u32) {
        allocate(&pointer, usize::try_from(bytes).map_err(|_| ERROR_INVALID_VALUE)?, 0)
    }

    cuMemAllocHost 3020 cuMemAllocHost_v2(pointer: Out<*mut c_void>, bytes: usize) {
        allocate(&pointer, bytes, 0)
    }

    cuMemFreeHost 2000 cuMemFreeHost(pointer: *mut c_void) {
        current()?;
        let driver = driver()?;
        let is_host = |kind| matches!(kind, Kind::Host { .. });
        let gone = driver.heap.remove(pointer.expose_provenance() as u64, is_host);
        heap::release(driver, &gone.ok_or(ERROR_INVALID_VALUE)?);
        Ok(())
    }

    cuMemHostRegister 4000 cuMemHostRegister(pointer: *mut c_void, bytes: usize, flags: u32) {
        register(pointer, bytes, flags)
    }

    cuMemHostRegister 6050 cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32) {
        register(pointer, bytes, flags)
    }

    cuMemHostUnregister 4000 cuMemHostUnregister(pointer: *mut c_void) {
        current()?;
        let is_registered = |kind| matches!(kind, Kind::Registered { .. });
        let gone = driver()?.heap.remove(pointer.expose_provenance() as u64, is_registered);
        gone.map(|_| ()).ok_or(ERROR_HOST_MEMORY_NOT_REGISTERED)
    }

    cuMemHostGetDevicePointer 3020 cuMemHostGetDevicePointer_v2(
        device: Out<DevicePointer>, pointer: *mut c_void, flags: u32,
    ) {
        flags_of(pointer)?;
        if flags != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        device.put(pointer.expose_provenance() as u64)
    }

    cuMemHostGetFlags 2030 cuMemHostGetFlags(flags: Out<u32>, pointer: *mut c_void) {
        flags.put(flags_of(pointer)?)
    }
}

fn allocate(pointer: &Out<*mut c_void>, bytes: usize, flags: u32) -> Answer {
    let context = current()?;
    if pointer.is_null() || flags > 7 {
        return Err(ERROR_INVALID_VALUE);
    }
    let driver = driver()?;
    let kind = Kind::Host { flags };
    pointer.put(as_pointer(driver.heap.allocate_unbacked(
        driver,
        context,
        bytes as u64,
        kind,
    )?))
}

fn register(pointer: *mut c_void, bytes: usize, flags: u32) -> Answer {
    let context = current()?;
    let heap = &driver()?.heap;
    let address = pointer.expose_provenance() as u64;
    if pointer.is_null() || bytes == 0 || flags > 15 {
        return Err(ERROR_INVALID_VALUE);
    }
    if heap.find(address).is_some() {
        return Err(ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let kind = Kind::Registered { flags };
    heap.add(address, bytes as u64, kind, Some(context));
    Ok(())
}

fn flags_of(pointer: *mut c_void) -> Answer<u32> {
    current()?;
    let found = driver()?.heap.find(pointer.expose_provenance() as u64);
    match found.map(|found| found.kind) {
        Some(Kind::Host { flags } | Kind::Registered { flags }) => Ok(flags),
        _ => Err(ERROR_INVALID_VALUE),
    }
}
