//! Contexts: each takes memory of its device before anything is allocated in it. Its size is an
//! estimate from the limits page. It is reserved when the context is created and released when the
//! driver really ends it, together with everything that was allocated in it.
//!
//! A context that was created without a known call (through a private table of the driver) is
//! charged when the first allocation in it is made. No charge ends while its context lives.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;

use crate::account::Account;
use crate::allocations::DeviceAllocation;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS, long};
use crate::library;
use crate::lock::FutexLock;
use crate::pace::DetachedMarks;
use crate::pending_free::DetachedFrees;
use crate::process::{self, ProcessState};
use crate::table::call;

/// One context of this process.
#[derive(Clone, Copy, Debug)]
struct Context {
    device_index: usize,
    device: Device,
    primary: bool,
    /// Bytes charged for it.
    bytes: u64,
    /// The context with which its allocations end: for a green context the primary one.
    owner: Handle,
}

/// All contexts of this process.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    known: FutexLock<HashMap<Handle, Context>>,
    /// The last context that was looked up, above its device index.
    last: AtomicU64,
    /// There are, or were, green contexts.
    green: AtomicBool,
}

impl Contexts {
    /// Devices with a context, each once, with their indexes.
    pub(crate) fn devices(&self) -> Vec<(Device, usize)> {
        let known = self.known.lock();
        let mut found: Vec<_> = known
            .values()
            .map(|one| (one.device, one.device_index))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether the primary context of a device is known.
    pub(crate) fn has_primary(&self, device: Device) -> bool {
        let known = self.known.lock();
        known
            .values()
            .any(|one| one.primary && one.device == device)
    }

    /// The context with which the allocations in a context end.
    pub(crate) fn owner(&self, context: Handle) -> Handle {
        if !self.green.load(Ordering::Relaxed) {
            return context;
        }
        let known = self.known.lock();
        known.get(&context).map_or(context, |known| known.owner)
    }

    /// Whether the predicate is true for every context in which something can be allocated.
    pub(crate) fn all_owners(&self, predicate: impl Fn(Handle) -> bool) -> bool {
        let known = self.known.lock();
        known.values().all(|one| predicate(one.owner))
    }

    /// Changes a context's charge for something in it from `old` to `new` bytes.
    pub(crate) fn resize(&self, process: &ProcessState, context: Handle, old: u64, new: u64) {
        let more = new.wrapping_sub(old);
        if let Some(known) = self.known.lock().get_mut(&context) {
            known.bytes = known.bytes.wrapping_add(more);
            process.slot.note_contexts(known.device_index, more);
        }
    }

    /// Records a green context, which takes nothing beside its primary one.
    pub(crate) fn record_green(&self, context: Handle, device: Device) {
        let mut known = self.known.lock();
        let mut all = known.iter();
        let primary = all.find(|(_, one)| one.primary && one.device == device);
        if let Some((owner, primary)) = primary.map(|(owner, one)| (*owner, *one)) {
            self.green.store(true, Ordering::Relaxed);
            let green = Context {
                primary: false,
                bytes: 0,
                owner,
                ..primary
            };
            known.entry(context).or_insert(green);
        }
    }

    /// A green context ended; its primary one may live on.
    pub(crate) fn forget_green(&self, context: Handle) {
        self.last.store(0, Ordering::Relaxed);
        let mut known = self.known.lock();
        if known.get(&context).is_some_and(|one| one.owner != context) {
            known.remove(&context);
        }
    }
}

/// Bits of `last` that are the device index.
const INDEX_BITS: u32 = 8;

/// Device index of a context, which is charged now if it was not.
pub(crate) fn device_index_of(
    process: &'static ProcessState,
    context: Handle,
) -> Result<usize, Code> {
    let contexts = &process.contexts;
    let last = contexts.last.load(Ordering::Relaxed);
    if last >> INDEX_BITS == long(context) {
        return Ok(usize::try_from(last & 0xff).unwrap_or(0));
    }
    let known = contexts.known.lock().get(&context).copied();
    let device_index = if let Some(known) = known {
        known.device_index
    } else {
        let mut device = 0;
        let code = with_current(context, || call::cuCtxGetDevice(Out::to(&mut device)))?;
        if code != SUCCESS {
            return Err(code);
        }
        let Some((account, bytes)) = reserve_context(device)? else {
            return Ok(0);
        };
        record(account, context, device, true, bytes);
        account.device_index
    };
    contexts.last.store(
        long(context) << INDEX_BITS | long(device_index),
        Ordering::Relaxed,
    );
    Ok(device_index)
}

/// The device of a context, if known.
pub(crate) fn device_of(process: &ProcessState, context: Handle) -> Option<Device> {
    process
        .contexts
        .known
        .lock()
        .get(&context)
        .map(|known| known.device)
}

pub(crate) fn retain(
    real: extern "C" fn(Out<Handle>, Device) -> Code,
    context: Out<Handle>,
    device: Device,
) -> Code {
    if process::get().is_some_and(|process| process.contexts.has_primary(device)) {
        return real(context, device);
    }
    create_charged(context, device, true, || real(context, device))
}

pub(crate) fn create_v2(
    real: extern "C" fn(Out<Handle>, c_uint, Device) -> Code,
    context: Out<Handle>,
    flags: c_uint,
    device: Device,
) -> Code {
    create_charged(context, device, false, || real(context, flags, device))
}

pub(crate) fn create_v3(
    real: extern "C" fn(Out<Handle>, *const c_void, i32, c_uint, Device) -> Code,
    context: Out<Handle>,
    params: *const c_void,
    count: i32,
    flags: c_uint,
    device: Device,
) -> Code {
    create_charged(context, device, false, || {
        real(context, params, count, flags, device)
    })
}

pub(crate) fn create_v4(
    real: extern "C" fn(Out<Handle>, *const c_void, c_uint, Device) -> Code,
    context: Out<Handle>,
    params: *const c_void,
    flags: c_uint,
    device: Device,
) -> Code {
    create_charged(context, device, false, || {
        real(context, params, flags, device)
    })
}

pub(crate) fn create_vdpau(
    real: extern "C" fn(Out<Handle>, c_uint, Device, c_uint, *const c_void) -> Code,
    context: Out<Handle>,
    flags: c_uint,
    device: Device,
    vdpau: c_uint,
    find: *const c_void,
) -> Code {
    create_charged(context, device, false, || {
        real(context, flags, device, vdpau, find)
    })
}

/// Reserves for a context, creates it and records it.
fn create_charged(
    context: Out<Handle>,
    device: Device,
    primary: bool,
    call: impl FnOnce() -> Code,
) -> Code {
    let (account, bytes) = match reserve_context(device) {
        Ok(Some(begun)) => begun,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    let code = call();
    match (code, context.get()) {
        (SUCCESS, Some(handle)) => record(account, handle, device, primary, bytes),
        _ => account.release(bytes),
    }
    code
}

pub(crate) fn reserve_context(device: Device) -> Result<Option<(Account, u64)>, Code> {
    let Some(account) = Account::of_device(device)? else {
        return Ok(None);
    };
    let bytes = account.process.limits.context(account.device_index);
    account.reserve("a context", bytes)?;
    Ok(Some((account, bytes)))
}

pub(crate) fn record(account: Account, handle: Handle, device: Device, primary: bool, bytes: u64) {
    let context = Context {
        device_index: account.device_index,
        device,
        primary,
        bytes,
        owner: handle,
    };
    let mut known = account.process.contexts.known.lock();
    // Two threads may have retained the same one at once.
    if known.contains_key(&handle) {
        account.release(bytes);
        return;
    }
    known.insert(handle, context);
    drop(known);
    library::invalidate_ready();
    account
        .process
        .slot
        .note_contexts(account.device_index, bytes);
    // From now on the driver may keep memory of this process for its children.
    account.process.slot.track_children();
}

/// `CU_STREAM_PER_THREAD`; handles up to it are no stream objects.
const PER_THREAD: Handle = 2;

/// Does something with a context current, which may not be this thread's.
pub(crate) fn with_current<T>(context: Handle, act: impl FnOnce() -> T) -> Result<T, Code> {
    let mut current = 0;
    if call::cuCtxGetCurrent(Out::to(&mut current)) == SUCCESS && current == context {
        return Ok(act());
    }
    match call::cuCtxPushCurrent_v2(context) {
        SUCCESS => {
            let result = act();
            call::cuCtxPopCurrent_v2(Out::to(&mut current));
            Ok(result)
        }
        code => Err(code),
    }
}

/// The context in which work of a stream runs; 0 if there is none, and the driver refuses.
pub(crate) fn of_stream(stream: Handle) -> Handle {
    let mut context = 0;
    let is_object = stream > PER_THREAD;
    if is_object && call::cuStreamGetCtx(stream, Out::to(&mut context)) == SUCCESS && context != 0 {
        return context;
    }
    let code = call::cuCtxGetCurrent(Out::to(&mut context));
    if code == SUCCESS { context } else { 0 }
}

/// Our events in a context that may end now. They are detached before the driver may end the
/// context, so that no other thread queries them meanwhile, and put back if it lives on.
struct EndingContext {
    context: Handle,
    launch_marks: DetachedMarks,
    frees: DetachedFrees,
}

impl EndingContext {
    fn new(process: &ProcessState, context: Handle) -> Self {
        Self {
            context,
            launch_marks: process.pace.detach(context),
            frees: process.pending_frees.detach(context),
        }
    }

    /// The context ended.
    fn end(self, process: &ProcessState) {
        let pace = &process.pace;
        pace.forget(&process.slot, self.context, self.launch_marks);
        process.pending_frees.end(process, self.frees);
    }

    /// The context lives on.
    fn put_back(self, process: &ProcessState) {
        process.pace.put_back(self.launch_marks);
        process.pending_frees.put_back(self.frees);
    }
}

/// `cuDevicePrimaryCtxRelease` and `...Reset`.
pub(crate) fn release(real: extern "C" fn(Device) -> Code, device: Device) -> Code {
    match process::get() {
        Some(process) => with_primary_release(process, device, 0, || real(device)),
        None => real(device),
    }
}

/// Makes a call after which the primary context of a device may be gone, and which ends the green
/// context `green`, if that is not 0.
pub(crate) fn with_primary_release(
    process: &ProcessState,
    device: Device,
    green: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let contexts = &process.contexts;
    let known = contexts.known.lock();
    // Green contexts end with the primary one.
    let ends = known
        .iter()
        .filter(|(_, one)| one.primary && one.device == device);
    let ends: Vec<Handle> = ends.map(|(handle, _)| *handle).collect();
    let owned = known.iter().filter(|(_, one)| ends.contains(&one.owner));
    let mut all: Vec<Handle> = owned.map(|(handle, _)| *handle).collect();
    drop(known);
    if green != 0 && !all.contains(&green) {
        all.push(green);
    }
    let all: Vec<EndingContext> = all
        .into_iter()
        .map(|one| EndingContext::new(process, one))
        .collect();
    let code = call();
    let mut watch_end = Vec::new();
    if code == SUCCESS {
        if green != 0 {
            contexts.forget_green(green);
            watch_end.push(green);
        }
        watch_end.extend(remove_ended_primary(process, device));
    }
    for ending in all {
        // Another thread may have noticed its end first.
        let is_known = contexts.known.lock().contains_key(&ending.context);
        if is_known && !watch_end.contains(&ending.context) {
            ending.put_back(process);
        } else {
            ending.end(process);
        }
    }
    code
}

/// Removes a primary context that no longer exists; the contexts that ended with it.
fn remove_ended_primary(process: &ProcessState, device: Device) -> Vec<Handle> {
    let (mut flags, mut active) = (0, 1);
    let asked = call::cuDevicePrimaryCtxGetState(device, Out::to(&mut flags), Out::to(&mut active));
    if asked != SUCCESS || active != 0 {
        return Vec::new();
    }
    let mut known = process.contexts.known.lock();
    let watch_end: Vec<_> = known
        .extract_if(|_, one| one.primary && one.device == device)
        .collect();
    // Green contexts end with it.
    let with =
        known.extract_if(|_, one| watch_end.iter().any(|(primary, _)| one.owner == *primary));
    let mut all: Vec<Handle> = with.map(|(handle, _)| handle).collect();
    drop(known);
    all.extend(watch_end.iter().map(|(handle, _)| *handle));
    for (handle, context) in watch_end {
        let owned = process.allocations.remove_context(handle);
        release_context(process, handle, context, owned);
    }
    all
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, context: Handle) -> Code {
    watch_end(context, || real(context), || true)
}

/// Removes one user; the last one ends the context.
pub(crate) fn detach(real: extern "C" fn(Handle) -> Code, context: Handle) -> Code {
    watch_end(
        context,
        || real(context),
        || {
            let mut version = 0;
            call::cuCtxGetApiVersion(context, Out::to(&mut version)) != SUCCESS
        },
    )
}

/// Makes a call after which a context may be gone: it is if `is_gone` says so.
fn watch_end(context: Handle, call: impl FnOnce() -> Code, is_gone: impl FnOnce() -> bool) -> Code {
    let Some(process) = process::get() else {
        return call();
    };
    // Before the driver call: afterwards the handle may belong to another.
    let known = process.contexts.known.lock().remove(&context);
    let ending = EndingContext::new(process, context);
    let owned = process.allocations.remove_context(context);
    let code = call();
    if code == SUCCESS && is_gone() {
        ending.end(process);
        // One that was created without a known call may not have been charged yet.
        if let Some(known) = known {
            release_context(process, context, known, owned);
        }
        return code;
    }
    for (at, entry) in owned {
        process.allocations.put_back(at, entry);
    }
    ending.put_back(process);
    process
        .contexts
        .known
        .lock()
        .extend(known.map(|known| (context, known)));
    code
}

fn release_context(
    process: &ProcessState,
    handle: Handle,
    context: Context,
    owned: Vec<(u64, DeviceAllocation)>,
) {
    process.contexts.last.store(0, Ordering::Relaxed);
    process.context_limits.forget(handle);
    process.modules.forget(handle);
    process.libraries.forget(handle);
    process
        .graphs
        .end(process, context.device, context.device_index);
    for (at, entry) in owned {
        process.forget_spilled(at);
        process.release_allocation(at, entry);
    }
    process.slot.release(context.device_index, context.bytes);
    process
        .slot
        .note_contexts(context.device_index, context.bytes.wrapping_neg());
}
