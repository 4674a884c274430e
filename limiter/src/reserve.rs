//! Reserves device memory for a call: finds the account of its context, and reclaims what pools
//! released and dead processes had before the call is refused.
//!
//! A context that was created without a known call (through a private table of the driver) is
//! charged when its account is first asked for.

use crate::charges;
use crate::charges::account::Account;
use crate::clock::{self, MAX_WAIT};
use crate::contexts::Context;
use crate::driver::call;
use crate::ffi::{Code, Device, Handle, NOT_PERMITTED, Out, SUCCESS};
use crate::process::{self, ProcessState};
use crate::stream::{context_of, with_current};

impl Account {
    /// The account of the current context. `None`: nothing is to be counted, because the container
    /// is not limited, or because there is no context and the driver will refuse.
    pub(crate) fn of_current() -> Result<Option<Self>, Code> {
        let Some(process) = process::required()? else {
            return Ok(None);
        };
        let mut context = 0;
        if call::cuCtxGetCurrent(Out::to(&mut context)) != SUCCESS || context == 0 {
            return Ok(None);
        }
        Self::of_context(process, context).map(Some)
    }

    /// The account of the context in which work of a stream runs, whatever is current, and its
    /// device. `None` as for the current one.
    pub(crate) fn of_stream(stream: Handle) -> Result<Option<(Self, Device)>, Code> {
        let Some(process) = process::required()? else {
            return Ok(None);
        };
        let context = context_of(stream);
        if context == 0 {
            return Ok(None);
        }
        let account = Self::of_context(process, context)?;
        // It is known by now.
        let known = process.contexts.get(context).ok_or(NOT_PERMITTED)?;
        Ok(Some((account, known.device)))
    }

    fn of_context(process: &'static ProcessState, context: Handle) -> Result<Self, Code> {
        let device_index = device_index_of(process, context)?;
        let context = process.contexts.owner(context);
        Ok(Self {
            process,
            device_index,
            context,
        })
    }

    /// Reserves `bytes` of device memory for what `call` creates, or refuses.
    pub(crate) fn reserve(&self, call: &str, bytes: u64) -> Result<(), Code> {
        if self.reserve_on_device(bytes) {
            return Ok(());
        }
        Err(self.refuse(call, bytes))
    }

    /// Reserves `bytes` that may be in host memory; whether they must be, because the container's
    /// part of the device is used up.
    pub(crate) fn reserve_or_spill(&self, call: &str, bytes: u64) -> Result<bool, Code> {
        if self.reserve_on_device(bytes) {
            return Ok(false);
        }
        let all = self.process.limit(self.device_index);
        if self.device_limit() < all && self.try_reserve(bytes, all) {
            return Ok(true);
        }
        Err(self.refuse(call, bytes))
    }

    fn reserve_on_device(&self, bytes: u64) -> bool {
        self.try_reserve(bytes, self.device_limit()) || {
            // What pools released and dead processes had is free on the device.
            charges::refresh(self.process);
            self.try_reserve(bytes, self.device_limit())
        }
    }

    /// Calls `reserve` until it succeeds: at once, after what others freed and dead processes had
    /// was reclaimed, and after allocations of other threads have returned. `reserve` gets whether
    /// this is its first call, and returns, if there is no room, whether other threads are
    /// allocating. `None` if there is no room.
    pub(crate) fn reserve_retrying<T>(
        &self,
        mut reserve: impl FnMut(bool) -> Result<T, bool>,
    ) -> Option<T> {
        let end = clock::now() + MAX_WAIT;
        let (mut first, mut alone) = (true, false);
        loop {
            let others = match reserve(first) {
                Ok(taken) => return Some(taken),
                Err(others) => others,
            };
            if alone && !others || clock::now() >= end {
                return None;
            }
            if others && !first {
                clock::pause();
            }
            charges::refresh(self.process);
            (first, alone) = (false, !others);
        }
    }
}

/// Device index of a context, which is charged now if it was not.
pub(crate) fn device_index_of(
    process: &'static ProcessState,
    context: Handle,
) -> Result<usize, Code> {
    let contexts = &process.contexts;
    if let Some(device_index) = contexts.last_device_index(context) {
        return Ok(device_index);
    }
    let device_index = if let Some(known) = contexts.get(context) {
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
        record_context(account, context, device, true, bytes);
        account.device_index
    };
    contexts.remember_last(context, device_index);
    Ok(device_index)
}

/// Reserves for a context on a device; `None` if nothing is limited.
pub(crate) fn reserve_context(device: Device) -> Result<Option<(Account, u64)>, Code> {
    let Some(account) = Account::of_device(device)? else {
        return Ok(None);
    };
    let bytes = account.process.limits.context(account.device_index);
    account.reserve("a context", bytes)?;
    Ok(Some((account, bytes)))
}

/// Records a context for which `bytes` were reserved.
pub(crate) fn record_context(
    account: Account,
    handle: Handle,
    device: Device,
    primary: bool,
    bytes: u64,
) {
    let context = Context {
        device_index: account.device_index,
        device,
        primary,
        bytes,
        owner: handle,
    };
    let process = account.process;
    // Two threads may have retained the same one at once.
    if !process.contexts.insert(handle, context) {
        account.release(bytes);
        return;
    }
    process.slot.note_contexts(account.device_index, bytes);
    // From now on the driver may keep memory of this process for its children.
    process.slot.track_children();
}
