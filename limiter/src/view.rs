//! What a program is told of its cards: those of the seat, with the seat's limit for their memory.
//!
//! Fed by: [`crate::table`]. Must not: call free what cannot be allocated, or fail where the
//! driver does not.

use crate::account::Account;
use crate::ffi::{Code, Device, INVALID_DEVICE, Out, SUCCESS, long, size};
use crate::ledger::BLOCK;
use crate::process::{self, Process};
use crate::table::call;

pub(crate) fn device_count(real: extern "C" fn(Out<i32>) -> Code, count: Out<i32>) -> Code {
    let code = real(count);
    let (SUCCESS, Some(all), Some(process)) = (code, count.get(), limited()) else {
        return code;
    };
    let mut given = 0;
    for ordinal in 0..all {
        let mut device = 0;
        let found = call::cuDeviceGet(Out::to(&mut device), ordinal) == SUCCESS;
        given += i32::from(found && process.has(device));
    }
    count.put(given);
    code
}

pub(crate) fn device(
    real: extern "C" fn(Out<Device>, i32) -> Code,
    device: Out<Device>,
    ordinal: i32,
) -> Code {
    let Some(process) = limited().filter(|_| !device.is_null() && ordinal >= 0) else {
        return real(device, ordinal);
    };
    let mut left = ordinal;
    for behind in 0.. {
        let mut found = 0;
        let code = real(Out::to(&mut found), behind);
        if code != SUCCESS {
            return code;
        }
        if process.has(found) {
            if left == 0 {
                device.put(found);
                return SUCCESS;
            }
            left -= 1;
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
    let process = limited().filter(|_| code == SUCCESS);
    let card = process.and_then(|process| Some((process, process.card(device).ok()??)));
    if let (Some(all), Some((process, card))) = (bytes.get(), card) {
        let limit = size(process.limits.memory(card));
        bytes.put(if process.is_scaled() {
            limit
        } else {
            all.min(limit)
        });
    }
    code
}

pub(crate) fn memory_info(
    real: extern "C" fn(Out<usize>, Out<usize>) -> Code,
    free: Out<usize>,
    total: Out<usize>,
) -> Code {
    // A question takes nothing: without limits the driver's own answer is given.
    let Some(process) = limited() else {
        return real(free, total);
    };
    let account = match Account::of_current() {
        Ok(Some(account)) => account,
        Ok(None) => return real(free, total),
        // There is no room for the context itself.
        Err(_) => return nothing_left(process, real, free, total),
    };
    let (mut real_free, mut real_total) = (0, 0);
    let code = real(Out::to(&mut real_free), Out::to(&mut real_total));
    if code != SUCCESS {
        return code;
    }
    let seen = of_card(account.process, account.card);
    let left = seen.total - seen.used;
    // The card itself may have less, which matters where all must lie on it.
    let (all, left) = if account.process.is_scaled() {
        (seen.total, left)
    } else {
        (seen.total.min(long(real_total)), left.min(long(real_free)))
    };
    total.put(size(all));
    // The driver gives whole blocks.
    free.put(size(left / BLOCK * BLOCK));
    code
}

/// The limit of the current card, of which nothing is free.
fn nothing_left(
    process: &Process,
    real: extern "C" fn(Out<usize>, Out<usize>) -> Code,
    free: Out<usize>,
    total: Out<usize>,
) -> Code {
    let (mut real_free, mut real_total, mut device) = (0, 0, 0);
    let code = real(Out::to(&mut real_free), Out::to(&mut real_total));
    if code != SUCCESS {
        return code;
    }
    let asked = call::cuCtxGetDevice(Out::to(&mut device));
    let card = process.card(device).ok().flatten();
    let limit = card
        .filter(|_| asked == SUCCESS)
        .map_or(0, |card| size(process.limits.memory(card)));
    total.put(if process.is_scaled() {
        limit
    } else {
        real_total.min(limit)
    });
    free.put(0);
    SUCCESS
}

/// A card's memory as the container sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) total: u64,
    /// At most `total`.
    pub(crate) used: u64,
    /// More than the card has may have been promised.
    pub(crate) scaled: bool,
}

impl Seen {
    /// All that is shown of a card that has `all`.
    pub(crate) fn total_of(self, all: u64) -> u64 {
        if self.scaled {
            self.total
        } else {
            self.total.min(all)
        }
    }
}

pub(crate) fn of_card(process: &'static Process, card: usize) -> Seen {
    process.leaving.look(process);
    process.pools.look();
    process.graphs.look(process);
    // An error leaves the totals too high: less is called free.
    let _ = process.seat.settle(process.limits.devices());
    let total = process.limits.memory(card);
    let used = process
        .seat
        .used(card)
        .saturating_add(process.limits.overhead(card));
    Seen {
        total,
        used: used.min(total),
        scaled: process.is_scaled(),
    }
}

/// This process, if its container is limited.
pub(crate) fn limited() -> Option<&'static Process> {
    process::get().filter(|process| !process.is_uncontrolled())
}
