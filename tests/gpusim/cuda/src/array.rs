//! Arrays: their size on the GPU, rounded as texture hardware needs it.

use crate::codes::ERROR_INVALID_VALUE;
use crate::context::{Context, ContextRef};
use crate::driver::Driver;
use crate::ffi::Answer;
use crate::heap::{BLOCK, allocate_blocks, release_blocks};
use crate::objects::Objects;
use crate::types::Array3dDescriptor;

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: no memory of its own.
const MAPPED_LATER: u32 = 0x40 | 0x80;

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: depth counts layers, of which each level has
/// all.
const LAYERED: u32 = 0x01 | 0x04;

/// An array, mipmapped or not.
pub(crate) struct Array {
    pub(crate) context: ContextRef,
    /// One that is mapped later owns none.
    pub(crate) memory: Option<Memory>,
}

#[derive(Clone, Copy)]
pub(crate) struct Memory {
    base: u64,
    bytes: u64,
}

/// Bytes of one element's channel for a `CUarray_format`.
fn channel_bytes(format: u32) -> Option<u64> {
    match format {
        0x01 | 0x08 => Some(1),
        0x02 | 0x09 | 0x10 => Some(2),
        0x03 | 0x0a | 0x20 => Some(4),
        _ => None,
    }
}

fn element_bytes(descriptor: &Array3dDescriptor) -> Answer<u64> {
    let channels = match descriptor.channels {
        1 | 2 | 4 => u64::from(descriptor.channels),
        _ => return Err(ERROR_INVALID_VALUE),
    };
    let channel = channel_bytes(descriptor.format).ok_or(ERROR_INVALID_VALUE)?;
    Ok(channels * channel)
}

/// Slices or layers of a level.
fn depth_at(descriptor: &Array3dDescriptor, level: u32) -> usize {
    if descriptor.flags & LAYERED == 0 {
        (descriptor.depth >> level).max(1)
    } else {
        descriptor.depth.max(1)
    }
}

/// Levels down to one element.
pub(crate) fn most_levels(descriptor: &Array3dDescriptor) -> u32 {
    let flat = descriptor.width.max(descriptor.height).max(1);
    let longest = if descriptor.flags & LAYERED == 0 {
        flat.max(descriptor.depth)
    } else {
        flat
    };
    longest.ilog2() + 1
}

/// Bytes of an array with `levels` levels: rows of 64 bytes, 8 rows together, whole blocks.
fn size(descriptor: &Array3dDescriptor, levels: u32) -> Answer<u64> {
    let element = element_bytes(descriptor)?;
    if descriptor.width == 0 || levels == 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    let mut sum = 0_u64;
    for level in 0..levels {
        let extent = |length: usize| (length as u64 >> level).max(1);
        let row = element * extent(descriptor.width);
        let rows = match descriptor.height {
            0 => 1,
            height => extent(height).next_multiple_of(8),
        };
        let slices = depth_at(descriptor, level) as u64;
        let bytes = row.next_multiple_of(64).checked_mul(rows);
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(slices));
        sum = bytes
            .and_then(|bytes| sum.checked_add(bytes))
            .ok_or(ERROR_INVALID_VALUE)?;
    }
    sum.checked_next_multiple_of(BLOCK)
        .ok_or(ERROR_INVALID_VALUE)
}

impl Array {
    /// Allocates the array's memory on the context's GPU.
    pub(crate) fn new(
        driver: &Driver,
        context: ContextRef,
        descriptor: Array3dDescriptor,
        levels: u32,
    ) -> Answer<Self> {
        let bytes = size(&descriptor, levels)?;
        let context = context.owner();
        if descriptor.flags & MAPPED_LATER != 0 {
            return Ok(Self {
                context,
                memory: None,
            });
        }
        let base = allocate_blocks(driver, context.gpu_index, bytes)?;
        Ok(Self {
            context,
            memory: Some(Memory { base, bytes }),
        })
    }

    pub(crate) fn give(&self, driver: &Driver) {
        if let Some(memory) = self.memory {
            let gpu_index = self.context.gpu_index;
            release_blocks(driver, gpu_index, memory.base, memory.bytes, true);
        }
    }
}

impl Objects {
    /// Destroys all that a context owns.
    pub(crate) fn drop_context(&self, driver: &Driver, context: &Context) {
        for array in self.arrays.drain(|array| array.context.is(context)) {
            array.give(driver);
        }
        self.functions
            .drain(|function| function.context.is(context));
        self.events.drain(|event| event.context.is(context));
        self.streams.drain(|stream| stream.context.is(context));
        self.modules.drain(|module| module.context.is(context));
    }
}
