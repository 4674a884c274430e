//! Contexts: each takes memory of its card before anything is allocated in it. Its size is an
//! estimate that the host gives; it is reserved when the context is made and given back when the
//! driver really ends it, together with all that was allocated in it.
//!
//! A context that was made behind our back (by a private table of the driver) is charged when the
//! first allocation meets it. Fed by: [`crate::table`], [`crate::account`].
//! Must not: end a charge while the context lives.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;

use crate::account::Account;
use crate::ffi::{Code, Device, Handle, Out, SUCCESS, long};
use crate::lock::Lock;
use crate::process::{self, Process};
use crate::table::call;

mod current;
pub(crate) use current::{of_stream, within};
mod ending;
pub(crate) use ending::{around, destroy, detach, release};

/// One context of this process.
#[derive(Clone, Copy, Debug)]
struct Context {
    card: usize,
    device: Device,
    primary: bool,
    /// What was charged for it.
    bytes: u64,
    /// Whose end ends what is allocated in it: of a green context the primary one.
    owner: Handle,
}

/// All contexts of this process.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    known: Lock<HashMap<Handle, Context>>,
    /// The last one that was asked for, above its card's number.
    last: AtomicU64,
    /// There are, or were, green contexts.
    green: AtomicBool,
}

impl Contexts {
    /// Devices with a context, each once, and their cards.
    pub(crate) fn devices(&self) -> Vec<(Device, usize)> {
        let known = self.known.lock();
        let mut found: Vec<_> = known.values().map(|one| (one.device, one.card)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The primary context of a device is known.
    pub(crate) fn has_primary(&self, device: Device) -> bool {
        let known = self.known.lock();
        known
            .values()
            .any(|one| one.primary && one.device == device)
    }

    /// Whose end ends what is allocated in a context.
    pub(crate) fn owner(&self, context: Handle) -> Handle {
        if !self.green.load(Ordering::Relaxed) {
            return context;
        }
        let known = self.known.lock();
        known.get(&context).map_or(context, |known| known.owner)
    }

    /// Something is so of every context in which something can be allocated.
    pub(crate) fn all_are(&self, is_so: impl Fn(Handle) -> bool) -> bool {
        let known = self.known.lock();
        known.values().all(|one| is_so(one.owner))
    }

    /// A context is charged `new` bytes for something in it that was charged `old`.
    pub(crate) fn resize(&self, process: &Process, context: Handle, old: u64, new: u64) {
        let more = new.wrapping_sub(old);
        if let Some(known) = self.known.lock().get_mut(&context) {
            known.bytes = known.bytes.wrapping_add(more);
            process.seat.note_contexts(known.card, more);
        }
    }

    /// A green context, which takes nothing beside its primary one.
    pub(crate) fn note_green(&self, context: Handle, device: Device) {
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

/// Bits of `last` that are the card.
const CARD: u32 = 8;

/// The card of a context, which is charged now if it was not.
pub(crate) fn card_of(process: &'static Process, context: Handle) -> Result<usize, Code> {
    let contexts = &process.contexts;
    let last = contexts.last.load(Ordering::Relaxed);
    if last >> CARD == long(context) {
        return Ok(usize::try_from(last & 0xff).unwrap_or(0));
    }
    let known = contexts.known.lock().get(&context).copied();
    let card = if let Some(known) = known {
        known.card
    } else {
        let mut device = 0;
        let code = within(context, || call::cuCtxGetDevice(Out::to(&mut device)))?;
        if code != SUCCESS {
            return Err(code);
        }
        let Some((account, bytes)) = begin(device)? else {
            return Ok(0);
        };
        note(account, context, device, true, bytes);
        account.card
    };
    contexts
        .last
        .store(long(context) << CARD | long(card), Ordering::Relaxed);
    Ok(card)
}

/// The device of a context, if that is known.
pub(crate) fn device_of(process: &Process, context: Handle) -> Option<Device> {
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
    made(context, device, true, || real(context, device))
}

pub(crate) fn create_v2(
    real: extern "C" fn(Out<Handle>, c_uint, Device) -> Code,
    context: Out<Handle>,
    flags: c_uint,
    device: Device,
) -> Code {
    made(context, device, false, || real(context, flags, device))
}

pub(crate) fn create_v3(
    real: extern "C" fn(Out<Handle>, *const c_void, i32, c_uint, Device) -> Code,
    context: Out<Handle>,
    params: *const c_void,
    count: i32,
    flags: c_uint,
    device: Device,
) -> Code {
    made(context, device, false, || {
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
    made(context, device, false, || {
        real(context, params, flags, device)
    })
}

/// Reserves for a context, has it made and notes it.
fn made(context: Out<Handle>, device: Device, primary: bool, call: impl FnOnce() -> Code) -> Code {
    let (account, bytes) = match begin(device) {
        Ok(Some(begun)) => begun,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    let code = call();
    match (code, context.get()) {
        (SUCCESS, Some(handle)) => note(account, handle, device, primary, bytes),
        _ => account.release(bytes),
    }
    code
}

pub(crate) fn begin(device: Device) -> Result<Option<(Account, u64)>, Code> {
    let Some(account) = Account::of_device(device)? else {
        return Ok(None);
    };
    let bytes = account.process.limits.context(account.card);
    account.reserve("a context", bytes)?;
    Ok(Some((account, bytes)))
}

pub(crate) fn note(account: Account, handle: Handle, device: Device, primary: bool, bytes: u64) {
    let context = Context {
        card: account.card,
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
    account.process.libraries.forget_ready();
    account.process.seat.note_contexts(account.card, bytes);
    // From now on the driver may keep memory of this process for its children.
    account.process.seat.count_children();
}
