//! Host memory of the driver's that the GPU can reach.

use std::ffi::c_void;

use crate::calls::calls;
use crate::codes::ERROR_INVALID_VALUE;
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Out, as_pointer};
use crate::heap::{self, Kind};

calls! { CALLS:
    cuMemHostAlloc 2020 cuMemHostAlloc(pointer: Out<*mut c_void>, bytes: usize, flags: u32) {
        let context = current()?;
        if pointer.is_null() || flags > 7 {
            return Err(ERROR_INVALID_VALUE);
        }
        let driver = driver()?;
        let base = driver.heap.allocate_unbacked(driver, context, bytes as u64, Kind::Host)?;
        pointer.put(as_pointer(base))
    }

    cuMemFreeHost 2000 cuMemFreeHost(pointer: *mut c_void) {
        current()?;
        let driver = driver()?;
        let is_host = |kind| kind == Kind::Host;
        let gone = driver.heap.remove(pointer.expose_provenance() as u64, is_host);
        heap::release(driver, &gone.ok_or(ERROR_INVALID_VALUE)?);
        Ok(())
    }
}
