//! Stream-ordered memory: a pool keeps what was freed in it until it is trimmed, so what is charged
//! is what the driver says the pool has reserved, not the pointers in it.
//!
//! Fed by: [`crate::table`]; pools are looked at after each call that may change them, and before
//! anything is refused or called free.
//! Must not: let a pool grow past the limit.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::{HashMap, HashSet};

use crate::account::Account;
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, Properties, SUCCESS, Where, long};
use crate::ledger::in_blocks;
use crate::lock::Lock;
use crate::process;
use crate::table::call;
use crate::{capture, memory};

mod place;
mod wait;
pub(crate) use place::{of_device, of_place};
pub(crate) use wait::{waited, waited_here};

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 5;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const THRESHOLD: i32 = 4;
/// Something was charged for a pool.
static ANY: AtomicBool = AtomicBool::new(false);
/// In what steps a pool grows.
const STEP: u64 = 32 << 20;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 7;

#[derive(Clone, Copy, Debug)]
struct Pool {
    account: Account,
    charged: u64,
}

/// The pools of this process that are known: those of cards, and those that take nothing of one.
#[derive(Debug, Default)]
pub(crate) struct Pools(Lock<HashMap<Handle, Pool>>, Lock<HashSet<Handle>>);

impl Pools {
    /// Charges what each pool has now.
    pub(crate) fn look(&self) {
        for (handle, pool) in self.0.lock().iter_mut() {
            pool.look(*handle);
        }
    }
}

impl Pool {
    fn look(&mut self, handle: Handle) {
        if let Some(held) = held(handle) {
            self.account.settle(self.charged, held);
            self.charged = held;
        }
    }
}

/// What a pool has: of managed memory the driver may not call everything reserved that is used.
fn held(pool: Handle) -> Option<u64> {
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
        // A card without pools: so the driver would answer.
        return code;
    }
    counted(account, pool, bytes, pointer, stream, || {
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
    counted(account, pool, bytes, pointer, stream, || {
        real(pointer, bytes, pool, stream)
    })
}

/// It becomes a node of a graph, which takes its memory when it is launched.
fn is_captured(stream: Handle) -> bool {
    capture::any() && capture::aside(|| capture::is_captured(stream))
}

/// Reserves for the growth that the request may cause, and charges what it did cause.
fn counted(
    account: Account,
    handle: Handle,
    bytes: usize,
    pointer: Out<u64>,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let pools = &account.process.pools;
    let mut known = pools.0.lock();
    let charged = |known: &HashMap<Handle, Pool>| known.get(&handle).map_or(0, |pool| pool.charged);
    let mut growth = reserve(account, handle, bytes, charged(&known));
    let mut kept = None;
    if growth.is_err() {
        // What others freed, and the dead had, may be enough; or exactly what is needed.
        drop(known);
        account.settle_all();
        known = pools.0.lock();
        growth = reserve(account, handle, bytes, charged(&known));
        if growth.is_err() {
            kept = Kept::new(handle);
            growth = reserve_exactly(account, handle, bytes);
        }
        if growth.is_err() {
            drop(kept);
            return account.refuse("a memory pool", long(bytes));
        }
    }
    let growth = match growth {
        Ok(growth) => growth,
        Err(code) => return code,
    };
    ANY.store(true, Relaxed);
    let pool = known.entry(handle).or_insert(Pool {
        account,
        charged: 0,
    });
    let code = call();
    drop(kept);
    let now = held(handle).unwrap_or(pool.charged + growth);
    let before = pool.charged + growth;
    pool.charged = now;
    let Some(more) = now.checked_sub(before).filter(|more| *more > 0) else {
        account.release(before - now);
        return code;
    };
    if account.takes(more, account.on_card()) {
        return code;
    }
    // It grew past the limit, in larger steps than was expected: undone at once.
    account.process.seat.charge(account.card, more);
    if code == SUCCESS {
        let _ = pointer.get().map(|made| call::cuMemFreeAsync(made, stream));
    }
    let _ = call::cuMemPoolTrimTo(handle, 0);
    pool.look(handle);
    OUT_OF_MEMORY
}

/// Takes the most that the pool may be larger then, whatever other threads free and trim
/// meanwhile: it grows in steps beyond what is used.
fn reserve(account: Account, pool: Handle, bytes: usize, charged: u64) -> Result<u64, Code> {
    let used = attribute(pool, USED).unwrap_or(charged);
    let most = used
        .checked_add(long(bytes))
        .and_then(|most| most.checked_add(STEP))
        .and_then(in_blocks)
        .ok_or(OUT_OF_MEMORY)?;
    let growth = most.saturating_sub(charged);
    let fits = account.takes(growth, account.on_card());
    fits.then_some(growth).ok_or(OUT_OF_MEMORY)
}

/// Takes what the pool will grow by while nobody trims it ([`Kept`]): what is free in it already
/// needs no room on the card.
fn reserve_exactly(account: Account, pool: Handle, bytes: usize) -> Result<u64, Code> {
    let reserved = attribute(pool, RESERVED).unwrap_or(0);
    let used = attribute(pool, USED).unwrap_or(0);
    let wanted = used.checked_add(long(bytes)).ok_or(OUT_OF_MEMORY)?;
    let lacking = wanted.saturating_sub(reserved);
    let growth = lacking
        .checked_next_multiple_of(STEP)
        .ok_or(OUT_OF_MEMORY)?;
    let fits = account.takes(growth, account.on_card());
    fits.then_some(growth).ok_or(OUT_OF_MEMORY)
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

/// What was allocated without a pool is the card's until the stream has come so far.
pub(crate) fn free(real: extern "C" fn(u64, Handle) -> Code, pointer: u64, stream: Handle) -> Code {
    let Some(process) = process::get() else {
        return real(pointer, stream);
    };
    let Some(entry) = process.ledger.take(pointer) else {
        let code = real(pointer, stream);
        process.pools.look();
        return code;
    };
    let code = real(pointer, stream);
    if code == SUCCESS {
        process.forget_elsewhere(pointer);
        process.leaving.add(process, (pointer, entry), stream);
    } else {
        process.ledger.put_back(pointer, entry);
    }
    code
}

pub(crate) fn create(
    real: extern "C" fn(Out<Handle>, Out<Properties>) -> Code,
    pool: Out<Handle>,
    properties: Out<Properties>,
) -> Code {
    let on = properties.get().map(Properties::on);
    let account = match on {
        Some(Where::Card(device)) => match Account::of_device(device) {
            Ok(account) => account,
            Err(code) => return code,
        },
        Some(place @ Where::Unknown(_)) => {
            let call = || real(pool, properties);
            return memory::at_unknown_place("cuMemPoolCreate", place, call);
        }
        Some(Where::Host | Where::Moving) | None => None,
    };
    let code = real(pool, properties);
    match (code, pool.get(), account) {
        (SUCCESS, Some(made), Some(account)) => {
            let known = Pool {
                account,
                charged: 0,
            };
            account.process.pools.0.lock().insert(made, known);
        }
        // What is taken from it is not of a card. One of managed memory is of the card for which it
        // is first used.
        (SUCCESS, Some(made), None) if on == Some(Where::Host) => {
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
    // What the driver cannot give back, because something of it is still used, stays charged: there
    // is no way to ask later. That is every block in which anything lies.
    let is_used = attribute(pool, USED).is_some_and(|used| used > 0);
    if is_used {
        let _ = call::cuMemPoolTrimTo(pool, 0);
    }
    let stays = is_used.then(|| held(pool)).flatten().unwrap_or(0);
    let code = real(pool);
    if code == SUCCESS
        && let Some(gone) = known.remove(&pool)
    {
        gone.account.settle(gone.charged, stays);
    }
    code
}

pub(crate) fn trim(real: extern "C" fn(Handle, usize) -> Code, pool: Handle, bytes: usize) -> Code {
    let Some(process) = process::get() else {
        return real(pool, bytes);
    };
    // Not while somebody reckons with what is free in it.
    let mut known = process.pools.0.lock();
    let code = real(pool, bytes);
    if let Some(known) = known.get_mut(&pool) {
        known.look(pool);
    }
    code
}
