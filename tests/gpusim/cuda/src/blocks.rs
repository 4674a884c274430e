//! Blocks that small allocations of one context share: each block has parts of one length.

use std::collections::HashMap;

use crate::driver::Driver;
use crate::ffi::Answer;
use crate::heap::{Allocation, BLOCK, allocate_blocks, release_blocks};

/// A context's shared blocks.
#[derive(Default)]
pub(crate) struct Blocks {
    by_base: HashMap<u64, Block>,
    /// Blocks with room, by the length of their parts.
    with_room: HashMap<u64, Vec<u64>>,
}

struct Block {
    part: u64,
    live: u64,
    next: u64,
    free: Vec<u64>,
    touched: bool,
}

impl Blocks {
    /// A part for `size` bytes.
    pub(crate) fn take(&mut self, driver: &Driver, gpu_index: usize, size: u64) -> Answer<u64> {
        let part = size.next_power_of_two().clamp(512, BLOCK);
        let with_room = self.with_room.entry(part).or_default();
        let base = if let Some(base) = with_room.last() {
            *base
        } else {
            let base = allocate_blocks(driver, gpu_index, BLOCK)?;
            let block = Block {
                part,
                live: 0,
                next: base,
                free: Vec::new(),
                touched: false,
            };
            self.by_base.insert(base, block);
            with_room.push(base);
            base
        };
        let block = self
            .by_base
            .get_mut(&base)
            .expect("it has room, so it is there");
        block.live += 1;
        let address = block.free.pop().unwrap_or_else(|| {
            block.next += part;
            block.next - part
        });
        if block.free.is_empty() && block.next == base + BLOCK {
            with_room.pop();
        }
        Ok(address)
    }

    pub(crate) fn give(&mut self, driver: &Driver, gpu_index: usize, gone: &Allocation) {
        let base = gone.base & !(BLOCK - 1);
        let Some(block) = self.by_base.get_mut(&base) else {
            return;
        };
        let with_room = self.with_room.entry(block.part).or_default();
        if block.free.is_empty() && block.next == base + BLOCK {
            with_room.push(base);
        }
        block.free.push(gone.base);
        block.live -= 1;
        block.touched |= gone.touched;
        if block.live == 0 {
            let touched = block.touched;
            with_room.retain(|other| *other != base);
            self.by_base.remove(&base);
            release_blocks(driver, gpu_index, base, BLOCK, touched);
        }
    }
}
