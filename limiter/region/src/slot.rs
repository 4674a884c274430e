//! A process's slot in the counters file, claimed by a lock that lives with the mapping, and the
//! accounting of what the process uses.
//!
//! After a fork the child claims a slot of its own; it does not have its parent's mapping. A
//! process never waits for another one, and keeps no descriptor that the application could close.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::account::{self, AtomicWord, DeviceAccount, SUSPENDED};
use crate::counters::{
    self, AttachError, BLOCK, ComputeWords, ENTRIES, HEADER, MappedCounters, SLOTS, children_lock,
    start,
};
use crate::descriptors;
use crate::exiting::is_exiting;
use crate::limits::MAX_DEVICES;
use crate::lock::{self, LockMode};
use crate::map::{self, Map};
use crate::shared::{self, Entry, Held, Overlap, SharedBlock};
use crate::tag::{self, DeviceNode};

/// Attempts to find a moment without running operations before an audit is given up.
const MAX_AUDITS: u32 = 64;
const PAGE: usize = 4096;

#[derive(Debug)]
pub struct ProcessSlot {
    counters: MappedCounters,
    slot: usize,
    path: PathBuf,
    /// The device's node, of which descriptors that stand for memory are open files.
    node: &'static Path,
    /// A mapping that forked children inherit.
    children: OnceLock<Map>,
}

/// What this process holds of the memory that processes share.
#[derive(Clone, Copy, Debug)]
pub struct Holding {
    pub block: SharedBlock,
    /// Its entry; `None`: all were taken, so that each holder counts for itself.
    entry: Option<usize>,
}

/// A process of the container and its use of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotProcess {
    /// Its id in its own namespace; `None`: the word is none.
    pub pid: Option<u32>,
    /// Bytes, contexts included.
    pub used: u64,
}

impl ProcessSlot {
    /// Claims a slot in the file at `path`, which must have this identity, if it is known. Processes
    /// share memory by descriptors that are open files of `node`.
    pub fn take(
        path: &Path,
        identity: Option<u64>,
        node: &'static Path,
    ) -> Result<Self, AttachError> {
        let failed = |step| move |source| AttachError::File { step, source };
        let file = map::open(path, libc::O_RDWR).map_err(failed("opened"))?;
        let found = map::identity(&file).map_err(failed("inspected"))?;
        if identity.is_some_and(|identity| identity != found) {
            return Err(AttachError::Copy);
        }
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).map_err(failed("read"))?;
        if header != counters::header() {
            return Err(AttachError::Layout);
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let map = Map::new(&file, counters::END, access).map_err(failed("mapped"))?;
        map.exclude_from_fork();
        let counters = MappedCounters { map };
        let claimed = claim_slot(&counters, &file).map_err(failed("locked"))?;
        let slot = claimed.ok_or(AttachError::NoSlot)?;
        // The mapping keeps the open file description, and with it the lock; the descriptor is
        // closed here.
        let taken = Self {
            counters,
            slot,
            path: path.to_owned(),
            node,
            children: OnceLock::new(),
        };
        let has_work = |device| taken.compute(device).running.load(Relaxed) > 0;
        if (0..MAX_DEVICES).any(has_work) {
            // Of processes that were killed at work, too; after an error they count until somebody asks
            // for memory.
            let _ = taken.reclaim_dead_slots(MAX_DEVICES);
        }
        Ok(taken)
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

    pub fn index(&self) -> usize {
        self.slot
    }

    /// Reserves `size` bytes of a device if all processes together then use at most `limit`; the
    /// bytes in use then.
    #[must_use]
    pub fn reserve(&self, device: usize, size: u64, limit: u64) -> Option<u64> {
        let used = self.account(device).reserve(size, limit)?;
        self.counters.peak(device).fetch_max(used, Relaxed);
        Some(used)
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

    pub fn charge(&self, device: usize, size: u64) {
        let used = self.account(device).charge(size);
        self.counters.peak(device).fetch_max(used, Relaxed);
    }

    pub fn release(&self, device: usize, size: u64) {
        self.account(device).release(size);
    }

    /// Records that other processes may hold `block`, for which this process is charged.
    pub fn hold(&self, block: SharedBlock) -> Holding {
        let account = self.account(block.device);
        let entry = account.hold(self.slot, block, self.all_entries());
        Holding { block, entry }
    }

    /// Charges a block that another process of the container may hold, whatever the limit: the
    /// container is charged for it once.
    pub fn adopt(&self, block: SharedBlock) -> Holding {
        let account = self.account(block.device);
        let entry = account.adopt(self.slot, block, self.all_entries());
        self.audit(block.device);
        Holding { block, entry }
    }

    /// Tags a new descriptor of a block with the block's key; its inode. `None`: nothing tells then
    /// what it stands for.
    pub fn tag(&self, descriptor: RawFd, key: u64) -> Option<u64> {
        tag::attach(descriptor, key, self.node)
    }

    /// Records that descriptors with this inode stand for a block.
    pub fn note_descriptor(&self, holding: Holding, inode: u64) {
        if let Some(entry) = holding.entry {
            self.counters.entry(entry).inode.store(inode, SeqCst);
        }
    }

    /// Releases `bytes` of a device that other processes may hold under these keys, or none.
    pub fn release_shared(&self, device: usize, holdings: &[Holding], bytes: u64) {
        if let Some((first, others)) = holdings.split_first() {
            self.let_go(*first, bytes);
            for one in others {
                self.let_go(*one, 0);
            }
        } else if bytes > 0 {
            self.release(device, bytes);
        }
    }

    /// Releases `bytes` of a block: all, or less where something else of this process uses a part.
    pub fn let_go(&self, holding: Holding, bytes: u64) {
        let account = self.account(holding.block.device);
        let Some(entry) = holding.entry else {
            return account.release(bytes);
        };
        let entry = self.counters.entry(entry);
        let had_descriptor = entry.inode.load(SeqCst) != 0;
        account.let_go(&entry, bytes);
        if had_descriptor {
            // Else it stays charged until the next time that memory is reclaimed.
            let _ = self.free_orphans();
        }
        self.audit(holding.block.device);
    }

    /// The block with this key, if a process of the container holds it, or a descriptor does.
    pub fn shared_block(&self, key: u64) -> Option<SharedBlock> {
        let mut entries = self.counters.entries();
        let found = entries.find_map(|entry| {
            let is_it = entry.key.load(Relaxed) == key;
            is_it.then(|| entry.read()).flatten()
        });
        found.map(|held| held.block)
    }

    /// Adds to the part of the used bytes that is contexts (negative: two's complement).
    pub fn note_contexts(&self, device: usize, size: u64) {
        let contexts = self.counters.contexts(self.slot, device);
        contexts.fetch_add(size, Relaxed);
    }

    /// Adds to the part of the used bytes that is managed memory.
    pub fn note_managed(&self, device: usize, bytes: u64) {
        let managed = self.counters.managed_blocks(self.slot, device);
        managed.fetch_add(blocks(bytes), Relaxed);
    }

    pub fn note_managed_released(&self, device: usize, bytes: u64) {
        let managed = self.counters.managed_blocks(self.slot, device);
        managed.fetch_sub(blocks(bytes), Relaxed);
    }

    /// Bytes of a device in use by all processes.
    pub fn used(&self, device: usize) -> u64 {
        account::bytes(self.counters.total(device))
    }

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

    /// The processes that use a device; those that are suspended do not.
    pub fn processes(&self, device: usize) -> impl Iterator<Item = SlotProcess> {
        self.slots().filter_map(move |slot| {
            let owner = self.counters.owner(slot).load(SeqCst);
            let used = self.counters.used(slot, device).load(SeqCst);
            let pid = u32::try_from(owner).ok();
            let is_there = owner != 0 && used != 0 && !self.is_suspended(slot);
            is_there.then_some(SlotProcess { pid, used })
        })
    }

    /// Clears the slots of dead processes whose memory the driver has freed, and the blocks of which
    /// no descriptor is open, and corrects the totals of the first `devices`, also in a process that has
    /// no descriptor left. An error means that the file can no longer be reached (`chroot`): the totals
    /// then stay too high.
    pub fn reclaim_dead_slots(&self, devices: usize) -> io::Result<()> {
        descriptors::with_some(None, || self.try_reclaim_dead_slots(devices))
    }

    fn try_reclaim_dead_slots(&self, devices: usize) -> io::Result<()> {
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
        self.free_orphans()?;
        self.audit_all(devices);
        Ok(())
    }

    /// Corrects the totals of the first `devices`.
    fn audit_all(&self, devices: usize) {
        for device in 0..devices.min(MAX_DEVICES) {
            self.audit(device);
        }
    }

    /// The driver moved the memory of a process to the host: none of it counts on the first
    /// `devices`, until [`Self::resume`].
    pub fn suspend(&self, pid: u32, devices: usize) {
        let Some(slot) = self.slot_of(pid) else {
            return;
        };
        // An operation of this slot holds up all audits.
        self.account(0)
            .operate(|| AtomicWord::store(self.counters.suspended(slot), SUSPENDED));
        stop_running(&self.counters, slot);
        self.audit_all(devices);
    }

    /// Before the driver moves the memory of a process back: what it has of each device counts again,
    /// if all processes together then use at most `limit` of that. True also if it was not suspended.
    pub fn resume(&self, pid: u32, devices: usize, limit: impl Fn(usize) -> u64) -> bool {
        let Some(slot) = self.slot_of(pid).filter(|slot| self.is_suspended(*slot)) else {
            return true;
        };
        let fits = |device| {
            let used = self.counters.used(slot, device).load(SeqCst);
            let added = self.account(device).try_add(used, limit(device));
            if let Some(total) = added {
                self.counters.peak(device).fetch_max(total, Relaxed);
            }
            added.is_some()
        };
        let resumed = self.account(0).operate(|| {
            let resumed = (0..devices).all(fits);
            if resumed {
                AtomicWord::store(self.counters.suspended(slot), 0);
            }
            resumed
        });
        // Corrects the totals: for what was added before a device turned out to have no room, for
        // what another process added that resumes this one too, and for calls that wait in the
        // driver and were counted already.
        self.audit_all(devices);
        resumed
    }

    /// Frees the entries of blocks that no process holds and no descriptor stands for. An error if
    /// this process has no descriptor left to find out.
    fn free_orphans(&self) -> io::Result<()> {
        let is_orphan = |entry: Entry<'_, _>| entry.read().is_some_and(|held| held.slot.is_none());
        if !self.counters.entries().any(is_orphan) {
            return Ok(());
        }
        match DeviceNode::open(self.node) {
            Ok(node) => {
                let gone = |key, inode| node.lacks(key, inode);
                // On whichever device: an operation of this slot holds up all audits.
                self.account(0)
                    .free_orphans(self.slot, self.counters.entries(), gone);
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => Err(error),
            // Without the node they stay: too much is counted, not too little.
            Err(_) => Ok(()),
        }
    }

    /// Corrects the total of a device, which stays too high if operations are under way all the time.
    fn audit(&self, device: usize) {
        let _ = (0..MAX_AUDITS).any(|_| self.audit_device(device));
    }

    /// False while an operation is under way.
    fn audit_device(&self, device: usize) -> bool {
        let slots = || self.slots().map(|slot| self.account_of(slot, device));
        let held = |sum| {
            let all = self.counters.entries().filter_map(|entry| entry.read());
            let counts = |held: &Held| {
                let is_suspended = held.slot.is_some_and(|slot| self.is_suspended(slot));
                held.block.device == device && !is_suspended
            };
            Overlap::new(all.filter(counts)).of_sum(sum)
        };
        let total = self.counters.total(device);
        let done = account::audit(total, slots, held);
        if !done {
            std::thread::yield_now();
        }
        done
    }

    /// All slots that were ever used.
    fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let high = self.counters.high().load(SeqCst);
        0..usize::try_from(high).unwrap_or(SLOTS).min(SLOTS)
    }

    /// All entries; those that are reached count as used.
    fn all_entries(&self) -> impl Iterator<Item = (usize, Entry<'_, AtomicU64>)> {
        (0..ENTRIES).map(|entry| {
            let highest = self.counters.highest_entry();
            highest.fetch_max(entry as u64 + 1, SeqCst);
            (entry, self.counters.entry(entry))
        })
    }

    fn account(&self, device: usize) -> DeviceAccount<'_, AtomicU64> {
        self.account_of(self.slot, device)
    }

    fn account_of(&self, slot: usize, device: usize) -> DeviceAccount<'_, AtomicU64> {
        DeviceAccount {
            total: self.counters.total(device),
            busy: self.counters.busy(slot),
            used: self.counters.used(slot, device),
            suspended: self.counters.suspended(slot),
        }
    }

    fn is_suspended(&self, slot: usize) -> bool {
        slot < SLOTS && self.counters.suspended(slot).load(SeqCst) == SUSPENDED
    }

    /// The slot of a process, by its id in this process's namespace.
    fn slot_of(&self, pid: u32) -> Option<usize> {
        let mut slots = self.slots();
        slots.find(|slot| self.counters.owner(*slot).load(SeqCst) == u64::from(pid))
    }
}

/// The process of a slot no longer counts among those with work.
fn stop_running(counters: &MappedCounters, slot: usize) {
    let running = counters.running(slot).swap(0, Relaxed);
    for device in (0..MAX_DEVICES).filter(|device| running & (1 << device) != 0) {
        decrement(counters.compute(device).running);
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

/// Claims a slot: one that looks free, else one whose owner is dead.
fn claim_slot(counters: &MappedCounters, file: &File) -> io::Result<Option<usize>> {
    let all = 0..SLOTS;
    let free = all
        .clone()
        .filter(|slot| counters.owner(*slot).load(SeqCst) == 0);
    for slot in free.chain(all) {
        if lock::set(file, start(slot), LockMode::Exclusive)? {
            let before = counters.owner(slot).load(SeqCst);
            if before != 0 && is_still_in_use(file, slot, before)? {
                lock::set(file, start(slot), LockMode::Unlocked)?;
                continue;
            }
            if before != 0 {
                clear_slot(counters, slot);
            }
            let own = u64::from(std::process::id());
            counters.owner(slot).store(own, SeqCst);
            counters.high().fetch_max(slot as u64 + 1, SeqCst);
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

/// Whether the driver may still have memory of the slot's process: it has not closed its files yet,
/// or its children have them.
fn is_still_in_use(file: &File, slot: usize, owner: u64) -> io::Result<bool> {
    if !lock::set(file, children_lock(slot), LockMode::Exclusive)? {
        return Ok(true);
    }
    lock::set(file, children_lock(slot), LockMode::Unlocked)?;
    is_exiting(owner)
}

/// Clears a slot whose lock this process has. The owner word comes last, so that the next process
/// notices a death in between.
fn clear_slot(counters: &MappedCounters, slot: usize) {
    shared::clear(slot, counters.entries());
    let used = (0..MAX_DEVICES).map(|device| counters.used(slot, device));
    account::clear(counters.busy(slot), used);
    AtomicWord::store(counters.suspended(slot), 0);
    stop_running(counters, slot);
    for device in 0..MAX_DEVICES {
        counters.contexts(slot, device).store(0, Relaxed);
        counters.managed_blocks(slot, device).store(0, Relaxed);
        counters.refused_in_slot(slot, device).store(0, Relaxed);
    }
    AtomicWord::store(counters.owner(slot), 0);
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
