//! Types and constants of the driver's interface. Nothing is decided here.

use std::ffi::{c_int, c_uint};

use crate::image;

/// Return value of every hooked call: `CUresult` or `nvmlReturn_t`.
pub(crate) type Code = c_int;

/// `CUDA_SUCCESS` and `NVML_SUCCESS`.
pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NO_DEVICE`: the answer to a process without a driver.
pub(crate) const NO_DEVICE: Code = 100;
/// `CUDA_ERROR_INVALID_DEVICE`.
pub(crate) const INVALID_DEVICE: Code = 101;
/// `CUDA_ERROR_NOT_PERMITTED`: a known call without limits to check it against.
pub(crate) const NOT_PERMITTED: Code = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`: what spilled memory cannot do, and what cannot be counted.
pub(crate) const NOT_SUPPORTED: Code = 801;
/// `NVML_ERROR_INVALID_ARGUMENT`.
pub(crate) const NVML_INVALID_ARGUMENT: Code = 2;
/// `NVML_ERROR_NOT_FOUND`.
pub(crate) const NVML_NOT_FOUND: Code = 6;
/// `NVML_ERROR_INSUFFICIENT_SIZE`.
pub(crate) const NVML_INSUFFICIENT_SIZE: Code = 7;
/// `NVML_ERROR_GPU_IS_LOST`.
pub(crate) const NVML_GPU_IS_LOST: Code = 15;
/// `NVML_ERROR_LIBRARY_NOT_FOUND`.
pub(crate) const NVML_LIBRARY_NOT_FOUND: Code = 12;

/// A handle of the driver.
pub(crate) type Handle = usize;
/// `CUdevice`.
pub(crate) type Device = c_int;
/// `CUdeviceptr`.
pub(crate) type Pointer = u64;

/// `CU_STREAM_PER_THREAD`; handles up to it are no stream objects.
pub(crate) const PER_THREAD: Handle = 2;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CuMemLocation {
    kind: c_uint,
    device: Device,
}

/// Where memory is to be, as far as it matters for charging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLocation {
    /// On a device.
    Device(Device),
    /// On the host permanently.
    Host,
    /// Managed memory without a device: it moves to whichever uses it.
    Managed,
    /// An unknown location type, or none: it may be on a device.
    Unknown(c_uint),
}

/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
const MANAGED: c_uint = 2;

impl CuMemLocation {
    /// Where memory of an allocation type is at this location.
    pub(crate) fn for_type(self, kind: c_uint) -> MemoryLocation {
        match self.kind {
            // CU_MEM_LOCATION_TYPE_DEVICE
            1 => MemoryLocation::Device(self.device),
            // ..._HOST, ..._HOST_NUMA, ..._HOST_NUMA_CURRENT, and ..._NONE
            0 | 2..=4 if kind == MANAGED => MemoryLocation::Managed,
            2..=4 => MemoryLocation::Host,
            // ..._DEVICE_LOCALITY_DOMAIN: the device is the first byte, a part of it the second
            6 => MemoryLocation::Device(self.device & 0xff),
            other => MemoryLocation::Unknown(other),
        }
    }
}

/// The beginning of `CUmemAllocationProp` and of `CUmemPoolProps`, which is all that we read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Properties {
    kind: c_uint,
    handles: c_uint,
    place: CuMemLocation,
}

impl Properties {
    /// Where the memory is to be.
    pub(crate) fn location(self) -> MemoryLocation {
        self.place.for_type(self.kind)
    }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AllocNodeParams {
    pub(crate) properties: Properties,
    rest: [u64; 9],
    access: [u64; 2],
    pub(crate) bytes: u64,
    pub(crate) pointer: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`; the version before it ends with `extra`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelNodeParams {
    pub(crate) function: Handle,
    shape: [c_uint; 7],
    arguments: Handle,
    extra: Handle,
    /// In place of a function.
    pub(crate) kernel: Handle,
    pub(crate) context: Handle,
}

/// A pointer to which a call writes, or from which it reads, as the driver's interface promises:
/// null, or valid for one `T` (or as many as another argument says) during the call.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }

    pub(crate) fn null() -> Self {
        Self(core::ptr::null_mut())
    }

    /// The first of several; `None` if there is none.
    pub(crate) fn first(places: &mut [T]) -> Option<Self> {
        (!places.is_empty()).then_some(Self(places.as_mut_ptr()))
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(self) -> Option<T> {
        // SAFETY: null, or good for one `T`; `T` has no bits that are not a value.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// The `i`th of several; the driver said how many there are.
    pub(crate) fn get_at(self, i: usize) -> Option<T> {
        // SAFETY: null, or good for more than `i` values by the interface.
        (!self.0.is_null()).then(|| unsafe { self.0.add(i).read_unaligned() })
    }

    /// Zeroes the `i`th of several.
    pub(crate) fn wipe_at(self, i: usize) {
        if !self.0.is_null() {
            // SAFETY: good for more than `i` values by the interface; they hold numbers only.
            unsafe { core::ptr::write_bytes(self.0.add(i).cast::<u8>(), 0, size_of::<T>()) };
        }
    }

    /// Writes, unless the place is null.
    pub(crate) fn put(self, value: T) {
        self.put_at(0, value);
    }

    /// Writes to the `i`th of several; the caller of the driver said how many there are.
    pub(crate) fn put_at(self, i: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: good for more than `i` values by the interface.
            unsafe { self.0.add(i).write_unaligned(value) };
        }
    }
}

/// A C string that a caller passes.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text(pub(crate) *const std::ffi::c_char);

impl Text {
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: a C string by the interface, for as long as the call runs.
        unsafe { std::ffi::CStr::from_ptr(self.0) }.to_bytes()
    }
}

/// A code image that a caller passes: text, or a binary as long as its own header says.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image(*const u8);

impl Image {
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.is_null() {
            return &[];
        }
        let at = self.wrapped().unwrap_or(self.0);
        if at.is_null() {
            return &[];
        }
        // SAFETY: text that ends with a zero, or a binary: there is a first byte.
        let first = unsafe { *at };
        let binary = matches!(first, 0x7f | 0x50);
        let length = binary.then(|| {
            // SAFETY: a binary begins with a head of at least so many bytes.
            let head = unsafe { core::slice::from_raw_parts(at, image::HEAD) };
            image::length(head)
        });
        match length.flatten() {
            // SAFETY: as long as its head says, by the interface, for as long as the call runs.
            Some(length) => unsafe { core::slice::from_raw_parts(at, length) },
            None => {
                // SAFETY: text, which ends with a zero.
                unsafe { std::ffi::CStr::from_ptr(at.cast()) }.to_bytes()
            }
        }
    }

    /// The image behind a fat binary's wrapper, as compilers create it; `None`: this is no wrapper.
    fn wrapped(self) -> Option<*const u8> {
        // SAFETY: no further than the first byte that differs, and no text has these.
        let is = |at: usize| unsafe { *self.0.add(at) } == image::WRAPPER[at];
        (0..image::WRAPPER.len()).all(is).then_some(())?;
        // SAFETY: a wrapper has a version behind these four bytes, and then this pointer.
        let within = unsafe { self.0.add(8).cast::<*const u8>().read_unaligned() };
        // Not a wrapper in a wrapper: there is none, and a ring of them would have no end.
        // SAFETY: where it is not null it is an image, which has a first byte.
        let is_image = !within.is_null() && unsafe { *within } != image::WRAPPER[0];
        Some(if is_image { within } else { core::ptr::null() })
    }
}

/// A size of the C side.
pub(crate) fn long(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

/// A size for the C side.
pub(crate) fn size(long: u64) -> usize {
    usize::try_from(long).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_image_behind_fat_binary_wrapper() {
        let mut fat = 0xba55_ed50_u32.to_le_bytes().to_vec();
        fat.extend([1, 0, 16, 0, 100, 0, 0, 0, 0, 0, 0, 0]);
        fat.extend([0; 100]);
        let check = |within: *const u8, expected: &[u8]| {
            let words = [0x1_4662_43b1, within.addr() as u64, 0];
            assert_eq!(Image(words.as_ptr().cast()).bytes(), expected);
            within
        };
        check(fat.as_ptr(), &fat);
        check(c".version 8.0".as_ptr().cast(), b".version 8.0");
        check(core::ptr::null(), b"");
        let ring = [0x1_4662_43b1_u64, 0, 0];
        check(ring.as_ptr().cast(), b"");
        assert_eq!(Image(c"\xb1C".as_ptr().cast()).bytes(), b"\xb1C", "text");
    }

    #[test]
    fn maps_locality_domain_to_its_device() {
        let check = |place, device, kind, expected| {
            let place = CuMemLocation {
                kind: place,
                device,
            };
            assert_eq!(place.for_type(kind), expected, "{place:?} {kind}");
        };
        check(1, 3, 1, MemoryLocation::Device(3));
        // Card 3, part 1 of its memory.
        check(6, 0x103, 1, MemoryLocation::Device(3));
        for host in 2..=4 {
            check(host, 0, 1, MemoryLocation::Host);
            check(host, 0, MANAGED, MemoryLocation::Managed);
        }
        check(0, 0, MANAGED, MemoryLocation::Managed);
        check(1, 3, MANAGED, MemoryLocation::Device(3));
        for other in [0, 5, 7, 99] {
            check(other, 0, 1, MemoryLocation::Unknown(other));
        }
    }
}
