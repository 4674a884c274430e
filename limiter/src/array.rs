//! Arrays and mipmapped arrays: charged by the size that texture hardware gives them, in whole
//! blocks.
//!
//! Fed by: [`crate::table`]. Must not: charge what has no memory of its own (sparse, deferred).

use core::ffi::{c_uint, c_void};

use crate::account::Account;
use crate::ffi::{Code, Handle, OUT_OF_MEMORY, Out, SUCCESS, long};
use crate::ledger::in_blocks;
use crate::memory::{freed, uncounted};
use crate::{physical, process};

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flat {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped later.
const MAPPED_LATER: c_uint = 0x40 | 0x80;
/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth is a number of layers or faces, of
/// which each level has all.
const LAYERED: c_uint = 0x01 | 0x04;
/// Rows of bytes, and rows together, as they lie in memory.
const ROW: u64 = 64;
const ROWS: u64 = 8;
/// The most bytes of one channel: formats that are not known here count as the largest.
const LARGEST: u64 = 8;

pub(crate) fn create(
    real: extern "C" fn(Out<Handle>, Out<Flat>) -> Code,
    array: Out<Handle>,
    descriptor: Out<Flat>,
) -> Code {
    let solid = descriptor.get().map(|flat| Solid {
        width: flat.width,
        height: flat.height,
        depth: 0,
        format: flat.format,
        channels: flat.channels,
        flags: 0,
    });
    counted(solid, 1, array, || real(array, descriptor))
}

pub(crate) fn create_3d(
    real: extern "C" fn(Out<Handle>, Out<Solid>) -> Code,
    array: Out<Handle>,
    descriptor: Out<Solid>,
) -> Code {
    counted(descriptor.get(), 1, array, || real(array, descriptor))
}

pub(crate) fn create_mipmapped(
    real: extern "C" fn(Out<Handle>, Out<Solid>, c_uint) -> Code,
    array: Out<Handle>,
    descriptor: Out<Solid>,
    levels: c_uint,
) -> Code {
    counted(descriptor.get(), levels, array, || {
        real(array, descriptor, levels)
    })
}

/// The forms of CUDA 3.1.
pub(crate) fn too_old(
    real: extern "C" fn(Out<Handle>, *const c_void) -> Code,
    array: Out<Handle>,
    descriptor: *const c_void,
) -> Code {
    uncounted(|| real(array, descriptor))
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, array: Handle) -> Code {
    match process::get() {
        Some(process) => physical::watched(process, || freed(long(array), || real(array))),
        None => real(array),
    }
}

fn counted(
    descriptor: Option<Solid>,
    levels: c_uint,
    array: Out<Handle>,
    call: impl FnOnce() -> Code,
) -> Code {
    let account = match Account::of_current() {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    // Without a descriptor the driver refuses.
    let Some(descriptor) = descriptor.filter(|one| one.flags & MAPPED_LATER == 0) else {
        return call();
    };
    let Some(bytes) = size(descriptor, levels).and_then(in_blocks) else {
        return OUT_OF_MEMORY;
    };
    if let Err(code) = account.reserve("an array", bytes) {
        return code;
    }
    let code = call();
    match (code, array.get()) {
        (SUCCESS, Some(handle)) => {
            let entry = account.entry(bytes, false);
            account.process.ledger.insert(long(handle), entry);
        }
        _ => account.release(bytes),
    }
    code
}

/// Bytes of one element.
fn element(one: Solid) -> u64 {
    let channels = u64::from(one.channels.clamp(1, 4));
    let named = one.format % 3;
    match one.format {
        // Integers and fractions of 8, 16 and 32 bits for each channel.
        0x01 | 0x08 => channels,
        0x02 | 0x09 | 0x10 => 2 * channels,
        0x03 | 0x0a | 0x20 => 4 * channels,
        // UNORM and SNORM of 8 and 16 bits, whose names say that they have 1, 2 or 4 channels.
        0xc0..=0xc2 | 0xc6..=0xc8 => 1 << named,
        0xc3..=0xc5 | 0xc9..=0xcb => 2 << named,
        _ => LARGEST * channels,
    }
}

/// Bytes of an array: rows of 64 bytes, 8 rows together.
fn size(one: Solid, levels: c_uint) -> Option<u64> {
    let element = element(one);
    (0..levels.clamp(1, 32)).try_fold(0_u64, |sum, level| {
        let extent = |length: usize| (long(length) >> level).max(1);
        let row = element.checked_mul(extent(one.width))?;
        let rows = if one.height == 0 {
            1
        } else {
            extent(one.height)
        };
        let plane = row.checked_next_multiple_of(ROW)?.checked_mul(
            rows.checked_next_multiple_of(if one.height == 0 { 1 } else { ROWS })?,
        )?;
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
    fn an_array_counts_its_rows_as_they_lie_in_memory() {
        let check = |width, height, depth, levels, expected: Option<u64>| {
            let one = Solid {
                width,
                height,
                depth,
                format: 0x20,
                channels: 4,
                flags: 0,
            };
            assert_eq!(
                size(one, levels),
                expected,
                "{width} {height} {depth} {levels}"
            );
        };
        check(1, 0, 0, 1, Some(64));
        check(1024, 1024, 0, 1, Some(16 << 20));
        check(5, 9, 3, 1, Some(128 * 16 * 3));
        check(1024, 1024, 0, 2, Some(20 << 20));
        check(usize::MAX, 2, 0, 1, None);
    }

    #[test]
    fn formats_that_name_their_channels_were_charged_eight_times() {
        let check = |format, expected: u64| {
            let one = Solid {
                width: 64,
                height: 8,
                depth: 0,
                format,
                channels: 4,
                flags: 0,
            };
            assert_eq!(size(one, 1), Some(64 * 8 * expected), "{format:#x}");
        };
        for (first, bytes) in [(0xc0, 1), (0xc3, 2), (0xc6, 1), (0xc9, 2)] {
            check(first, bytes);
            check(first + 1, 2 * bytes);
            check(first + 2, 4 * bytes);
        }
        check(0x10, 8);
        check(0xb0, 32);
    }
}
