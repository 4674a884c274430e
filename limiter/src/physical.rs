//! Physical memory by handle (`cuMemCreate`): it is the driver's until its last handle is released
//! *and* its last mapping is gone. Charged on the card that the request names. Imported handles
//! are charged to who made them.
//!
//! What was *lent* (exported as a file, or put behind an array) may be held
//! by what no call here tells of. Its charge stays until a call after which the driver has exactly
//! as much more free memory, or until the process ends.
//!
//! Fed by: [`crate::table`]. Must not: give back what a mapping or a borrower still holds.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::{BTreeMap, HashMap};

use crate::account::Account;
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, Properties, SUCCESS, Where, long};
use crate::ledger::in_blocks;
use crate::lock::Lock;
use crate::memory;
use crate::process::{self, Process};
use crate::table::call;

#[derive(Clone, Copy, Debug)]
struct Memory {
    bytes: u64,
    account: Account,
    handles: u64,
    mappings: u64,
    /// Others may hold it.
    lent: bool,
}

/// What this process made.
#[derive(Debug, Default)]
pub(crate) struct PhysicalMemory(Lock<Known>, AtomicBool);

#[derive(Debug, Default)]
struct Known {
    memory: HashMap<u64, Memory>,
    /// By address: length and handle.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// What was lent and has no handle and no mapping of ours any more.
    left: Vec<Memory>,
}

impl Known {
    /// Changes the users of a memory; the last one gives it back.
    fn change(&mut self, handle: u64, change: impl FnOnce(&mut Memory)) {
        let Some(memory) = self.memory.get_mut(&handle) else {
            return;
        };
        change(memory);
        if memory.handles == 0 && memory.mappings == 0 {
            let gone = *memory;
            self.memory.remove(&handle);
            if gone.lent {
                self.left.push(gone);
            } else {
                gone.account.release(gone.bytes);
            }
        }
    }

    /// A card has `bytes` more free memory than before a call; what makes up just that is gone.
    fn give_back(&mut self, card: usize, bytes: u64) {
        self.left.sort_by_key(|one| core::cmp::Reverse(one.bytes));
        let pieces = self.left.iter().map(|one| (one.account.card, one.bytes));
        let mut gone = gone(pieces, card, bytes).into_iter();
        for one in self.left.extract_if(.., |_| gone.next() == Some(true)) {
            one.account.release(one.bytes);
        }
    }
}

/// Which of these pieces, the largest first, are gone if a card has `bytes` more free memory: those
/// that make up just that, or else none, for a neighbour may have freed something.
fn gone(pieces: impl Iterator<Item = (usize, u64)>, card: usize, bytes: u64) -> Vec<bool> {
    let mut rest = bytes;
    let fits = pieces.map(|(of, piece)| {
        let fits = of == card && piece <= rest;
        rest -= if fits { piece } else { 0 };
        fits
    });
    let fits: Vec<bool> = fits.collect();
    if rest == 0 { fits } else { Vec::new() }
}

/// The account of the current context and what is free on its card; `None`: nobody knows.
fn free() -> Option<(Account, u64)> {
    let account = Account::of_current().ok().flatten()?;
    let (mut free, mut total) = (0, 0);
    let code = call::cuMemGetInfo_v2(Out::to(&mut free), Out::to(&mut total));
    (code == SUCCESS).then_some((account, long(free)))
}

/// Makes a call after which lent memory may be gone, and looks whether it is.
pub(crate) fn watched(process: &Process, call: impl FnOnce() -> Code) -> Code {
    if !process.physical.1.load(Relaxed) {
        return call();
    }
    let Some((account, before)) = free() else {
        return call();
    };
    let used = || process.seat.used(account.card);
    let held = used();
    let code = call();
    if code == SUCCESS
        && let Some((_, after)) = free()
    {
        // What anybody of the container gave back meanwhile is none of it.
        let own = held.saturating_sub(used());
        let more = after.saturating_sub(before).saturating_sub(own);
        process.physical.0.lock().give_back(account.card, more);
    }
    code
}

/// Others may hold a memory from now on, if `code` says so.
fn lend(handle: u64, code: Code) -> Code {
    if let Some(process) = process::get().filter(|_| code == SUCCESS) {
        process.physical.1.store(true, Relaxed);
        let mut known = process.physical.0.lock();
        known.change(handle, |memory| memory.lent = true);
    }
    code
}

/// As a file, for another process.
pub(crate) fn export(
    real: extern "C" fn(*mut c_void, u64, c_uint, u64) -> Code,
    file: *mut c_void,
    handle: u64,
    kind: c_uint,
    flags: u64,
) -> Code {
    lend(handle, real(file, handle, kind, flags))
}

/// `CUarrayMapInfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayMapping {
    before: [u64; 7],
    operation: c_uint,
    kind: c_uint,
    handle: u64,
    after: [u64; 3],
}

/// `CU_MEM_OPERATION_TYPE_MAP`.
const MAP: c_uint = 1;

/// Behind parts of arrays.
pub(crate) fn map_arrays(
    real: extern "C" fn(Out<ArrayMapping>, c_uint, Handle) -> Code,
    list: Out<ArrayMapping>,
    count: c_uint,
    stream: Handle,
) -> Code {
    let Some(process) = process::get() else {
        return real(list, count, stream);
    };
    let code = watched(process, || real(list, count, stream));
    let count = usize::try_from(count).unwrap_or(0);
    for one in (0..count).filter_map(|i| list.get_at(i)) {
        if one.operation == MAP {
            lend(one.handle, code);
        }
    }
    code
}

pub(crate) fn create(
    real: extern "C" fn(Out<u64>, usize, Out<Properties>, u64) -> Code,
    handle: Out<u64>,
    bytes: usize,
    properties: Out<Properties>,
    flags: u64,
) -> Code {
    let device = match properties.get().map(Properties::on) {
        Some(Where::Card(device)) => device,
        // Without properties the driver refuses.
        Some(Where::Host) | None => return real(handle, bytes, properties, flags),
        Some(place) => {
            let call = || real(handle, bytes, properties, flags);
            return memory::at_unknown_place("cuMemCreate", place, call);
        }
    };
    let account = match Account::of_device(device) {
        Ok(Some(account)) => account,
        Ok(None) => return real(handle, bytes, properties, flags),
        Err(code) => return code,
    };
    let Some(cost) = in_blocks(long(bytes)) else {
        return OUT_OF_MEMORY;
    };
    if let Err(code) = account.reserve("cuMemCreate", cost) {
        return code;
    }
    let code = real(handle, bytes, properties, flags);
    match (code, handle.get()) {
        (SUCCESS, Some(made)) => {
            let memory = Memory {
                bytes: cost,
                account,
                handles: 1,
                mappings: 0,
                lent: false,
            };
            account
                .process
                .physical
                .0
                .lock()
                .memory
                .insert(made, memory);
        }
        _ => account.release(cost),
    }
    code
}

pub(crate) fn release(real: extern "C" fn(u64) -> Code, handle: u64) -> Code {
    let Some(process) = process::get() else {
        return real(handle);
    };
    watched(process, || {
        // Held across the call: the driver may give the same handle to another thread right after.
        let mut known = process.physical.0.lock();
        let code = real(handle);
        if code == SUCCESS {
            known.change(handle, |memory| {
                memory.handles = memory.handles.saturating_sub(1);
            });
        }
        code
    })
}

pub(crate) fn retain(
    real: extern "C" fn(Out<u64>, *mut c_void) -> Code,
    handle: Out<u64>,
    address: *mut c_void,
) -> Code {
    let Some(process) = process::get() else {
        return real(handle, address);
    };
    // Held across the call: another thread may let go of the last mapping right after.
    let mut known = process.physical.0.lock();
    let code = real(handle, address);
    if let (SUCCESS, Some(found)) = (code, handle.get()) {
        known.change(found, |memory| memory.handles += 1);
    }
    code
}

pub(crate) fn map(
    real: extern "C" fn(u64, usize, usize, u64, u64) -> Code,
    pointer: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Code {
    let Some(process) = process::get() else {
        return real(pointer, bytes, offset, handle, flags);
    };
    let mut known = process.physical.0.lock();
    let code = real(pointer, bytes, offset, handle, flags);
    if code == SUCCESS && known.memory.contains_key(&handle) {
        known.change(handle, |memory| memory.mappings += 1);
        known.mapped.insert(pointer, (long(bytes), handle));
    }
    code
}

pub(crate) fn unmap(real: extern "C" fn(u64, usize) -> Code, pointer: u64, bytes: usize) -> Code {
    let Some(process) = process::get() else {
        return real(pointer, bytes);
    };
    watched(process, || {
        let mut known = process.physical.0.lock();
        let code = real(pointer, bytes);
        if code == SUCCESS {
            let end = pointer.saturating_add(long(bytes));
            let gone: Vec<(u64, u64)> = known
                .mapped
                .range(pointer..end)
                .map(|(at, (_, handle))| (*at, *handle))
                .collect();
            for (at, handle) in gone {
                known.mapped.remove(&at);
                known.change(handle, |memory| {
                    memory.mappings = memory.mappings.saturating_sub(1);
                });
            }
        }
        code
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbours_free_gave_back_the_charge_of_lent_memory() {
        let check = |bytes, expected: &[bool]| {
            let pieces = [(0, 8), (1, 6), (0, 4), (0, 2)];
            assert_eq!(gone(pieces.into_iter(), 0, bytes), expected, "{bytes}");
        };
        check(8, &[true, false, false, false]);
        check(6, &[false, false, true, true]);
        check(14, &[true, false, true, true]);
        check(16, &[]);
        check(5, &[]);
        check(0, &[false; 4]);
    }
}
