//! Memory by address: what each pointer is, and how it is taken of a card. Allocations of more
//! than half a block take whole blocks, smaller ones share a block with others of their size, and
//! a block goes back when its last part does; what is freed in the order of a stream goes back when
//! the card has passed its mark. Must not know streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::codes::{ERROR_INVALID_VALUE, ERROR_OUT_OF_MEMORY};
use crate::context::{Context, ContextRef};
use crate::driver::Driver;
use crate::ffi::Answer;
use crate::timeline::Mark;
use crate::types::Handle;

/// What a pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a card.
    Device,
    /// Memory that moves between host and cards.
    Managed,
    /// Host memory of the driver's.
    Host {
        /// `CU_MEMHOSTALLOC_*`.
        flags: u32,
    },
    /// Host memory of the program's.
    Registered {
        /// `CU_MEMHOSTREGISTER_*`.
        flags: u32,
    },
    /// Part of a pool.
    Pool {
        /// The pool.
        pool: Handle,
    },
    /// A mapping of physical memory, of `vmm`.
    Mapped,
    /// Memory of a graph's allocation node.
    Graph {
        /// The card on which it is.
        card: usize,
    },
    /// Memory of another process.
    Foreign,
}

/// One allocation.
#[derive(Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    /// As it was asked for.
    pub(crate) size: u64,
    /// Bytes of whole blocks that it took of the card; 0: it is part of a block, or of no card.
    blocks: u64,
    pub(crate) kind: Kind,
    /// Whose end ends it; `None`: it belongs to the process.
    pub(crate) context: Option<ContextRef>,
    /// Distinguishes allocations at the same address.
    pub(crate) id: u64,
    /// Somebody wrote there.
    pub(crate) touched: bool,
}

/// All allocations of the process.
#[derive(Default)]
pub(crate) struct Heap {
    known: Mutex<Known>,
    /// What is free when the card has passed a mark.
    leaving: Mutex<Vec<(Arc<Mark>, Allocation)>>,
}

#[derive(Default)]
struct Known {
    by_base: BTreeMap<u64, Allocation>,
    next_id: u64,
}

/// Larger allocations keep no contents: what is written there is lost, and they read as zeroes.
const MOST_CONTENTS: u64 = 64 << 20;

impl Heap {
    /// Memory of the context's card.
    pub(crate) fn take_device(
        &self,
        driver: &Driver,
        context: ContextRef,
        size: u64,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let context = context.owner();
        let (card, block) = (context.card, driver.facts(context.card).block_bytes);
        let (base, blocks) = if size <= block / 2 {
            (context.blocks.lock().take(driver, card, size, block)?, 0)
        } else {
            let bytes = size.checked_next_multiple_of(block);
            let bytes = bytes.ok_or(ERROR_OUT_OF_MEMORY)?;
            (take_blocks(driver, card, bytes)?, bytes)
        };
        driver.count_request(card, size);
        self.list(base, size, blocks, Kind::Device, Some(context));
        Ok(base)
    }

    /// Addresses without memory of a card behind them.
    pub(crate) fn take_plain(
        &self,
        driver: &Driver,
        context: ContextRef,
        size: u64,
        kind: Kind,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        // Whole pages, so that freeing one drops no other's contents.
        let base = driver
            .arena
            .take(size.max(4096))
            .ok_or(ERROR_OUT_OF_MEMORY)?;
        self.add(base, size, kind, Some(context.owner()));
        Ok(base)
    }

    /// Notes memory that lies at a known address.
    pub(crate) fn add(&self, base: u64, size: u64, kind: Kind, context: Option<ContextRef>) {
        self.list(base, size, 0, kind, context);
    }

    fn list(&self, base: u64, size: u64, blocks: u64, kind: Kind, context: Option<ContextRef>) {
        let mut known = self.known.lock();
        known.next_id += 1;
        let allocation = Allocation {
            base,
            size,
            blocks,
            kind,
            context,
            id: known.next_id,
            touched: !matches!(kind, Kind::Device),
        };
        known.by_base.insert(base, allocation);
    }

    /// The allocation in which an address lies.
    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        let known = self.known.lock();
        let (_, found) = known.by_base.range(..=address).next_back()?;
        (address - found.base < found.size).then_some(*found)
    }

    /// As `find`, for a write of `bytes`: refuses one that goes past the end, and says whether the
    /// contents are kept.
    pub(crate) fn write(&self, address: u64, bytes: u64) -> Answer<Option<bool>> {
        let mut known = self.known.lock();
        let Some((_, found)) = known.by_base.range_mut(..=address).next_back() else {
            return Ok(None);
        };
        let offset = address - found.base;
        if offset >= found.size {
            return Ok(None);
        }
        if bytes > found.size - offset {
            return Err(ERROR_INVALID_VALUE);
        }
        found.touched = true;
        let device = matches!(found.kind, Kind::Device | Kind::Pool { .. } | Kind::Mapped);
        Ok(Some(!device || found.size <= MOST_CONTENTS))
    }

    /// Takes an allocation out of the list, if it begins there and `is` holds for it.
    pub(crate) fn remove(&self, base: u64, is: impl Fn(Kind) -> bool) -> Option<Allocation> {
        let mut known = self.known.lock();
        let found = known.by_base.get(&base).filter(|found| is(found.kind))?;
        let found = *found;
        known.by_base.remove(&base);
        Some(found)
    }

    /// Gives an allocation back, which is in no list any more, when the card has passed a mark.
    pub(crate) fn free_at(&self, driver: &Driver, mark: Arc<Mark>, gone: Allocation) {
        self.leaving.lock().push((mark, gone));
        self.settle(driver);
    }

    /// Gives back what the card has passed by now.
    pub(crate) fn settle(&self, driver: &Driver) {
        let mut leaving = self.leaving.lock();
        let passed = leaving.extract_if(.., |(mark, _)| driver.reached(mark).is_some());
        passed.for_each(|(_, gone)| give(driver, &gone));
    }

    /// Gives back all that a context owns.
    pub(crate) fn drop_context(&self, driver: &Driver, context: &Context) {
        let owned = |one: &Allocation| one.context.is_some_and(|own| own.is(context));
        let mut leaving = self.leaving.lock();
        let with_it = leaving.extract_if(.., |(_, one)| owned(one));
        with_it.for_each(|(_, gone)| give(driver, &gone));
        drop(leaving);
        let mut known = self.known.lock();
        let gone = known.by_base.extract_if(.., |_, one| owned(one));
        let gone: Vec<Allocation> = gone.map(|(_, one)| one).collect();
        drop(known);
        for allocation in gone {
            give(driver, &allocation);
        }
    }
}

/// Gives back what an allocation took.
pub(crate) fn give(driver: &Driver, gone: &Allocation) {
    match gone.kind {
        Kind::Device => {
            let Some(context) = gone.context else {
                return;
            };
            driver.uncount_request(context.card, gone.size);
            if gone.blocks > 0 {
                give_blocks(driver, context.card, gone.base, gone.blocks, gone.touched);
            } else {
                context.blocks.lock().give(driver, context.card, gone);
            }
        }
        Kind::Pool { pool } => {
            driver
                .arena
                .give(gone.base, gone.size.max(4096), gone.touched);
            driver.pools.gave(driver, pool, gone.size);
        }
        Kind::Graph { card } => driver.reserves.gave(driver, card, gone.size),
        Kind::Managed => {
            driver.residency.forget(driver, gone.id);
            driver.pools.gave_managed(driver, gone.base, gone.size);
            driver.arena.give(gone.base, gone.size.max(4096), true);
        }
        Kind::Host { .. } | Kind::Foreign => {
            driver.arena.give(gone.base, gone.size.max(4096), true);
        }
        Kind::Registered { .. } | Kind::Mapped => {}
    }
}

/// Takes `bytes`, whole blocks, of a card and gives their address.
pub(crate) fn take_blocks(driver: &Driver, card: usize, bytes: u64) -> Answer<u64> {
    driver.charge(card, bytes)?;
    let range = driver.arena.take(bytes);
    range.ok_or_else(|| {
        driver.release(card, bytes);
        ERROR_OUT_OF_MEMORY
    })
}

/// Ends `take_blocks`.
pub(crate) fn give_blocks(driver: &Driver, card: usize, base: u64, bytes: u64, touched: bool) {
    // An address is another's only when what lay there is free.
    driver.release(card, bytes);
    driver.arena.give(base, bytes, touched);
}
