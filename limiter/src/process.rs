//! This process's place: the seat's two files, and what it holds. Made at the first call that
//! needs it, and anew in a forked child, which can use nothing of its parent's driver.
//!
//! Fed by: the paths of design, which no tenant can change. Must not: wait, or fail twice aloud.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt::Display;
use std::sync::OnceLock;

use aliquot_region::fork::ForkFlag;
use aliquot_region::limits::{Limits, OVERSUBSCRIBE, UNCONTROLLED, UUID};
use aliquot_region::seat::Seat;

use crate::context::Contexts;
use crate::ffi::{Code, Device, NOT_PERMITTED, Out, SUCCESS};
use crate::graph_memory::GraphMemory;
use crate::green::Greens;
use crate::leaving::Leaving;
use crate::ledger::{Entry, Ledger};
use crate::library::Libraries;
use crate::lock::Lock;
use crate::log;
use crate::module::Modules;
use crate::pace::Pace;
use crate::physical::PhysicalMemory;
use crate::pool::Pools;
use crate::sizes::Sizes;
use crate::table::call;

/// The host's page, in a directory that cannot be renamed away.
const LIMITS: &CStr = c"/.aliquot/limits";
/// Everybody's slots.
const COUNTERS: &CStr = c"/.aliquot/counters/slots";
/// CUDA devices whose card is remembered.
const DEVICES: usize = 64;
const UNKNOWN: u8 = 0;
const NOT_GIVEN: u8 = u8::MAX;

/// What this process has.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) limits: Limits,
    pub(crate) seat: Seat,
    pub(crate) ledger: Ledger,
    pub(crate) contexts: Contexts,
    pub(crate) physical: PhysicalMemory,
    pub(crate) pools: Pools,
    pub(crate) graphs: GraphMemory,
    pub(crate) greens: Greens,
    pub(crate) modules: Modules,
    pub(crate) libraries: Libraries,
    pub(crate) sizes: Sizes,
    /// Managed memory that the program takes for memory of the card: bytes by address.
    pub(crate) elsewhere: Lock<BTreeMap<u64, u64>>,
    pub(crate) leaving: Leaving,
    pub(crate) pace: Pace,
    /// Of each CUDA device the card's place in the limits page, plus one.
    cards: [AtomicU8; DEVICES],
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(null_mut());
static SAID: AtomicBool = AtomicBool::new(false);

/// This process, if it has a seat; why not is said once.
pub(crate) fn get() -> Option<&'static Process> {
    static FLAG: OnceLock<Option<ForkFlag>> = OnceLock::new();
    let new = || ForkFlag::new().map_err(|error| say(&error)).ok();
    let flag = (*FLAG.get_or_init(new))?;
    if !flag.is_raised() {
        start(flag)?;
    }
    // SAFETY: null, or leaked by `start` in this process: the flag is raised in no other.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// This process, or the answer to a call that must not pass without one.
pub(crate) fn required() -> Result<&'static Process, Code> {
    get().ok_or(NOT_PERMITTED)
}

#[cold]
fn start(flag: ForkFlag) -> Option<()> {
    if !flag.begin() {
        return flag.is_raised().then_some(());
    }
    let found = Limits::open(LIMITS)
        .map_err(|error| error.to_string())
        .and_then(|limits| match Seat::take(COUNTERS) {
            Ok(seat) => Ok((limits, seat)),
            Err(error) => Err(error.to_string()),
        });
    match found {
        Ok((limits, seat)) => {
            log::line(
                log::INFO,
                format_args!(
                    "limits of {} devices, slot {}, first {} MiB",
                    limits.devices(),
                    seat.slot(),
                    limits.memory(0) >> 20
                ),
            );
            let pace = Pace::new(limits.devices());
            let process = Box::new(Process {
                limits,
                seat,
                ledger: Ledger::new(),
                contexts: Contexts::default(),
                physical: PhysicalMemory::default(),
                pools: Pools::default(),
                graphs: GraphMemory::default(),
                greens: Greens::default(),
                modules: Modules::default(),
                libraries: Libraries::default(),
                sizes: Sizes::default(),
                elsewhere: Lock::default(),
                leaving: Leaving::default(),
                pace,
                cards: [const { AtomicU8::new(UNKNOWN) }; DEVICES],
            });
            CURRENT.store(Box::into_raw(process), Ordering::Release);
            flag.raise();
            Some(())
        }
        Err(why) => {
            flag.abandon();
            say(&why);
            None
        }
    }
}

/// Says once why there is no seat.
fn say(why: &dyn Display) {
    if !SAID.swap(true, Ordering::Relaxed) {
        log::line(
            log::ERROR,
            format_args!("no GPU memory can be given: {why}"),
        );
    }
}

impl Process {
    /// The pod asked for no limits and was allowed to.
    pub(crate) fn is_uncontrolled(&self) -> bool {
        self.limits.flags() & UNCONTROLLED != 0
    }

    /// More may have been promised than the cards have.
    pub(crate) fn is_scaled(&self) -> bool {
        self.limits.flags() & OVERSUBSCRIBE != 0
    }

    /// The driver has freed something that was taken out of the ledger.
    pub(crate) fn left(&self, at: u64, entry: Entry) {
        let back = self.ledger.leave(at, entry);
        if back > 0 {
            self.seat.release(entry.card, back);
        }
    }

    /// A pointer is the program's no more.
    pub(crate) fn forget_elsewhere(&self, at: u64) {
        if self.is_scaled() {
            self.elsewhere.lock().remove(&at);
        }
    }

    /// The card with this uuid, as the limits page counts them.
    pub(crate) fn card_named(&self, uuid: &[u8]) -> Option<usize> {
        (0..self.limits.devices()).find(|card| {
            let (name, length) = self.limits.uuid(*card);
            name[..length] == *uuid
        })
    }

    /// The card behind a CUDA device; `None`: the seat has no share of it. The error is the
    /// driver's, of a device that it does not know, or does not know yet.
    pub(crate) fn card(&self, device: Device) -> Result<Option<usize>, Code> {
        let place = usize::try_from(device)
            .ok()
            .and_then(|device| self.cards.get(device));
        match place.map(|place| place.load(Ordering::Relaxed)) {
            Some(NOT_GIVEN) => Ok(None),
            Some(word) if word != UNKNOWN => Ok(Some(usize::from(word) - 1)),
            _ => {
                let found = self.find_card(device)?;
                let word = found.map(|card| u8::try_from(card + 1).unwrap_or(NOT_GIVEN));
                if let Some(place) = place {
                    place.store(word.unwrap_or(NOT_GIVEN), Ordering::Relaxed);
                }
                Ok(found)
            }
        }
    }

    /// The seat has a share of a CUDA device.
    pub(crate) fn has(&self, device: Device) -> bool {
        matches!(self.card(device), Ok(Some(_)))
    }

    fn find_card(&self, device: Device) -> Result<Option<usize>, Code> {
        let mut bytes = [0; 16];
        let mut code = call::cuDeviceGetUuid_v2(Out::to(&mut bytes), device);
        if code != SUCCESS {
            code = call::cuDeviceGetUuid(Out::to(&mut bytes), device);
        }
        if code != SUCCESS {
            return Err(code);
        }
        let digits = uuid_digits(bytes);
        // `GPU-` or `MIG-` and the digits.
        Ok((0..self.limits.devices()).find(|card| {
            let (name, length) = self.limits.uuid(*card);
            length == UUID && name[4..] == digits
        }))
    }

    /// The most that the container may have of a card.
    pub(crate) fn limit(&self, card: usize) -> u64 {
        let overhead = self.limits.overhead(card);
        self.limits.memory(card).saturating_sub(overhead)
    }
}

/// A uuid as it is written: 8-4-4-4-12 digits.
fn uuid_digits(bytes: [u8; 16]) -> [u8; 36] {
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (i, byte) in bytes.into_iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            at += 1;
        }
        for digit in [byte >> 4, byte & 15] {
            text[at] = b"0123456789abcdef"[usize::from(digit)];
            at += 1;
        }
    }
    text
}

/// Says at the end of a process that had a seat what it had, if asked to.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

#[cfg(not(test))]
extern "C" fn at_exit() {
    if CURRENT.load(Ordering::Acquire).is_null() || !log::wants(log::INFO) {
        return;
    }
    if let Some(process) = get() {
        let used = process.seat.used(0) >> 20;
        log::line(
            log::INFO,
            format_args!("exit; the container uses {used} MiB of the first device"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes: [u8; 16] = core::array::from_fn(|i| u8::try_from(i * 17).unwrap());
        assert_eq!(&uuid_digits(bytes), b"00112233-4455-6677-8899-aabbccddeeff");
    }
}
