//! Room for what is taken from pools. The driver may wait in an allocation until the card has come
//! further, for which other threads may have to do something: no lock is held then, and what was
//! reserved for it stays until it is made.
//!
//! Fed by: [`super`]. Must not: hold a lock across an allocation, or wait for one without an end.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::sync::MutexGuard;

use super::{ANY, Pools, RESERVED, USED, attribute, held};
use crate::account::Account;
use crate::clock::{self, PATIENCE};
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::ledger::in_blocks;
use crate::table::call;

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const THRESHOLD: i32 = 4;
/// In what steps a pool grows.
const STEP: u64 = 32 << 20;

/// A pool of a card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) account: Account,
    charged: u64,
    /// Allocations that threads make now, and their bytes.
    calls: u32,
    coming: u64,
    /// One of them reckons with what is free in the pool.
    exact: bool,
}

/// What one allocation needs while it is made.
struct Taken {
    bytes: u64,
    kept: Option<Kept>,
    exact: bool,
}

impl Pool {
    pub(super) fn new(account: Account) -> Self {
        Self {
            account,
            charged: 0,
            calls: 0,
            coming: 0,
            exact: false,
        }
    }

    /// Charges what the pool has now, and nothing less while something is taken from it.
    pub(super) fn look(&mut self, handle: Handle) {
        if let Some(held) = held(handle) {
            let least = if self.calls > 0 { self.charged } else { 0 };
            self.settle(held.max(least));
        }
    }

    /// It is charged so much from now on.
    pub(super) fn settle(&mut self, bytes: u64) {
        self.account.settle(self.charged, bytes);
        self.charged = bytes;
    }

    /// Takes what it is charged less than `most`, if there is room.
    fn grow(&mut self, most: u64, bytes: u64) -> bool {
        let growth = most.saturating_sub(self.charged);
        let fits = self.account.takes(growth, self.account.on_card());
        if fits {
            self.charged += growth;
            self.calls += 1;
            self.coming = self.coming.saturating_add(bytes);
        }
        fits
    }

    /// Takes the most that the pool may be larger then, whatever other threads free and trim
    /// meanwhile: it grows in steps beyond what is used.
    fn reserve(&mut self, pool: Handle, bytes: u64) -> Option<Taken> {
        let used = attribute(pool, USED).unwrap_or(self.charged);
        let most = used.checked_add(self.coming)?.checked_add(bytes)?;
        let most = most.checked_add(STEP).and_then(in_blocks)?;
        self.grow(most, bytes).then_some(Taken {
            bytes,
            kept: None,
            exact: false,
        })
    }

    /// Takes what the pool will grow by while nobody trims it ([`Kept`]): what is free in it already
    /// needs no room on the card.
    fn reserve_exactly(&mut self, pool: Handle, bytes: u64) -> Option<Taken> {
        if self.exact {
            return None;
        }
        let kept = Kept::new(pool);
        let reserved = attribute(pool, RESERVED).unwrap_or(0);
        let used = attribute(pool, USED).unwrap_or(0);
        let wanted = used.checked_add(self.coming)?.checked_add(bytes)?;
        let lacking = wanted.saturating_sub(reserved);
        let most = reserved.checked_add(lacking.checked_next_multiple_of(STEP)?)?;
        self.exact = self.grow(most, bytes);
        self.exact.then_some(Taken {
            bytes,
            kept,
            exact: true,
        })
    }

    /// An allocation was made, and the pool has what it has.
    fn end(&mut self, taken: &Taken) {
        self.calls = self.calls.saturating_sub(1);
        self.coming = self.coming.saturating_sub(taken.bytes);
        self.exact &= !taken.exact;
    }
}

/// Reserves for an allocation; exactly where it does not fit at once.
fn room_for(account: Account, handle: Handle, bytes: u64) -> Option<Taken> {
    account.room(|first| {
        let mut known = account.process.pools.0.lock();
        let pool = known.entry(handle).or_insert_with(|| Pool::new(account));
        let mut found = pool.reserve(handle, bytes);
        if found.is_none() && !first {
            found = pool.reserve_exactly(handle, bytes);
        }
        found.ok_or(pool.calls > 0)
    })
}

/// Reserves for the growth that the request may cause, and charges what it did cause.
pub(super) fn counted(
    account: Account,
    handle: Handle,
    bytes: usize,
    pointer: Out<u64>,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let Some(mut taken) = room_for(account, handle, long(bytes)) else {
        return account.refuse("a memory pool", long(bytes));
    };
    ANY.store(true, Relaxed);
    let code = call();
    drop(taken.kept.take());
    let mut known = account.process.pools.0.lock();
    let Some(pool) = known.get_mut(&handle) else {
        // It was destroyed meanwhile, and its charge with it.
        return code;
    };
    pool.end(&taken);
    let account = pool.account;
    let more = held(handle).map_or(0, |held| held.saturating_sub(pool.charged));
    if more == 0 || account.takes(more, account.on_card()) {
        pool.charged += more;
        pool.look(handle);
        return code;
    }
    // It grew past the limit, in larger steps than was expected: undone at once.
    account.process.seat.charge(account.card, more);
    pool.charged += more;
    if code == SUCCESS {
        let _ = pointer.get().map(|made| call::cuMemFreeAsync(made, stream));
    }
    let _ = call::cuMemPoolTrimTo(handle, 0);
    pool.look(handle);
    OUT_OF_MEMORY
}

/// The pools, when no allocation of this one reckons with what is free in it.
pub(super) fn when_nobody_reckons(
    pools: &Pools,
    pool: Handle,
) -> MutexGuard<'_, HashMap<Handle, Pool>> {
    let end = clock::now() + PATIENCE;
    loop {
        let known = pools.0.lock();
        if known.get(&pool).is_none_or(|one| !one.exact) || clock::now() >= end {
            return known;
        }
        drop(known);
        clock::rest();
    }
}

/// While it lives, waiting for the card trims the pool of nothing.
struct Kept {
    pool: Handle,
    threshold: u64,
}

impl Kept {
    fn new(pool: Handle) -> Option<Self> {
        let threshold = attribute(pool, THRESHOLD)?;
        let mut all = u64::MAX;
        let code = call::cuMemPoolSetAttribute(pool, THRESHOLD, Out::to(&mut all));
        (code == SUCCESS).then_some(Self { pool, threshold })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let threshold = Out::to(&mut self.threshold);
        // It was set a moment ago by the same call.
        let _ = call::cuMemPoolSetAttribute(self.pool, THRESHOLD, threshold);
    }
}
