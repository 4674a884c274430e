//! Memory by address: what each pointer is, and how it is charged to a GPU. Allocations of more
//! than half a block take whole blocks, smaller ones share a block with others of their size, and a
//! block is released with its last part. Memory freed in stream order is released when the GPU has
//! passed its mark.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::codes::{ERROR_INVALID_VALUE, ERROR_OPERATING_SYSTEM, ERROR_OUT_OF_MEMORY};
use crate::context::{Context, ContextRef};
use crate::driver::Driver;
use crate::ffi::Answer;
use crate::timeline::Mark;
use crate::types::Handle;
use crate::vmm::ON_DEVICE;

/// The kind of memory behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of a GPU.
    Device,
    /// Memory that moves between host and GPUs.
    Managed,
    /// Host memory of the driver's.
    Host,
    /// Part of a pool.
    Pool { pool: Handle },
    /// A mapping of physical memory, of `vmm`.
    Mapped,
    /// Memory of a graph's allocation node.
    Graph { gpu_index: usize },
    /// Memory of another process.
    Foreign,
    /// Memory of another process's pool.
    ForeignPool,
}

#[derive(Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    /// As it was asked for.
    pub(crate) size: u64,
    /// Bytes of whole blocks charged to the GPU; 0: it is part of a block, or on no GPU.
    blocks: u64,
    pub(crate) kind: Kind,
    /// The context that owns it; `None`: the process.
    pub(crate) context: Option<ContextRef>,
    /// Distinguishes allocations at the same address.
    pub(crate) id: u64,
    /// It was written.
    pub(crate) touched: bool,
    /// Its number for other processes (IPC); 0: none.
    pub(crate) number: u64,
}

#[derive(Default)]
pub(crate) struct Heap {
    known: Mutex<AllocationTable>,
    /// Allocations to release when the GPU has passed a mark.
    freed_at_mark: Mutex<Vec<(Arc<Mark>, Allocation)>>,
    /// What keeps memory of other processes, by its address.
    keepers: Mutex<HashMap<u64, File>>,
}

#[derive(Default)]
struct AllocationTable {
    by_base: BTreeMap<u64, Allocation>,
    next_id: u64,
}

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 2 << 20;

/// Larger allocations retain no contents: writes are lost, and they read as zeroes.
const MOST_CONTENTS: u64 = 64 << 20;

impl Heap {
    /// Allocates memory on the context's GPU.
    pub(crate) fn allocate_device(
        &self,
        driver: &Driver,
        context: ContextRef,
        size: u64,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let context = context.owner();
        let gpu_index = context.gpu_index;
        let (base, blocks) = if size <= BLOCK / 2 {
            (context.blocks.lock().take(driver, gpu_index, size)?, 0)
        } else {
            let bytes = size.checked_next_multiple_of(BLOCK);
            let bytes = bytes.ok_or(ERROR_OUT_OF_MEMORY)?;
            (allocate_blocks(driver, gpu_index, bytes)?, bytes)
        };
        self.insert(base, size, blocks, Kind::Device, Some(context));
        Ok(base)
    }

    /// Allocates addresses without GPU memory.
    pub(crate) fn allocate_unbacked(
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

    /// Records memory at a known address.
    pub(crate) fn add(&self, base: u64, size: u64, kind: Kind, context: Option<ContextRef>) {
        self.insert(base, size, 0, kind, context);
    }

    fn insert(&self, base: u64, size: u64, blocks: u64, kind: Kind, context: Option<ContextRef>) {
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
            number: 0,
        };
        known.by_base.insert(base, allocation);
    }

    /// Lets other processes open an allocation. A part of a block ends with its owner.
    pub(crate) fn share(&self, driver: &Driver, base: u64) -> Answer<Allocation> {
        let mut known = self.known.lock();
        let found = known.by_base.get_mut(&base).ok_or(ERROR_INVALID_VALUE)?;
        let bytes = match found.kind {
            Kind::Pool { .. } => found.size,
            _ => found.blocks,
        };
        if let (0, true, Some(context)) = (found.number, bytes > 0, found.context) {
            let place = (ON_DEVICE, context.device.cast_unsigned());
            let member = driver.member();
            let made = member.share(context.gpu_index, bytes, place);
            found.number = made.map_err(|_| ERROR_OPERATING_SYSTEM)?;
        }
        Ok(*found)
    }

    /// Opens memory of another process; `keeper` keeps it until it is closed.
    pub(crate) fn open(
        &self,
        driver: &Driver,
        context: ContextRef,
        (size, kind): (u64, Kind),
        keeper: Option<File>,
    ) -> Answer<u64> {
        let base = self.allocate_unbacked(driver, context, size, kind)?;
        driver.count_import(context.gpu_index, size);
        self.keepers
            .lock()
            .extend(keeper.map(|keeper| (base, keeper)));
        Ok(base)
    }

    /// The allocation in which an address lies.
    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        let known = self.known.lock();
        let (_, found) = known.by_base.range(..=address).next_back()?;
        (address - found.base < found.size).then_some(*found)
    }

    /// As `find`, for a write of `bytes`: rejects one past the end, and returns whether the
    /// contents are retained.
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

    /// Removes an allocation from the list, if it begins there and `is` is true for it.
    pub(crate) fn remove(&self, base: u64, is: impl Fn(Kind) -> bool) -> Option<Allocation> {
        let mut known = self.known.lock();
        let found = known.by_base.get(&base).filter(|found| is(found.kind))?;
        let found = *found;
        known.by_base.remove(&base);
        Some(found)
    }

    /// Releases an allocation, already removed from the list, when the GPU has passed a mark.
    pub(crate) fn free_at(&self, driver: &Driver, mark: Arc<Mark>, gone: Allocation) {
        self.freed_at_mark.lock().push((mark, gone));
        self.settle(driver);
    }

    /// Releases what the GPU has passed by now.
    pub(crate) fn settle(&self, driver: &Driver) {
        let mut leaving = self.freed_at_mark.lock();
        let passed = leaving.extract_if(.., |(mark, _)| driver.reached(mark).is_some());
        passed.for_each(|(_, gone)| release(driver, &gone));
    }

    /// Releases all that a context owns.
    pub(crate) fn drop_context(&self, driver: &Driver, context: &Context) {
        let owned = |one: &Allocation| one.context.is_some_and(|own| own.is(context));
        let mut leaving = self.freed_at_mark.lock();
        let with_it = leaving.extract_if(.., |(_, one)| owned(one));
        with_it.for_each(|(_, gone)| release(driver, &gone));
        drop(leaving);
        let mut known = self.known.lock();
        let gone = known.by_base.extract_if(.., |_, one| owned(one));
        let gone: Vec<Allocation> = gone.map(|(_, one)| one).collect();
        drop(known);
        for allocation in gone {
            release(driver, &allocation);
        }
    }
}

pub(crate) fn release(driver: &Driver, gone: &Allocation) {
    match gone.kind {
        Kind::Device => {
            let Some(context) = gone.context else {
                return;
            };
            if gone.number != 0 {
                let member = driver.member();
                member.release_shared(context.gpu_index, gone.number, gone.blocks);
                driver.arena.give(gone.base, gone.blocks, gone.touched);
            } else if gone.blocks > 0 {
                release_blocks(
                    driver,
                    context.gpu_index,
                    gone.base,
                    gone.blocks,
                    gone.touched,
                );
            } else {
                context.blocks.lock().give(driver, context.gpu_index, gone);
            }
        }
        Kind::Pool { pool } => {
            driver
                .arena
                .give(gone.base, gone.size.max(4096), gone.touched);
            driver.pools.record_freed(driver, pool, gone.size);
            if let (1.., Some(context)) = (gone.number, gone.context) {
                driver.member().unshare(context.gpu_index, gone.number);
            }
        }
        Kind::Graph { gpu_index } => driver.graph_memory.record_freed(gpu_index, gone.size),
        Kind::Managed => {
            driver.residency.forget(driver, gone.id);
            driver
                .pools
                .record_freed_managed(driver, gone.base, gone.size);
            driver.arena.give(gone.base, gone.size.max(4096), true);
        }
        Kind::Host | Kind::Foreign | Kind::ForeignPool => {
            let foreign = gone.context.filter(|_| gone.kind != Kind::Host);
            if let Some(context) = foreign {
                driver.uncount_import(context.gpu_index, gone.size);
                driver.heap.keepers.lock().remove(&gone.base);
            }
            driver.arena.give(gone.base, gone.size.max(4096), true);
        }
        Kind::Mapped => {}
    }
}

/// Charges `bytes`, whole blocks, to a GPU and returns their address.
pub(crate) fn allocate_blocks(driver: &Driver, gpu_index: usize, bytes: u64) -> Answer<u64> {
    driver.charge(gpu_index, bytes)?;
    let range = driver.arena.take(bytes);
    range.ok_or_else(|| {
        driver.release(gpu_index, bytes);
        ERROR_OUT_OF_MEMORY
    })
}

/// Undoes `take_blocks`.
pub(crate) fn release_blocks(
    driver: &Driver,
    gpu_index: usize,
    base: u64,
    bytes: u64,
    touched: bool,
) {
    // The address is reused only when its memory is free.
    driver.release(gpu_index, bytes);
    driver.arena.give(base, bytes, touched);
}
