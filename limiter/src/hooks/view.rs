//! What a program sees of its devices: those of the container, with the container's limit as their
//! memory. Nothing is reported free that cannot be allocated, and no call fails where the driver
//! does not.

use crate::charges;
use crate::charges::account::Account;
use crate::charges::allocations::BLOCK;
use crate::driver::call;
use crate::ffi::{Code, Device, INVALID_DEVICE, NOT_PERMITTED, Out, SUCCESS, long, size};
use crate::process::{Access, ProcessState, Share, access};

pub(crate) fn device_count(code: Code, count: Out<i32>) -> Code {
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

pub(crate) fn total_memory(code: Code, bytes: Out<usize>, device: Device) -> Code {
    if code == SUCCESS
        && let (Some(available), Some(share)) = (bytes.get(), access().share())
        && let Ok(Some(device_index)) = share.device_index(device)
    {
        bytes.put(size(shown_total(share, device_index, long(available))));
    }
    code
}

/// The memory that is shown of a device that has `available`: an oversubscribed container may be
/// granted more.
pub(crate) fn shown_total(share: &Share, device_index: usize, available: u64) -> u64 {
    let limit = share.limits.memory(device_index);
    if share.is_oversubscribed() {
        limit
    } else {
        limit.min(available)
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
    let shown = shown_total(process, account.device_index, long(real_total));
    let mut remaining = remaining_memory(process, account.device_index).min(shown);
    // The device itself may have less, which matters where all memory must be on it.
    if !process.is_oversubscribed() {
        remaining = remaining.min(long(real_free).max(account.callable()));
    }
    total.put(size(shown));
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
    let shown = match share.device_index(device) {
        Ok(Some(device_index)) if queried == SUCCESS => {
            shown_total(share, device_index, long(real_total))
        }
        _ => 0,
    };
    total.put(size(shown));
    free.put(0);
    SUCCESS
}

/// What the container may still get of a device.
pub(crate) fn remaining_memory(process: &'static ProcessState, device_index: usize) -> u64 {
    charges::refresh(process);
    let used = process.slot.used(device_index);
    process.limit(device_index).saturating_sub(used)
}
