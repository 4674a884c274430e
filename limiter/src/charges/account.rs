//! A device as this process uses it, with the container's limit on it. No call passes that takes
//! memory of a device of which the container has no share. How the account of a context is found,
//! and what is tried before a call is refused: [`crate::reserve`].

use super::allocations::DeviceAllocation;
use crate::ffi::{Code, Device, Handle, NOT_PERMITTED, OUT_OF_MEMORY};
use crate::log;
use crate::process::{self, ProcessState};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) process: &'static ProcessState,
    pub(crate) device_index: usize,
    /// The current context; 0 where none matters.
    pub(crate) context: Handle,
}

impl Account {
    /// The account of a device, for which no context matters.
    pub(crate) fn new(process: &'static ProcessState, device_index: usize) -> Self {
        Self {
            process,
            device_index,
            context: 0,
        }
    }

    /// The account of a device, whatever is current.
    pub(crate) fn of_device(device: Device) -> Result<Option<Self>, Code> {
        let Some(process) = process::required()? else {
            return Ok(None);
        };
        let Some(device_index) = process.device_index(device)? else {
            log::line(
                log::ERROR,
                format_args!("device {device} does not belong to this container"),
            );
            return Err(NOT_PERMITTED);
        };
        Ok(Some(Self::new(process, device_index)))
    }

    /// Reserves `bytes` if at most `limit` are in use then, by the current totals.
    pub(crate) fn try_reserve(&self, bytes: u64, limit: u64) -> bool {
        let slot = &self.process.slot;
        slot.reserve(self.device_index, bytes, limit).is_some()
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

    pub(crate) fn release(&self, bytes: u64) {
        if bytes > 0 {
            self.process.slot.release(self.device_index, bytes);
        }
    }

    /// Changes what was `reserved` to what an allocation costs.
    pub(crate) fn correct_reservation(&self, reserved: u64, cost: u64) {
        match cost.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => self.process.slot.charge(self.device_index, more),
            None => self.release(reserved - cost),
        }
    }

    pub(crate) fn allocation(&self, size: u64, by_blocks: bool) -> DeviceAllocation {
        DeviceAllocation {
            size,
            device_index: self.device_index,
            context: self.context,
            by_blocks,
            managed: false,
            shared: 0,
        }
    }
}
