//! What this process has allocated: pointers and arrays, with what was charged for each.
//!
//! The driver allocates device memory in blocks of 2 MiB; small allocations share one. So a pointer
//! is charged for the blocks that it is the first to touch, and releases those that it is the last
//! to leave. Only its first and last block can be shared.

use core::array::from_fn;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use aliquot_region::shared::SharedBlock;
use aliquot_region::slot::Holding;

use crate::ffi::Handle;
use crate::lock::FutexLock;
use crate::process::{PerProcess, ProcessState};

/// The unit in which the driver allocates device memory.
pub(crate) const BLOCK: u64 = 2 << 20;

const SHARDS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceAllocation {
    /// Requested bytes; for an array, charged bytes.
    pub(crate) size: u64,
    pub(crate) device_index: usize,
    /// The context with which it ends.
    pub(crate) context: Handle,
    /// Charged by the blocks that it touches at its address.
    pub(crate) by_blocks: bool,
    /// Managed memory, which the driver leaves out of what it reports of a process.
    pub(crate) managed: bool,
    /// Its number among those that other processes may hold; 0: none.
    pub(crate) shared: u32,
}

#[derive(Debug, Default)]
struct SharedAllocations {
    last: u32,
    by_number: Map<SharedAllocation>,
}

#[derive(Debug)]
struct SharedAllocation {
    holdings: Vec<Holding>,
    /// How often this process has opened it, if it is another's.
    opens: u32,
}

impl SharedAllocation {
    fn has(&self, key: u64) -> bool {
        self.holdings.iter().any(|one| one.block.key == key)
    }
}

impl SharedAllocations {
    fn add(&mut self, holdings: Vec<Holding>) -> u32 {
        // 0 means none.
        self.last = self.last.wrapping_add(1).max(1);
        let shared = SharedAllocation { holdings, opens: 1 };
        self.by_number.insert(u64::from(self.last), shared);
        self.last
    }
}

type Map<T> = HashMap<u64, T, BuildHasherDefault<AddressHasher>>;

#[derive(Debug)]
pub(crate) struct Allocations {
    entries: [FutexLock<Map<DeviceAllocation>>; SHARDS],
    /// How many allocations touch a block with their first or last byte.
    edges: [FutexLock<Map<u32>>; SHARDS],
    /// Managed memory in place of device memory: bytes by address.
    spilled: FutexLock<BTreeMap<u64, u64>>,
    shared: FutexLock<SharedAllocations>,
}

impl Default for Allocations {
    fn default() -> Self {
        Self {
            entries: from_fn(|_| FutexLock::default()),
            edges: from_fn(|_| FutexLock::default()),
            spilled: FutexLock::default(),
            shared: FutexLock::default(),
        }
    }
}

/// `size` in whole blocks; `None` on overflow.
pub(crate) fn in_blocks(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(BLOCK)
}

impl Allocations {
    pub(crate) fn of(process: &ProcessState) -> &'static Self {
        static ALLOCATIONS: PerProcess<Allocations> = PerProcess::new();
        ALLOCATIONS.of(process)
    }

    /// Adds an allocation; the bytes to charge for it.
    pub(crate) fn insert(&self, at: u64, entry: DeviceAllocation) -> u64 {
        self.entries[shard(at)].lock().insert(at, entry);
        self.add_edges(at, entry)
    }

    /// Removes an allocation before the driver is asked to free it: afterwards its address may
    /// belong to another. [`Self::end`] or [`Self::put_back`] must follow.
    pub(crate) fn remove(&self, at: u64) -> Option<DeviceAllocation> {
        self.entries[shard(at)].lock().remove(&at)
    }

    /// The driver freed an allocation that was removed: releases its charge.
    pub(crate) fn end(&self, process: &ProcessState, at: u64, entry: DeviceAllocation) {
        let back = self.release(at, entry);
        let shared = match entry.shared {
            0 => None,
            number => self.shared.lock().by_number.remove(&u64::from(number)),
        };
        let holdings = shared.map_or_else(Vec::new, |shared| shared.holdings);
        process
            .slot
            .release_shared(entry.device_index, &holdings, back);
        if entry.managed {
            let slot = &process.slot;
            slot.note_managed_released(entry.device_index, entry.size);
        }
    }

    /// The driver freed it; the bytes to release.
    fn release(&self, at: u64, entry: DeviceAllocation) -> u64 {
        self.each_block(at, entry, |edges, block| match edges.get_mut(&block) {
            Some(1) | None => {
                edges.remove(&block);
                true
            }
            Some(users) => {
                *users -= 1;
                false
            }
        })
    }

    /// The driver did not free it.
    pub(crate) fn put_back(&self, at: u64, entry: DeviceAllocation) {
        self.entries[shard(at)].lock().insert(at, entry);
    }

    pub(crate) fn remove_context(&self, context: Handle) -> Vec<(u64, DeviceAllocation)> {
        let shards = self.entries.iter();
        shards
            .flat_map(|shard| {
                let mut shard = shard.lock();
                let gone = shard.extract_if(|_, entry| entry.context == context);
                gone.collect::<Vec<_>>()
            })
            .collect()
    }

    /// From now on other processes may find an allocation under this key.
    pub(crate) fn share(&self, process: &ProcessState, at: u64, key: u64) {
        let entry = self.entries[shard(at)].lock().get(&at).copied();
        if let Some(entry) = entry {
            self.share_bytes(process, at, (key, touched(at, entry)));
        }
    }

    /// The same; these many bytes of it.
    pub(crate) fn share_bytes(&self, process: &ProcessState, at: u64, (key, bytes): (u64, u64)) {
        let mut entries = self.entries[shard(at)].lock();
        let Some(entry) = entries.get_mut(&at) else {
            return;
        };
        let mut shared = self.shared.lock();
        if entry.shared == 0 {
            entry.shared = shared.add(Vec::new());
        }
        let known = shared.by_number.get_mut(&u64::from(entry.shared));
        let Some(known) = known.filter(|known| !known.has(key)) else {
            return;
        };
        known.holdings.push(process.slot.hold(SharedBlock {
            key,
            device: entry.device_index,
            bytes,
            imported: false,
        }));
    }

    /// Adds an allocation for which nothing is charged, unless it is known.
    pub(crate) fn insert_once(&self, at: u64, entry: DeviceAllocation) {
        self.entries[shard(at)].lock().entry(at).or_insert(entry);
    }

    /// Adds an allocation of another process, for which these are held.
    pub(crate) fn insert_shared(
        &self,
        at: u64,
        mut entry: DeviceAllocation,
        holdings: Vec<Holding>,
    ) {
        entry.shared = self.shared.lock().add(holdings);
        self.insert(at, entry);
    }

    /// Whether an allocation of another process was open already, and is so once more.
    pub(crate) fn open_again(&self, at: u64, key: u64) -> bool {
        self.with_shared(at, |shared| {
            let is_it = shared.has(key);
            shared.opens += u32::from(is_it);
            is_it
        })
    }

    /// Whether an allocation of another process stays open when it is closed once.
    pub(crate) fn close_once(&self, at: u64) -> bool {
        self.with_shared(at, |shared| {
            let stays = shared.opens > 1;
            shared.opens -= u32::from(stays);
            stays
        })
    }

    fn with_shared(&self, at: u64, change: impl FnOnce(&mut SharedAllocation) -> bool) -> bool {
        let entry = self.entries[shard(at)].lock().get(&at).copied();
        let mut shared = self.shared.lock();
        let number = entry.map_or(0, |entry| u64::from(entry.shared));
        shared.by_number.get_mut(&number).is_some_and(change)
    }

    pub(crate) fn insert_spilled(&self, at: u64, bytes: u64) {
        self.spilled.lock().insert(at, bytes);
    }

    pub(crate) fn is_spilled(&self, pointer: u64) -> bool {
        let spilled = self.spilled.lock();
        let before = spilled.range(..=pointer).next_back();
        before.is_some_and(|(at, bytes)| pointer - at < *bytes)
    }

    /// Forgets a pointer that the program no longer has.
    pub(crate) fn forget_spilled(&self, process: &ProcessState, at: u64) {
        if process.is_oversubscribed() {
            self.spilled.lock().remove(&at);
        }
    }

    fn add_edges(&self, at: u64, entry: DeviceAllocation) -> u64 {
        self.each_block(at, entry, |edges, block| {
            let users = edges.entry(block).or_default();
            *users += 1;
            *users == 1
        })
    }

    /// Bytes of the inner blocks, and of those edge blocks for which `edge` returns true.
    fn each_block(
        &self,
        at: u64,
        entry: DeviceAllocation,
        edge: impl Fn(&mut Map<u32>, u64) -> bool,
    ) -> u64 {
        if !entry.by_blocks {
            return entry.size;
        }
        let (first, last) = edge_blocks(at, entry);
        let one = |block: u64| u64::from(edge(&mut self.edges[shard(block)].lock(), block));
        let mut blocks = one(first);
        if last > first {
            blocks += last - first - 1 + one(last);
        }
        blocks * BLOCK
    }
}

/// The first and the last block that an allocation touches.
fn edge_blocks(at: u64, entry: DeviceAllocation) -> (u64, u64) {
    (at / BLOCK, (at + entry.size.max(1) - 1) / BLOCK)
}

/// Bytes of the blocks of an allocation.
fn touched(at: u64, entry: DeviceAllocation) -> u64 {
    if !entry.by_blocks {
        return entry.size;
    }
    let (first, last) = edge_blocks(at, entry);
    (last - first + 1) * BLOCK
}

fn shard(key: u64) -> usize {
    let mut hasher = AddressHasher::default();
    hasher.write_u64(key);
    usize::try_from(hasher.finish() >> 58).unwrap_or(0)
}

/// A hash for addresses: a multiplication by the golden ratio.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
    fn write_u64(&mut self, key: u64) {
        let mixed = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pointer(size: u64) -> DeviceAllocation {
        DeviceAllocation {
            size,
            device_index: 0,
            context: 1,
            by_blocks: true,
            managed: false,
            shared: 0,
        }
    }

    #[test]
    fn charges_shared_block_once() {
        let allocations = Allocations::default();
        let at = 7 * BLOCK;
        assert_eq!(allocations.insert(at, pointer(512)), BLOCK);
        assert_eq!(allocations.insert(at + 512, pointer(512)), 0);
        assert_eq!(allocations.insert(at + BLOCK - 512, pointer(1024)), BLOCK);
        let last = (at + BLOCK - 512, 1024, 2);
        for (address, size, back) in [(at, 512, 0), (at + 512, 512, 0), last] {
            let entry = allocations.remove(address).unwrap();
            assert_eq!(entry, pointer(size));
            assert_eq!(allocations.release(address, entry), back * BLOCK);
        }
        assert_eq!(allocations.remove(at), None);
    }

    #[test]
    fn keeps_charge_when_driver_refuses_to_free() {
        let allocations = Allocations::default();
        allocations.insert(BLOCK, pointer(1));
        let entry = allocations.remove(BLOCK).unwrap();
        allocations.put_back(BLOCK, entry);
        assert_eq!(allocations.insert(BLOCK + 512, pointer(1)), 0);
        assert_eq!(allocations.remove(BLOCK), Some(entry));
    }
}
