//! A process's place in the counters file: its slot, held by a lock that lives with the mapping,
//! and the accounting of what it uses.
//!
//! Fed by: libvgpu.so, once in each process; after a fork the child takes a seat of its own and
//! leaves its parent's alone (the mapping is not there).
//! Must not: wait for another process, or hold a descriptor that the application could close.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use crate::account::{self, Audit, Refused, Share, Word};
use crate::counters::{AttachError, Compute, Counters, SHARED, SLOTS, USED, children, start};
use crate::going::is_going;
use crate::limits::MAX_DEVICES;
use crate::lock::{self, Hold};
use crate::map::{self, Map};

/// Looks for a moment of rest before an audit is given up.
const AUDITS: u32 = 64;
/// Tries to get into the shared slot while it is being emptied.
const TRIES: u32 = 1_000;
/// Bytes that are mapped for a lock.
const PAGE: usize = 4096;
/// Holder of the shared slot.
const MANY: u64 = u64::MAX;

/// A slot of this process.
#[derive(Debug)]
pub struct Seat {
    counters: Counters,
    slot: usize,
    path: CString,
    /// A mapping that children have too.
    children: OnceLock<Map>,
}

/// A process of the container and what it uses on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id in its own namespace; `None` for those of the shared slot.
    pub pid: Option<u32>,
    /// Bytes, contexts included.
    pub used: u64,
}

impl Seat {
    /// Takes a slot in the file at `path`.
    pub fn take(path: &CStr) -> Result<Self, AttachError> {
        let failed = |step| move |source| AttachError::File { step, source };
        let file = map::open(path, libc::O_RDWR).map_err(failed("opened"))?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let map = Map::new(&file, USED, access).map_err(failed("mapped"))?;
        map.not_for_children()
            .map_err(failed("kept from children"))?;
        let counters = Counters(map);
        if !counters.is_known() {
            return Err(AttachError::Layout);
        }
        let slot = claim(&counters, &file).map_err(failed("locked"))?;
        let slot = slot.ok_or(AttachError::NoSlot)?;
        // The mapping keeps the open file, and with it the lock; the descriptor goes here.
        Ok(Self {
            counters,
            slot,
            path: path.to_owned(),
            children: OnceLock::new(),
        })
    }

    /// From now on a driver may hold memory of this process until the last of its children that
    /// has its files open ended too, so the slot is not emptied before: forked children hold the
    /// lock of its second byte. One that executes another program lets go of both.
    pub fn count_children(&self) {
        let hold = || {
            let file = map::open(&self.path, libc::O_RDONLY)?;
            lock::set(&file, children(self.slot), Hold::Shared)?;
            Map::new(&file, PAGE, libc::PROT_READ)
        };
        if self.children.get().is_none()
            && let Ok(map) = hold()
        {
            // Another thread may have been here first: the same lock twice is as good.
            let _ = self.children.set(map);
        }
    }

    /// The number of the slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Takes `size` bytes of a device if all processes then have no more than `limit`.
    pub fn reserve(&self, device: usize, size: u64, limit: u64) -> Result<u64, Refused> {
        let taken = self.share(device).reserve(size, limit);
        if let Ok(used) = taken {
            self.counters.peak(device).fetch_max(used, Relaxed);
        }
        taken
    }

    /// Counts a request that was refused for good; a reservation may be tried several times before.
    pub fn note_refusal(&self, device: usize) {
        self.counters.refused(device).fetch_add(1, Relaxed);
    }

    /// Takes `size` bytes that the driver has given already.
    pub fn charge(&self, device: usize, size: u64) {
        let used = self.share(device).charge(size);
        self.counters.peak(device).fetch_max(used, Relaxed);
    }

    /// Gives `size` bytes back.
    pub fn release(&self, device: usize, size: u64) {
        self.share(device).release(size);
    }

    /// Notes that of the bytes used this many more are contexts (fewer: two's complement).
    pub fn note_contexts(&self, device: usize, size: u64) {
        self.counters
            .contexts(self.slot, device)
            .fetch_add(size, Relaxed);
    }

    /// Bytes of a device in use by all processes.
    pub fn used(&self, device: usize) -> u64 {
        account::bytes(self.counters.total(device))
    }

    /// The compute words of a device.
    pub fn compute(&self, device: usize) -> Compute<'_> {
        self.counters.compute(device)
    }

    /// The processes that use a device.
    pub fn processes(&self, device: usize) -> impl Iterator<Item = Process> {
        self.slots().filter_map(move |slot| {
            let holder = self.counters.holder(slot).load(SeqCst);
            let used = self.counters.used(slot, device).load(SeqCst);
            let pid = u32::try_from(holder).ok();
            (holder != 0 && used != 0).then_some(Process { pid, used })
        })
    }

    /// Empties the slots of processes that are dead, and whose memory the driver has freed, and makes the totals of the first `devices`
    /// exact. An error means that the file cannot be reached any more (`chroot`): the totals then
    /// stay too high. True when all totals are known to be exact.
    pub fn settle(&self, devices: usize) -> io::Result<bool> {
        let taken = |slot: &usize| self.counters.holder(*slot).load(SeqCst) != 0;
        let others = || self.slots().filter(|slot| *slot != self.slot).filter(taken);
        if others().next().is_some() {
            let file = map::open(&self.path, libc::O_RDWR)?;
            for slot in others() {
                if lock::set(&file, start(slot), Hold::Alone)? {
                    if !is_held(&file, slot, self.counters.holder(slot).load(SeqCst))? {
                        empty(&self.counters, slot);
                    }
                    lock::set(&file, start(slot), Hold::Free)?;
                }
            }
        }
        let mut exact = true;
        for device in 0..devices.min(MAX_DEVICES) {
            exact &= (0..AUDITS).any(|_| self.audit(device));
        }
        Ok(exact)
    }

    /// False while somebody is at work.
    fn audit(&self, device: usize) -> bool {
        let slots = || {
            self.slots()
                .map(|slot| (self.counters.busy(slot), self.counters.used(slot, device)))
        };
        let done = account::audit(self.counters.total(device), slots) != Audit::Busy;
        if !done {
            std::thread::yield_now();
        }
        done
    }

    /// The slots that were ever used, and the shared one.
    fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let high = self.counters.high().load(SeqCst);
        let high = usize::try_from(high).unwrap_or(SLOTS).min(SLOTS);
        (0..high).chain([SHARED])
    }

    fn share(&self, device: usize) -> Share<'_, core::sync::atomic::AtomicU64> {
        Share {
            total: self.counters.total(device),
            busy: self.counters.busy(self.slot),
            used: self.counters.used(self.slot, device),
        }
    }
}

/// Takes a slot: one that looks free, else one whose holder is dead, else a part of the shared one.
fn claim(counters: &Counters, file: &OwnedFd) -> io::Result<Option<usize>> {
    let free = (0..SLOTS).filter(|slot| counters.holder(*slot).load(SeqCst) == 0);
    for slot in free.chain(0..SLOTS) {
        if lock::set(file, start(slot), Hold::Alone)? {
            let before = counters.holder(slot).load(SeqCst);
            if before != 0 && is_held(file, slot, before)? {
                lock::set(file, start(slot), Hold::Free)?;
                continue;
            }
            if before != 0 {
                empty(counters, slot);
            }
            counters
                .holder(slot)
                .store(u64::from(std::process::id()), SeqCst);
            counters.high().fetch_max(slot as u64 + 1, SeqCst);
            return Ok(Some(slot));
        }
    }
    for _ in 0..TRIES {
        if lock::set(file, start(SHARED), Hold::Shared)? {
            counters.holder(SHARED).store(MANY, SeqCst);
            return Ok(Some(SHARED));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

/// The driver may still hold memory of a process that has no slot any more: it has not closed its
/// files, or children of its have them.
fn is_held(file: &OwnedFd, slot: usize, holder: u64) -> io::Result<bool> {
    if !lock::set(file, children(slot), Hold::Alone)? {
        return Ok(true);
    }
    lock::set(file, children(slot), Hold::Free)?;
    Ok(is_going(holder))
}

/// Empties a slot whose lock is held; its holder word last, so that a death here is found again.
fn empty(counters: &Counters, slot: usize) {
    let used = (0..MAX_DEVICES).map(|device| counters.used(slot, device));
    account::reap(counters.busy(slot), used);
    for device in 0..MAX_DEVICES {
        counters.contexts(slot, device).store(0, Relaxed);
    }
    Word::store(counters.holder(slot), 0);
}

#[cfg(test)]
#[path = "seat_tests.rs"]
mod tests;
