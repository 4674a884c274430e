//! This process's state: the container's limits page, its slot in the counters file, and what every
//! launch needs. Created by the first call that needs it, and again in a forked child, which can
//! use nothing of its parent's driver state; so is what each module keeps of a process
//! ([`PerProcess`]).
//!
//! The paths are fixed, so no tenant can change them.

use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use aliquot_region::fork::ForkFlag;
use aliquot_region::limits::{LimitsPage, OVERSUBSCRIBE, UNCONTROLLED, UUID};
use aliquot_region::slot::ProcessSlot;

use crate::clock;
use crate::contexts::Contexts;
use crate::device_pace::Pace;
use crate::driver::call;
use crate::ffi::{Code, Device, NOT_PERMITTED, Out, SUCCESS};
use crate::log;

/// The host's page, in a directory that cannot be renamed.
const LIMITS: &str = "/.aliquot/limits";
const COUNTERS: &str = "/.aliquot/counters/slots";
/// The driver's node: the descriptors that stand for memory are open files of it.
const CONTROL_NODE: &str = "/dev/nvidiactl";
/// CUDA devices whose index in the limits page is cached.
const MAX_CUDA_DEVICES: usize = 64;
const UNKNOWN: u8 = 0;
const NOT_ASSIGNED: u8 = u8::MAX;

/// The container's share, as this process reads it.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) limits: LimitsPage,
    /// For each CUDA device its index in the limits page, plus one.
    device_indexes: [AtomicU8; MAX_CUDA_DEVICES],
}

#[derive(Debug)]
pub(crate) struct ProcessState {
    share: Share,
    pub(crate) slot: ProcessSlot,
    pub(crate) contexts: Contexts,
    pub(crate) pace: Pace,
}

impl Deref for ProcessState {
    type Target = Share;

    fn deref(&self) -> &Share {
        &self.share
    }
}

#[derive(Debug)]
struct RefusedProcess {
    pid: u32,
    share: Share,
}

/// What this process may have and see.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// Everything: its pod asked for no limits and was allowed to.
    Uncontrolled,
    Limited(&'static ProcessState),
    /// No memory and no work, because nothing could count it. It sees the share as used up, and no
    /// device if the limits page cannot be read.
    Refused(&'static Share),
}

impl Access {
    /// The share of which the process sees the devices; `None`: it sees all of the node.
    pub(crate) fn share(self) -> Option<&'static Share> {
        match self {
            Self::Uncontrolled => None,
            Self::Limited(process) => Some(&process.share),
            Self::Refused(share) => Some(share),
        }
    }

    pub(crate) fn limited(self) -> Option<&'static ProcessState> {
        match self {
            Self::Limited(process) => Some(process),
            Self::Uncontrolled | Self::Refused(_) => None,
        }
    }
}

static CURRENT: AtomicPtr<ProcessState> = AtomicPtr::new(null_mut());
static REFUSED: AtomicPtr<RefusedProcess> = AtomicPtr::new(null_mut());
static LOGGED: AtomicBool = AtomicBool::new(false);

/// Raised while [`CURRENT`] is of this process.
static FLAG: OnceLock<Option<ForkFlag>> = OnceLock::new();

/// The state of this process, if it has a slot; the reason is logged once if not.
pub(crate) fn get() -> Option<&'static ProcessState> {
    let new = || ForkFlag::new().map_err(|error| log_once(&error)).ok();
    let flag = (*FLAG.get_or_init(new))?;
    if !flag.is_raised() {
        start(flag)?;
    }
    // SAFETY: null, or leaked by `start` in this process: the flag is raised in no other.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The state of this process, if its container is limited; the error of a call that must not pass
/// where nothing can be counted.
pub(crate) fn required() -> Result<Option<&'static ProcessState>, Code> {
    let process = get().ok_or(NOT_PERMITTED)?;
    Ok((!process.is_uncontrolled()).then_some(process))
}

pub(crate) fn access() -> Access {
    match get() {
        Some(process) if process.is_uncontrolled() => Access::Uncontrolled,
        Some(process) => Access::Limited(process),
        None => Access::Refused(refused_share()),
    }
}

/// The state of this process, if its container is limited.
pub(crate) fn limited() -> Option<&'static ProcessState> {
    access().limited()
}

#[cold]
fn refused_share() -> &'static Share {
    let pid = std::process::id();
    // SAFETY: null, or leaked below, here or in a parent.
    let known = unsafe { REFUSED.load(Ordering::Acquire).as_ref() };
    if let Some(known) = known.filter(|known| known.pid == pid) {
        return &known.share;
    }
    let limits = LimitsPage::open(Path::new(LIMITS)).unwrap_or_else(|_| LimitsPage::empty());
    let share = Share::new(limits);
    let new: *mut RefusedProcess = Box::into_raw(Box::new(RefusedProcess { pid, share }));
    REFUSED.store(new, Ordering::Release);
    // SAFETY: leaked just now.
    unsafe { &(*new).share }
}

#[cold]
fn start(flag: ForkFlag) -> Option<()> {
    if !flag.begin(clock::pause) {
        return flag.is_raised().then_some(());
    }
    match ProcessState::new() {
        Ok(process) => {
            CURRENT.store(Box::into_raw(Box::new(process)), Ordering::Release);
            flag.raise();
            Some(())
        }
        Err(error) => {
            flag.abandon();
            log_once(&error);
            None
        }
    }
}

fn log_once(why: &dyn Display) {
    if LOGGED.swap(true, Ordering::Relaxed) {
        return;
    }
    let is_missing = |path: &str| matches!(Path::new(path).try_exists(), Ok(false));
    let expected = if is_missing(LIMITS) || is_missing(COUNTERS) {
        "; expected: /.aliquot itself in this root, as with: mount --rbind /.aliquot ROOT/.aliquot"
    } else {
        ""
    };
    log::line(
        log::ERROR,
        format_args!("no GPU memory can be allocated: {why}{expected}"),
    );
}

impl Share {
    fn new(limits: LimitsPage) -> Self {
        Self {
            limits,
            device_indexes: [const { AtomicU8::new(UNKNOWN) }; MAX_CUDA_DEVICES],
        }
    }

    /// The pod asked for no limits and was allowed to.
    pub(crate) fn is_uncontrolled(&self) -> bool {
        self.limits.flags() & UNCONTROLLED != 0
    }

    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.limits.flags() & OVERSUBSCRIBE != 0
    }

    pub(crate) fn device_index_of_uuid(&self, uuid: &[u8]) -> Option<usize> {
        (0..self.limits.devices()).find(|device_index| {
            let (name, length) = self.limits.uuid(*device_index);
            name[..length] == *uuid
        })
    }

    /// Index of a CUDA device in the limits page; `None`: the container has no share of it. The
    /// error is the driver's, for a device that it does not know, or not yet.
    pub(crate) fn device_index(&self, device: Device) -> Result<Option<usize>, Code> {
        let place = usize::try_from(device)
            .ok()
            .and_then(|device| self.device_indexes.get(device));
        match place.map(|place| place.load(Ordering::Relaxed)) {
            Some(NOT_ASSIGNED) => Ok(None),
            Some(word) if word != UNKNOWN => Ok(Some(usize::from(word) - 1)),
            _ => {
                let found = self.find_device_index(device)?;
                let word = found
                    .map(|device_index| u8::try_from(device_index + 1).unwrap_or(NOT_ASSIGNED));
                if let Some(place) = place {
                    place.store(word.unwrap_or(NOT_ASSIGNED), Ordering::Relaxed);
                }
                Ok(found)
            }
        }
    }

    pub(crate) fn is_assigned(&self, device: Device) -> bool {
        matches!(self.device_index(device), Ok(Some(_)))
    }

    fn find_device_index(&self, device: Device) -> Result<Option<usize>, Code> {
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
        Ok((0..self.limits.devices()).find(|device_index| {
            let (name, length) = self.limits.uuid(*device_index);
            length == UUID && name[4..] == *digits.as_bytes()
        }))
    }

    /// The most bytes that the container may have of a device now.
    pub(crate) fn limit(&self, device_index: usize) -> u64 {
        let overhead = self.limits.overhead(device_index);
        let limit = self.limits.growth_limit(device_index);
        limit.saturating_sub(overhead)
    }
}

impl ProcessState {
    fn new() -> Result<Self, Box<dyn Error>> {
        let limits = LimitsPage::open(Path::new(LIMITS))?;
        let node = Path::new(CONTROL_NODE);
        let slot = ProcessSlot::take(Path::new(COUNTERS), limits.counters(), node)?;
        log::line(
            log::INFO,
            format_args!(
                "limits of {} devices, slot {}, first {} MiB",
                limits.devices(),
                slot.index(),
                limits.memory(0) >> 20
            ),
        );
        Ok(Self {
            slot,
            contexts: Contexts::default(),
            pace: Pace::new(limits.devices()),
            share: Share::new(limits),
        })
    }

    /// Reclaims what dead processes had and closed descriptors kept.
    pub(crate) fn reclaim_dead_slots(&self) -> io::Result<()> {
        self.slot.reclaim_dead_slots(self.limits.devices())
    }
}

/// What a module keeps of a process; a forked child begins with nothing.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(AtomicPtr<Owned<T>>);

#[derive(Debug)]
struct Owned<T> {
    process: *const ProcessState,
    value: T,
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    pub(crate) fn of(&self, process: &ProcessState) -> &'static T {
        let known = self.0.load(Ordering::Acquire);
        // SAFETY: null, or leaked by `begin`.
        match unsafe { known.as_ref() } {
            Some(owned) if core::ptr::eq(owned.process, process) => &owned.value,
            _ => self.begin(known, process),
        }
    }

    #[cold]
    fn begin(&self, known: *mut Owned<T>, process: &ProcessState) -> &'static T {
        let value = T::default();
        let new = Box::into_raw(Box::new(Owned { process, value }));
        let order = Ordering::AcqRel;
        let current = match self
            .0
            .compare_exchange(known, new, order, Ordering::Acquire)
        {
            Ok(_) => new,
            Err(found) => {
                // SAFETY: made above and given to nobody.
                drop(unsafe { Box::from_raw(new) });
                found
            }
        };
        // SAFETY: leaked, here or by another thread of this process.
        unsafe { &(*current).value }
    }
}

/// A UUID in its text form: 8-4-4-4-12 digits.
fn uuid_digits(bytes: [u8; 16]) -> String {
    let all = format!("{:032x}", u128::from_be_bytes(bytes));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &all[part]);
    parts.join("-")
}

/// A process with a slot exits: what it has launched is its work no longer. Logs what the container uses,
/// if the log level asks for it.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

#[cfg(not(test))]
extern "C" fn at_exit() {
    // A forked child that called nothing has none.
    let has_state = matches!(FLAG.get(), Some(Some(flag)) if flag.is_raised());
    let Some(process) = has_state.then(get).flatten() else {
        return;
    };
    for device_index in 0..process.limits.devices() {
        process.slot.set_running(device_index, false);
    }
    if log::is_enabled(log::INFO) {
        let used = process.slot.used(0) >> 20;
        log::line(
            log::INFO,
            format_args!("exit; the container uses {used} MiB of the first device"),
        );
    }
}
