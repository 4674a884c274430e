//! Arrays and mipmapped arrays: charged by the size that texture hardware gives them, in whole
//! blocks. Sparse and deferred arrays have no memory of their own and are not charged.

use core::ffi::c_uint;

use super::memory::free_charged;
use super::physical;
use crate::charges::account::Account;
use crate::charges::allocations::{Allocations, in_blocks};
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::process;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayDescriptor {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array3dDescriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped later.
const MAPPED_LATER: c_uint = 0x40 | 0x80;
/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth is a number of layers or faces, and
/// every level has all of them.
const LAYERED: c_uint = 0x01 | 0x04;
/// Alignment of a row in bytes, and of a plane in rows.
const ROW: u64 = 64;
const ROWS: u64 = 8;
/// Most bytes of one channel: unknown formats count as the largest.
const LARGEST: u64 = 8;

pub(crate) fn create(
    descriptor: Out<ArrayDescriptor>,
    array: Out<Handle>,
    call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    let descriptor = descriptor.get().map(|descriptor| Array3dDescriptor {
        width: descriptor.width,
        height: descriptor.height,
        depth: 0,
        format: descriptor.format,
        channels: descriptor.channels,
        flags: 0,
    });
    create_charged(descriptor, 1, array, call)
}

pub(crate) fn destroy(array: Handle, call: impl FnOnce() -> Code) -> Code {
    let call = || free_charged(long(array), call);
    match process::get() {
        Some(process) => physical::destroy_array(process, array, call),
        None => call(),
    }
}

pub(crate) fn create_charged(
    descriptor: Option<Array3dDescriptor>,
    levels: c_uint,
    array: Out<Handle>,
    mut call: impl FnMut() -> Code,
) -> Result<Code, Code> {
    let Some(account) = Account::of_current()? else {
        return Ok(call());
    };
    // Without a descriptor the driver refuses.
    let Some(descriptor) = descriptor.filter(|one| one.flags & MAPPED_LATER == 0) else {
        return Ok(call());
    };
    let needed = size(descriptor, levels).and_then(in_blocks);
    let bytes = needed.ok_or(OUT_OF_MEMORY)?;
    account.reserve("an array", bytes)?;
    let code = account.call_until_lent_memory_returns(bytes, call);
    match (code, array.get()) {
        (SUCCESS, Some(handle)) => {
            let entry = account.allocation(bytes, false);
            Allocations::of(account.process).insert(long(handle), entry);
        }
        _ => account.release(bytes),
    }
    Ok(code)
}

fn element(one: Array3dDescriptor) -> u64 {
    let channels = u64::from(one.channels.clamp(1, 4));
    let named = one.format % 3;
    match one.format {
        // Integers and fractions of 8, 16 and 32 bits for each channel.
        0x01 | 0x08 => channels,
        0x02 | 0x09 | 0x10 => 2 * channels,
        0x03 | 0x0a | 0x20 => 4 * channels,
        // UNORM and SNORM of 8 and 16 bits, whose names include 1, 2 or 4 channels.
        0xc0..=0xc2 | 0xc6..=0xc8 => 1 << named,
        0xc3..=0xc5 | 0xc9..=0xcb => 2 << named,
        _ => LARGEST * channels,
    }
}

/// Bytes of an array: rows of 64 bytes, 8 rows together.
fn size(one: Array3dDescriptor, levels: c_uint) -> Option<u64> {
    let element = element(one);
    (0..levels.clamp(1, 32)).try_fold(0_u64, |sum, level| {
        let extent = |length: usize| (long(length) >> level).max(1);
        let row = element.checked_mul(extent(one.width))?;
        let rows = match one.height {
            0 => 1,
            height => extent(height).checked_next_multiple_of(ROWS)?,
        };
        let plane = row.checked_next_multiple_of(ROW)?.checked_mul(rows)?;
        let depth = if one.flags & LAYERED == 0 {
            extent(one.depth)
        } else {
            long(one.depth).max(1)
        };
        sum.checked_add(plane.checked_mul(depth)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_padding_and_format_of_arrays() {
        let bytes = |[width, height, depth]: [usize; 3], format, levels| {
            let one = Array3dDescriptor {
                width,
                height,
                depth,
                format,
                channels: 4,
                flags: 0,
            };
            size(one, levels)
        };
        let float = 0x20;
        assert_eq!(bytes([1, 0, 0], float, 1), Some(64));
        assert_eq!(bytes([1024, 1024, 0], float, 1), Some(16 << 20));
        assert_eq!(bytes([5, 9, 3], float, 1), Some(128 * 16 * 3));
        assert_eq!(bytes([1024, 1024, 0], float, 2), Some(20 << 20));
        assert_eq!(bytes([usize::MAX, 2, 0], float, 1), None);
        let formats = [(0xc0, 1), (0xc4, 4), (0xc8, 4), (0x10, 8), (0xb0, 32)];
        for (format, element) in formats {
            let found = bytes([64, 8, 0], format, 1);
            assert_eq!(found, Some(64 * 8 * element), "{format:#x}");
        }
    }
}
