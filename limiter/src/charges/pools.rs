//! What is charged for memory pools: the bytes that the driver says they have reserved, and those
//! by which allocations may make them grow.

use std::collections::{HashMap, HashSet};

use super::account::Account;
use super::allocations::in_blocks;
use crate::clock::{self, MAX_WAIT};
use crate::driver::call;
use crate::ffi::{Handle, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::process::{PerProcess, ProcessState};

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `..._USED_MEM_CURRENT`.
const RESERVED: i32 = 5;
pub(crate) const USED: i32 = 7;
const RELEASE_THRESHOLD: i32 = 4;
const GROWTH_STEP: u64 = 32 << 20;

/// The known pools of this process: those of devices, and those that take no device memory.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pub(crate) of_devices: FutexLock<HashMap<Handle, Pool>>,
    pub(crate) of_host: FutexLock<HashSet<Handle>>,
}

impl Pools {
    pub(crate) fn of(process: &ProcessState) -> &'static Self {
        static POOLS: PerProcess<Pools> = PerProcess::new();
        POOLS.of(process)
    }

    pub(crate) fn refresh(&self) {
        for (handle, pool) in self.of_devices.lock().iter_mut() {
            pool.refresh(*handle);
        }
    }

    /// Reserves for an allocation of `bytes`, exactly unless this is the `first` attempt; the error
    /// is whether other threads are allocating or trimming.
    pub(crate) fn try_reserve(
        &self,
        account: Account,
        handle: Handle,
        bytes: u64,
        first: bool,
    ) -> Result<PoolReservation, bool> {
        let mut known = self.of_devices.lock();
        let pool = known.entry(handle).or_insert_with(|| Pool::new(account));
        let mut found = pool.reserve(handle, bytes);
        if found.is_none() && !first {
            found = pool.reserve_exactly(handle, bytes);
        }
        found.ok_or(pool.calls > 0 || pool.trims > 0)
    }

    /// Begins a trim of a pool, once no allocation counts on what is free in it: none does until
    /// [`Self::end_trim`]. False for a pool of which nothing is charged.
    pub(crate) fn begin_trim(&self, pool: Handle) -> bool {
        let end = clock::now() + MAX_WAIT;
        loop {
            let mut known = self.of_devices.lock();
            let Some(one) = known.get_mut(&pool) else {
                return false;
            };
            if !one.exact || clock::now() >= end {
                one.trims += 1;
                return true;
            }
            drop(known);
            clock::pause();
        }
    }

    pub(crate) fn end_trim(&self, pool: Handle) {
        if let Some(one) = self.of_devices.lock().get_mut(&pool) {
            one.trims = one.trims.saturating_sub(1);
            one.refresh(pool);
        }
    }

    /// Puts back a pool that the driver did not destroy. Allocations that other threads make from
    /// it are charged when they return.
    pub(crate) fn put_back(&self, handle: Handle, pool: Pool) {
        let mut known = self.of_devices.lock();
        let again = known
            .entry(handle)
            .or_insert_with(|| Pool::new(pool.account));
        again.charged += pool.charged;
        again.refresh(handle);
    }
}

/// The bytes of a pool. For managed memory the driver may report less reserved than used.
pub(crate) fn pool_bytes(pool: Handle) -> Option<u64> {
    let each = [RESERVED, USED].map(|one| attribute(pool, one));
    each.into_iter().flatten().max().and_then(in_blocks)
}

pub(crate) fn attribute(pool: Handle, attribute: i32) -> Option<u64> {
    let mut value = 0;
    let code = call::cuMemPoolGetAttribute(pool, attribute, Out::to(&mut value));
    (code == SUCCESS).then_some(value)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) account: Account,
    pub(crate) charged: u64,
    /// Allocations that threads are making, and their bytes.
    calls: u32,
    pending: u64,
    /// One of them counts on what is free in the pool.
    exact: bool,
    /// Trims that threads are making.
    trims: u32,
}

/// What one allocation has reserved while it is made.
pub(crate) struct PoolReservation {
    bytes: u64,
    pub(crate) threshold: Option<ThresholdOverride>,
    exact: bool,
}

impl Pool {
    pub(crate) fn new(account: Account) -> Self {
        Self {
            account,
            charged: 0,
            calls: 0,
            pending: 0,
            exact: false,
            trims: 0,
        }
    }

    /// Charges what the pool has now, and not less while allocations from it are under way.
    pub(crate) fn refresh(&mut self, handle: Handle) {
        if let Some(bytes) = pool_bytes(handle) {
            let least = if self.calls > 0 { self.charged } else { 0 };
            self.set_charge(bytes.max(least));
        }
    }

    pub(crate) fn set_charge(&mut self, bytes: u64) {
        self.account.correct_reservation(self.charged, bytes);
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
        let used_after = used.checked_add(self.pending)?.checked_add(bytes)?;
        let most = used_after.checked_add(GROWTH_STEP).and_then(in_blocks)?;
        self.grow(most, bytes).then_some(PoolReservation {
            bytes,
            threshold: None,
            exact: false,
        })
    }

    /// Reserves what the pool will grow by while nobody trims it ([`ThresholdOverride`]): what is
    /// free in it already needs no room on the device.
    fn reserve_exactly(&mut self, pool: Handle, bytes: u64) -> Option<PoolReservation> {
        if self.exact || self.trims > 0 {
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

    pub(crate) fn end(&mut self, reservation: &PoolReservation) {
        self.calls = self.calls.saturating_sub(1);
        self.pending = self.pending.saturating_sub(reservation.bytes);
        self.exact &= !reservation.exact;
    }
}

/// A release threshold with which nothing is trimmed, and which no program sets.
const TRIM_NOTHING: u64 = u64::MAX - 1;

/// While this value lives, synchronizing does not trim the pool. A threshold that the program sets
/// meanwhile is kept.
pub(crate) struct ThresholdOverride {
    pool: Handle,
    threshold: u64,
}

impl ThresholdOverride {
    fn new(pool: Handle) -> Option<Self> {
        let threshold = attribute(pool, RELEASE_THRESHOLD)?;
        let mut nothing = TRIM_NOTHING;
        let code = call::cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, Out::to(&mut nothing));
        (code == SUCCESS).then_some(Self { pool, threshold })
    }
}

impl Drop for ThresholdOverride {
    fn drop(&mut self) {
        if attribute(self.pool, RELEASE_THRESHOLD) == Some(TRIM_NOTHING) {
            let threshold = Out::to(&mut self.threshold);
            // It was set a moment ago by the same call.
            let _ = call::cuMemPoolSetAttribute(self.pool, RELEASE_THRESHOLD, threshold);
        }
    }
}
