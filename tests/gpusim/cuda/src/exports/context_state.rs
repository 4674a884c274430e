//! Settings of the current context, its peers, and waiting for it.

use std::sync::atomic::Ordering::Relaxed;

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
        let set = current()?.limits.lock().get(&limit).copied();
        value.put(set.map_or_else(|| first_limit(limit), Ok)?)
    }

    cuCtxSetLimit 3010 cuCtxSetLimit(limit: u32, value: usize) {
        let context = current()?;
        first_limit(limit)?;
        context.limits.lock().insert(limit, value);
        Ok(())
    }

    cuCtxGetCacheConfig 3020 cuCtxGetCacheConfig(config: Out<u32>) {
        config.put(current()?.cache_config.load(Relaxed))
    }

    cuCtxSetCacheConfig 3020 cuCtxSetCacheConfig(config: u32) {
        current()?.cache_config.store(config, Relaxed);
        Ok(())
    }

    cuCtxGetSharedMemConfig 4020 cuCtxGetSharedMemConfig(config: Out<u32>) {
        config.put(current()?.shared_config.load(Relaxed))
    }

    cuCtxSetSharedMemConfig 4020 cuCtxSetSharedMemConfig(config: u32) {
        current()?.shared_config.store(config, Relaxed);
        Ok(())
    }

    cuCtxGetStreamPriorityRange 5050 cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.put_if(0);
        greatest.put_if(-5);
        Ok(())
    }

    cuCtxResetPersistingL2Cache 11000 cuCtxResetPersistingL2Cache() { current().map(|_| ()) }

    cuCtxEnablePeerAccess 4000 cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let (own, other) = (current()?, driver()?.contexts.find(peer)?);
        if flags != 0 || own.card == other.card {
            return Err(ERROR_INVALID_VALUE);
        }
        Ok(())
    }

    cuCtxDisablePeerAccess 4000 cuCtxDisablePeerAccess(peer: Handle) {
        current()?;
        driver()?.contexts.find(peer).map(|_| ())
    }
}

fn wait(context: ContextRef) -> Answer {
    let driver = driver()?;
    capture::check_unsafe()?;
    driver.wait_until_done(context.card, driver.newest(context.card));
    driver.pools.settle(driver, context.card);
    Ok(())
}

/// A `CUlimit` that nobody set.
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
