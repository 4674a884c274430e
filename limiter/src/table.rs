//! The table of hooked calls. The exported functions, the lookup by name and by address, and the
//! list of what is hooked come from it.
//!
//! A row: library, the name under which `cuGetProcAddress` is asked, the CUDA version since which
//! this variant answers it, the exported name with its arguments as in the driver's headers, version
//! and name of the same with per-thread default streams (`per_thread`), and what is done. There,
//! `real` is the driver's function, `call` calls it with the same arguments, and `stream_of` names a
//! stream as calls without per-thread default streams do.
//!
//! The signatures are from the headers of CUDA 13.5 and its NVML.

use core::ffi::{c_uint, c_void};

use crate::driver::{Address, DriverFunction, DriverLibrary};
use crate::ffi::{
    Answer, Code, CuMemLocation, Device, Handle, MemoryLocation, Out, PER_THREAD_STREAM, Pointer,
    Properties, Text,
};
use crate::hooks::launch::{self, LaunchConfig, LaunchParameters};
use crate::hooks::transfer::{self, TransferKind};
use crate::hooks::{
    array, checkpoint, context, context_limits, graph, green, ipc, memory, nvml, nvml_processes,
    physical, pool, view,
};
use crate::stream;

mod route;

#[derive(Debug)]
pub(crate) struct Hook {
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

/// Exports a function under the driver's name. What is done is written with the names of four values.
macro_rules! export {
    (($real:ident, $call:ident, $stream_of:ident, $per_thread:ident) $own:literal
        $library:ident $name:ident($($argument:ident: $type:ty),* $(,)?) => $done:expr) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(super) extern "C" fn $name($($argument: $type),*) -> Code {
            let Some(address) = reals::$name.get() else {
                return DriverLibrary::$library.missing();
            };
            // SAFETY: the driver's function of this name has these arguments.
            let $real = unsafe {
                core::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> Code>(address)
            };
            let $call = move || $real($($argument),*);
            let $per_thread = $own;
            let $stream_of = |stream: Handle| match stream {
                0 if $per_thread => PER_THREAD_STREAM,
                _ => stream,
            };
            Answer::code($done)
        }
    };
}

macro_rules! hooks {
    ($names:tt $($library:ident $stem:literal $since:literal $name:ident $arguments:tt
        $(/ $own_since:literal $own:ident)? => $done:expr;)*) => {
        mod reals {
            #![allow(non_upper_case_globals, reason = "the driver's names")]
            use super::*;
            $(
                pub(super) static $name: DriverFunction = DriverFunction::new(
                    DriverLibrary::$library,
                    concat!(stringify!($name), "\0"),
                    Address(exports::$name as *const ()),
                );
                $(pub(super) static $own: DriverFunction = DriverFunction::new(
                    DriverLibrary::$library,
                    concat!(stringify!($own), "\0"),
                    Address(exports::$own as *const ()),
                );)?
            )*
        }

        mod exports {
            #![allow(non_snake_case, reason = "the driver's names")]
            #![allow(unused_variables, reason = "no row needs all names")]
            use super::*;
            $(
                export!($names false $library $name $arguments => $done);
                $(export!($names true $library $own $arguments => $done);)?
            )*
        }

        pub(crate) static HOOKS: &[Hook] = &[$(
            Hook { name: stringify!($name), stem: $stem, since: $since, per_thread: false, real: &reals::$name },
            $(Hook { name: stringify!($own), stem: $stem, since: $own_since, per_thread: true, real: &reals::$own },)?
        )*];
    };
}

hooks! {
    (real, call, stream_of, per_thread)

    Cuda "cuGetProcAddress" 11030 cuGetProcAddress(name: Text, address: Out<*const ()>, version: i32, flags: u64) => route::replaced(call(), name, address, version, route::is_per_thread(flags, per_thread));
    Cuda "cuGetProcAddress" 12000 cuGetProcAddress_v2(name: Text, address: Out<*const ()>, version: i32, flags: u64, status: Out<c_uint>) / 12000 cuGetProcAddress_v2_ptsz => route::replaced(call(), name, address, version, route::is_per_thread(flags, per_thread));

    Cuda "cuDeviceGetCount" 2000 cuDeviceGetCount(count: Out<i32>) => view::device_count(call(), count);
    Cuda "cuDeviceGet" 2000 cuDeviceGet(device: Out<Device>, ordinal: i32) => view::device(real, device, ordinal);
    Cuda "cuDeviceTotalMem" 2000 cuDeviceTotalMem(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) => view::total_memory(call(), bytes, device);
    Cuda "cuMemGetInfo" 2000 cuMemGetInfo(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuMemGetInfo" 3020 cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => view::memory_info(real, free, total);

    Cuda "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain(context: Out<Handle>, device: Device) => context::retain(context, device, call);
    Cuda "cuDevicePrimaryCtxRelease" 7000 cuDevicePrimaryCtxRelease(device: Device) => context::release(device, call);
    Cuda "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2(device: Device) => context::release(device, call);
    Cuda "cuDevicePrimaryCtxReset" 7000 cuDevicePrimaryCtxReset(device: Device) => context::release(device, call);
    Cuda "cuDevicePrimaryCtxReset" 11000 cuDevicePrimaryCtxReset_v2(device: Device) => context::release(device, call);
    Cuda "cuCtxCreate" 2000 cuCtxCreate(context: Out<Handle>, flags: c_uint, device: Device) => context::create(context, device, false, call);
    Cuda "cuCtxCreate" 3020 cuCtxCreate_v2(context: Out<Handle>, flags: c_uint, device: Device) => context::create(context, device, false, call);
    Cuda "cuCtxCreate" 11040 cuCtxCreate_v3(context: Out<Handle>, params: *const c_void, count: i32, flags: c_uint, device: Device) => context::create(context, device, false, call);
    Cuda "cuCtxCreate" 12050 cuCtxCreate_v4(context: Out<Handle>, params: *const c_void, flags: c_uint, device: Device) => context::create(context, device, false, call);
    Cuda "cuGLCtxCreate" 2000 cuGLCtxCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuGLCtxCreate" 3020 cuGLCtxCreate_v2(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuVDPAUCtxCreate" 3010 cuVDPAUCtxCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuVDPAUCtxCreate" 3020 cuVDPAUCtxCreate_v2(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuCtxDestroy" 2000 cuCtxDestroy(context: Handle) => context::destroy(context, call);
    Cuda "cuCtxDestroy" 4000 cuCtxDestroy_v2(context: Handle) => context::destroy(context, call);

    Cuda "cuCtxDetach" 2000 cuCtxDetach(context: Handle) => context::detach(context, call);

    Cuda "cuGreenCtxCreate" 12040 cuGreenCtxCreate(green: Out<Handle>, resources: *const c_void, device: Device, flags: c_uint) => green::create(green, device, call);
    Cuda "cuGreenCtxDestroy" 12040 cuGreenCtxDestroy(green: Handle) => green::destroy(green, call);
    Cuda "cuCtxFromGreenCtx" 12040 cuCtxFromGreenCtx(context: Out<Handle>, green: Handle) => green::as_context(call(), context, green);
    Cuda "cuCtxSetLimit" 3010 cuCtxSetLimit(limit: c_uint, value: usize) => context_limits::set(limit, value, call);

    Cuda "cuMemAlloc" 2000 cuMemAlloc(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuMemAllocPitch" 2000 cuMemAllocPitch(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuMemAlloc" 3020 cuMemAlloc_v2(pointer: Out<Pointer>, bytes: usize) => memory::allocate(pointer, bytes, call);
    Cuda "cuMemAllocPitch" 3020 cuMemAllocPitch_v2(pointer: Out<Pointer>, pitch: Out<usize>, width: usize, height: usize, element: c_uint) => memory::allocate_pitch(pointer, pitch, [width, height], element, call);
    Cuda "cuMemAllocManaged" 6000 cuMemAllocManaged(pointer: Out<Pointer>, bytes: usize, flags: c_uint) => memory::allocate_managed(pointer, bytes, call);
    Cuda "cuMemFree" 3020 cuMemFree_v2(pointer: Pointer) => memory::free_charged(pointer, call);

    Cuda "cuCheckpointProcessCheckpoint" 12080 cuCheckpointProcessCheckpoint(pid: i32, arguments: Out<[u64; 8]>) => checkpoint::suspend(pid, arguments, call);
    Cuda "cuCheckpointProcessRestore" 12080 cuCheckpointProcessRestore(pid: i32, arguments: Out<[u64; 8]>) => checkpoint::restore(pid, arguments, call);

    Cuda "cuIpcGetMemHandle" 4010 cuIpcGetMemHandle(handle: Out<ipc::IpcHandle>, pointer: Pointer) => ipc::share(handle, pointer, call);
    Cuda "cuIpcOpenMemHandle" 4010 cuIpcOpenMemHandle(pointer: Out<Pointer>, handle: ipc::IpcHandle, flags: c_uint) => ipc::open(pointer, handle, call);
    Cuda "cuIpcOpenMemHandle" 11000 cuIpcOpenMemHandle_v2(pointer: Out<Pointer>, handle: ipc::IpcHandle, flags: c_uint) => ipc::open(pointer, handle, call);
    Cuda "cuIpcCloseMemHandle" 4010 cuIpcCloseMemHandle(pointer: Pointer) => ipc::close(pointer, call);
    Cuda "cuMemGetHandleForAddressRange" 11070 cuMemGetHandleForAddressRange(handle: *mut c_void, pointer: Pointer, bytes: usize, kind: i32, flags: u64) => memory::refuse_spilled("cuMemGetHandleForAddressRange", pointer).map(|()| call());

    Cuda "cuMemCreate" 10020 cuMemCreate(handle: Out<u64>, bytes: usize, properties: Out<Properties>, flags: u64) => physical::create(handle, bytes, properties, call);
    Cuda "cuMemRelease" 10020 cuMemRelease(handle: u64) => physical::release(handle, call);
    Cuda "cuMemRetainAllocationHandle" 11000 cuMemRetainAllocationHandle(handle: Out<u64>, address: *mut c_void) => physical::retain(handle, address, call);
    Cuda "cuMemMap" 10020 cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: u64, flags: u64) => physical::map(pointer, bytes, handle, call);
    Cuda "cuMemUnmap" 10020 cuMemUnmap(pointer: Pointer, bytes: usize) => physical::unmap(pointer, bytes, call);

    Cuda "cuMemExportToShareableHandle" 10020 cuMemExportToShareableHandle(file: *mut c_void, handle: u64, kind: c_uint, flags: u64) => physical::export(call(), file, handle, kind);
    Cuda "cuMemImportFromShareableHandle" 10020 cuMemImportFromShareableHandle(handle: Out<u64>, shared: *mut c_void, kind: c_uint) => physical::import(handle, shared, kind, call);
    Cuda "cuMemMapArrayAsync" 11010 cuMemMapArrayAsync(list: Out<physical::ArrayMapping>, count: c_uint, stream: Handle) / 11010 cuMemMapArrayAsync_ptsz => physical::map_arrays(call(), list, count);

    Cuda "cuArrayCreate" 2000 cuArrayCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuArray3DCreate" 2000 cuArray3DCreate(one: usize, two: usize, three: usize, four: usize, five: usize) => memory::reject_uncounted(call);
    Cuda "cuArrayCreate" 3020 cuArrayCreate_v2(array: Out<Handle>, descriptor: Out<array::ArrayDescriptor>) => array::create(descriptor, array, call);
    Cuda "cuArray3DCreate" 3020 cuArray3DCreate_v2(array: Out<Handle>, descriptor: Out<array::Array3dDescriptor>) => array::create_charged(descriptor.get(), 1, array, call);
    Cuda "cuArrayDestroy" 2000 cuArrayDestroy(array: Handle) => array::destroy(array, call);
    Cuda "cuMipmappedArrayCreate" 5000 cuMipmappedArrayCreate(array: Out<Handle>, descriptor: Out<array::Array3dDescriptor>, levels: c_uint) => array::create_charged(descriptor.get(), levels, array, call);
    Cuda "cuMipmappedArrayDestroy" 5000 cuMipmappedArrayDestroy(array: Handle) => array::destroy(array, call);

    Cuda "cuMemAllocAsync" 11020 cuMemAllocAsync(pointer: Out<Pointer>, bytes: usize, stream: Handle) / 11020 cuMemAllocAsync_ptsz => pool::allocate(pointer, bytes, stream_of(stream), call);
    Cuda "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync(pointer: Out<Pointer>, bytes: usize, pool: Handle, stream: Handle) / 11020 cuMemAllocFromPoolAsync_ptsz => pool::allocate_from(pointer, bytes, pool, stream_of(stream), call);
    Cuda "cuMemFreeAsync" 11020 cuMemFreeAsync(pointer: Pointer, stream: Handle) / 11020 cuMemFreeAsync_ptsz => pool::free(pointer, stream_of(stream), call);
    Cuda "cuDeviceGetDefaultMemPool" 11020 cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: Device) => pool::record(call(), pool, MemoryLocation::Device(device));
    Cuda "cuDeviceGetMemPool" 11020 cuDeviceGetMemPool(pool: Out<Handle>, device: Device) => pool::record(call(), pool, MemoryLocation::Device(device));
    Cuda "cuMemGetDefaultMemPool" 13000 cuMemGetDefaultMemPool(pool: Out<Handle>, place: Out<CuMemLocation>, kind: c_uint) => pool::record_at(call(), pool, place, kind);
    Cuda "cuMemGetMemPool" 13000 cuMemGetMemPool(pool: Out<Handle>, place: Out<CuMemLocation>, kind: c_uint) => pool::record_at(call(), pool, place, kind);
    Cuda "cuMemPoolCreate" 11020 cuMemPoolCreate(pool: Out<Handle>, properties: Out<Properties>) => pool::create(pool, properties, call);
    Cuda "cuMemPoolDestroy" 11020 cuMemPoolDestroy(pool: Handle) => pool::destroy(pool, call);
    Cuda "cuMemPoolTrimTo" 11020 cuMemPoolTrimTo(pool: Handle, bytes: usize) => pool::trim(pool, call);

    Cuda "cuMemPoolExportPointer" 11020 cuMemPoolExportPointer(handle: Out<ipc::IpcHandle>, pointer: Pointer) => ipc::share_of_pool(call(), handle, pointer);
    Cuda "cuMemPoolImportPointer" 11020 cuMemPoolImportPointer(pointer: Out<Pointer>, pool: Handle, handle: Out<ipc::IpcHandle>) => ipc::open_of_pool(pointer, handle, call);

    Cuda "cuLaunchKernel" 4000 cuLaunchKernel(function: Handle, x: c_uint, y: c_uint, z: c_uint, width: c_uint, height: c_uint, depth: c_uint, shared: c_uint, stream: Handle, arguments: *mut c_void, extra: *mut c_void) / 7000 cuLaunchKernel_ptsz => launch::kernel(function, [x, y, z], [width, height, depth], stream_of(stream), call);
    Cuda "cuLaunchKernelEx" 11060 cuLaunchKernelEx(config: Out<LaunchConfig>, function: Handle, arguments: *mut c_void, extra: *mut c_void) / 11060 cuLaunchKernelEx_ptsz => launch::configured(config, function, stream_of, call);
    Cuda "cuLaunchCooperativeKernel" 9000 cuLaunchCooperativeKernel(function: Handle, x: c_uint, y: c_uint, z: c_uint, width: c_uint, height: c_uint, depth: c_uint, shared: c_uint, stream: Handle, arguments: *mut c_void) / 9000 cuLaunchCooperativeKernel_ptsz => launch::kernel(function, [x, y, z], [width, height, depth], stream_of(stream), call);
    Cuda "cuLaunchCooperativeKernelMultiDevice" 9000 cuLaunchCooperativeKernelMultiDevice(launches: Out<LaunchParameters>, count: c_uint, flags: c_uint) => launch::multi_device(launches, count, call);
    Cuda "cuLaunch" 2000 cuLaunch(function: Handle) => launch::kernel(function, [1; 3], [0; 3], 0, call);
    Cuda "cuLaunchGrid" 2000 cuLaunchGrid(function: Handle, width: i32, height: i32) => launch::kernel(function, [width.unsigned_abs(), height.unsigned_abs(), 1], [0; 3], 0, call);
    Cuda "cuLaunchGridAsync" 2000 cuLaunchGridAsync(function: Handle, width: i32, height: i32, stream: Handle) => launch::kernel(function, [width.unsigned_abs(), height.unsigned_abs(), 1], [0; 3], stream, call);
    Cuda "cuGraphLaunch" 10000 cuGraphLaunch(graph: Handle, stream: Handle) / 10000 cuGraphLaunch_ptsz => launch::graph(graph, stream_of(stream), call);

    Cuda "cuMemsetD8" 3020 cuMemsetD8_v2(to: Pointer, value: u8, count: usize) / 7000 cuMemsetD8_v2_ptds => TransferKind::Fill.pace([count, 1], stream_of(0), call);
    Cuda "cuMemsetD8Async" 3020 cuMemsetD8Async(to: Pointer, value: u8, count: usize, stream: Handle) / 7000 cuMemsetD8Async_ptsz => TransferKind::Fill.pace([count, 1], stream_of(stream), call);
    Cuda "cuMemsetD16" 3020 cuMemsetD16_v2(to: Pointer, value: u16, count: usize) / 7000 cuMemsetD16_v2_ptds => TransferKind::Fill.pace([count, 2], stream_of(0), call);
    Cuda "cuMemsetD16Async" 3020 cuMemsetD16Async(to: Pointer, value: u16, count: usize, stream: Handle) / 7000 cuMemsetD16Async_ptsz => TransferKind::Fill.pace([count, 2], stream_of(stream), call);
    Cuda "cuMemsetD32" 3020 cuMemsetD32_v2(to: Pointer, value: u32, count: usize) / 7000 cuMemsetD32_v2_ptds => TransferKind::Fill.pace([count, 4], stream_of(0), call);
    Cuda "cuMemsetD32Async" 3020 cuMemsetD32Async(to: Pointer, value: u32, count: usize, stream: Handle) / 7000 cuMemsetD32Async_ptsz => TransferKind::Fill.pace([count, 4], stream_of(stream), call);
    Cuda "cuMemsetD2D8" 3020 cuMemsetD2D8_v2(to: Pointer, pitch: usize, value: u8, width: usize, height: usize) / 7000 cuMemsetD2D8_v2_ptds => TransferKind::FillRows.pace([width, height, 1], stream_of(0), call);
    Cuda "cuMemsetD2D8Async" 3020 cuMemsetD2D8Async(to: Pointer, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) / 7000 cuMemsetD2D8Async_ptsz => TransferKind::FillRows.pace([width, height, 1], stream_of(stream), call);
    Cuda "cuMemsetD2D16" 3020 cuMemsetD2D16_v2(to: Pointer, pitch: usize, value: u16, width: usize, height: usize) / 7000 cuMemsetD2D16_v2_ptds => TransferKind::FillRows.pace([width, height, 2], stream_of(0), call);
    Cuda "cuMemsetD2D16Async" 3020 cuMemsetD2D16Async(to: Pointer, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) / 7000 cuMemsetD2D16Async_ptsz => TransferKind::FillRows.pace([width, height, 2], stream_of(stream), call);
    Cuda "cuMemsetD2D32" 3020 cuMemsetD2D32_v2(to: Pointer, pitch: usize, value: u32, width: usize, height: usize) / 7000 cuMemsetD2D32_v2_ptds => TransferKind::FillRows.pace([width, height, 4], stream_of(0), call);
    Cuda "cuMemsetD2D32Async" 3020 cuMemsetD2D32Async(to: Pointer, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) / 7000 cuMemsetD2D32Async_ptsz => TransferKind::FillRows.pace([width, height, 4], stream_of(stream), call);
    Cuda "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize) / 7000 cuMemcpyDtoD_v2_ptds => transfer::copy_on_devices([to, from], bytes, stream_of(0), call);
    Cuda "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: Handle) / 7000 cuMemcpyDtoDAsync_v2_ptsz => transfer::copy_on_devices([to, from], bytes, stream_of(stream), call);
    Cuda "cuMemcpy" 4000 cuMemcpy(to: Pointer, from: Pointer, bytes: usize) / 7000 cuMemcpy_ptds => transfer::copy([to, from], bytes, stream_of(0), call);
    Cuda "cuMemcpyAsync" 4000 cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: Handle) / 7000 cuMemcpyAsync_ptsz => transfer::copy([to, from], bytes, stream_of(stream), call);
    Cuda "cuMemcpyBatchAsync" 12080 cuMemcpyBatchAsync(to: Out<Pointer>, from: Out<Pointer>, sizes: Out<usize>, count: usize, attributes: *mut c_void, indexes: *mut c_void, attribute_count: usize, failed: Out<usize>, stream: Handle) / 12080 cuMemcpyBatchAsync_ptsz => transfer::copy_batch([to, from], sizes, count, stream_of(stream), call);
    Cuda "cuMemcpyBatchAsync" 13000 cuMemcpyBatchAsync_v2(to: Out<Pointer>, from: Out<Pointer>, sizes: Out<usize>, count: usize, attributes: *mut c_void, indexes: *mut c_void, attribute_count: usize, stream: Handle) / 13000 cuMemcpyBatchAsync_v2_ptsz => transfer::copy_batch([to, from], sizes, count, stream_of(stream), call);

    Cuda "cuGraphInstantiateWithParams" 12000 cuGraphInstantiateWithParams(made: Out<Handle>, graph: Handle, parameters: Out<u64>) / 12000 cuGraphInstantiateWithParams_ptsz => graph::instantiate(parameters, call);
    Cuda "cuGraphUpload" 11010 cuGraphUpload(graph: Handle, stream: Handle) / 11010 cuGraphUpload_ptsz => graph::charged_after(call);

    Cuda "cuStreamBeginCapture" 10000 cuStreamBeginCapture(stream: Handle) / 10000 cuStreamBeginCapture_ptsz => stream::begin_capture(stream, call);
    Cuda "cuStreamBeginCapture" 10010 cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) / 10010 cuStreamBeginCapture_v2_ptsz => stream::begin_capture(stream, call);
    Cuda "cuStreamBeginCaptureToGraph" 12030 cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, after: *const c_void, edges: *const c_void, count: usize, mode: c_uint) / 12030 cuStreamBeginCaptureToGraph_ptsz => stream::begin_capture(stream, call);
    Cuda "cuStreamBeginRecaptureToGraph" 13030 cuStreamBeginRecaptureToGraph(stream: Handle, mode: c_uint, graph: Handle, callback: *const c_void, data: *mut c_void) / 13030 cuStreamBeginRecaptureToGraph_ptsz => stream::begin_capture(stream, call);
    Cuda "cuStreamBeginCaptureToCig" 13010 cuStreamBeginCaptureToCig(one: usize, two: usize, three: usize, four: usize, five: usize) / 13010 cuStreamBeginCaptureToCig_ptsz => memory::reject_uncounted(call);
    Cuda "cuStreamEndCaptureToCig" 13010 cuStreamEndCaptureToCig(one: usize, two: usize, three: usize, four: usize, five: usize) / 13010 cuStreamEndCaptureToCig_ptsz => memory::reject_uncounted(call);
    Cuda "cuStreamEndCapture" 10000 cuStreamEndCapture(stream: Handle, graph: Out<Handle>) / 10000 cuStreamEndCapture_ptsz => stream::finish_capture(stream, call());

    Cuda "cuStreamSynchronize" 2000 cuStreamSynchronize(stream: Handle) / 7000 cuStreamSynchronize_ptsz => pool::refresh_after_wait(call());
    Cuda "cuEventSynchronize" 2000 cuEventSynchronize(event: Handle) => pool::refresh_after_wait(call());
    Cuda "cuCtxSynchronize" 2000 cuCtxSynchronize() => pool::refresh_after_wait(call());
    Cuda "cuCtxSynchronize" 13000 cuCtxSynchronize_v2(context: Handle) => pool::refresh_after_wait(call());
    Cuda "cuDeviceGraphMemTrim" 11040 cuDeviceGraphMemTrim(device: Device) => graph::charged_after(call);
    Cuda "cuStreamDestroy" 2000 cuStreamDestroy(stream: Handle) => stream::end_stream(stream, call);
    Cuda "cuStreamDestroy" 4000 cuStreamDestroy_v2(stream: Handle) => stream::end_stream(stream, call);

    Nvml "" 0 nvmlDeviceGetCount(count: Out<c_uint>) => nvml::count(call(), count);
    Nvml "" 0 nvmlDeviceGetCount_v2(count: Out<c_uint>) => nvml::count(call(), count);
    Nvml "" 0 nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Handle>) => nvml::by_index(index, device, call);
    Nvml "" 0 nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) => nvml::by_index(index, device, call);
    Nvml "" 0 nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) => nvml::hide_unassigned(call(), device);
    Nvml "" 0 nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, device: Out<Handle>) => nvml::hide_unassigned(call(), device);
    Nvml "" 0 nvmlDeviceGetHandleBySerial(serial: Text, device: Out<Handle>) => nvml::hide_unassigned(call(), device);
    Nvml "" 0 nvmlDeviceGetHandleByPciBusId(place: Text, device: Out<Handle>) => nvml::hide_unassigned(call(), device);
    Nvml "" 0 nvmlDeviceGetHandleByPciBusId_v2(place: Text, device: Out<Handle>) => nvml::hide_unassigned(call(), device);
    Nvml "" 0 nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) => nvml::index(call(), device, index);
    Nvml "" 0 nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<nvml::NvmlMemory>) => nvml::memory(call(), device, memory);
    Nvml "" 0 nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<nvml::NvmlMemoryV2>) => nvml::memory_v2(call(), device, memory);
    Nvml "" 0 nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfo>) => nvml_processes::compute(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::compute(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::compute_v3(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfo>) => nvml_processes::empty(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfo>) => nvml_processes::empty(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvml_processes::ProcessInfoV2>) => nvml_processes::empty(device, count, infos, call);
    Nvml "" 0 nvmlDeviceGetRunningProcessDetailList(device: Handle, list: Out<nvml_processes::ProcessDetails>) => nvml_processes::details(call(), device, list);
    Nvml "" 0 nvmlDeviceGetProcessUtilization(device: Handle, samples: Out<nvml_processes::UtilizationSample>, count: Out<c_uint>, last_seen: u64) => nvml_processes::samples(call(), device, samples, count);
    Nvml "" 0 nvmlDeviceGetProcessesUtilizationInfo(device: Handle, infos: Out<nvml_processes::UtilizationInfos>) => nvml_processes::infos(call(), device, infos);
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod names;
