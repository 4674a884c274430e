//! Stream-ordered memory. A pool keeps what was freed in it until it is trimmed, so the bytes that
//! the driver says the pool has reserved are charged, not the pointers in it. Pools are refreshed
//! after each call that may change them, and before anything is refused or reported free, so a pool
//! never grows past the limit.
//!
//! The driver may wait in an allocation, a trim or a destruction until the device has advanced, for
//! which other threads may have to make a call. So no lock is held across these, and what was
//! reserved for an allocation stays reserved until it returns.

use core::ffi::c_uint;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use super::memory::{free_with, reject_unknown_location};
use crate::charges::account::Account;
use crate::charges::pending_frees::PendingFrees;
use crate::charges::pools::{Pool, Pools, USED, attribute, pool_bytes};
use crate::driver::call;
use crate::ffi::{
    Code, CuMemLocation, Handle, MemoryLocation, OUT_OF_MEMORY, Out, Properties, SUCCESS, long,
};
use crate::stream::goes_into_capture;
use crate::{pace, process};

static ANY_CHARGED: AtomicBool = AtomicBool::new(false);

pub(crate) fn allocate(
    pointer: Out<u64>,
    bytes: usize,
    stream: Handle,
    mut call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    // By the stream's context, which counts here; the thread may have none.
    let Some((account, device)) = Account::of_stream(stream)? else {
        return Ok(call());
    };
    if goes_into_capture(stream) {
        // A node of a graph, which takes its memory when it is launched.
        return Ok(call());
    }
    let mut pool = 0;
    let code = call::cuDeviceGetMemPool(Out::to(&mut pool), device);
    if code != SUCCESS {
        // A device without pools: the driver would answer the same.
        return Err(code);
    }
    allocate_charged(account, pool, bytes, pointer, stream, call)
}

pub(crate) fn allocate_from(
    pointer: Out<u64>,
    bytes: usize,
    pool: Handle,
    stream: Handle,
    mut call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    let Some(process) = process::required()? else {
        return Ok(call());
    };
    let pools = Pools::of(process);
    if pools.of_host.lock().contains(&pool) {
        return Ok(call());
    }
    let known = pools.of_devices.lock().get(&pool).map(|pool| pool.account);
    let account = if known.is_some() {
        known
    } else {
        Account::of_stream(stream)?.map(|(account, _)| account)
    };
    match account.filter(|_| !goes_into_capture(stream)) {
        Some(account) => allocate_charged(account, pool, bytes, pointer, stream, call),
        None => Ok(call()),
    }
}

/// Memory that was allocated without a pool stays charged until the stream reaches the free.
pub(crate) fn free(pointer: u64, stream: Handle, call: impl FnOnce() -> Code) -> Code {
    free_with(pointer, call, |process, entry| {
        PendingFrees::of(process).add(process, (pointer, entry), stream);
    })
}

pub(crate) fn create(
    pool: Out<Handle>,
    properties: Out<Properties>,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    // Without properties the driver refuses.
    let Some(place) = properties.get().map(Properties::location) else {
        return Ok(call());
    };
    match place {
        MemoryLocation::Unknown(_) => {
            return reject_unknown_location("cuMemPoolCreate", place, call);
        }
        // Only on a device of the container.
        MemoryLocation::Device(device) => {
            Account::of_device(device)?;
        }
        MemoryLocation::Host | MemoryLocation::Managed => {}
    }
    Ok(record(call(), pool, place))
}

pub(crate) fn destroy(pool: Handle, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let pools = Pools::of(process);
    if pools.of_host.lock().remove(&pool) {
        let code = call();
        // The host's default pool cannot be destroyed.
        if code != SUCCESS {
            pools.of_host.lock().insert(pool);
        }
        return code;
    }
    // What the driver cannot free, because something of it is still used, stays charged: it cannot
    // be queried later. That is every block that is partly in use.
    let is_used = attribute(pool, USED).is_some_and(|used| used > 0);
    if is_used {
        let _ = trim(pool, || call::cuMemPoolTrimTo(pool, 0));
    }
    let remaining = is_used.then(|| pool_bytes(pool)).flatten().unwrap_or(0);
    // Before the call: afterwards the handle may belong to another pool.
    let removed = pools.of_devices.lock().remove(&pool);
    let code = call();
    match removed {
        Some(mut removed) if code == SUCCESS => removed.set_charge(remaining),
        // A device's default pool cannot be destroyed.
        Some(kept) => pools.put_back(pool, kept),
        None => {}
    }
    code
}

pub(crate) fn trim(pool: Handle, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let pools = Pools::of(process);
    if !pools.begin_trim(pool) {
        return call();
    }
    let code = call();
    pools.end_trim(pool);
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
) -> Result<Code, Code> {
    let pools = Pools::of(account.process);
    let reserved =
        account.reserve_retrying(|first| pools.try_reserve(account, handle, long(bytes), first));
    let Some(mut reservation) = reserved else {
        return Err(account.refuse("a memory pool", long(bytes)));
    };
    ANY_CHARGED.store(true, Relaxed);
    let code = account.call_until_lent_memory_returns(long(bytes), call);
    drop(reservation.threshold.take());
    let mut known = pools.of_devices.lock();
    let Some(pool) = known.get_mut(&handle) else {
        // It was destroyed meanwhile, and its charge with it.
        return Ok(code);
    };
    pool.end(&reservation);
    let account = pool.account;
    let more = pool_bytes(handle).map_or(0, |bytes| bytes.saturating_sub(pool.charged));
    if more == 0 || account.try_reserve(more, account.device_limit()) {
        pool.charged += more;
        pool.refresh(handle);
        return Ok(code);
    }
    // It grew past the limit, in larger steps than expected: undone at once.
    account.process.slot.charge(account.device_index, more);
    pool.charged += more;
    drop(known);
    if code == SUCCESS {
        let _ = pointer.get().map(|made| call::cuMemFreeAsync(made, stream));
    }
    let _ = trim(handle, || call::cuMemPoolTrimTo(handle, 0));
    Err(OUT_OF_MEMORY)
}

/// Records the location of a pool that the driver made.
pub(crate) fn record(code: Code, pool: Out<Handle>, place: MemoryLocation) -> Code {
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
        let new = || Pool::new(Account::new(process, device_index));
        let mut known = Pools::of(process).of_devices.lock();
        known.entry(pool).or_insert_with(new);
    }
    code
}

/// The same, for a location of which memory of an allocation type is asked for.
pub(crate) fn record_at(
    code: Code,
    pool: Out<Handle>,
    place: Out<CuMemLocation>,
    kind: c_uint,
) -> Code {
    match place.get() {
        Some(place) => record(code, pool, place.for_type(kind)),
        None => code,
    }
}

/// A synchronization returned: launches are done, and the driver may have released memory of pools.
pub(crate) fn refresh_after_wait(code: Code) -> Code {
    if let Some(process) = process::get().filter(|_| code == SUCCESS) {
        pace::poll_after_wait(process);
        if ANY_CHARGED.load(Relaxed) {
            Pools::of(process).refresh();
        }
        PendingFrees::of(process).refresh(process);
    }
    code
}
