//! Fills and copies within a device. Large ones use its memory as long as a kernel would, so they are
//! paced like kernels. Copies between the host and a device, or between two devices, are no compute.

use core::ffi::{c_uint, c_void};

use aliquot_pacer::cost::key;
use aliquot_pacer::scale::Extent;

use super::launch::stream_of;
use crate::device_pace::LaunchWork;
use crate::driver::call;
use crate::ffi::{Code, Handle, Out, Pointer, SUCCESS, long};
use crate::pace;
use crate::process;
use crate::reserve::device_index_of;

/// Bytes from which a fill or a copy is paced: a copy of so many takes 26 us on a T4, at 320 GB/s.
const LARGE: u64 = 4 << 20;
/// Distinguishes transfers from functions.
const TRANSFER: u64 = u64::MAX;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_uint = 2;
/// `CU_MEMORYTYPE_DEVICE`, `..._ARRAY` and `..._UNIFIED`.
const DEVICE: c_uint = 2;
const ARRAY: c_uint = 3;
const UNIFIED: c_uint = 4;

/// What moves, and how. Each kind has a rate of its own.
#[derive(Clone, Copy, Debug)]
enum TransferKind {
    Fill,
    FillRows,
    Copy,
    CopyRows,
}

impl TransferKind {
    fn number(self) -> u64 {
        match self {
            Self::Fill => 1,
            Self::FillRows => 2,
            Self::Copy => 3,
            Self::CopyRows => 4,
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

pub(crate) fn fill<T, const OWN: bool>(
    real: extern "C" fn(Pointer, T, usize) -> Code,
    to: Pointer,
    value: T,
    count: usize,
) -> Code {
    let bytes = product(count, size_of::<T>());
    TransferKind::Fill.pace(bytes, stream_of::<OWN>(0), move || real(to, value, count))
}

pub(crate) fn fill_async<T, const OWN: bool>(
    real: extern "C" fn(Pointer, T, usize, Handle) -> Code,
    to: Pointer,
    value: T,
    count: usize,
    stream: Handle,
) -> Code {
    let bytes = product(count, size_of::<T>());
    TransferKind::Fill.pace(bytes, stream_of::<OWN>(stream), move || {
        real(to, value, count, stream)
    })
}

pub(crate) fn fill_rows<T, const OWN: bool>(
    real: extern "C" fn(Pointer, usize, T, usize, usize) -> Code,
    to: Pointer,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
) -> Code {
    let bytes = product(width, height).saturating_mul(long(size_of::<T>()));
    TransferKind::FillRows.pace(bytes, stream_of::<OWN>(0), move || {
        real(to, pitch, value, width, height)
    })
}

pub(crate) fn fill_rows_async<T, const OWN: bool>(
    real: extern "C" fn(Pointer, usize, T, usize, usize, Handle) -> Code,
    to: Pointer,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
    stream: Handle,
) -> Code {
    let bytes = product(width, height).saturating_mul(long(size_of::<T>()));
    TransferKind::FillRows.pace(bytes, stream_of::<OWN>(stream), move || {
        real(to, pitch, value, width, height, stream)
    })
}

pub(crate) fn copy_in_device<const OWN: bool>(
    real: extern "C" fn(Pointer, Pointer, usize) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
) -> Code {
    TransferKind::Copy.pace(long(bytes), stream_of::<OWN>(0), move || {
        real(to, from, bytes)
    })
}

pub(crate) fn copy_in_device_async<const OWN: bool>(
    real: extern "C" fn(Pointer, Pointer, usize, Handle) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
    stream: Handle,
) -> Code {
    TransferKind::Copy.pace(long(bytes), stream_of::<OWN>(stream), move || {
        real(to, from, bytes, stream)
    })
}

/// A copy between two addresses, each on the host or on a device.
pub(crate) fn copy<const OWN: bool>(
    real: extern "C" fn(Pointer, Pointer, usize) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
) -> Code {
    let within = bytes_within([to, from], bytes);
    TransferKind::Copy.pace(within, stream_of::<OWN>(0), move || real(to, from, bytes))
}

pub(crate) fn copy_async<const OWN: bool>(
    real: extern "C" fn(Pointer, Pointer, usize, Handle) -> Code,
    to: Pointer,
    from: Pointer,
    bytes: usize,
    stream: Handle,
) -> Code {
    let within = bytes_within([to, from], bytes);
    TransferKind::Copy.pace(within, stream_of::<OWN>(stream), move || {
        real(to, from, bytes, stream)
    })
}

/// A copy between two contexts, which may be of one device.
pub(crate) fn copy_peer<const OWN: bool>(
    real: extern "C" fn(Pointer, Handle, Pointer, Handle, usize) -> Code,
    to: Pointer,
    to_context: Handle,
    from: Pointer,
    from_context: Handle,
    bytes: usize,
) -> Code {
    let within = bytes_of_peers([to_context, from_context], bytes);
    TransferKind::Copy.pace(within, stream_of::<OWN>(0), move || {
        real(to, to_context, from, from_context, bytes)
    })
}

pub(crate) fn copy_peer_async<const OWN: bool>(
    real: extern "C" fn(Pointer, Handle, Pointer, Handle, usize, Handle) -> Code,
    to: Pointer,
    to_context: Handle,
    from: Pointer,
    from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Code {
    let within = bytes_of_peers([to_context, from_context], bytes);
    TransferKind::Copy.pace(within, stream_of::<OWN>(stream), move || {
        real(to, to_context, from, from_context, bytes, stream)
    })
}

/// Copies between pairs of addresses, each on the host or on a device; they are paced as one.
#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn copy_batch<const OWN: bool>(
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
    TransferKind::Copy.pace(within, stream_of::<OWN>(stream), move || {
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
pub(crate) fn copy_batch_indexed<const OWN: bool>(
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
    TransferKind::Copy.pace(within, stream_of::<OWN>(stream), move || {
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

pub(crate) fn copy_between_arrays<const OWN: bool>(
    real: extern "C" fn(Handle, usize, Handle, usize, usize) -> Code,
    to: Handle,
    to_offset: usize,
    from: Handle,
    from_offset: usize,
    bytes: usize,
) -> Code {
    TransferKind::CopyRows.pace(long(bytes), stream_of::<OWN>(0), move || {
        real(to, to_offset, from, from_offset, bytes)
    })
}

pub(crate) fn copy_from_array<const OWN: bool>(
    real: extern "C" fn(Pointer, Handle, usize, usize) -> Code,
    to: Pointer,
    from: Handle,
    offset: usize,
    bytes: usize,
) -> Code {
    TransferKind::CopyRows.pace(long(bytes), stream_of::<OWN>(0), move || {
        real(to, from, offset, bytes)
    })
}

pub(crate) fn copy_to_array<const OWN: bool>(
    real: extern "C" fn(Handle, usize, Pointer, usize) -> Code,
    to: Handle,
    offset: usize,
    from: Pointer,
    bytes: usize,
) -> Code {
    TransferKind::CopyRows.pace(long(bytes), stream_of::<OWN>(0), move || {
        real(to, offset, from, bytes)
    })
}

/// One side of [`Copy2d`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Side2d {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: Pointer,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy2d {
    sides: [Side2d; 2],
    width: usize,
    height: usize,
}

/// One side of [`Copy3d`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Side3d {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: usize,
    device: Pointer,
    array: Handle,
    context: Handle,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`; the sides of `CUDA_MEMCPY3D_PEER` name contexts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy3d {
    sides: [Side3d; 2],
    width: usize,
    height: usize,
    depth: usize,
}

const _: () = assert!(size_of::<Copy2d>() == 128 && size_of::<Copy3d>() == 200);

/// `CUDA_MEMCPY3D_PEER`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy3dOfPeers(Copy3d);

/// A copy that is described by a struct.
pub(crate) trait CopyShape: Copy {
    /// Bytes that it moves within a device, if they are many.
    fn bytes_within(self) -> u64;
}

impl CopyShape for Copy2d {
    fn bytes_within(self) -> u64 {
        let sides = self.sides.map(|side| (side.kind, side.device));
        let bytes = product(self.width, self.height);
        large_if(bytes, || sides.into_iter().all(is_on_device))
    }
}

impl CopyShape for Copy3d {
    fn bytes_within(self) -> u64 {
        let sides = self.sides.map(|side| (side.kind, side.device));
        let bytes = product(self.width, self.height).saturating_mul(long(self.depth));
        large_if(bytes, || sides.into_iter().all(is_on_device))
    }
}

impl CopyShape for Copy3dOfPeers {
    fn bytes_within(self) -> u64 {
        if is_same_device(self.0.sides.map(|side| side.context)) {
            self.0.bytes_within()
        } else {
            0
        }
    }
}

pub(crate) fn copy_shape<T: CopyShape, const OWN: bool>(
    real: extern "C" fn(Out<T>) -> Code,
    shape: Out<T>,
) -> Code {
    let within = shape.get().map_or(0, T::bytes_within);
    TransferKind::CopyRows.pace(within, stream_of::<OWN>(0), move || real(shape))
}

pub(crate) fn copy_shape_async<T: CopyShape, const OWN: bool>(
    real: extern "C" fn(Out<T>, Handle) -> Code,
    shape: Out<T>,
    stream: Handle,
) -> Code {
    let within = shape.get().map_or(0, T::bytes_within);
    TransferKind::CopyRows.pace(within, stream_of::<OWN>(stream), move || {
        real(shape, stream)
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

fn bytes_within(ends: [Pointer; 2], bytes: usize) -> u64 {
    large_if(long(bytes), || ends.into_iter().all(is_device_memory))
}

fn bytes_of_peers(contexts: [Handle; 2], bytes: usize) -> u64 {
    large_if(long(bytes), || is_same_device(contexts))
}

/// The bytes, if they are many and move within a device; the driver is only asked about many.
fn large_if(bytes: u64, is_within: impl FnOnce() -> bool) -> u64 {
    if bytes >= LARGE && is_within() {
        bytes
    } else {
        0
    }
}

fn is_same_device([to, from]: [Handle; 2]) -> bool {
    let Some(process) = process::get() else {
        // The launch will be refused.
        return true;
    };
    let of = |context| device_index_of(process, context);
    to == from || matches!((of(to), of(from)), (Ok(to), Ok(from)) if to == from)
}

/// Whether a side of a copy, by its memory type and its address, is on a device.
fn is_on_device((kind, address): (c_uint, Pointer)) -> bool {
    matches!(kind, DEVICE | ARRAY) || (kind == UNIFIED && is_device_memory(address))
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

    #[test]
    fn paces_no_copy_from_or_to_host() {
        const HOST: c_uint = 1;
        let side = |kind| Side2d {
            x: 0,
            y: 0,
            kind,
            host: 0,
            device: 0,
            array: 0,
            pitch: 0,
        };
        let within = |kinds: [c_uint; 2], height| {
            let sides = kinds.map(side);
            let width = 1 << 20;
            let shape = Copy2d {
                sides,
                width,
                height,
            };
            shape.bytes_within()
        };
        assert_eq!(within([DEVICE, DEVICE], 4), LARGE);
        assert_eq!(within([DEVICE, ARRAY], 9), 9 << 20);
        assert_eq!(within([DEVICE, DEVICE], 3), 0, "too small");
        assert_eq!(within([DEVICE, HOST], 4), 0);
        assert_eq!(within([HOST, DEVICE], 4), 0);
    }
}
