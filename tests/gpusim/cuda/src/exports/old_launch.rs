//! Launches as before CUDA 4: the block's shape and the arguments are set on the function first.
//! The arguments of a simulated kernel change nothing, and are not retained.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::driver::driver;
use crate::exports::launch::launch;
use crate::ffi::{Answer, Out};
use crate::types::Handle;

calls! { CALLS:
    cuFuncSetBlockShape 2000 cuFuncSetBlockShape(function: Handle, x: i32, y: i32, z: i32) {
        check(function)?;
        let shape = [length(x)?, length(y)?, length(z)?];
        BLOCKS.lock().insert(function, shape);
        Ok(())
    }

    cuFuncSetSharedSize 2000 cuFuncSetSharedSize(function: Handle, _bytes: u32) { check(function) }

    cuParamSetSize 2000 cuParamSetSize(function: Handle, _bytes: u32) { check(function) }

    cuParamSeti 2000 cuParamSeti(function: Handle, _offset: i32, _value: u32) { check(function) }

    cuParamSetf 2000 cuParamSetf(function: Handle, _offset: i32, _value: f32) { check(function) }

    cuParamSetv 2000 cuParamSetv(function: Handle, _offset: i32, _value: u64, _bytes: u32) {
        check(function)
    }

    cuLaunch 2000 cuLaunch(function: Handle) { start(function, [1, 1], 0) }

    cuLaunchGrid 2000 cuLaunchGrid(function: Handle, width: i32, height: i32) {
        start(function, [length(width)?, length(height)?], 0)
    }

    cuLaunchGridAsync 2000 cuLaunchGridAsync(
        function: Handle, width: i32, height: i32, stream: Handle,
    ) {
        start(function, [length(width)?, length(height)?], stream)
    }
}

/// The shape of a block, by function.
static BLOCKS: Mutex<BTreeMap<Handle, [u32; 3]>> = Mutex::new(BTreeMap::new());

fn check(function: Handle) -> Answer {
    let functions = &driver()?.objects.functions;
    functions.get(function, ERROR_INVALID_HANDLE).map(|_| ())
}

fn length(value: i32) -> Answer<u32> {
    u32::try_from(value).map_err(|_| ERROR_INVALID_VALUE)
}

fn start(function: Handle, [width, height]: [u32; 2], stream: Handle) -> Answer {
    check(function)?;
    let block = BLOCKS.lock().get(&function).copied();
    let [x, y, z] = block.ok_or(ERROR_INVALID_VALUE)?;
    let arguments = Out::at(std::ptr::null_mut());
    launch(
        function,
        [width, height, 1, x, y, z],
        (stream, false),
        &arguments,
        false,
    )
}
