//! Physical memory by handle (`cuMemCreate`): it is the driver's until its last handle is released
//! *and* its last mapping is gone. Charged on the card that the request names. Imported handles
//! are charged to who made them.
//!
//! Fed by: [`crate::table`]. Must not: give back what a mapping still holds.

use core::ffi::c_void;
use std::collections::{BTreeMap, HashMap};

use crate::account::Account;
use crate::ffi::{Code, OUT_OF_MEMORY, Out, Properties, SUCCESS, long};
use crate::ledger::in_blocks;
use crate::lock::Lock;
use crate::process;

#[derive(Clone, Copy, Debug)]
struct Memory {
    bytes: u64,
    account: Account,
    handles: u64,
    mappings: u64,
}

/// What this process made.
#[derive(Debug, Default)]
pub(crate) struct PhysicalMemory(Lock<Known>);

#[derive(Debug, Default)]
struct Known {
    memory: HashMap<u64, Memory>,
    /// By address: length and handle.
    mapped: BTreeMap<u64, (u64, u64)>,
}

impl Known {
    /// Changes the users of a memory; the last one gives it back.
    fn change(&mut self, handle: u64, change: impl FnOnce(&mut Memory)) {
        let Some(memory) = self.memory.get_mut(&handle) else {
            return;
        };
        change(memory);
        if memory.handles == 0 && memory.mappings == 0 {
            memory.account.release(memory.bytes);
            self.memory.remove(&handle);
        }
    }
}

pub(crate) fn create(
    real: extern "C" fn(Out<u64>, usize, Out<Properties>, u64) -> Code,
    handle: Out<u64>,
    bytes: usize,
    properties: Out<Properties>,
    flags: u64,
) -> Code {
    let on_device = properties.get().and_then(Properties::device);
    let Some(device) = on_device else {
        return real(handle, bytes, properties, flags);
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
    // Held across the call: the driver may give the same handle to another thread right after.
    let mut known = process.physical.0.lock();
    let code = real(handle);
    if code == SUCCESS {
        known.change(handle, |memory| {
            memory.handles = memory.handles.saturating_sub(1);
        });
    }
    code
}

pub(crate) fn retain(
    real: extern "C" fn(Out<u64>, *mut c_void) -> Code,
    handle: Out<u64>,
    address: *mut c_void,
) -> Code {
    let code = real(handle, address);
    if let (SUCCESS, Some(found), Some(process)) = (code, handle.get(), process::get()) {
        process
            .physical
            .0
            .lock()
            .change(found, |memory| memory.handles += 1);
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
}
