//! Types and constants of the driver's interface. Nothing is decided here.

use std::ffi::{c_int, c_uint};

/// Return value of every hooked call: `CUresult` or `nvmlReturn_t`.
pub(crate) type Code = c_int;

/// What is answered to a call: what the driver did, or the error with which a handler ended early.
pub(crate) trait Answer {
    fn code(self) -> Code;
}

impl Answer for Code {
    #[inline]
    fn code(self) -> Code {
        self
    }
}

impl Answer for Result<Code, Code> {
    fn code(self) -> Code {
        match self {
            Ok(code) | Err(code) => code,
        }
    }
}

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NO_DEVICE`: the answer to a process without a driver.
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
/// `CUDA_ERROR_NOT_PERMITTED`: a known call without limits to check it against.
pub(crate) const NOT_PERMITTED: Code = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`: what spilled memory cannot do, and what cannot be counted.
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const NVML_INVALID_ARGUMENT: Code = 2;
pub(crate) const NVML_NOT_FOUND: Code = 6;
pub(crate) const NVML_INSUFFICIENT_SIZE: Code = 7;
pub(crate) const NVML_GPU_IS_LOST: Code = 15;
pub(crate) const NVML_LIBRARY_NOT_FOUND: Code = 12;

pub(crate) type Handle = usize;
pub(crate) type Device = c_int;
pub(crate) type Pointer = u64;

/// `CU_STREAM_PER_THREAD`; handles up to it are no stream objects.
pub(crate) const PER_THREAD_STREAM: Handle = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CuMemLocation {
    kind: c_uint,
    device: Device,
}

/// Where memory is to be, as far as it matters for charging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLocation {
    Device(Device),
    Host,
    /// Managed memory without a device: it moves to whichever uses it.
    Managed,
    /// An unknown location type, or none: it may be on a device.
    Unknown(c_uint),
}

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
    pub(crate) fn location(self) -> MemoryLocation {
        self.place.for_type(self.kind)
    }
}

/// `CUmemAllocationProp`, with room for what later drivers may add.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AllocationProperties {
    pub(crate) first: Properties,
    others: [u64; 6],
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

    /// What an untyped argument points to, as the interface promises.
    pub(crate) fn at(place: *mut core::ffi::c_void) -> Self {
        Self(place.cast())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place, of a caller to whom the driver gives other values there.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
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

/// A size of the C side.
pub(crate) fn long(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

/// A size for the C side.
pub(crate) fn size(long: u64) -> usize {
    usize::try_from(long).unwrap_or(usize::MAX)
}
