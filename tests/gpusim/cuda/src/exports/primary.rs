//! Primary contexts.

use crate::calls::calls;
use crate::codes::ERROR_INVALID_VALUE;
use crate::driver::driver;
use crate::ffi::Out;
use crate::types::{Device, Handle};

calls! { CALLS:
    cuDevicePrimaryCtxRetain 7000 cuDevicePrimaryCtxRetain(context: Out<Handle>, device: Device) {
        let driver = driver()?;
        if context.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        context.put(driver.contexts.retain(driver, device)?.handle())
    }

    cuDevicePrimaryCtxRelease 7000 cuDevicePrimaryCtxRelease(
        device: Device,
    ), 11000 cuDevicePrimaryCtxRelease_v2 {
        let driver = driver()?;
        driver.contexts.release(driver, device)
    }

    cuDevicePrimaryCtxReset 7000 cuDevicePrimaryCtxReset(
        device: Device,
    ), 11000 cuDevicePrimaryCtxReset_v2 {
        let driver = driver()?;
        driver.contexts.reset(driver, device)
    }

    cuDevicePrimaryCtxGetState 7000 cuDevicePrimaryCtxGetState(
        device: Device, flags: Out<u32>, active: Out<i32>,
    ) {
        let is_active = driver()?.contexts.is_primary_active(device)?;
        flags.put(0)?;
        active.put(i32::from(is_active))
    }
}
