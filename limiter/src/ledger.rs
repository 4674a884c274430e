//! What this process holds: pointers and arrays, with what was charged for each.
//!
//! The driver gives a card's memory in blocks of 2 MiB; small allocations share one. So a pointer
//! is charged for the blocks that it is the first to touch, and gives back those that it is the
//! last to leave. Only its first and last block can be shared.
//!
//! Fed by: [`crate::memory`], [`crate::array`], [`crate::context`]. Must not: call the driver.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ffi::Handle;
use crate::lock::Lock;

/// In what pieces the driver takes a card's memory.
pub(crate) const BLOCK: u64 = 2 << 20;

const SHARDS: usize = 64;

/// One thing that was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Bytes asked for; of an array, bytes charged.
    pub(crate) size: u64,
    /// The card.
    pub(crate) card: usize,
    /// In whose end it ends too.
    pub(crate) context: Handle,
    /// Charged by the blocks that it touches, at its address.
    pub(crate) by_blocks: bool,
}

type Map<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// Everything, by address or handle.
#[derive(Debug)]
pub(crate) struct Ledger {
    entries: [Lock<Map<Entry>>; SHARDS],
    /// How many entries touch a block with their first or last byte.
    edges: [Lock<Map<u32>>; SHARDS],
}

/// `size` in whole blocks; `None` when there is no such number.
pub(crate) fn in_blocks(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(BLOCK)
}

impl Ledger {
    pub(crate) const fn new() -> Self {
        Self {
            entries: [const { Lock::new(HashMap::with_hasher(BuildHasherDefault::new())) }; SHARDS],
            edges: [const { Lock::new(HashMap::with_hasher(BuildHasherDefault::new())) }; SHARDS],
        }
    }

    /// Notes an allocation; the bytes that it is to be charged for.
    pub(crate) fn insert(&self, at: u64, entry: Entry) -> u64 {
        self.entries[shard(at)].lock().insert(at, entry);
        self.enter(at, entry)
    }

    /// Takes an allocation out before the driver is asked to free it: afterwards its address may
    /// be another's. [`Self::leave`] or [`Self::put_back`] follows.
    pub(crate) fn take(&self, at: u64) -> Option<Entry> {
        self.entries[shard(at)].lock().remove(&at)
    }

    /// The driver freed it; the bytes to give back.
    pub(crate) fn leave(&self, at: u64, entry: Entry) -> u64 {
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
    pub(crate) fn put_back(&self, at: u64, entry: Entry) {
        self.entries[shard(at)].lock().insert(at, entry);
    }

    /// Takes out all that belongs to a context.
    pub(crate) fn take_all(&self, context: Handle) -> Vec<(u64, Entry)> {
        let shards = self.entries.iter();
        shards
            .flat_map(|shard| {
                let mut shard = shard.lock();
                let gone = shard.extract_if(|_, entry| entry.context == context);
                gone.collect::<Vec<_>>()
            })
            .collect()
    }

    fn enter(&self, at: u64, entry: Entry) -> u64 {
        self.each_block(at, entry, |edges, block| {
            let users = edges.entry(block).or_default();
            *users += 1;
            *users == 1
        })
    }

    /// Bytes of the inner blocks, and of those edges for which `edge` says so.
    fn each_block(&self, at: u64, entry: Entry, edge: impl Fn(&mut Map<u32>, u64) -> bool) -> u64 {
        if !entry.by_blocks {
            return entry.size;
        }
        let first = at / BLOCK;
        let last = (at + entry.size.max(1) - 1) / BLOCK;
        let one = |block: u64| u64::from(edge(&mut self.edges[shard(block)].lock(), block));
        let mut blocks = one(first);
        if last > first {
            blocks += last - first - 1 + one(last);
        }
        blocks * BLOCK
    }
}

fn shard(key: u64) -> usize {
    let mut spread = Spread::default();
    spread.write_u64(key);
    usize::try_from(spread.finish() >> 58).unwrap_or(0)
}

/// A hash for addresses: a multiplication by the golden ratio.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
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

    const fn pointer(size: u64) -> Entry {
        Entry {
            size,
            card: 0,
            context: 1,
            by_blocks: true,
        }
    }

    #[test]
    fn small_allocations_of_one_block_are_charged_once() {
        let ledger = Ledger::new();
        let at = 7 * BLOCK;
        assert_eq!(ledger.insert(at, pointer(512)), BLOCK);
        assert_eq!(ledger.insert(at + 512, pointer(512)), 0);
        assert_eq!(ledger.insert(at + BLOCK - 512, pointer(1024)), BLOCK);
        for (address, size, back) in [
            (at, 512, 0),
            (at + 512, 512, 0),
            (at + BLOCK - 512, 1024, 2),
        ] {
            let entry = ledger.take(address).unwrap();
            assert_eq!(entry, pointer(size));
            assert_eq!(ledger.leave(address, entry), back * BLOCK);
        }
        assert_eq!(ledger.take(at), None);
    }

    #[test]
    fn a_large_allocation_is_charged_in_whole_blocks() {
        let ledger = Ledger::new();
        for (size, blocks) in [(1, 1), (BLOCK, 1), (BLOCK + 1, 2), (100 * BLOCK, 100)] {
            let at = 1 << 40;
            assert_eq!(ledger.insert(at, pointer(size)), blocks * BLOCK, "{size}");
            assert_eq!(in_blocks(size), Some(blocks * BLOCK), "{size}");
            let entry = ledger.take(at).unwrap();
            assert_eq!(ledger.leave(at, entry), blocks * BLOCK, "{size}");
        }
    }

    #[test]
    fn what_the_driver_did_not_free_is_there_again_and_charged_still() {
        let ledger = Ledger::new();
        ledger.insert(BLOCK, pointer(1));
        let entry = ledger.take(BLOCK).unwrap();
        ledger.put_back(BLOCK, entry);
        assert_eq!(ledger.insert(BLOCK + 512, pointer(1)), 0);
        assert_eq!(ledger.take(BLOCK), Some(entry));
    }

    #[test]
    fn a_context_takes_its_own_with_it() {
        let ledger = Ledger::new();
        for i in 0..100 {
            let context = usize::try_from(i % 2).unwrap();
            ledger.insert(
                i * BLOCK,
                Entry {
                    context,
                    ..pointer(1)
                },
            );
        }
        assert_eq!(ledger.take_all(1).len(), 50);
        assert_eq!(ledger.take_all(1).len(), 0);
        assert!(ledger.take(0).is_some());
    }
}
