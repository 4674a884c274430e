//! What a program sees of its devices: those of the container, with the container's limit as their
//! memory. Nothing is reported free that cannot be allocated, and no call fails where the driver
//! does not.

use crate::charges;
use crate::charges::account::Account;
use crate::charges::allocations::BLOCK;
use crate::driver::call;
use crate::ffi::{Code, Device, INVALID_DEVICE, NOT_PERMITTED, Out, SUCCESS, long, size};
use crate::process::{Access, ProcessState, Share, access};

pub(crate) fn device_count(real: extern "C" fn(Out<i32>) -> Code, count: Out<i32>) -> Code {
    let code = real(count);
    let (SUCCESS, Some(available), Some(share)) = (code, count.get(), access().share()) else {
        return code;
    };
    let mut visible = 0;
    for ordinal in 0..available {
        let mut device = 0;
        let found = call::cuDeviceGet(Out::to(&mut device), ordinal) == SUCCESS;
        visible += i32::from(found && share.is_assigned(device));
    }
    count.put(visible);
    code
}

pub(crate) fn device(
    real: extern "C" fn(Out<Device>, i32) -> Code,
    device: Out<Device>,
    ordinal: i32,
) -> Code {
    let share = access().share();
    let Some(share) = share.filter(|_| !device.is_null() && ordinal >= 0) else {
        return real(device, ordinal);
    };
    if share.limits.devices() == 0 {
        return NOT_PERMITTED;
    }
    let mut remaining = ordinal;
    for driver_ordinal in 0.. {
        let mut found = 0;
        let code = real(Out::to(&mut found), driver_ordinal);
        if code != SUCCESS {
            return code;
        }
        if share.is_assigned(found) {
            if remaining == 0 {
                device.put(found);
                return SUCCESS;
            }
            remaining -= 1;
        }
    }
    INVALID_DEVICE
}

pub(crate) fn total_memory(
    real: extern "C" fn(Out<usize>, Device) -> Code,
    bytes: Out<usize>,
    device: Device,
) -> Code {
    let code = real(bytes, device);
    if let Some(available) = bytes.get().filter(|_| code == SUCCESS) {
        bytes.put(limited_total(device, available));
    }
    code
}

/// What is shown of a device that has this much memory.
fn limited_total(device: Device, available: usize) -> usize {
    let share = access().share();
    let device_index = share.and_then(|share| Some((share, share.device_index(device).ok()??)));
    let Some((share, device_index)) = device_index else {
        return available;
    };
    let limit = size(share.limits.memory(device_index));
    if share.is_oversubscribed() {
        limit
    } else {
        available.min(limit)
    }
}

pub(crate) fn memory_info(
    real: extern "C" fn(Out<usize>, Out<usize>) -> Code,
    free: Out<usize>,
    total: Out<usize>,
) -> Code {
    let process = match access() {
        Access::Uncontrolled => return real(free, total),
        Access::Limited(process) => process,
        Access::Refused(share) => return no_memory_left(share, real, free, total),
    };
    let account = match Account::of_current() {
        Ok(Some(account)) => account,
        Ok(None) => return real(free, total),
        // There is no room for the context itself.
        Err(_) => return no_memory_left(process, real, free, total),
    };
    let (mut real_free, mut real_total) = (0, 0);
    let code = real(Out::to(&mut real_free), Out::to(&mut real_total));
    if code != SUCCESS {
        return code;
    }
    let shown = memory_view(account.process, account.device_index);
    let remaining = shown.total - shown.used;
    // The device itself may have less, which matters where all memory must be on it.
    let (available, remaining) = if account.process.is_oversubscribed() {
        (shown.total, remaining)
    } else {
        (
            shown.total.min(long(real_total)),
            remaining.min(long(real_free).max(account.callable())),
        )
    };
    total.put(size(available));
    // The driver allocates whole blocks.
    free.put(size(remaining / BLOCK * BLOCK));
    code
}

/// Reports the limit of the current device, with nothing free.
fn no_memory_left(
    share: &Share,
    real: extern "C" fn(Out<usize>, Out<usize>) -> Code,
    free: Out<usize>,
    total: Out<usize>,
) -> Code {
    let (mut real_free, mut real_total, mut device) = (0, 0, 0);
    let code = real(Out::to(&mut real_free), Out::to(&mut real_total));
    if code != SUCCESS {
        return code;
    }
    let queried = call::cuCtxGetDevice(Out::to(&mut device));
    let device_index = share.device_index(device).ok().flatten();
    let limit = device_index
        .filter(|_| queried == SUCCESS)
        .map_or(0, |device_index| size(share.limits.memory(device_index)));
    total.put(if share.is_oversubscribed() {
        limit
    } else {
        real_total.min(limit)
    });
    free.put(0);
    SUCCESS
}

/// A device's memory as the container sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryView {
    pub(crate) total: u64,
    /// At most `total`.
    pub(crate) used: u64,
    /// More may be granted than the device has.
    pub(crate) oversubscribed: bool,
}

impl MemoryView {
    /// Of a share of which this process gets nothing.
    pub(crate) fn used_up(share: &Share, device_index: usize) -> Self {
        let total = share.limits.memory(device_index);
        Self {
            total,
            used: total,
            oversubscribed: share.is_oversubscribed(),
        }
    }

    /// The total to show of a device that has `all`.
    pub(crate) fn total_of(self, available: u64) -> u64 {
        if self.oversubscribed {
            self.total
        } else {
            self.total.min(available)
        }
    }
}

pub(crate) fn memory_view(process: &'static ProcessState, device_index: usize) -> MemoryView {
    charges::refresh(process);
    let total = process.limits.memory(device_index);
    let remaining = process
        .limit(device_index)
        .saturating_sub(process.slot.used(device_index));
    MemoryView {
        total,
        used: total.saturating_sub(remaining),
        oversubscribed: process.is_oversubscribed(),
    }
}
