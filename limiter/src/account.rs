//! What a call may allocate: the device of its context, with the container's limit on it. No call
//! passes that takes memory of a device of which the container has no share.

use crate::allocations::DeviceAllocation;
use crate::clock::{self, MAX_WAIT};
use crate::context;
use crate::ffi::{Code, Device, Handle, NOT_PERMITTED, OUT_OF_MEMORY, Out, SUCCESS};
use crate::log;
use crate::process::{self, ProcessState};
use crate::table::call;

/// A device as this process uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) process: &'static ProcessState,
    pub(crate) device_index: usize,
    /// The current context; 0 where none matters.
    pub(crate) context: Handle,
}

impl Account {
    /// The account of the current context. `None`: nothing is to be counted, because the container
    /// is not limited, or because there is no context and the driver will refuse.
    pub(crate) fn of_current() -> Result<Option<Self>, Code> {
        let process = process::required()?;
        if process.is_uncontrolled() {
            return Ok(None);
        }
        let mut context = 0;
        if call::cuCtxGetCurrent(Out::to(&mut context)) != SUCCESS || context == 0 {
            return Ok(None);
        }
        Self::of_context(process, context).map(Some)
    }

    /// The account of the context in which work of a stream runs, whatever is current, and its
    /// device. `None` as for the current one.
    pub(crate) fn of_stream(stream: Handle) -> Result<Option<(Self, Device)>, Code> {
        Self::of_context_and_device(context::of_stream(stream))
    }

    /// The account of a context, whatever is current, and its device. `None` as for the current one.
    pub(crate) fn of_context_and_device(context: Handle) -> Result<Option<(Self, Device)>, Code> {
        let process = process::required()?;
        if process.is_uncontrolled() || context == 0 {
            return Ok(None);
        }
        let account = Self::of_context(process, context)?;
        // It is known by now.
        let device = context::device_of(process, context).ok_or(NOT_PERMITTED)?;
        Ok(Some((account, device)))
    }

    fn of_context(process: &'static ProcessState, context: Handle) -> Result<Self, Code> {
        let device_index = context::device_index_of(process, context)?;
        let context = process.contexts.owner(context);
        Ok(Self {
            process,
            device_index,
            context,
        })
    }

    /// The account of a device, whatever is current.
    pub(crate) fn of_device(device: i32) -> Result<Option<Self>, Code> {
        let process = process::required()?;
        if process.is_uncontrolled() {
            return Ok(None);
        }
        let Some(device_index) = process.device_index(device)? else {
            log::line(
                log::ERROR,
                format_args!("device {device} does not belong to this container"),
            );
            return Err(NOT_PERMITTED);
        };
        Ok(Some(Self {
            process,
            device_index,
            context: 0,
        }))
    }

    /// Reserves `bytes` of device memory for what `call` creates, or refuses. Memory of dead
    /// processes is reclaimed first.
    pub(crate) fn reserve(&self, call: &str, bytes: u64) -> Result<(), Code> {
        if self.try_reserve(bytes, self.device_limit()) {
            return Ok(());
        }
        self.refresh_all();
        if self.try_reserve(bytes, self.device_limit()) {
            return Ok(());
        }
        Err(self.refuse(call, bytes))
    }

    /// Reserves `bytes` that may be in host memory; whether they must be, because the container's
    /// part of the device is used up.
    pub(crate) fn reserve_or_spill(&self, call: &str, bytes: u64) -> Result<bool, Code> {
        let (here, all) = (self.device_limit(), self.process.limit(self.device_index));
        if self.try_reserve(bytes, here) {
            return Ok(false);
        }
        // What pools released and dead processes had is free on the device.
        self.refresh_all();
        if self.try_reserve(bytes, here) {
            return Ok(false);
        }
        if here < all && self.try_reserve(bytes, all) {
            return Ok(true);
        }
        Err(self.refuse(call, bytes))
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
            self.refresh_all();
            (first, alone) = (false, !others);
        }
    }

    /// Reserves `bytes` if at most `limit` are in use then, by the current totals.
    pub(crate) fn try_reserve(&self, bytes: u64, limit: u64) -> bool {
        let slot = &self.process.slot;
        slot.reserve(self.device_index, bytes, limit).is_ok()
    }

    /// The most bytes of device memory: the container's part of the device if more was granted than
    /// that.
    pub(crate) fn device_limit(&self) -> u64 {
        let limit = self.process.limit(self.device_index);
        if self.process.is_oversubscribed() {
            limit.min(self.process.limits.physical(self.device_index))
        } else {
            limit
        }
    }

    /// Logs why `call` gets no `bytes`, and whether managed memory could not serve it.
    pub(crate) fn refuse(&self, call: &str, bytes: u64) -> Code {
        let (process, here) = (self.process, self.device_limit());
        process.slot.note_refusal(self.device_index);
        let (used, limit) = (
            process.slot.used(self.device_index),
            process.limit(self.device_index),
        );
        if here < limit && used.saturating_add(bytes) <= limit {
            log::line(
                log::ERROR,
                format_args!(
                    "{call}: refused {bytes} bytes: they must be device memory, of which this container has {} MiB",
                    here >> 20
                ),
            );
        } else if here < limit {
            log::line(
                log::DEBUG,
                format_args!(
                    "{call}: refused {bytes} bytes: {used} of {limit} in use, {} MiB of device memory and {} MiB of host memory",
                    here >> 20,
                    (limit - here) >> 20
                ),
            );
        } else {
            log::line(
                log::DEBUG,
                format_args!("{call}: refused {bytes} bytes: {used} of {limit} in use"),
            );
        }
        OUT_OF_MEMORY
    }

    /// Reclaims what pools released and dead processes had.
    pub(crate) fn refresh_all(&self) {
        let process = self.process;
        process.pending_frees.refresh(process);
        process.pools.refresh();
        process.graphs.refresh(process);
        // An error leaves the totals too high: no more is granted than there is.
        let _ = process.slot.settle(process.limits.devices());
    }

    /// Releases `bytes`.
    pub(crate) fn release(&self, bytes: u64) {
        if bytes > 0 {
            self.process.slot.release(self.device_index, bytes);
        }
    }

    /// Changes what was `reserved` to what an allocation costs.
    pub(crate) fn settle(&self, reserved: u64, cost: u64) {
        match cost.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => self.process.slot.charge(self.device_index, more),
            None => self.release(reserved - cost),
        }
    }

    /// An allocation of this size on this device.
    pub(crate) fn allocation(&self, size: u64, by_blocks: bool) -> DeviceAllocation {
        DeviceAllocation {
            size,
            device_index: self.device_index,
            context: self.context,
            by_blocks,
            managed: false,
        }
    }
}
