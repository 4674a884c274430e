//! Stream-ordered memory: a pool keeps what was freed in it until it is trimmed, so what is charged
//! is what the driver says the pool has reserved, not the pointers in it.
//!
//! Fed by: [`crate::table`]; pools are looked at after each call that may change them, and before
//! anything is refused or called free.
//! Must not: let a pool grow past the limit.

use core::sync::atomic::AtomicBool;
use std::collections::{HashMap, HashSet};

use crate::account::Account;
use crate::ffi::{Code, Handle, Out, Properties, SUCCESS, Where};
use crate::ledger::in_blocks;
use crate::lock::Lock;
use crate::process;
use crate::table::call;
use crate::{capture, memory};

mod place;
mod room;
mod wait;
pub(crate) use place::{of_device, of_place};
use room::{Pool, counted};
pub(crate) use wait::{waited, waited_here};

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 5;
/// Something was charged for a pool.
static ANY: AtomicBool = AtomicBool::new(false);
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 7;

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
            let known = Pool::new(account);
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
        && let Some(mut gone) = known.remove(&pool)
    {
        gone.settle(stays);
    }
    code
}

pub(crate) fn trim(real: extern "C" fn(Handle, usize) -> Code, pool: Handle, bytes: usize) -> Code {
    let Some(process) = process::get() else {
        return real(pool, bytes);
    };
    // Not while somebody reckons with what is free in it.
    let mut known = room::when_nobody_reckons(&process.pools, pool);
    let code = real(pool, bytes);
    if let Some(known) = known.get_mut(&pool) {
        known.look(pool);
    }
    code
}
