//! Physical memory by handle (`cuMemCreate`): the driver has it until its last handle is released
//! *and* its last mapping is gone. It is charged on the device that the request names. Imported
//! handles are charged to the process that created them.
//!
//! Memory that was shared (exported as a file, or mapped behind an array) may be used by something
//! that no call here reveals. It stays charged until a call after which the driver has exactly that
//! much more free memory, or until the process ends.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::{BTreeMap, HashMap};

use super::memory;
use crate::charges::account::Account;
use crate::charges::allocations::in_blocks;
use crate::driver::call;
use crate::ffi::{Code, Handle, MemoryLocation, OUT_OF_MEMORY, Out, Properties, SUCCESS, long};
use crate::lock::FutexLock;
use crate::process::{self, PerProcess, ProcessState};

#[derive(Clone, Copy, Debug)]
struct PhysicalAllocation {
    bytes: u64,
    account: Account,
    handles: u64,
    mappings: u64,
    /// Others may use it.
    shared_outside: bool,
}

/// The physical memory of this process, and whether some of it was ever shared.
#[derive(Debug, Default)]
struct PhysicalMemory(FutexLock<PhysicalState>, AtomicBool);

impl PhysicalMemory {
    fn of(process: &ProcessState) -> &'static Self {
        static PHYSICAL_MEMORY: PerProcess<PhysicalMemory> = PerProcess::new();
        PHYSICAL_MEMORY.of(process)
    }
}

#[derive(Debug, Default)]
struct PhysicalState {
    memory: HashMap<u64, PhysicalAllocation>,
    /// By address: length and handle.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// Shared memory without a handle or mapping of ours.
    released_by_us: Vec<PhysicalAllocation>,
}

impl PhysicalState {
    /// Changes the users of a memory; the last one releases it.
    fn change(&mut self, handle: u64, change: impl FnOnce(&mut PhysicalAllocation)) {
        let Some(memory) = self.memory.get_mut(&handle) else {
            return;
        };
        change(memory);
        if memory.handles == 0 && memory.mappings == 0 {
            let released = *memory;
            self.memory.remove(&handle);
            if released.shared_outside {
                self.released_by_us.push(released);
            } else {
                released.account.release(released.bytes);
            }
        }
    }

    /// A device has `bytes` more free memory than before a call; the memory that makes up exactly
    /// that is gone.
    fn give_back(&mut self, device_index: usize, bytes: u64) {
        self.released_by_us
            .sort_by_key(|one| core::cmp::Reverse(one.bytes));
        let sizes = self
            .released_by_us
            .iter()
            .map(|one| (one.account.device_index, one.bytes));
        let mut released = released(sizes, device_index, bytes).into_iter();
        for one in self
            .released_by_us
            .extract_if(.., |_| released.next() == Some(true))
        {
            one.account.release(one.bytes);
        }
    }
}

/// Which of these sizes, the largest first, are gone if a device has `bytes` more free memory:
/// those that make up exactly that, or none, because a neighbour may have freed something.
fn released(
    sizes: impl Iterator<Item = (usize, u64)>,
    device_index: usize,
    bytes: u64,
) -> Vec<bool> {
    let mut rest = bytes;
    let fits = sizes.map(|(of, piece)| {
        let fits = of == device_index && piece <= rest;
        rest -= if fits { piece } else { 0 };
        fits
    });
    let fits: Vec<bool> = fits.collect();
    if rest == 0 { fits } else { Vec::new() }
}

/// The account of the current context and the free memory on its device; `None` if unknown.
fn free() -> Option<(Account, u64)> {
    let account = Account::of_current().ok().flatten()?;
    let (mut free, mut total) = (0, 0);
    let code = call::cuMemGetInfo_v2(Out::to(&mut free), Out::to(&mut total));
    (code == SUCCESS).then_some((account, long(free)))
}

/// Makes a call after which shared memory may be gone, and checks whether it is.
pub(crate) fn with_release_check(process: &ProcessState, call: impl FnOnce() -> Code) -> Code {
    let physical = PhysicalMemory::of(process);
    if !physical.1.load(Relaxed) {
        return call();
    }
    let Some((account, before)) = free() else {
        return call();
    };
    let used = || process.slot.used(account.device_index);
    let before_call = used();
    let code = call();
    if code == SUCCESS
        && let Some((_, after)) = free()
    {
        // What the container released meanwhile is not part of it.
        let own = before_call.saturating_sub(used());
        let more = after.saturating_sub(before).saturating_sub(own);
        physical.0.lock().give_back(account.device_index, more);
    }
    code
}

/// Others may use a memory from now on, if `code` is success.
fn mark_shared(handle: u64, code: Code) -> Code {
    if let Some(process) = process::get().filter(|_| code == SUCCESS) {
        let physical = PhysicalMemory::of(process);
        physical.1.store(true, Relaxed);
        let mut known = physical.0.lock();
        known.change(handle, |memory| memory.shared_outside = true);
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
    mark_shared(handle, real(file, handle, kind, flags))
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
    let code = with_release_check(process, || real(list, count, stream));
    let count = usize::try_from(count).unwrap_or(0);
    for one in (0..count).filter_map(|i| list.get_at(i)) {
        if one.operation == MAP {
            mark_shared(one.handle, code);
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
    let device = match properties.get().map(Properties::location) {
        Some(MemoryLocation::Device(device)) => device,
        // Without properties the driver refuses.
        Some(MemoryLocation::Host) | None => return real(handle, bytes, properties, flags),
        Some(place) => {
            let call = || real(handle, bytes, properties, flags);
            return memory::reject_unknown_location("cuMemCreate", place, call);
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
    let code = account.insist(cost, || real(handle, bytes, properties, flags));
    match (code, handle.get()) {
        (SUCCESS, Some(made)) => {
            let memory = PhysicalAllocation {
                bytes: cost,
                account,
                handles: 1,
                mappings: 0,
                shared_outside: false,
            };
            let physical = PhysicalMemory::of(account.process);
            physical.0.lock().memory.insert(made, memory);
        }
        _ => account.release(cost),
    }
    code
}

pub(crate) fn release(real: extern "C" fn(u64) -> Code, handle: u64) -> Code {
    let Some(process) = process::get() else {
        return real(handle);
    };
    with_release_check(process, || {
        // Locked across the call: the driver may give the same handle to another thread right
        // after.
        let mut known = PhysicalMemory::of(process).0.lock();
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
    // Locked across the call: another thread may end the last mapping right after.
    let mut known = PhysicalMemory::of(process).0.lock();
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
    let mut known = PhysicalMemory::of(process).0.lock();
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
    with_release_check(process, || {
        let mut known = PhysicalMemory::of(process).0.lock();
        let code = real(pointer, bytes);
        if code == SUCCESS {
            let end = pointer.saturating_add(long(bytes));
            let released: Vec<(u64, u64)> = known
                .mapped
                .range(pointer..end)
                .map(|(at, (_, handle))| (*at, *handle))
                .collect();
            for (at, handle) in released {
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
    fn releases_shared_memory_only_on_exact_match() {
        let check = |bytes, expected: &[bool]| {
            let sizes = [(0, 8), (1, 6), (0, 4), (0, 2)];
            assert_eq!(released(sizes.into_iter(), 0, bytes), expected, "{bytes}");
        };
        check(8, &[true, false, false, false]);
        check(6, &[false, false, true, true]);
        check(14, &[true, false, true, true]);
        check(16, &[]);
        check(5, &[]);
        check(0, &[false; 4]);
    }
}
