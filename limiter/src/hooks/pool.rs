//! Stream-ordered memory. A pool keeps what was freed in it until it is trimmed, so the bytes that
//! the driver says the pool has reserved are charged, not the pointers in it. Pools are refreshed
//! after each call that may change them, and before anything is refused or reported free, so a pool
//! never grows past the limit.
//!
//! The driver may wait in an allocation until the device has advanced, for which other threads may
//! have to make a call. So no lock is held across it, and what was reserved for it stays reserved
//! until it returns.

use core::ffi::c_uint;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use super::memory::{free_with, reject_unknown_location};
use crate::charges::account::Account;
use crate::charges::pending_frees::PendingFrees;
use crate::charges::pools::{Pool, Pools, USED, attribute, pool_bytes};
use crate::driver::call;
use crate::ffi::{
    Code, CuMemLocation, Device, Handle, MemoryLocation, OUT_OF_MEMORY, Out, Properties, SUCCESS,
    long,
};
use crate::stream::goes_into_capture;
use crate::{pace, process};

/// Something was charged for a pool.
static ANY_CHARGED: AtomicBool = AtomicBool::new(false);

pub(crate) fn allocate(
    real: extern "C" fn(Out<u64>, usize, Handle) -> Code,
    pointer: Out<u64>,
    bytes: usize,
    stream: Handle,
) -> Code {
    // Not by the thread's context: the stream's counts, and the thread may have none.
    let (account, device) = match Account::of_stream(stream) {
        Ok(Some(found)) => found,
        Ok(None) => return real(pointer, bytes, stream),
        Err(code) => return code,
    };
    if goes_into_capture(stream) {
        // A node of a graph, which takes its memory when it is launched.
        return real(pointer, bytes, stream);
    }
    let mut pool = 0;
    let code = call::cuDeviceGetMemPool(Out::to(&mut pool), device);
    if code != SUCCESS {
        // A device without pools: the driver would answer the same.
        return code;
    }
    allocate_charged(account, pool, bytes, pointer, stream, || {
        real(pointer, bytes, stream)
    })
}

pub(crate) fn allocate_from(
    real: extern "C" fn(Out<u64>, usize, Handle, Handle) -> Code,
    pointer: Out<u64>,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    let process = match process::required() {
        Ok(process) => process,
        Err(code) => return code,
    };
    let pools = Pools::of(process);
    if pools.of_host.lock().contains(&pool) {
        return real(pointer, bytes, pool, stream);
    }
    let known = pools.of_devices.lock().get(&pool).map(|pool| pool.account);
    let of_stream = || Account::of_stream(stream).map(|found| Some(found?.0));
    let account = match known.map_or_else(of_stream, |account| Ok(Some(account))) {
        Ok(Some(account)) => account,
        Ok(None) => return real(pointer, bytes, pool, stream),
        Err(code) => return code,
    };
    if goes_into_capture(stream) {
        return real(pointer, bytes, pool, stream);
    }
    allocate_charged(account, pool, bytes, pointer, stream, || {
        real(pointer, bytes, pool, stream)
    })
}

/// Memory that was allocated without a pool stays charged until the stream reaches the free.
pub(crate) fn free(real: extern "C" fn(u64, Handle) -> Code, pointer: u64, stream: Handle) -> Code {
    let call = || real(pointer, stream);
    free_with(pointer, call, |process, entry| {
        PendingFrees::of(process).add(process, (pointer, entry), stream);
    })
}

pub(crate) fn create(
    real: extern "C" fn(Out<Handle>, Out<Properties>) -> Code,
    pool: Out<Handle>,
    properties: Out<Properties>,
) -> Code {
    let on = properties.get().map(Properties::location);
    let account = match on {
        Some(MemoryLocation::Device(device)) => match Account::of_device(device) {
            Ok(account) => account,
            Err(code) => return code,
        },
        Some(place @ MemoryLocation::Unknown(_)) => {
            let call = || real(pool, properties);
            return reject_unknown_location("cuMemPoolCreate", place, call);
        }
        Some(MemoryLocation::Host | MemoryLocation::Managed) | None => None,
    };
    let code = real(pool, properties);
    match (code, pool.get(), account) {
        (SUCCESS, Some(made), Some(account)) => {
            let known = Pool::new(account);
            let pools = Pools::of(account.process);
            pools.of_devices.lock().insert(made, known);
        }
        // Allocations from it take no device memory. A pool of managed memory belongs to the device
        // for which it is first used.
        (SUCCESS, Some(made), None) if on == Some(MemoryLocation::Host) => {
            if let Some(process) = process::get() {
                Pools::of(process).of_host.lock().insert(made);
            }
        }
        _ => {}
    }
    code
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, pool: Handle) -> Code {
    let Some(process) = process::get() else {
        return real(pool);
    };
    let pools = Pools::of(process);
    if pools.of_host.lock().remove(&pool) {
        return real(pool);
    }
    let mut known = pools.of_devices.lock();
    // What the driver cannot free, because something of it is still used, stays charged: it cannot
    // be queried later. That is every block that is partly in use.
    let is_used = attribute(pool, USED).is_some_and(|used| used > 0);
    if is_used {
        let _ = call::cuMemPoolTrimTo(pool, 0);
    }
    let remaining = is_used.then(|| pool_bytes(pool)).flatten().unwrap_or(0);
    let code = real(pool);
    if code == SUCCESS
        && let Some(mut removed) = known.remove(&pool)
    {
        removed.set_charge(remaining);
    }
    code
}

pub(crate) fn trim(real: extern "C" fn(Handle, usize) -> Code, pool: Handle, bytes: usize) -> Code {
    let Some(process) = process::get() else {
        return real(pool, bytes);
    };
    // Not while an allocation counts on what is free in it.
    let mut known = Pools::of(process).wait_until_not_exact(pool);
    let code = real(pool, bytes);
    if let Some(known) = known.get_mut(&pool) {
        known.refresh(pool);
    }
    code
}

/// Reserves for the growth that the request may cause, makes it, and charges the growth that it did
/// cause.
fn allocate_charged(
    account: Account,
    handle: Handle,
    bytes: usize,
    pointer: Out<u64>,
    stream: Handle,
    call: impl FnMut() -> Code,
) -> Code {
    let pools = Pools::of(account.process);
    let reserved =
        account.reserve_retrying(|first| pools.try_reserve(account, handle, long(bytes), first));
    let Some(mut reservation) = reserved else {
        return account.refuse("a memory pool", long(bytes));
    };
    ANY_CHARGED.store(true, Relaxed);
    let code = account.call_until_lent_memory_returns(long(bytes), call);
    drop(reservation.threshold.take());
    let mut known = pools.of_devices.lock();
    let Some(pool) = known.get_mut(&handle) else {
        // It was destroyed meanwhile, and its charge with it.
        return code;
    };
    pool.end(&reservation);
    let account = pool.account;
    let more = pool_bytes(handle).map_or(0, |bytes| bytes.saturating_sub(pool.charged));
    if more == 0 || account.try_reserve(more, account.device_limit()) {
        pool.charged += more;
        pool.refresh(handle);
        return code;
    }
    // It grew past the limit, in larger steps than expected: undone at once.
    account.process.slot.charge(account.device_index, more);
    pool.charged += more;
    if code == SUCCESS {
        let _ = pointer.get().map(|made| call::cuMemFreeAsync(made, stream));
    }
    let _ = call::cuMemPoolTrimTo(handle, 0);
    pool.refresh(handle);
    OUT_OF_MEMORY
}

/// Records the location of a pool that the driver made.
fn record_pool(code: Code, pool: Out<Handle>, place: MemoryLocation) -> Code {
    let process = process::limited().filter(|_| code == SUCCESS);
    let (Some(pool), Some(process)) = (pool.get(), process) else {
        return code;
    };
    let device = match place {
        MemoryLocation::Host => {
            Pools::of(process).of_host.lock().insert(pool);
            return code;
        }
        MemoryLocation::Device(device) => device,
        // Allocations from it are charged on the device for which they are used.
        MemoryLocation::Managed | MemoryLocation::Unknown(_) => return code,
    };
    // Nothing is recorded for a device of others: allocations from it are charged as if it were
    // ours.
    if let Ok(Some(device_index)) = process.device_index(device) {
        let account = Account {
            process,
            device_index,
            context: 0,
        };
        let mut known = Pools::of(process).of_devices.lock();
        known.entry(pool).or_insert_with(|| Pool::new(account));
    }
    code
}

pub(crate) fn of_device(
    real: extern "C" fn(Out<Handle>, Device) -> Code,
    pool: Out<Handle>,
    device: Device,
) -> Code {
    record_pool(real(pool, device), pool, MemoryLocation::Device(device))
}

pub(crate) fn of_place(
    real: extern "C" fn(Out<Handle>, Out<CuMemLocation>, c_uint) -> Code,
    pool: Out<Handle>,
    place: Out<CuMemLocation>,
    kind: c_uint,
) -> Code {
    let code = real(pool, place, kind);
    match place.get() {
        Some(place) => record_pool(code, pool, place.for_type(kind)),
        None => code,
    }
}

/// A synchronization returned: launches are done, and the driver may have released memory of pools and
/// graphs.
fn refresh_after_wait(code: Code) -> Code {
    if let Some(process) = process::get().filter(|_| code == SUCCESS) {
        pace::poll_after_wait(process);
        if ANY_CHARGED.load(Relaxed) {
            Pools::of(process).refresh();
        }
        PendingFrees::of(process).refresh(process);
    }
    code
}

/// Synchronizes a stream, an event or a context.
pub(crate) fn synchronize(real: extern "C" fn(Handle) -> Code, of: Handle) -> Code {
    refresh_after_wait(real(of))
}

/// Synchronizes the current context.
pub(crate) fn synchronize_context(real: extern "C" fn() -> Code) -> Code {
    refresh_after_wait(real())
}
