//! A process's slot in the counters file, claimed by a lock that lives with the mapping, and the
//! accounting of what the process uses.
//!
//! After a fork the child claims a slot of its own; it does not have its parent's mapping. A
//! process never waits for another one, and keeps no descriptor that the application could close.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use crate::account::{self, AtomicWord, Audit, DeviceAccount, OverLimit};
use crate::counters::{
    AttachError, BLOCK, ComputeWords, MappedCounters, SHARED, SLOTS, USED, children_lock, start,
};
use crate::exiting::is_exiting;
use crate::limits::MAX_DEVICES;
use crate::lock::{self, LockMode};
use crate::map::{self, Map};

/// Attempts to find a moment without running operations before an audit is given up.
const MAX_AUDITS: u32 = 64;
/// Attempts to enter the shared slot while it is being cleared.
const MAX_CLAIM_ATTEMPTS: u32 = 1_000;
/// Bytes to map so that a lock stays.
const PAGE: usize = 4096;
/// Owner word of the shared slot.
const SHARED_OWNER: u64 = u64::MAX;

/// The slot of this process.
#[derive(Debug)]
pub struct ProcessSlot {
    counters: MappedCounters,
    slot: usize,
    path: CString,
    /// A mapping that forked children inherit.
    children: OnceLock<Map>,
}

/// A process of the container and its use of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotProcess {
    /// Its id in its own namespace; `None` for those of the shared slot.
    pub pid: Option<u32>,
    /// Bytes, contexts included.
    pub used: u64,
}

impl ProcessSlot {
    /// Claims a slot in the file at `path`.
    pub fn take(path: &CStr) -> Result<Self, AttachError> {
        let failed = |step| move |source| AttachError::File { step, source };
        let file = map::open(path, libc::O_RDWR).map_err(failed("opened"))?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let map = Map::new(&file, USED, access).map_err(failed("mapped"))?;
        map.exclude_from_fork()
            .map_err(failed("excluded from forks"))?;
        let counters = MappedCounters(map);
        if !counters.has_known_layout() {
            return Err(AttachError::Layout);
        }
        let slot = claim_slot(&counters, &file).map_err(failed("locked"))?;
        let slot = slot.ok_or(AttachError::NoSlot)?;
        // The mapping keeps the open file description, and with it the lock; the descriptor is
        // closed here.
        Ok(Self {
            counters,
            slot,
            path: path.to_owned(),
            children: OnceLock::new(),
        })
    }

    /// From now on the driver may keep memory of this process until the last of its children that
    /// inherited its files has ended too, so the slot must not be cleared before: forked children
    /// have the lock on its second byte. A child that executes another program drops both.
    pub fn track_children(&self) {
        let take_lock = || {
            let file = map::open(&self.path, libc::O_RDONLY)?;
            lock::set(&file, children_lock(self.slot), LockMode::Shared)?;
            Map::new(&file, PAGE, libc::PROT_READ)
        };
        if self.children.get().is_none()
            && let Ok(map) = take_lock()
        {
            // Another thread may have been faster; taking the same lock twice does no harm.
            let _ = self.children.set(map);
        }
    }

    /// Index of the slot.
    pub fn index(&self) -> usize {
        self.slot
    }

    /// Reserves `size` bytes of a device if all processes together then use at most `limit`; the
    /// bytes in use then.
    pub fn reserve(&self, device: usize, size: u64, limit: u64) -> Result<u64, OverLimit> {
        let is_owned = self.account(device).reserve(size, limit);
        if let Ok(used) = is_owned {
            self.counters.peak(device).fetch_max(used, Relaxed);
        }
        is_owned
    }

    /// Counts a request that was finally refused; the reservation may have been tried several
    /// times.
    pub fn note_refusal(&self, device: usize) {
        self.counters.refused(device).fetch_add(1, Relaxed);
        let own = self.counters.refused_in_slot(self.slot, device);
        own.fetch_add(1, Relaxed);
    }

    /// Reports to the host that a call within the request waits for `bytes`, at `now` of the monotonic
    /// clock; 0 when it no longer waits. Of several calls, one is reported.
    pub fn report_lacking(&self, device: usize, bytes: u64, now: u64) {
        let [lacking, at] = self.counters.lacking(device);
        lacking.store(bytes, Relaxed);
        at.store(now, Relaxed);
    }

    /// Adds `size` bytes that the driver has allocated already.
    pub fn charge(&self, device: usize, size: u64) {
        let used = self.account(device).charge(size);
        self.counters.peak(device).fetch_max(used, Relaxed);
    }

    /// Releases `size` bytes.
    pub fn release(&self, device: usize, size: u64) {
        self.account(device).release(size);
    }

    /// Adds to the part of the used bytes that is contexts (negative: two's complement).
    pub fn note_contexts(&self, device: usize, size: u64) {
        self.counters
            .contexts(self.slot, device)
            .fetch_add(size, Relaxed);
    }

    /// Adds to the part of the used bytes that is managed memory.
    pub fn note_managed(&self, device: usize, bytes: u64) {
        self.counters
            .managed_blocks(self.slot, device)
            .fetch_add(blocks(bytes), Relaxed);
    }

    /// Undoes [`Self::note_managed`].
    pub fn note_managed_released(&self, device: usize, bytes: u64) {
        self.counters
            .managed_blocks(self.slot, device)
            .fetch_sub(blocks(bytes), Relaxed);
    }

    /// Bytes of a device in use by all processes.
    pub fn used(&self, device: usize) -> u64 {
        account::bytes(self.counters.total(device))
    }

    /// The compute words of a device.
    pub fn compute(&self, device: usize) -> ComputeWords<'_> {
        self.counters.compute(device)
    }

    /// Counts this process among those with work on a device, or no longer.
    pub fn set_running(&self, device: usize, is_running: bool) {
        let (own, bit) = (self.counters.running(self.slot), 1 << device);
        let running = self.counters.compute(device).running;
        if !is_running {
            if own.fetch_and(!bit, Relaxed) & bit != 0 {
                decrement(running);
            }
        } else if own.fetch_or(bit, Relaxed) & bit == 0 {
            running.fetch_add(1, Relaxed);
        }
    }

    /// The processes that use a device.
    pub fn processes(&self, device: usize) -> impl Iterator<Item = SlotProcess> {
        self.slots().filter_map(move |slot| {
            let owner = self.counters.owner(slot).load(SeqCst);
            let used = self.counters.used(slot, device).load(SeqCst);
            let pid = u32::try_from(owner).ok();
            (owner != 0 && used != 0).then_some(SlotProcess { pid, used })
        })
    }

    /// Clears the slots of dead processes whose memory the driver has freed, and corrects the
    /// totals of the first `devices`. Returns whether all totals are known to be exact. An error
    /// means that the file can no longer be reached (`chroot`): the totals then stay too high.
    pub fn settle(&self, devices: usize) -> io::Result<bool> {
        let is_owned = |slot: &usize| self.counters.owner(*slot).load(SeqCst) != 0;
        let others = || {
            self.slots()
                .filter(|slot| *slot != self.slot)
                .filter(is_owned)
        };
        if others().next().is_some() {
            let file = map::open(&self.path, libc::O_RDWR)?;
            for slot in others() {
                if lock::set(&file, start(slot), LockMode::Exclusive)? {
                    if !is_still_in_use(&file, slot, self.counters.owner(slot).load(SeqCst))? {
                        clear_slot(&self.counters, slot);
                    }
                    lock::set(&file, start(slot), LockMode::Unlocked)?;
                }
            }
        }
        let mut exact = true;
        for device in 0..devices.min(MAX_DEVICES) {
            exact &= (0..MAX_AUDITS).any(|_| self.audit_device(device));
        }
        Ok(exact)
    }

    /// False while an operation is under way.
    fn audit_device(&self, device: usize) -> bool {
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

    /// All slots that were ever used, and the shared one.
    fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let high = self.counters.high().load(SeqCst);
        let high = usize::try_from(high).unwrap_or(SLOTS).min(SLOTS);
        (0..high).chain([SHARED])
    }

    fn account(&self, device: usize) -> DeviceAccount<'_, AtomicU64> {
        DeviceAccount {
            total: self.counters.total(device),
            busy: self.counters.busy(self.slot),
            used: self.counters.used(self.slot, device),
        }
    }
}

/// Never below 0: a process may be killed between its bit and the count.
fn decrement(running: &AtomicU64) {
    let _ = running.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
}

/// Blocks of managed memory, at most what a word can count.
fn blocks(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX)
}

/// Claims a slot: one that looks free, else one whose owner is dead, else a part of the shared one.
fn claim_slot(counters: &MappedCounters, file: &OwnedFd) -> io::Result<Option<usize>> {
    let free = (0..SLOTS).filter(|slot| counters.owner(*slot).load(SeqCst) == 0);
    for slot in free.chain(0..SLOTS) {
        if lock::set(file, start(slot), LockMode::Exclusive)? {
            let before = counters.owner(slot).load(SeqCst);
            if before != 0 && is_still_in_use(file, slot, before)? {
                lock::set(file, start(slot), LockMode::Unlocked)?;
                continue;
            }
            if before != 0 {
                clear_slot(counters, slot);
            }
            counters
                .owner(slot)
                .store(u64::from(std::process::id()), SeqCst);
            counters.high().fetch_max(slot as u64 + 1, SeqCst);
            return Ok(Some(slot));
        }
    }
    for _ in 0..MAX_CLAIM_ATTEMPTS {
        if lock::set(file, start(SHARED), LockMode::Shared)? {
            counters.owner(SHARED).store(SHARED_OWNER, SeqCst);
            return Ok(Some(SHARED));
        }
        std::thread::yield_now();
    }
    Ok(None)
}

/// Whether the driver may still have memory of the slot's process: it has not closed its files yet,
/// or its children have them.
fn is_still_in_use(file: &OwnedFd, slot: usize, owner: u64) -> io::Result<bool> {
    if !lock::set(file, children_lock(slot), LockMode::Exclusive)? {
        return Ok(true);
    }
    lock::set(file, children_lock(slot), LockMode::Unlocked)?;
    Ok(is_exiting(owner))
}

/// Clears a slot whose lock this process has. The owner word comes last, so that the next process
/// notices a death in between.
fn clear_slot(counters: &MappedCounters, slot: usize) {
    let used = (0..MAX_DEVICES).map(|device| counters.used(slot, device));
    account::clear(counters.busy(slot), used);
    let running = counters.running(slot).swap(0, Relaxed);
    for device in 0..MAX_DEVICES {
        if running & (1 << device) != 0 {
            decrement(counters.compute(device).running);
        }
        counters.contexts(slot, device).store(0, Relaxed);
        counters.managed_blocks(slot, device).store(0, Relaxed);
        counters.refused_in_slot(slot, device).store(0, Relaxed);
    }
    AtomicWord::store(counters.owner(slot), 0);
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
