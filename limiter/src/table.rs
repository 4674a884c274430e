//! The table of hooked calls. The exported functions, the lookup by name and by address, and the
//! list of what is hooked come from it.
//!
//! A row: library, the name under which `cuGetProcAddress` is asked, the CUDA version since which
//! this variant answers it, `T` for the variant with per-thread default streams, the exported name
//! with its arguments as in the driver's headers, and its handler. A handler gets the real function
//! as its first argument.
//!
//! The signatures are from the headers of CUDA 13.5 and its NVML.

use core::ffi::{c_uint, c_void};

use crate::driver::{Address, DriverFunction, DriverLibrary};
use crate::ffi::{Code, CuMemLocation, Device, Handle, Out, Pointer, Properties, Text};
use crate::hooks::launch::{self, LaunchConfig, LaunchParameters};
use crate::hooks::{
    array, capture, checkpoint, context, context_limits, graph, green, ipc, memory, nvml,
    nvml_processes, physical, pool, refuse, transfer, view,
};

mod route;

/// One hooked call.
#[derive(Debug)]
pub(crate) struct Hook {
    /// The exported name.
    pub(crate) name: &'static str,
    /// The name under which `cuGetProcAddress` is asked for it.
    pub(crate) stem: &'static str,
    /// The CUDA version since which `stem` means this variant.
    pub(crate) since: i32,
    /// For per-thread default streams.
    pub(crate) per_thread: bool,
    /// The driver's function, and ours.
    pub(crate) real: &'static DriverFunction,
}

macro_rules! hooks {
    ($($library:ident $stem:literal $since:literal $thread:literal
        $name:ident($($argument:ident: $type:ty),* $(,)?) => $handler:path;)*) => {
        mod reals {
            #![allow(non_upper_case_globals, reason = "the driver's names")]
            use super::*;
            $(pub(super) static $name: DriverFunction = DriverFunction::new(
                DriverLibrary::$library,
                concat!(stringify!($name), "\0"),
                Address(exports::$name as extern "C" fn($($type),*) -> Code as *const ()),
            );)*
        }

        mod exports {
            #![allow(non_snake_case, reason = "the driver's names")]
            use super::*;
            $(
                #[cfg_attr(not(test), unsafe(no_mangle))]
                pub(super) extern "C" fn $name($($argument: $type),*) -> Code {
                    let Some(address) = reals::$name.get() else {
                        return DriverLibrary::$library.missing();
                    };
                    // SAFETY: the driver's function of this name has these arguments.
                    let real = unsafe {
                        core::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> Code>(address)
                    };
                    $handler(real, $($argument),*)
                }
            )*
        }

        /// All hooked calls, in the order of the table.
        pub(crate) static HOOKS: &[Hook] = &[$(Hook {
            name: stringify!($name),
            stem: $stem,
            since: $since,
            per_thread: $thread == 'T',
            real: &reals::$name,
        }),*];
    };
}

/// Whether stream 0 is the context's or the thread's own.
const LEGACY: bool = false;
const PER_THREAD: bool = true;

hooks! {
    Cuda "cuGetProcAddress" 11030 '-' cuGetProcAddress(name: Text, address: Out<*const ()>, version: i32, flags: u64) => route::by_address;
    Cuda "cuGetProcAddress" 12000 '-' cuGetProcAddress_v2(name: Text, address: Out<*const ()>, version: i32, flags: u64, status: Out<c_uint>) => route::by_address_v2;
    Cuda "cuGetProcAddress" 12000 'T' cuGetProcAddress_v2_ptsz(name: Text, address: Out<*const ()>, version: i32, flags: u64, status: Out<c_uint>) => route::by_address_own;

    Cuda "cuDeviceGetCount" 2000 '-' cuDeviceGetCount(count: Out<i32>) => view::device_count;
    Cuda "cuDeviceGet" 2000 '-' cuDeviceGet(device: Out<Device>, ordinal: i32) => view::device;
    Cuda "cuDeviceTotalMem" 2000 '-' cuDeviceTotalMem(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuDeviceTotalMem" 3020 '-' cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) => view::total_memory;
    Cuda "cuMemGetInfo" 2000 '-' cuMemGetInfo(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuMemGetInfo" 3020 '-' cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => view::memory_info;

    Cuda "cuDevicePrimaryCtxRetain" 7000 '-' cuDevicePrimaryCtxRetain(context: Out<Handle>, device: Device) => context::retain;
    Cuda "cuDevicePrimaryCtxRelease" 7000 '-' cuDevicePrimaryCtxRelease(device: Device) => context::release;
    Cuda "cuDevicePrimaryCtxRelease" 11000 '-' cuDevicePrimaryCtxRelease_v2(device: Device) => context::release;
    Cuda "cuDevicePrimaryCtxReset" 7000 '-' cuDevicePrimaryCtxReset(device: Device) => context::release;
    Cuda "cuDevicePrimaryCtxReset" 11000 '-' cuDevicePrimaryCtxReset_v2(device: Device) => context::release;
    Cuda "cuCtxCreate" 2000 '-' cuCtxCreate(context: Out<Handle>, flags: c_uint, device: Device) => context::create_v2;
    Cuda "cuCtxCreate" 3020 '-' cuCtxCreate_v2(context: Out<Handle>, flags: c_uint, device: Device) => context::create_v2;
    Cuda "cuCtxCreate" 11040 '-' cuCtxCreate_v3(context: Out<Handle>, params: *const c_void, count: i32, flags: c_uint, device: Device) => context::create_v3;
    Cuda "cuCtxCreate" 12050 '-' cuCtxCreate_v4(context: Out<Handle>, params: *const c_void, flags: c_uint, device: Device) => context::create_v4;
    Cuda "cuGLCtxCreate" 2000 '-' cuGLCtxCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuGLCtxCreate" 3020 '-' cuGLCtxCreate_v2(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuVDPAUCtxCreate" 3010 '-' cuVDPAUCtxCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuVDPAUCtxCreate" 3020 '-' cuVDPAUCtxCreate_v2(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuCtxDestroy" 2000 '-' cuCtxDestroy(context: Handle) => context::destroy;
    Cuda "cuCtxDestroy" 4000 '-' cuCtxDestroy_v2(context: Handle) => context::destroy;

    Cuda "cuCtxDetach" 2000 '-' cuCtxDetach(context: Handle) => context::detach;

    Cuda "cuGreenCtxCreate" 12040 '-' cuGreenCtxCreate(green: Out<Handle>, resources: *const c_void, device: Device, flags: c_uint) => green::create;
    Cuda "cuGreenCtxDestroy" 12040 '-' cuGreenCtxDestroy(green: Handle) => green::destroy;
    Cuda "cuCtxFromGreenCtx" 12040 '-' cuCtxFromGreenCtx(context: Out<Handle>, green: Handle) => green::as_context;
    Cuda "cuCtxSetLimit" 3010 '-' cuCtxSetLimit(limit: c_uint, value: usize) => context_limits::set;

    Cuda "cuMemAlloc" 2000 '-' cuMemAlloc(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuMemAllocPitch" 2000 '-' cuMemAllocPitch(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuMemAlloc" 3020 '-' cuMemAlloc_v2(pointer: Out<Pointer>, bytes: usize) => memory::allocate;
    Cuda "cuMemAllocPitch" 3020 '-' cuMemAllocPitch_v2(pointer: Out<Pointer>, pitch: Out<usize>, width: usize, height: usize, element: c_uint) => memory::allocate_pitch;
    Cuda "cuMemAllocManaged" 6000 '-' cuMemAllocManaged(pointer: Out<Pointer>, bytes: usize, flags: c_uint) => memory::allocate_managed;
    Cuda "cuMemFree" 3020 '-' cuMemFree_v2(pointer: Pointer) => memory::free;

    Cuda "cuCheckpointProcessCheckpoint" 12080 '-' cuCheckpointProcessCheckpoint(pid: i32, arguments: Out<[u64; 8]>) => checkpoint::suspend;
    Cuda "cuCheckpointProcessRestore" 12080 '-' cuCheckpointProcessRestore(pid: i32, arguments: Out<[u64; 8]>) => checkpoint::restore;

    Cuda "cuIpcGetMemHandle" 4010 '-' cuIpcGetMemHandle(handle: Out<ipc::IpcHandle>, pointer: Pointer) => ipc::share;
    Cuda "cuIpcOpenMemHandle" 4010 '-' cuIpcOpenMemHandle(pointer: Out<Pointer>, handle: ipc::IpcHandle, flags: c_uint) => ipc::open;
    Cuda "cuIpcOpenMemHandle" 11000 '-' cuIpcOpenMemHandle_v2(pointer: Out<Pointer>, handle: ipc::IpcHandle, flags: c_uint) => ipc::open;
    Cuda "cuIpcCloseMemHandle" 4010 '-' cuIpcCloseMemHandle(pointer: Pointer) => ipc::close;
    Cuda "cuMemGetHandleForAddressRange" 11070 '-' cuMemGetHandleForAddressRange(handle: *mut c_void, pointer: Pointer, bytes: usize, kind: i32, flags: u64) => memory::export_range;

    Cuda "cuMemCreate" 10020 '-' cuMemCreate(handle: Out<u64>, bytes: usize, properties: Out<Properties>, flags: u64) => physical::create;
    Cuda "cuMemRelease" 10020 '-' cuMemRelease(handle: u64) => physical::release;
    Cuda "cuMemRetainAllocationHandle" 11000 '-' cuMemRetainAllocationHandle(handle: Out<u64>, address: *mut c_void) => physical::retain;
    Cuda "cuMemMap" 10020 '-' cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: u64, flags: u64) => physical::map;
    Cuda "cuMemUnmap" 10020 '-' cuMemUnmap(pointer: Pointer, bytes: usize) => physical::unmap;

    Cuda "cuMemExportToShareableHandle" 10020 '-' cuMemExportToShareableHandle(file: *mut c_void, handle: u64, kind: c_uint, flags: u64) => physical::export;
    Cuda "cuMemImportFromShareableHandle" 10020 '-' cuMemImportFromShareableHandle(handle: Out<u64>, shared: *mut c_void, kind: c_uint) => physical::import;
    Cuda "cuMemMapArrayAsync" 11010 '-' cuMemMapArrayAsync(list: Out<physical::ArrayMapping>, count: c_uint, stream: Handle) => physical::map_arrays;
    Cuda "cuMemMapArrayAsync" 11010 'T' cuMemMapArrayAsync_ptsz(list: Out<physical::ArrayMapping>, count: c_uint, stream: Handle) => physical::map_arrays;

    Cuda "cuArrayCreate" 2000 '-' cuArrayCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuArray3DCreate" 2000 '-' cuArray3DCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuArrayCreate" 3020 '-' cuArrayCreate_v2(array: Out<Handle>, descriptor: Out<array::ArrayDescriptor>) => array::create;
    Cuda "cuArray3DCreate" 3020 '-' cuArray3DCreate_v2(array: Out<Handle>, descriptor: Out<array::Array3dDescriptor>) => array::create_3d;
    Cuda "cuArrayDestroy" 2000 '-' cuArrayDestroy(array: Handle) => array::destroy;
    Cuda "cuMipmappedArrayCreate" 5000 '-' cuMipmappedArrayCreate(array: Out<Handle>, descriptor: Out<array::Array3dDescriptor>, levels: c_uint) => array::create_mipmapped;
    Cuda "cuMipmappedArrayDestroy" 5000 '-' cuMipmappedArrayDestroy(array: Handle) => array::destroy;

    Cuda "cuMemAllocAsync" 11020 '-' cuMemAllocAsync(pointer: Out<Pointer>, bytes: usize, stream: Handle) => pool::allocate;
    Cuda "cuMemAllocAsync" 11020 'T' cuMemAllocAsync_ptsz(pointer: Out<Pointer>, bytes: usize, stream: Handle) => pool::allocate;
    Cuda "cuMemAllocFromPoolAsync" 11020 '-' cuMemAllocFromPoolAsync(pointer: Out<Pointer>, bytes: usize, pool: Handle, stream: Handle) => pool::allocate_from;
    Cuda "cuMemAllocFromPoolAsync" 11020 'T' cuMemAllocFromPoolAsync_ptsz(pointer: Out<Pointer>, bytes: usize, pool: Handle, stream: Handle) => pool::allocate_from;
    Cuda "cuMemFreeAsync" 11020 '-' cuMemFreeAsync(pointer: Pointer, stream: Handle) => pool::free;
    Cuda "cuMemFreeAsync" 11020 'T' cuMemFreeAsync_ptsz(pointer: Pointer, stream: Handle) => pool::free;
    Cuda "cuDeviceGetDefaultMemPool" 11020 '-' cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: Device) => pool::of_device;
    Cuda "cuDeviceGetMemPool" 11020 '-' cuDeviceGetMemPool(pool: Out<Handle>, device: Device) => pool::of_device;
    Cuda "cuMemGetDefaultMemPool" 13000 '-' cuMemGetDefaultMemPool(pool: Out<Handle>, place: Out<CuMemLocation>, kind: c_uint) => pool::of_place;
    Cuda "cuMemGetMemPool" 13000 '-' cuMemGetMemPool(pool: Out<Handle>, place: Out<CuMemLocation>, kind: c_uint) => pool::of_place;
    Cuda "cuMemPoolCreate" 11020 '-' cuMemPoolCreate(pool: Out<Handle>, properties: Out<Properties>) => pool::create;
    Cuda "cuMemPoolDestroy" 11020 '-' cuMemPoolDestroy(pool: Handle) => pool::destroy;
    Cuda "cuMemPoolTrimTo" 11020 '-' cuMemPoolTrimTo(pool: Handle, bytes: usize) => pool::trim;

    Cuda "cuMemPoolExportPointer" 11020 '-' cuMemPoolExportPointer(handle: Out<ipc::IpcHandle>, pointer: Pointer) => ipc::share_of_pool;
    Cuda "cuMemPoolImportPointer" 11020 '-' cuMemPoolImportPointer(pointer: Out<Pointer>, pool: Handle, handle: Out<ipc::IpcHandle>) => ipc::open_of_pool;

    Cuda "cuLaunchKernel" 4000 '-' cuLaunchKernel(function: Handle, x: c_uint, y: c_uint, z: c_uint, width: c_uint, height: c_uint, depth: c_uint, shared: c_uint, stream: Handle, arguments: *mut c_void, extra: *mut c_void) => launch::kernel::<LEGACY>;
    Cuda "cuLaunchKernel" 7000 'T' cuLaunchKernel_ptsz(function: Handle, x: c_uint, y: c_uint, z: c_uint, width: c_uint, height: c_uint, depth: c_uint, shared: c_uint, stream: Handle, arguments: *mut c_void, extra: *mut c_void) => launch::kernel::<PER_THREAD>;
    Cuda "cuLaunchKernelEx" 11060 '-' cuLaunchKernelEx(config: Out<LaunchConfig>, function: Handle, arguments: *mut c_void, extra: *mut c_void) => launch::kernel_ex::<LEGACY>;
    Cuda "cuLaunchKernelEx" 11060 'T' cuLaunchKernelEx_ptsz(config: Out<LaunchConfig>, function: Handle, arguments: *mut c_void, extra: *mut c_void) => launch::kernel_ex::<PER_THREAD>;
    Cuda "cuLaunchCooperativeKernel" 9000 '-' cuLaunchCooperativeKernel(function: Handle, x: c_uint, y: c_uint, z: c_uint, width: c_uint, height: c_uint, depth: c_uint, shared: c_uint, stream: Handle, arguments: *mut c_void) => launch::cooperative::<LEGACY>;
    Cuda "cuLaunchCooperativeKernel" 9000 'T' cuLaunchCooperativeKernel_ptsz(function: Handle, x: c_uint, y: c_uint, z: c_uint, width: c_uint, height: c_uint, depth: c_uint, shared: c_uint, stream: Handle, arguments: *mut c_void) => launch::cooperative::<PER_THREAD>;
    Cuda "cuLaunchCooperativeKernelMultiDevice" 9000 '-' cuLaunchCooperativeKernelMultiDevice(launches: Out<LaunchParameters>, count: c_uint, flags: c_uint) => launch::multi_device;
    Cuda "cuLaunch" 2000 '-' cuLaunch(function: Handle) => launch::single;
    Cuda "cuLaunchGrid" 2000 '-' cuLaunchGrid(function: Handle, width: i32, height: i32) => launch::grid;
    Cuda "cuLaunchGridAsync" 2000 '-' cuLaunchGridAsync(function: Handle, width: i32, height: i32, stream: Handle) => launch::grid_async;
    Cuda "cuGraphLaunch" 10000 '-' cuGraphLaunch(graph: Handle, stream: Handle) => launch::graph::<LEGACY>;
    Cuda "cuGraphLaunch" 10000 'T' cuGraphLaunch_ptsz(graph: Handle, stream: Handle) => launch::graph::<PER_THREAD>;

    Cuda "cuMemsetD8" 3020 '-' cuMemsetD8_v2(to: Pointer, value: u8, count: usize) => transfer::fill::<u8, LEGACY>;
    Cuda "cuMemsetD8" 7000 'T' cuMemsetD8_v2_ptds(to: Pointer, value: u8, count: usize) => transfer::fill::<u8, PER_THREAD>;
    Cuda "cuMemsetD8Async" 3020 '-' cuMemsetD8Async(to: Pointer, value: u8, count: usize, stream: Handle) => transfer::fill_async::<u8, LEGACY>;
    Cuda "cuMemsetD8Async" 7000 'T' cuMemsetD8Async_ptsz(to: Pointer, value: u8, count: usize, stream: Handle) => transfer::fill_async::<u8, PER_THREAD>;
    Cuda "cuMemsetD16" 3020 '-' cuMemsetD16_v2(to: Pointer, value: u16, count: usize) => transfer::fill::<u16, LEGACY>;
    Cuda "cuMemsetD16" 7000 'T' cuMemsetD16_v2_ptds(to: Pointer, value: u16, count: usize) => transfer::fill::<u16, PER_THREAD>;
    Cuda "cuMemsetD16Async" 3020 '-' cuMemsetD16Async(to: Pointer, value: u16, count: usize, stream: Handle) => transfer::fill_async::<u16, LEGACY>;
    Cuda "cuMemsetD16Async" 7000 'T' cuMemsetD16Async_ptsz(to: Pointer, value: u16, count: usize, stream: Handle) => transfer::fill_async::<u16, PER_THREAD>;
    Cuda "cuMemsetD32" 3020 '-' cuMemsetD32_v2(to: Pointer, value: u32, count: usize) => transfer::fill::<u32, LEGACY>;
    Cuda "cuMemsetD32" 7000 'T' cuMemsetD32_v2_ptds(to: Pointer, value: u32, count: usize) => transfer::fill::<u32, PER_THREAD>;
    Cuda "cuMemsetD32Async" 3020 '-' cuMemsetD32Async(to: Pointer, value: u32, count: usize, stream: Handle) => transfer::fill_async::<u32, LEGACY>;
    Cuda "cuMemsetD32Async" 7000 'T' cuMemsetD32Async_ptsz(to: Pointer, value: u32, count: usize, stream: Handle) => transfer::fill_async::<u32, PER_THREAD>;
    Cuda "cuMemsetD2D8" 3020 '-' cuMemsetD2D8_v2(to: Pointer, pitch: usize, value: u8, width: usize, height: usize) => transfer::fill_rows::<u8, LEGACY>;
    Cuda "cuMemsetD2D8" 7000 'T' cuMemsetD2D8_v2_ptds(to: Pointer, pitch: usize, value: u8, width: usize, height: usize) => transfer::fill_rows::<u8, PER_THREAD>;
    Cuda "cuMemsetD2D8Async" 3020 '-' cuMemsetD2D8Async(to: Pointer, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) => transfer::fill_rows_async::<u8, LEGACY>;
    Cuda "cuMemsetD2D8Async" 7000 'T' cuMemsetD2D8Async_ptsz(to: Pointer, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) => transfer::fill_rows_async::<u8, PER_THREAD>;
    Cuda "cuMemsetD2D16" 3020 '-' cuMemsetD2D16_v2(to: Pointer, pitch: usize, value: u16, width: usize, height: usize) => transfer::fill_rows::<u16, LEGACY>;
    Cuda "cuMemsetD2D16" 7000 'T' cuMemsetD2D16_v2_ptds(to: Pointer, pitch: usize, value: u16, width: usize, height: usize) => transfer::fill_rows::<u16, PER_THREAD>;
    Cuda "cuMemsetD2D16Async" 3020 '-' cuMemsetD2D16Async(to: Pointer, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) => transfer::fill_rows_async::<u16, LEGACY>;
    Cuda "cuMemsetD2D16Async" 7000 'T' cuMemsetD2D16Async_ptsz(to: Pointer, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) => transfer::fill_rows_async::<u16, PER_THREAD>;
    Cuda "cuMemsetD2D32" 3020 '-' cuMemsetD2D32_v2(to: Pointer, pitch: usize, value: u32, width: usize, height: usize) => transfer::fill_rows::<u32, LEGACY>;
    Cuda "cuMemsetD2D32" 7000 'T' cuMemsetD2D32_v2_ptds(to: Pointer, pitch: usize, value: u32, width: usize, height: usize) => transfer::fill_rows::<u32, PER_THREAD>;
    Cuda "cuMemsetD2D32Async" 3020 '-' cuMemsetD2D32Async(to: Pointer, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) => transfer::fill_rows_async::<u32, LEGACY>;
    Cuda "cuMemsetD2D32Async" 7000 'T' cuMemsetD2D32Async_ptsz(to: Pointer, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) => transfer::fill_rows_async::<u32, PER_THREAD>;
    Cuda "cuMemcpyDtoD" 3020 '-' cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize) => transfer::copy_in_device::<LEGACY>;
    Cuda "cuMemcpyDtoD" 7000 'T' cuMemcpyDtoD_v2_ptds(to: Pointer, from: Pointer, bytes: usize) => transfer::copy_in_device::<PER_THREAD>;
    Cuda "cuMemcpyDtoDAsync" 3020 '-' cuMemcpyDtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: Handle) => transfer::copy_in_device_async::<LEGACY>;
    Cuda "cuMemcpyDtoDAsync" 7000 'T' cuMemcpyDtoDAsync_v2_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Handle) => transfer::copy_in_device_async::<PER_THREAD>;
    Cuda "cuMemcpy" 4000 '-' cuMemcpy(to: Pointer, from: Pointer, bytes: usize) => transfer::copy::<LEGACY>;
    Cuda "cuMemcpy" 7000 'T' cuMemcpy_ptds(to: Pointer, from: Pointer, bytes: usize) => transfer::copy::<PER_THREAD>;
    Cuda "cuMemcpyAsync" 4000 '-' cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: Handle) => transfer::copy_async::<LEGACY>;
    Cuda "cuMemcpyAsync" 7000 'T' cuMemcpyAsync_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Handle) => transfer::copy_async::<PER_THREAD>;
    Cuda "cuMemcpyBatchAsync" 12080 '-' cuMemcpyBatchAsync(to: Out<Pointer>, from: Out<Pointer>, sizes: Out<usize>, count: usize, attributes: *mut c_void, indexes: *mut c_void, attribute_count: usize, failed: Out<usize>, stream: Handle) => transfer::copy_batch_indexed::<LEGACY>;
    Cuda "cuMemcpyBatchAsync" 12080 'T' cuMemcpyBatchAsync_ptsz(to: Out<Pointer>, from: Out<Pointer>, sizes: Out<usize>, count: usize, attributes: *mut c_void, indexes: *mut c_void, attribute_count: usize, failed: Out<usize>, stream: Handle) => transfer::copy_batch_indexed::<PER_THREAD>;
    Cuda "cuMemcpyBatchAsync" 13000 '-' cuMemcpyBatchAsync_v2(to: Out<Pointer>, from: Out<Pointer>, sizes: Out<usize>, count: usize, attributes: *mut c_void, indexes: *mut c_void, attribute_count: usize, stream: Handle) => transfer::copy_batch::<LEGACY>;
    Cuda "cuMemcpyBatchAsync" 13000 'T' cuMemcpyBatchAsync_v2_ptsz(to: Out<Pointer>, from: Out<Pointer>, sizes: Out<usize>, count: usize, attributes: *mut c_void, indexes: *mut c_void, attribute_count: usize, stream: Handle) => transfer::copy_batch::<PER_THREAD>;

    Cuda "cuGraphInstantiateWithParams" 12000 '-' cuGraphInstantiateWithParams(made: Out<Handle>, graph: Handle, parameters: Out<u64>) => graph::instantiate;
    Cuda "cuGraphInstantiateWithParams" 12000 'T' cuGraphInstantiateWithParams_ptsz(made: Out<Handle>, graph: Handle, parameters: Out<u64>) => graph::instantiate;
    Cuda "cuGraphUpload" 11010 '-' cuGraphUpload(graph: Handle, stream: Handle) => graph::upload;
    Cuda "cuGraphUpload" 11010 'T' cuGraphUpload_ptsz(graph: Handle, stream: Handle) => graph::upload;

    Cuda "cuStreamBeginCapture" 10000 '-' cuStreamBeginCapture(stream: Handle) => capture::begin;
    Cuda "cuStreamBeginCapture" 10000 'T' cuStreamBeginCapture_ptsz(stream: Handle) => capture::begin;
    Cuda "cuStreamBeginCapture" 10010 '-' cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) => capture::begin_v2;
    Cuda "cuStreamBeginCapture" 10010 'T' cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_uint) => capture::begin_v2;
    Cuda "cuStreamBeginCaptureToGraph" 12030 '-' cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, after: *const c_void, edges: *const c_void, count: usize, mode: c_uint) => capture::begin_to;
    Cuda "cuStreamBeginCaptureToGraph" 12030 'T' cuStreamBeginCaptureToGraph_ptsz(stream: Handle, graph: Handle, after: *const c_void, edges: *const c_void, count: usize, mode: c_uint) => capture::begin_to;
    Cuda "cuStreamBeginRecaptureToGraph" 13030 '-' cuStreamBeginRecaptureToGraph(stream: Handle, mode: c_uint, graph: Handle, callback: *const c_void, data: *mut c_void) => capture::begin_again;
    Cuda "cuStreamBeginRecaptureToGraph" 13030 'T' cuStreamBeginRecaptureToGraph_ptsz(stream: Handle, mode: c_uint, graph: Handle, callback: *const c_void, data: *mut c_void) => capture::begin_again;
    Cuda "cuStreamBeginCaptureToCig" 13010 '-' cuStreamBeginCaptureToCig(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuStreamBeginCaptureToCig" 13010 'T' cuStreamBeginCaptureToCig_ptsz(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuStreamEndCaptureToCig" 13010 '-' cuStreamEndCaptureToCig(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuStreamEndCaptureToCig" 13010 'T' cuStreamEndCaptureToCig_ptsz(one: usize, two: usize, three: usize, four: usize, five: usize) => refuse;
    Cuda "cuStreamEndCapture" 10000 '-' cuStreamEndCapture(stream: Handle, graph: Out<Handle>) => capture::end;
    Cuda "cuStreamEndCapture" 10000 'T' cuStreamEndCapture_ptsz(stream: Handle, graph: Out<Handle>) => capture::end;

    Cuda "cuStreamSynchronize" 2000 '-' cuStreamSynchronize(stream: Handle) => pool::synchronize;
    Cuda "cuStreamSynchronize" 7000 'T' cuStreamSynchronize_ptsz(stream: Handle) => pool::synchronize;
    Cuda "cuEventSynchronize" 2000 '-' cuEventSynchronize(event: Handle) => pool::synchronize;
    Cuda "cuCtxSynchronize" 2000 '-' cuCtxSynchronize() => pool::synchronize_context;
    Cuda "cuCtxSynchronize" 13000 '-' cuCtxSynchronize_v2(context: Handle) => pool::synchronize;
    Cuda "cuDeviceGraphMemTrim" 11040 '-' cuDeviceGraphMemTrim(device: Device) => graph::trim;
    Cuda "cuStreamDestroy" 2000 '-' cuStreamDestroy(stream: Handle) => capture::destroy;
    Cuda "cuStreamDestroy" 4000 '-' cuStreamDestroy_v2(stream: Handle) => capture::destroy;

    Nvml "" 0 '-' nvmlDeviceGetCount(count: Out<c_uint>) => nvml::count;
    Nvml "" 0 '-' nvmlDeviceGetCount_v2(count: Out<c_uint>) => nvml::count;
    Nvml "" 0 '-' nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Handle>) => nvml::by_index;
    Nvml "" 0 '-' nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) => nvml::by_index;
    Nvml "" 0 '-' nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) => nvml::by_identifier;
    Nvml "" 0 '-' nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, device: Out<Handle>) => nvml::by_uuid;
    Nvml "" 0 '-' nvmlDeviceGetHandleBySerial(serial: Text, device: Out<Handle>) => nvml::by_identifier;
    Nvml "" 0 '-' nvmlDeviceGetHandleByPciBusId(place: Text, device: Out<Handle>) => nvml::by_identifier;
    Nvml "" 0 '-' nvmlDeviceGetHandleByPciBusId_v2(place: Text, device: Out<Handle>) => nvml::by_identifier;
    Nvml "" 0 '-' nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) => nvml::index;
    Nvml "" 0 '-' nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<nvml::NvmlMemory>) => nvml::memory;
    Nvml "" 0 '-' nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<nvml::NvmlMemoryV2>) => nvml::memory_v2;
    Nvml "" 0 '-' nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfo>) => nvml_processes::compute;
    Nvml "" 0 '-' nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::compute;
    Nvml "" 0 '-' nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::compute_v3;
    Nvml "" 0 '-' nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfo>) => nvml_processes::empty;
    Nvml "" 0 '-' nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty;
    Nvml "" 0 '-' nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty;
    Nvml "" 0 '-' nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfo>) => nvml_processes::empty;
    Nvml "" 0 '-' nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty;
    Nvml "" 0 '-' nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty;
    Nvml "" 0 '-' nvmlDeviceGetRunningProcessDetailList(device: Handle, list: Out<nvml_processes::ProcessDetails>) => nvml_processes::details;
    Nvml "" 0 '-' nvmlDeviceGetProcessUtilization(device: Handle, samples: Out<nvml_processes::UtilizationSample>, count: Out<c_uint>, last_seen: u64) => nvml_processes::samples;
    Nvml "" 0 '-' nvmlDeviceGetProcessesUtilizationInfo(device: Handle, infos: Out<nvml_processes::UtilizationInfos>) => nvml_processes::infos;
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod names;
#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
