//! Physical memory by handle (`cuMemCreate`, and imports of other processes' memory): the driver has it
//! until the last handle, mapping and descriptor of any process are gone. It is charged on the device
//! that the request names, to each process that has it, and once to the container.
//!
//! A descriptor for other processes is tagged (`aliquot_region::tag`). An import is charged by its tag, or
//! where no process of the container has the memory, when it is first mapped: no call tells its size
//! before.

use core::ffi::{c_uint, c_void};
use std::collections::{BTreeMap, HashMap};

use aliquot_region::tag;

use super::memory;
use crate::charges::account::Account;
use crate::charges::allocations::in_blocks;
use crate::charges::charge::{self, Charge};
use crate::driver::call;
use crate::ffi::{
    AllocationProperties, Code, Handle, MemoryLocation, OUT_OF_MEMORY, Out, Properties, SUCCESS,
    long,
};
use crate::lock::FutexLock;
use crate::process::{self, PerProcess, ProcessState};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` and `..._FABRIC`.
const DESCRIPTOR: c_uint = 1;
const FABRIC: c_uint = 8;

#[derive(Debug)]
struct PhysicalBlock {
    /// What is charged; for an import from another container, nothing until it is mapped.
    charge: Charge,
    /// The tag of its descriptors, or the key of the handle from which it was imported.
    key: Option<u64>,
    handles: u64,
    mappings: u64,
}

static PHYSICAL_MEMORY: PerProcess<FutexLock<PhysicalState>> = PerProcess::new();

/// Changes the users of a block; the last one ends its charge.
fn change(process: &ProcessState, number: u64, change: impl FnOnce(&mut PhysicalBlock)) {
    let ended = PHYSICAL_MEMORY.of(process).lock().change(number, change);
    // Not under the lock, which every call on physical memory needs.
    charge::end(ended);
}

#[derive(Debug, Default)]
struct PhysicalState {
    /// By a number of ours: the driver may give a handle to another block as soon as it is released.
    blocks: HashMap<u64, PhysicalBlock>,
    last: u64,
    handles: HashMap<u64, u64>,
    /// By address: length and block.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// The blocks behind parts of arrays.
    in_arrays: HashMap<Handle, Vec<u64>>,
}

impl PhysicalState {
    fn add(&mut self, handle: u64, charge: Charge, key: Option<u64>) {
        self.last += 1;
        let block = PhysicalBlock {
            charge,
            key,
            handles: 1,
            mappings: 0,
        };
        self.blocks.insert(self.last, block);
        self.handles.insert(handle, self.last);
    }

    fn of_handle(&mut self, handle: u64) -> Option<(u64, &mut PhysicalBlock)> {
        let number = *self.handles.get(&handle)?;
        Some((number, self.blocks.get_mut(&number)?))
    }

    fn at(&self, address: u64) -> Option<u64> {
        let (start, (length, number)) = self.mapped.range(..=address).next_back()?;
        (address - start < *length).then_some(*number)
    }

    /// Changes the users of a block; the charge to end if there are none left.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut PhysicalBlock)) -> Option<Charge> {
        let block = self.blocks.get_mut(&number)?;
        change(block);
        if block.handles > 0 || block.mappings > 0 {
            return None;
        }
        self.blocks.remove(&number).map(|block| block.charge)
    }
}

pub(crate) fn create(
    handle: Out<u64>,
    bytes: usize,
    properties: Out<Properties>,
    mut call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    let device = match properties.get().map(Properties::location) {
        Some(MemoryLocation::Device(device)) => device,
        // Without properties the driver refuses.
        Some(MemoryLocation::Host) | None => return Ok(call()),
        Some(place) => return memory::reject_unknown_location("cuMemCreate", place, call),
    };
    let Some(account) = Account::of_device(device)? else {
        return Ok(call());
    };
    let cost = in_blocks(long(bytes)).ok_or(OUT_OF_MEMORY)?;
    account.reserve("cuMemCreate", cost)?;
    let code = account.call_until_lent_memory_returns(cost, call);
    match (code, handle.get()) {
        (SUCCESS, Some(made)) => {
            let mut state = PHYSICAL_MEMORY.of(account.process).lock();
            state.add(made, Charge::new(account, cost), None);
        }
        _ => account.release(cost),
    }
    Ok(code)
}

/// The key of the bytes of a fabric handle.
fn fabric_key(handle: *mut c_void) -> Option<u64> {
    Out::<[u64; 8]>::at(handle).get().map(tag::of_words)
}

pub(crate) fn export(code: Code, shared: *mut c_void, handle: u64, kind: c_uint) -> Code {
    let Some(process) = process::limited().filter(|_| code == SUCCESS) else {
        return code;
    };
    let mut state = PHYSICAL_MEMORY.of(process).lock();
    let Some((_, block)) = state.of_handle(handle) else {
        return code;
    };
    match kind {
        DESCRIPTOR => {
            let key = block.key.unwrap_or_else(tag::new);
            let descriptor = Out::<i32>::at(shared).get();
            let inode = descriptor.and_then(|made| process.slot.tag(made, key));
            if let Some(inode) = inode {
                block.key = Some(key);
                if block.charge.bytes > 0 {
                    block.charge.hold(key, false);
                }
                let holdings = block.charge.holdings.iter();
                for holding in holdings.filter(|one| one.block.key == key) {
                    process.slot.note_descriptor(*holding, inode);
                }
            }
        }
        FABRIC if block.charge.bytes > 0 => {
            if let Some(key) = fabric_key(shared) {
                block.charge.hold(key, false);
            }
        }
        _ => {}
    }
    code
}

pub(crate) fn import(
    handle: Out<u64>,
    shared: *mut c_void,
    kind: c_uint,
    call: impl FnOnce() -> Code,
) -> Result<Code, Code> {
    let Some(process) = process::required()? else {
        return Ok(call());
    };
    let key = match kind {
        DESCRIPTOR => i32::try_from(shared.addr()).ok().and_then(tag::read),
        FABRIC => fabric_key(shared),
        _ => None,
    };
    // Before the call: as long as it has not returned, its argument keeps the memory.
    let adopted = key.and_then(|key| Charge::adopt(process, key));
    let code = call();
    let (SUCCESS, Some(made)) = (code, handle.get()) else {
        charge::end(adopted);
        return Ok(code);
    };
    let Some(charge) = adopted.or_else(|| foreign(made)) else {
        return Ok(code);
    };
    let mut state = PHYSICAL_MEMORY.of(process).lock();
    match state.of_handle(made) {
        // The driver has one handle for what it has already.
        Some((_, block)) if key.is_some() && block.key == key => {
            block.handles += 1;
            drop(state);
            charge.end();
        }
        _ => state.add(made, charge, key),
    }
    Ok(code)
}

/// An import that no process of the container has: nothing is charged yet. `None` if it is not on a
/// device of the container.
fn foreign(handle: u64) -> Option<Charge> {
    let mut properties = AllocationProperties::default();
    let code = call::cuMemGetAllocationPropertiesFromHandle(Out::to(&mut properties), handle);
    let place = (code == SUCCESS).then(|| properties.first.location())?;
    let MemoryLocation::Device(device) = place else {
        return None;
    };
    let account = Account::of_device(device).ok().flatten()?;
    Some(Charge::new(account, 0))
}

/// Charges an import of which nothing was charged yet, now that its size is known.
fn charge_import(
    number: u64,
    (account, key): (Account, Option<u64>),
    bytes: usize,
) -> Result<(), Code> {
    // Another process of the container may have mapped it meanwhile.
    let adopted = key.and_then(|key| Charge::adopt(account.process, key));
    let mut charge = if let Some(charge) = adopted {
        charge
    } else {
        let cost = in_blocks(long(bytes)).ok_or(OUT_OF_MEMORY)?;
        account.reserve("cuMemMap", cost)?;
        let mut charge = Charge::new(account, cost);
        if let Some(key) = key {
            charge.hold(key, true);
        }
        charge
    };
    let mut state = PHYSICAL_MEMORY.of(account.process).lock();
    if let Some(block) = state.blocks.get_mut(&number)
        && block.charge.bytes == 0
    {
        core::mem::swap(&mut block.charge, &mut charge);
    }
    drop(state);
    // Another thread was faster.
    charge.end();
    Ok(())
}

pub(crate) fn release(handle: u64, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let physical = PHYSICAL_MEMORY.of(process);
    let number = physical.lock().handles.get(&handle).copied();
    let code = call();
    let (SUCCESS, Some(number)) = (code, number) else {
        return code;
    };
    let mut state = physical.lock();
    let ended = state.change(number, |block| {
        block.handles = block.handles.saturating_sub(1);
    });
    let has_handles = |block: &PhysicalBlock| block.handles > 0;
    if !state.blocks.get(&number).is_some_and(has_handles)
        && state.handles.get(&handle) == Some(&number)
    {
        state.handles.remove(&handle);
    }
    drop(state);
    charge::end(ended);
    code
}

pub(crate) fn retain(handle: Out<u64>, address: *mut c_void, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    // Counted before the call: another thread may end the last mapping right after.
    let mut state = PHYSICAL_MEMORY.of(process).lock();
    let number = state.at(long(address.addr()));
    if let Some(block) = number.and_then(|number| state.blocks.get_mut(&number)) {
        block.handles += 1;
    }
    drop(state);
    let code = call();
    match (code, handle.get(), number) {
        (SUCCESS, Some(found), Some(number)) => {
            let mut state = PHYSICAL_MEMORY.of(process).lock();
            state.handles.insert(found, number);
        }
        (_, _, Some(number)) => change(process, number, |block| block.handles -= 1),
        _ => {}
    }
    code
}

pub(crate) fn map(pointer: u64, bytes: usize, handle: u64, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let mut state = PHYSICAL_MEMORY.of(process).lock();
    let Some((number, block)) = state.of_handle(handle) else {
        drop(state);
        return call();
    };
    block.mappings += 1;
    let uncharged = (block.charge.bytes == 0).then_some((block.charge.account, block.key));
    drop(state);
    let charged = uncharged.map_or(Ok(()), |of| charge_import(number, of, bytes));
    let code = charged.map_or_else(|refused| refused, |()| call());
    if code == SUCCESS {
        let mut state = PHYSICAL_MEMORY.of(process).lock();
        state.mapped.insert(pointer, (long(bytes), number));
    } else {
        change(process, number, |block| block.mappings -= 1);
    }
    code
}

pub(crate) fn unmap(pointer: u64, bytes: usize, call: impl FnOnce() -> Code) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    let physical = PHYSICAL_MEMORY.of(process);
    let end = pointer.saturating_add(long(bytes));
    // Before the call: afterwards another thread may map something else there.
    let state = physical.lock();
    let range = state.mapped.range(pointer..end);
    let known: Vec<(u64, (u64, u64))> = range.map(|(at, mapping)| (*at, *mapping)).collect();
    drop(state);
    let code = call();
    if code != SUCCESS {
        return code;
    }
    for (at, mapping) in known {
        let mut state = physical.lock();
        if state.mapped.get(&at) == Some(&mapping) {
            state.mapped.remove(&at);
        }
        drop(state);
        end_mapping(process, mapping.1);
    }
    code
}

fn end_mapping(process: &ProcessState, number: u64) {
    change(process, number, |block| {
        block.mappings = block.mappings.saturating_sub(1);
    });
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayMapping {
    kind: u64,
    array: Handle,
    part: [u64; 5],
    operation: c_uint,
    handle_kind: c_uint,
    handle: u64,
    after: [u64; 3],
}

const MAP: c_uint = 1;

/// Behind parts of arrays: charged until the array is destroyed, because the driver unmaps a part when
/// the stream gets there.
pub(crate) fn map_arrays(code: Code, list: Out<ArrayMapping>, count: c_uint) -> Code {
    let Some(process) = process::get().filter(|_| code == SUCCESS) else {
        return code;
    };
    let mut state = PHYSICAL_MEMORY.of(process).lock();
    let count = usize::try_from(count).unwrap_or(0);
    let all = (0..count).filter_map(|i| list.get_at(i));
    for one in all.filter(|one| one.operation == MAP) {
        if let Some((number, block)) = state.of_handle(one.handle) {
            block.mappings += 1;
            state.in_arrays.entry(one.array).or_default().push(number);
        }
    }
    code
}

/// Destroys an array, and with it the mappings of its parts.
pub(crate) fn destroy_array(
    process: &ProcessState,
    array: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let physical = PHYSICAL_MEMORY.of(process);
    // Before the call: afterwards the handle may belong to another array.
    let Some(parts) = physical.lock().in_arrays.remove(&array) else {
        return call();
    };
    let code = call();
    if code == SUCCESS {
        for number in parts {
            end_mapping(process, number);
        }
    } else {
        physical.lock().in_arrays.insert(array, parts);
    }
    code
}
