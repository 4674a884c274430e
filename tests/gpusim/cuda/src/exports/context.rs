//! Explicit contexts and the thread's stack of contexts.

use crate::calls::calls;
use crate::codes::ERROR_INVALID_VALUE;
use crate::context::{self, Context, ContextRef, current};
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::types::{ContextParameters, Device, Handle};

calls! { CALLS:
    cuCtxCreate 2000 cuCtxCreate(
        context: Out<Handle>, flags: u32, device: Device,
    ), 3020 cuCtxCreate_v2 {
        create(&context, flags, device)
    }

    cuCtxCreate 11040 cuCtxCreate_v3(
        context: Out<Handle>, _affinity: *const ContextParameters, _count: i32, flags: u32,
        device: Device,
    ) {
        create(&context, flags, device)
    }

    cuCtxCreate 12050 cuCtxCreate_v4(
        context: Out<Handle>, _parameters: *const ContextParameters, flags: u32, device: Device,
    ) {
        create(&context, flags, device)
    }

    // Contexts for graphics, here without any.
    cuGLCtxCreate 2000 cuGLCtxCreate(
        context: Out<Handle>, flags: u32, device: Device,
    ), 3020 cuGLCtxCreate_v2 {
        create(&context, flags, device)
    }

    cuVDPAUCtxCreate 3010 cuVDPAUCtxCreate(
        context: Out<Handle>, flags: u32, device: Device, _graphics: u32, _find: u64,
    ), 3020 cuVDPAUCtxCreate_v2 {
        create(&context, flags, device)
    }

    cuCtxDestroy 2000 cuCtxDestroy(context: Handle), 4000 cuCtxDestroy_v2 {
        let driver = driver()?;
        driver.contexts.destroy(driver, context)
    }

    cuCtxAttach 2000 cuCtxAttach(context: Out<Handle>, flags: u32) {
        let own = current()?;
        if flags != 0 || context.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        own.attach();
        context.put(own.handle())
    }

    cuCtxDetach 2000 cuCtxDetach(context: Handle) {
        let driver = driver()?;
        if driver.contexts.find(context)?.detach() {
            driver.contexts.destroy(driver, context)
        } else {
            Ok(())
        }
    }

    cuGreenCtxCreate 12040 cuGreenCtxCreate(
        green: Out<Handle>, resources: u64, device: Device, flags: u32,
    ) {
        let driver = driver()?;
        if green.is_null() || resources == 0 || flags != 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        green.put(driver.contexts.create_green(driver, device)?)
    }

    cuGreenCtxDestroy 12040 cuGreenCtxDestroy(green: Handle) {
        let driver = driver()?;
        driver.contexts.destroy_green(driver, green)
    }

    cuCtxFromGreenCtx 12040 cuCtxFromGreenCtx(context: Out<Handle>, green: Handle) {
        context.put(driver()?.contexts.of_green(green)?.handle())
    }

    cuCtxPushCurrent 2000 cuCtxPushCurrent(context: Handle), 4000 cuCtxPushCurrent_v2 {
        context::push(driver()?.contexts.find(context)?);
        Ok(())
    }

    cuCtxPopCurrent 2000 cuCtxPopCurrent(popped: Out<Handle>), 4000 cuCtxPopCurrent_v2 {
        driver()?;
        popped.put_if(context::pop()?.handle());
        Ok(())
    }

    cuCtxSetCurrent 4000 cuCtxSetCurrent(context: Handle) {
        let contexts = &driver()?.contexts;
        let found = if context == 0 { None } else { Some(contexts.find(context)?) };
        context::set_current(found);
        Ok(())
    }

    cuCtxGetCurrent 4000 cuCtxGetCurrent(out: Out<Handle>) {
        driver()?;
        out.put(context::top().map_or(0, Context::handle))
    }

    cuCtxGetDevice 2000 cuCtxGetDevice(device: Out<Device>) { device.put(current()?.device) }

    cuCtxGetDevice 13000 cuCtxGetDevice_v2(device: Out<Device>, context: Handle) {
        device.put(named(context)?.device)
    }

    cuCtxGetId 12000 cuCtxGetId(context: Handle, id: Out<u64>) { id.put(named(context)?.handle()) }

    cuCtxGetApiVersion 3020 cuCtxGetApiVersion(context: Handle, version: Out<u32>) {
        named(context)?;
        version.put(3020)
    }
}

/// All of `CUctx_flags`.
const MOST_FLAGS: u32 = 0x3ff;

fn create(context: &Out<Handle>, flags: u32, device: Device) -> Answer {
    let driver = driver()?;
    if context.is_null() || flags > MOST_FLAGS {
        return Err(ERROR_INVALID_VALUE);
    }
    let made = driver.contexts.create(driver, device)?;
    context::push(made);
    context.put(made.handle())
}

/// The context of a handle; 0 names the current one.
pub(super) fn named(context: Handle) -> Answer<ContextRef> {
    match context {
        0 => current(),
        handle => driver()?.contexts.find(handle),
    }
}
