//! Fills and copies within a device. Large ones use its memory as long as a kernel would, so they are
//! paced like kernels. Copies between the host and a device are no compute; those of rows, arrays and
//! between contexts are not paced: the monitor measures what they use, and corrects the rate.

use core::ffi::{c_uint, c_void};

use aliquot_pacer::cost::key;
use aliquot_pacer::scale::Extent;

use super::launch::stream_of;
use crate::device_pace::LaunchWork;
use crate::driver::call;
use crate::ffi::{Code, Handle, Out, Pointer, SUCCESS, long};
use crate::pace;

/// Bytes from which a fill or a copy is paced: a copy of so many takes 26 us on a T4, at 320 GB/s.
const LARGE: u64 = 4 << 20;
/// Distinguishes transfers from functions.
const TRANSFER: u64 = u64::MAX;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_uint = 2;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;

/// What moves, and how. Each kind has a rate of its own.
#[derive(Clone, Copy, Debug)]
enum TransferKind {
    Fill,
    FillRows,
    Copy,
}

impl TransferKind {
    fn number(self) -> u64 {
        match self {
            Self::Fill => 1,
            Self::FillRows => 2,
            Self::Copy => 3,
        }
    }

    fn work(self, bytes: u64, stream: Handle) -> LaunchWork {
        LaunchWork {
            key: key([self.number(), size_class(bytes), TRANSFER]),
            stream,
            // No function has such an address.
            extent: Extent {
                function: self.number(),
                amount: bytes,
            },
        }
    }

    /// Makes a call that moves so many bytes within a device.
    #[inline]
    fn pace(self, bytes: u64, stream: Handle, call: impl FnOnce() -> Code) -> Code {
        if bytes < LARGE {
            return call();
        }
        pace::launch(self.work(bytes, stream), call)
    }
}

/// The size in steps of an eighth or less: sizes of one step cost about the same.
fn size_class(bytes: u64) -> u64 {
    let step = (u64::BITS - bytes.leading_zeros()).saturating_sub(4);
    bytes >> step << step
}

fn product(count: usize, each: usize) -> u64 {
    long(count).saturating_mul(long(each))
}

pub(crate) fn fill<T, const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, T, usize) -> Code,
    to: Pointer,
    value: T,
    count: usize,
) -> Code {
    let bytes = product(count, size_of::<T>());
    TransferKind::Fill.pace(bytes, stream_of::<PER_THREAD>(0), move || {
        real(to, value, count)
    })
}

pub(crate) fn fill_async<T, const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, T, usize, Handle) -> Code,
    to: Pointer,
    value: T,
    count: usize,
    stream: Handle,
) -> Code {
    let bytes = product(count, size_of::<T>());
    TransferKind::Fill.pace(bytes, stream_of::<PER_THREAD>(stream), move || {
        real(to, value, count, stream)
    })
}

pub(crate) fn fill_rows<T, const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, usize, T, usize, usize) -> Code,
    to: Pointer,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
) -> Code {
    let bytes = product(width, height).saturating_mul(long(size_of::<T>()));
    TransferKind::FillRows.pace(bytes, stream_of::<PER_THREAD>(0), move || {
        real(to, pitch, value, width, height)
    })
}

pub(crate) fn fill_rows_async<T, const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, usize, T, usize, usize, Handle) -> Code,
    to: Pointer,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
    stream: Handle,
) -> Code {
    let bytes = product(width, height).saturating_mul(long(size_of::<T>()));
    TransferKind::FillRows.pace(bytes, stream_of::<PER_THREAD>(stream), move || {
        real(to, pitch, value, width, height, stream)
    })
}

pub(crate) fn copy_in_device<const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, Pointer, usize) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
) -> Code {
    TransferKind::Copy.pace(long(bytes), stream_of::<PER_THREAD>(0), move || {
        real(to, from, bytes)
    })
}

pub(crate) fn copy_in_device_async<const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, Pointer, usize, Handle) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
    stream: Handle,
) -> Code {
    TransferKind::Copy.pace(long(bytes), stream_of::<PER_THREAD>(stream), move || {
        real(to, from, bytes, stream)
    })
}

/// A copy between two addresses, each on the host or on a device.
pub(crate) fn copy<const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, Pointer, usize) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
) -> Code {
    let within = bytes_within([to, from], bytes);
    TransferKind::Copy.pace(within, stream_of::<PER_THREAD>(0), move || {
        real(to, from, bytes)
    })
}

pub(crate) fn copy_async<const PER_THREAD: bool>(
    real: extern "C" fn(Pointer, Pointer, usize, Handle) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
    stream: Handle,
) -> Code {
    let within = bytes_within([to, from], bytes);
    TransferKind::Copy.pace(within, stream_of::<PER_THREAD>(stream), move || {
        real(to, from, bytes, stream)
    })
}

/// Copies between pairs of addresses, each on the host or on a device; they are paced as one.
#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn copy_batch<const PER_THREAD: bool>(
    real: extern "C" fn(
        Out<Pointer>,
        Out<Pointer>,
        Out<usize>,
        usize,
        *mut c_void,
        *mut c_void,
        usize,
        Handle,
    ) -> Code,
    to: Out<Pointer>,
    from: Out<Pointer>,
    sizes: Out<usize>,
    count: usize,
    attributes: *mut c_void,
    indexes: *mut c_void,
    attribute_count: usize,
    stream: Handle,
) -> Code {
    let within = bytes_of_batch([to, from], sizes, count);
    TransferKind::Copy.pace(within, stream_of::<PER_THREAD>(stream), move || {
        real(
            to,
            from,
            sizes,
            count,
            attributes,
            indexes,
            attribute_count,
            stream,
        )
    })
}

/// The form of CUDA 12.8, which returns the index of a copy that failed.
#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn copy_batch_indexed<const PER_THREAD: bool>(
    real: extern "C" fn(
        Out<Pointer>,
        Out<Pointer>,
        Out<usize>,
        usize,
        *mut c_void,
        *mut c_void,
        usize,
        Out<usize>,
        Handle,
    ) -> Code,
    to: Out<Pointer>,
    from: Out<Pointer>,
    sizes: Out<usize>,
    count: usize,
    attributes: *mut c_void,
    indexes: *mut c_void,
    attribute_count: usize,
    failed: Out<usize>,
    stream: Handle,
) -> Code {
    let within = bytes_of_batch([to, from], sizes, count);
    TransferKind::Copy.pace(within, stream_of::<PER_THREAD>(stream), move || {
        real(
            to,
            from,
            sizes,
            count,
            attributes,
            indexes,
            attribute_count,
            failed,
            stream,
        )
    })
}

/// The bytes that the copies of a batch move within a device, if they are many.
fn bytes_of_batch([to, from]: [Out<Pointer>; 2], sizes: Out<usize>, count: usize) -> u64 {
    if to.is_null() || from.is_null() || sizes.is_null() {
        return 0;
    }
    let size = |i: usize| long(sizes.get_at(i).unwrap_or(0));
    let all = (0..count).map(size).fold(0, u64::saturating_add);
    if all < LARGE {
        return 0;
    }
    let is_within = |i: &usize| {
        let ends = [to.get_at(*i), from.get_at(*i)];
        ends.into_iter().flatten().all(is_device_memory)
    };
    let within = (0..count).filter(is_within).map(size);
    within.fold(0, u64::saturating_add)
}

/// The bytes, if they are many and move within a device; the driver is only asked about many.
fn bytes_within(ends: [Pointer; 2], bytes: usize) -> u64 {
    let is_large = long(bytes) >= LARGE;
    if is_large && ends.into_iter().all(is_device_memory) {
        long(bytes)
    } else {
        0
    }
}

/// Memory that the driver does not know is the host's.
fn is_device_memory(address: Pointer) -> bool {
    let mut kind = 0;
    let code = call::cuPointerGetAttribute(Out::to(&mut kind), MEMORY_TYPE, address);
    code == SUCCESS && kind == DEVICE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_sizes_that_differ_by_an_eighth() {
        for (bytes, expected) in [
            (LARGE, LARGE),
            (LARGE + (LARGE >> 4), LARGE),
            (LARGE + (LARGE >> 3), LARGE + (LARGE >> 3)),
            (2 * LARGE - 1, 15 << 19),
            (u64::MAX, 15 << 60),
        ] {
            assert_eq!(size_class(bytes), expected, "{bytes}");
        }
    }
}
