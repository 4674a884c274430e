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
use std::collections::{HashMap, HashSet};
use std::sync::MutexGuard;

use crate::account::Account;
use crate::allocations::in_blocks;
use crate::clock::{self, MAX_WAIT};
use crate::ffi::{
    Code, CuMemLocation, Device, Handle, MemoryLocation, OUT_OF_MEMORY, Out, Properties, SUCCESS,
    long,
};
use crate::lock::FutexLock;
use crate::process;
use crate::table::call;
use crate::{capture, memory, view};

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 5;
/// Something was charged for a pool.
static ANY_CHARGED: AtomicBool = AtomicBool::new(false);
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 7;

/// The known pools of this process: those of devices, and those that take no device memory.
#[derive(Debug, Default)]
pub(crate) struct Pools(FutexLock<HashMap<Handle, Pool>>, FutexLock<HashSet<Handle>>);

impl Pools {
    /// Charges what each pool has now.
    pub(crate) fn refresh(&self) {
        for (handle, pool) in self.0.lock().iter_mut() {
            pool.refresh(*handle);
        }
    }
}

/// The bytes of a pool. For managed memory the driver may report less reserved than used.
fn pool_bytes(pool: Handle) -> Option<u64> {
    let each = [RESERVED, USED].map(|one| attribute(pool, one));
    each.into_iter().flatten().max().and_then(in_blocks)
}

fn attribute(pool: Handle, attribute: i32) -> Option<u64> {
    let mut value = 0;
    let code = call::cuMemPoolGetAttribute(pool, attribute, Out::to(&mut value));
    (code == SUCCESS).then_some(value)
}

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
    if is_captured(stream) {
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
    if process.pools.1.lock().contains(&pool) {
        return real(pointer, bytes, pool, stream);
    }
    let known = process.pools.0.lock().get(&pool).map(|known| known.account);
    let of_stream = || Account::of_stream(stream).map(|found| Some(found?.0));
    let account = match known.map_or_else(of_stream, |account| Ok(Some(account))) {
        Ok(Some(account)) => account,
        Ok(None) => return real(pointer, bytes, pool, stream),
        Err(code) => return code,
    };
    if is_captured(stream) {
        return real(pointer, bytes, pool, stream);
    }
    allocate_charged(account, pool, bytes, pointer, stream, || {
        real(pointer, bytes, pool, stream)
    })
}

/// Whether the allocation becomes a node of a graph, which takes its memory when it is launched.
fn is_captured(stream: Handle) -> bool {
    capture::any() && capture::with_relaxed_capture(|| capture::is_captured(stream))
}

/// Memory that was allocated without a pool stays charged until the stream reaches the free.
pub(crate) fn free(real: extern "C" fn(u64, Handle) -> Code, pointer: u64, stream: Handle) -> Code {
    let Some(process) = process::get() else {
        return real(pointer, stream);
    };
    let Some(entry) = process.allocations.remove(pointer) else {
        let code = real(pointer, stream);
        process.pools.refresh();
        return code;
    };
    let code = real(pointer, stream);
    if code == SUCCESS {
        process.forget_spilled(pointer);
        process.pending_frees.add(process, (pointer, entry), stream);
    } else {
        process.allocations.put_back(pointer, entry);
    }
    code
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
            return memory::reject_unknown_location("cuMemPoolCreate", place, call);
        }
        Some(MemoryLocation::Host | MemoryLocation::Managed) | None => None,
    };
    let code = real(pool, properties);
    match (code, pool.get(), account) {
        (SUCCESS, Some(made), Some(account)) => {
            let known = Pool::new(account);
            account.process.pools.0.lock().insert(made, known);
        }
        // Allocations from it take no device memory. A pool of managed memory belongs to the device
        // for which it is first used.
        (SUCCESS, Some(made), None) if on == Some(MemoryLocation::Host) => {
            if let Some(process) = process::get() {
                process.pools.1.lock().insert(made);
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
    if process.pools.1.lock().remove(&pool) {
        return real(pool);
    }
    let mut known = process.pools.0.lock();
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
        removed.settle(remaining);
    }
    code
}

pub(crate) fn trim(real: extern "C" fn(Handle, usize) -> Code, pool: Handle, bytes: usize) -> Code {
    let Some(process) = process::get() else {
        return real(pool, bytes);
    };
    // Not while an allocation counts on what is free in it.
    let mut known = wait_until_not_exact(&process.pools, pool);
    let code = real(pool, bytes);
    if let Some(known) = known.get_mut(&pool) {
        known.refresh(pool);
    }
    code
}

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: i32 = 4;
/// Step by which a pool grows.
const GROWTH_STEP: u64 = 32 << 20;

/// A pool of a device.
#[derive(Clone, Copy, Debug)]
struct Pool {
    account: Account,
    charged: u64,
    /// Allocations that threads are making, and their bytes.
    calls: u32,
    pending: u64,
    /// One of them counts on what is free in the pool.
    exact: bool,
}

/// What one allocation has reserved while it is made.
struct PoolReservation {
    bytes: u64,
    threshold: Option<ThresholdOverride>,
    exact: bool,
}

impl Pool {
    fn new(account: Account) -> Self {
        Self {
            account,
            charged: 0,
            calls: 0,
            pending: 0,
            exact: false,
        }
    }

    /// Charges what the pool has now, and not less while allocations from it are under way.
    fn refresh(&mut self, handle: Handle) {
        if let Some(bytes) = pool_bytes(handle) {
            let least = if self.calls > 0 { self.charged } else { 0 };
            self.settle(bytes.max(least));
        }
    }

    /// Sets the charge.
    fn settle(&mut self, bytes: u64) {
        self.account.settle(self.charged, bytes);
        self.charged = bytes;
    }

    /// Reserves the difference between its charge and `most`, if there is room.
    fn grow(&mut self, most: u64, bytes: u64) -> bool {
        let growth = most.saturating_sub(self.charged);
        let fits = self
            .account
            .try_reserve(growth, self.account.device_limit());
        if fits {
            self.charged += growth;
            self.calls += 1;
            self.pending = self.pending.saturating_add(bytes);
        }
        fits
    }

    /// Reserves the most by which the pool may grow, whatever other threads free and trim
    /// meanwhile: it grows in steps beyond what is used.
    fn reserve(&mut self, pool: Handle, bytes: u64) -> Option<PoolReservation> {
        let used = attribute(pool, USED).unwrap_or(self.charged);
        let most = used.checked_add(self.pending)?.checked_add(bytes)?;
        let most = most.checked_add(GROWTH_STEP).and_then(in_blocks)?;
        self.grow(most, bytes).then_some(PoolReservation {
            bytes,
            threshold: None,
            exact: false,
        })
    }

    /// Reserves what the pool will grow by while nobody trims it ([`ThresholdOverride`]): what is
    /// free in it already needs no room on the device.
    fn reserve_exactly(&mut self, pool: Handle, bytes: u64) -> Option<PoolReservation> {
        if self.exact {
            return None;
        }
        let threshold = ThresholdOverride::new(pool);
        let reserved = attribute(pool, RESERVED).unwrap_or(0);
        let used = attribute(pool, USED).unwrap_or(0);
        let needed = used.checked_add(self.pending)?.checked_add(bytes)?;
        let lacking = needed.saturating_sub(reserved);
        let most = reserved.checked_add(lacking.checked_next_multiple_of(GROWTH_STEP)?)?;
        self.exact = self.grow(most, bytes);
        self.exact.then_some(PoolReservation {
            bytes,
            threshold,
            exact: true,
        })
    }

    /// An allocation returned.
    fn end(&mut self, reservation: &PoolReservation) {
        self.calls = self.calls.saturating_sub(1);
        self.pending = self.pending.saturating_sub(reservation.bytes);
        self.exact &= !reservation.exact;
    }
}

/// Reserves for an allocation; exactly where it does not fit at once.
fn reserve_for(account: Account, handle: Handle, bytes: u64) -> Option<PoolReservation> {
    account.reserve_retrying(|first| {
        let mut known = account.process.pools.0.lock();
        let pool = known.entry(handle).or_insert_with(|| Pool::new(account));
        let mut found = pool.reserve(handle, bytes);
        if found.is_none() && !first {
            found = pool.reserve_exactly(handle, bytes);
        }
        found.ok_or(pool.calls > 0)
    })
}

/// Reserves for the growth that the request may cause, makes it, and charges the growth that it did
/// cause.
fn allocate_charged(
    account: Account,
    handle: Handle,
    bytes: usize,
    pointer: Out<u64>,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let Some(mut reservation) = reserve_for(account, handle, long(bytes)) else {
        return account.refuse("a memory pool", long(bytes));
    };
    ANY_CHARGED.store(true, Relaxed);
    let code = call();
    drop(reservation.threshold.take());
    let mut known = account.process.pools.0.lock();
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

/// The pools, once no allocation of this one counts on what is free in it.
fn wait_until_not_exact(pools: &Pools, pool: Handle) -> MutexGuard<'_, HashMap<Handle, Pool>> {
    let end = clock::now() + MAX_WAIT;
    loop {
        let known = pools.0.lock();
        if known.get(&pool).is_none_or(|one| !one.exact) || clock::now() >= end {
            return known;
        }
        drop(known);
        clock::pause();
    }
}

/// While this value lives, synchronizing does not trim the pool.
struct ThresholdOverride {
    pool: Handle,
    threshold: u64,
}

impl ThresholdOverride {
    fn new(pool: Handle) -> Option<Self> {
        let threshold = attribute(pool, RELEASE_THRESHOLD)?;
        let mut all = u64::MAX;
        let code = call::cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, Out::to(&mut all));
        (code == SUCCESS).then_some(Self { pool, threshold })
    }
}

impl Drop for ThresholdOverride {
    fn drop(&mut self) {
        let threshold = Out::to(&mut self.threshold);
        // It was set a moment ago by the same call.
        let _ = call::cuMemPoolSetAttribute(self.pool, RELEASE_THRESHOLD, threshold);
    }
}

/// Records the location of a pool that the driver made.
fn record_pool(code: Code, pool: Out<Handle>, place: MemoryLocation) -> Code {
    let process = view::limited().filter(|_| code == SUCCESS);
    let (Some(pool), Some(process)) = (pool.get(), process) else {
        return code;
    };
    let device = match place {
        MemoryLocation::Host => {
            process.pools.1.lock().insert(pool);
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
        let mut known = process.pools.0.lock();
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

/// A synchronization returned: the driver may have released memory of pools and graphs.
fn refresh_after_wait(code: Code) -> Code {
    if let Some(process) = process::get().filter(|_| code == SUCCESS) {
        if ANY_CHARGED.load(Relaxed) {
            process.pools.refresh();
        }
        process.pending_frees.refresh(process);
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
