//! The driver's structs that cross the C ABI, in their documented layout.

use std::ffi::c_void;

/// `CUdevice`.
pub(crate) type Device = i32;
/// `CUdeviceptr`.
pub(crate) type DevicePointer = u64;
/// Any handle.
pub(crate) type Handle = u64;

/// `CUuuid`.
pub(crate) type Uuid = [u8; 16];

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array3dDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// `CUctxCreateParams` is only ever null or passed through.
pub(crate) type ContextParameters = c_void;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// A `CUmemLocation`, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLocation {
    /// `CU_MEM_LOCATION_TYPE_NONE`.
    Nowhere,
    Gpu(Device),
    Host,
    /// `CU_MEM_LOCATION_TYPE_INVISIBLE`, or a newer one.
    Other,
}

impl Location {
    pub(crate) fn place(self) -> MemoryLocation {
        match self.kind {
            0 => MemoryLocation::Nowhere,
            1 => MemoryLocation::Gpu(self.id),
            2..=4 => MemoryLocation::Host,
            // CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: the device in the first byte, a part of
            // its memory in the second.
            6 => MemoryLocation::Gpu(self.id & 0xff),
            _ => MemoryLocation::Other,
        }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) windows: u64,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescriptor {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProperties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) windows: u64,
    pub(crate) most: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

/// `CUipcMemHandle`: opaque to clients.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle {
    pub(crate) words: [u64; 8],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfiguration {
    /// Grid and block.
    pub(crate) shape: [u32; 6],
    pub(crate) shared: u32,
    pub(crate) stream: Handle,
    pub(crate) attributes: u64,
    pub(crate) attribute_count: u32,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocNodeParameters {
    pub(crate) pool: PoolProperties,
    pub(crate) access: u64,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) pointer: DevicePointer,
}

/// `CUarrayMapInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayMapping {
    pub(crate) kind: u32,
    pub(crate) array: Handle,
    pub(crate) part: u32,
    pub(crate) extent: [u64; 4],
    /// 1: map, 2: unmap.
    pub(crate) operation: u32,
    pub(crate) handle_kind: u32,
    pub(crate) handle: Handle,
    pub(crate) offset: u64,
    pub(crate) devices: u32,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 2],
}

/// The beginning of `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct InstantiateParameters {
    pub(crate) flags: u64,
    pub(crate) stream: Handle,
}
