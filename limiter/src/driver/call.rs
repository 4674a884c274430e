//! The driver's functions that we call, with their arguments as in the headers of CUDA 13.5 and its
//! NVML.
#![allow(non_snake_case, reason = "the driver's names")]

use core::ffi::{c_char, c_uint, c_void};
use core::ptr::null;

use super::{Address, DriverFunction, DriverLibrary};
use crate::ffi::{AllocationProperties, Code, Device, Handle, Out, Pointer};

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        $(pub(crate) fn $name($($argument: $type),*) -> Code {
            const NAME: &str = concat!(stringify!($name), "\0");
            // What we export under the same name asks for the driver's, too, and answers the same
            // where there is none.
            static REAL: DriverFunction =
                DriverFunction::new(library(NAME), NAME, Address(null()));
            let Some(address) = REAL.get() else {
                return library(NAME).missing();
            };
            // SAFETY: the driver's function of this name has these arguments.
            let real = unsafe {
                core::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> Code>(address)
            };
            real($($argument),*)
        })*
    };
}

const fn library(name: &str) -> DriverLibrary {
    if name.as_bytes()[0] == b'c' {
        DriverLibrary::Cuda
    } else {
        DriverLibrary::Nvml
    }
}

calls! {
    cuCheckpointProcessGetState(pid: i32, state: Out<c_uint>);
    cuDeviceGet(device: Out<Device>, ordinal: i32);
    cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: Device);
    cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: Device);
    cuDevicePrimaryCtxRetain(context: Out<Handle>, device: Device);
    cuDevicePrimaryCtxRelease_v2(device: Device);
    cuDevicePrimaryCtxGetState(device: Device, flags: Out<c_uint>, active: Out<i32>);
    cuPointerGetAttribute(value: Out<c_uint>, attribute: c_uint, pointer: Pointer);
    cuCtxFromGreenCtx(context: Out<Handle>, green: Handle);
    cuCtxGetCurrent(context: Out<Handle>);
    cuCtxGetDevice(device: Out<Device>);
    cuCtxPushCurrent_v2(context: Handle);
    cuCtxPopCurrent_v2(context: Out<Handle>);
    cuCtxGetApiVersion(context: Handle, version: Out<c_uint>);
    cuCtxGetLimit(value: Out<usize>, limit: c_uint);
    cuStreamGetCtx(stream: Handle, context: Out<Handle>);
    cuStreamIsCapturing(stream: Handle, status: Out<c_uint>);
    cuStreamQuery(stream: Handle);
    cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>);
    cuEventCreate(event: Out<Handle>, flags: c_uint);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventQuery(event: Handle);
    cuEventDestroy_v2(event: Handle);
    cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle);
    cuDeviceGetMemPool(pool: Out<Handle>, device: Device);
    cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: Out<u64>);
    cuMemPoolSetAttribute(pool: Handle, attribute: i32, value: Out<u64>);
    cuMemPoolTrimTo(pool: Handle, bytes: usize);
    cuMemAllocManaged(pointer: Out<Pointer>, bytes: usize, flags: c_uint);
    cuDeviceGetGraphMemAttribute(device: Device, attribute: i32, value: Out<u64>);
    cuMemAdvise(pointer: Pointer, bytes: usize, advice: i32, device: Device);
    cuMemFreeAsync(pointer: Pointer, stream: Handle);
    cuMemGetAddressRange_v2(base: Out<Pointer>, bytes: Out<usize>, pointer: Pointer);
    cuMemGetAllocationPropertiesFromHandle(properties: Out<AllocationProperties>, handle: u64);
    cuIpcCloseMemHandle(pointer: Pointer);
    cuMemFree_v2(pointer: Pointer);
    nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint);
    nvmlDeviceGetCount_v2(count: Out<c_uint>);
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>);
    nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>);
    nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: c_uint, instance: Out<Handle>);
    nvmlDeviceGetUUID(device: Handle, uuid: *mut c_char, length: c_uint);
}
