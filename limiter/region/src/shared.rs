//! Memory that several processes of a container hold: a table of who holds which block, so that a
//! block counts once. Over any kind of atomic word, so that tests can stop a process before each step.
//!
//! Each process is charged for all that it holds. A block's *key* is the same for each of its
//! holders, and the container is charged for a block what its largest holder is. A block that went
//! out as a descriptor stays when its last holder leaves, as an *orphan*, until no such descriptor is
//! open anywhere.
//!
//! Only its holder changes an entry, inside an operation of its slot; orphans, whoever finds them
//! gone. An entry appears after its bytes were added to the slot, and leaves before they are
//! subtracted, so that a death in between leaves the container's total too high, never too low.

use crate::account::{AtomicWord, DeviceAccount};
use crate::limits::MAX_DEVICES;

#[derive(Clone, Copy, Debug)]
pub struct Entry<'a, W> {
    /// The block; 0: the entry is free, or not written yet.
    pub key: &'a W,
    /// Who holds it; 0: the entry is free.
    pub holder: &'a W,
    pub bytes: &'a W,
    /// The inode of the descriptors that stand for it; 0: there are none.
    pub inode: &'a W,
}

/// A block as its holder records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBlock {
    pub key: u64,
    pub device: usize,
    pub bytes: u64,
    /// The holder had it from another process.
    pub imported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) block: SharedBlock,
    /// The slot of the holder; `None`: an orphan.
    pub(crate) slot: Option<usize>,
}

/// In place of a slot's number in the word of a holder.
const ORPHAN: u64 = 0xffff;
const IMPORTED: u64 = 1 << 24;

/// The word of a holder: slot, device, and a part of the key, which distinguishes an orphan from a
/// later one in the same entry.
fn holder(slot: Option<usize>, block: SharedBlock) -> u64 {
    let slot = slot.map_or(ORPHAN, |slot| slot as u64 + 1);
    let imported = if block.imported { IMPORTED } else { 0 };
    slot | (block.device as u64) << 16 | imported | block.key << 32
}

/// What the words of an entry say; `None`: nothing.
pub(crate) fn decode(key: u64, holder: u64, bytes: u64) -> Option<Held> {
    let slot = usize::try_from(holder & 0xffff).ok()?.checked_sub(1)?;
    let device = usize::try_from((holder >> 16) & 0xff).ok()?;
    let block = SharedBlock {
        key,
        device,
        bytes,
        imported: holder & IMPORTED != 0,
    };
    let is_whole = key != 0 && device < MAX_DEVICES && holder >> 32 == key & 0xffff_ffff;
    is_whole.then_some(Held {
        block,
        slot: (slot as u64 + 1 != ORPHAN).then_some(slot),
    })
}

impl<W: AtomicWord> Entry<'_, W> {
    pub(crate) fn read(&self) -> Option<Held> {
        decode(self.key.load(), self.holder.load(), self.bytes.load())
    }

    /// Writes a free entry; false if it is not free.
    fn publish(&self, slot: usize, block: SharedBlock) -> bool {
        if self.holder.load() != 0 || self.holder.exchange(0, holder(Some(slot), block)).is_err() {
            return false;
        }
        self.bytes.store(block.bytes);
        self.inode.store(0);
        self.key.store(block.key);
        true
    }

    fn retire(&self) {
        match self.read() {
            Some(held) if self.inode.load() != 0 => self.holder.store(holder(None, held.block)),
            _ => self.free(),
        }
    }

    fn free(&self) {
        self.key.store(0);
        self.holder.store(0);
    }
}

impl<W: AtomicWord> DeviceAccount<'_, W> {
    /// Records that others may hold a block for which this process is charged; its entry, unless
    /// all are taken.
    pub fn hold<'a>(
        &self,
        slot: usize,
        block: SharedBlock,
        mut entries: impl Iterator<Item = (usize, Entry<'a, W>)>,
    ) -> Option<usize>
    where
        W: 'a,
    {
        self.operate(|| {
            let free = entries.find(|(_, entry)| entry.publish(slot, block));
            free.map(|(at, _)| at)
        })
    }

    /// Charges a block that another process of the container may hold. The total is then too high
    /// by as much as the other is charged for, until the next audit.
    pub fn adopt<'a>(
        &self,
        slot: usize,
        block: SharedBlock,
        entries: impl Iterator<Item = (usize, Entry<'a, W>)>,
    ) -> Option<usize>
    where
        W: 'a,
    {
        self.charge(block.bytes);
        self.hold(slot, block, entries)
    }

    /// Releases `bytes` of a block that others may hold. The total is then too high, unless one
    /// does, until the next audit.
    pub fn let_go(&self, entry: &Entry<'_, W>, bytes: u64) {
        self.operate(|| {
            // What this process keeps was not counted while the block was another's.
            let kept = entry.bytes.load().saturating_sub(bytes);
            if kept > 0 {
                self.raise(kept);
            }
            entry.retire();
            self.used.add(bytes.wrapping_neg());
        });
    }

    /// Frees the entries of orphans of which no descriptor is open, as `gone` says.
    pub fn free_orphans<'a>(
        &self,
        slot: usize,
        entries: impl Iterator<Item = Entry<'a, W>>,
        gone: impl Fn(u64, u64) -> bool,
    ) where
        W: 'a,
    {
        for entry in entries {
            let Some(held) = entry.read().filter(|held| held.slot.is_none()) else {
                continue;
            };
            if gone(held.block.key, entry.inode.load()) {
                self.operate(|| {
                    let (old, own) = (holder(None, held.block), holder(Some(slot), held.block));
                    if entry.holder.exchange(old, own).is_ok() {
                        entry.free();
                    }
                });
            }
        }
    }
}

/// Clears the entries of a dead process, before its slot; the caller has the slot's lock.
pub(crate) fn clear<'a, W: AtomicWord + 'a>(
    slot: usize,
    entries: impl Iterator<Item = Entry<'a, W>>,
) {
    for entry in entries {
        if entry.holder.load() & 0xffff == slot as u64 + 1 {
            entry.retire();
        }
    }
}

/// Bytes of a device by which what processes are charged for together differs from what exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Bytes of blocks for which another holder is charged too.
    pub duplicates: u64,
    pub orphans: u64,
}

impl Overlap {
    /// Of the blocks of one device.
    pub(crate) fn new(held: impl Iterator<Item = Held>) -> Self {
        let mut all: Vec<Held> = held.collect();
        all.sort_unstable_by_key(|held| held.block.key);
        let mut overlap = Self::default();
        for block in all.chunk_by(|one, other| one.block.key == other.block.key) {
            let bytes = |orphan: bool| {
                let of = block
                    .iter()
                    .filter(move |held| held.slot.is_none() == orphan);
                of.map(|held| held.block.bytes)
            };
            let (sum, most) = bytes(false).fold((0_u64, 0), |(sum, most), bytes| {
                (sum.saturating_add(bytes), bytes.max(most))
            });
            overlap.duplicates = overlap.duplicates.saturating_add(sum - most);
            if block.iter().all(|held| held.slot.is_none()) {
                let most = bytes(true).max().unwrap_or(0);
                overlap.orphans = overlap.orphans.saturating_add(most);
            }
        }
        overlap
    }

    /// What exists, where processes are charged for `sum` bytes.
    pub fn of_sum(self, sum: u64) -> u64 {
        sum.saturating_sub(self.duplicates)
            .saturating_add(self.orphans)
    }
}
