//! Limits of the current context, and waiting for it.

use crate::calls::calls;
use crate::capture;
use crate::codes::{ERROR_INVALID_VALUE, ERROR_UNSUPPORTED_LIMIT};
use crate::context::{ContextRef, current};
use crate::driver::driver;
use crate::exports::context::named;
use crate::ffi::{Answer, Out};
use crate::types::Handle;

calls! { CALLS:
    cuCtxSynchronize 2000 cuCtxSynchronize() { wait(current()?) }

    cuCtxSynchronize 13000 cuCtxSynchronize_v2(context: Handle) { wait(named(context)?) }

    cuCtxGetLimit 3010 cuCtxGetLimit(value: Out<usize>, limit: u32) {
        let set = current()?.owner().limits.lock().get(&limit).copied();
        value.put(set.map_or_else(|| first_limit(limit), Ok)?)
    }

    cuCtxSetLimit 3010 cuCtxSetLimit(limit: u32, value: usize) {
        let context = current()?;
        set_limit(context, limit, value)
    }

    cuCtxGetStreamPriorityRange 5050 cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.put_if(0);
        greatest.put_if(-5);
        Ok(())
    }
}

fn wait(context: ContextRef) -> Answer {
    let driver = driver()?;
    capture::check_unsafe()?;
    driver.wait_until_idle(context.gpu_index);
    driver.settle(context.gpu_index);
    Ok(())
}

/// Stacks of all threads that can run at once, the buffer of `printf` and the heap of kernels are
/// on the GPU: an increase over the default is charged when the limit is set.
fn set_limit(context: ContextRef, limit: u32, value: usize) -> Answer {
    let driver = driver()?;
    let context = context.owner();
    let threads = driver.resident_threads(context.gpu_index);
    let beside = |value: usize, first: usize| {
        let more = (value as u64).saturating_sub(first as u64);
        match limit {
            STACK => more.checked_mul(threads),
            FIFO | HEAP => Some(more),
            _ => Some(0),
        }
    };
    let first = first_limit(limit)?;
    let mut limits = context.limits.lock();
    let old = limits.get(&limit).copied().unwrap_or(first);
    let sizes = beside(old, first).zip(beside(value, first));
    let (old, new) = sizes.ok_or(ERROR_INVALID_VALUE)?;
    if limit == STACK {
        context.resize_stacks(driver, new)?;
    } else {
        context.resize(driver, old, new)?;
    }
    limits.insert(limit, value);
    Ok(())
}

/// `CUlimit`.
const STACK: u32 = 0;
const FIFO: u32 = 1;
const HEAP: u32 = 2;

/// The default of a `CUlimit`.
fn first_limit(limit: u32) -> Answer<usize> {
    Ok(match limit {
        0 => 1024,
        1 => 7 << 20,
        2 => 8 << 20,
        3 => 2,
        4 => 2048,
        5 => 64,
        6..=8 => 0,
        _ => return Err(ERROR_UNSUPPORTED_LIMIT),
    })
}
