//! Memory pools and allocations in stream order.

use std::os::fd::IntoRawFd as _;

use aliquot_gpusim_model::exports::number_of;

use super::ipc;
use crate::calls::calls;
use crate::capture::{Node, Work};
use crate::codes::{
    ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED, ERROR_OPERATING_SYSTEM, ERROR_OUT_OF_MEMORY,
};
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::heap::{self, Kind};
use crate::streams;
use crate::types::{
    Device, DevicePointer, Handle, IpcHandle, Location, MemoryLocation, PoolProperties,
};
use crate::vmm::{FILE, ON_DEVICE};

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `..._MANAGED`.
const PINNED: u32 = 1;
const MANAGED: u32 = 2;

calls! { CALLS:
    cuDeviceGetDefaultMemPool 11020 cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: Device) {
        let driver = driver()?;
        pool.put(driver.pools.of_device(driver, device)?)
    }

    cuDeviceGetMemPool 11020 cuDeviceGetMemPool(pool: Out<Handle>, device: Device) {
        let driver = driver()?;
        pool.put(driver.pools.of_device(driver, device)?)
    }

    cuMemGetDefaultMemPool 13000 cuMemGetDefaultMemPool(
        pool: Out<Handle>, place: Out<Location>, kind: u32,
    ) {
        pool.put(of_place(place.get()?, kind)?)
    }

    cuMemGetMemPool 13000 cuMemGetMemPool(pool: Out<Handle>, place: Out<Location>, kind: u32) {
        pool.put(of_place(place.get()?, kind)?)
    }

    cuMemPoolCreate 11020 cuMemPoolCreate(pool: Out<Handle>, properties: Out<PoolProperties>) {
        let (driver, wanted) = (driver()?, properties.get()?);
        let managed = wanted.kind == MANAGED;
        if !(managed || wanted.kind == PINNED) || pool.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        let device = match wanted.location.place() {
            MemoryLocation::Gpu(device) => Some(device),
            MemoryLocation::Host => None,
            MemoryLocation::Nowhere if managed => None,
            MemoryLocation::Nowhere | MemoryLocation::Other => return Err(ERROR_NOT_SUPPORTED),
        };
        pool.put(driver.pools.create(driver, device, wanted.most as u64, managed)?)
    }

    cuMemPoolDestroy 11020 cuMemPoolDestroy(pool: Handle) {
        let driver = driver()?;
        driver.pools.destroy(driver, pool)
    }

    cuMemPoolTrimTo 11020 cuMemPoolTrimTo(pool: Handle, keep: usize) {
        let driver = driver()?;
        driver.pools.trim(driver, pool, keep as u64)
    }

    cuMemPoolGetAttribute 11020 cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: Out<u64>) {
        driver()?.pools.with(pool, |pool| {
            let wide = match attribute {
                1..=3 => {
                    let flag = pool.reuse[attribute as usize - 1];
                    return value.narrow().put(flag);
                }
                4 => pool.release_threshold,
                5 => pool.reserved,
                6 => pool.reserved_high,
                7 => pool.used,
                8 => pool.used_high,
                _ => return Err(ERROR_INVALID_VALUE),
            };
            value.put(wide)
        })
    }

    cuMemPoolSetAttribute 11020 cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: Out<u64>) {
        driver()?.pools.with(pool, |pool| {
            match attribute {
                1..=3 => pool.reuse[attribute as usize - 1] = value.narrow().get()?,
                4 => pool.release_threshold = value.get()?,
                // High-water marks can only be reset.
                6 if value.get()? == 0 => pool.reserved_high = pool.reserved,
                8 if value.get()? == 0 => pool.used_high = pool.used,
                _ => return Err(ERROR_INVALID_VALUE),
            }
            Ok(())
        })
    }

    cuMemPoolExportToShareableHandle 11020 cuMemPoolExportToShareableHandle(
        shared: Out<i32>, pool: Handle, kind: u32, flags: u64,
    ) {
        let driver = driver()?;
        if kind != FILE || flags != 0 || shared.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        let gpu_index = driver.pools.with(pool, |pool| Ok(pool.gpu_index))?;
        let device = driver.device_of(gpu_index).ok_or(ERROR_INVALID_VALUE)?;
        let member = driver.member();
        // The pool itself; its memory goes by pointers.
        let number = member.share(gpu_index, 0, (ON_DEVICE, device.cast_unsigned()));
        let file = number.and_then(|number| member.descriptor(number));
        shared.put(file.map_err(|_| ERROR_OPERATING_SYSTEM)?.into_raw_fd())
    }

    cuMemPoolImportFromShareableHandle 11020 cuMemPoolImportFromShareableHandle(
        pool: Out<Handle>, shared: u64, kind: u32, flags: u64,
    ) {
        let driver = driver()?;
        let number = i32::try_from(shared).ok().and_then(number_of);
        let found = number.and_then(|number| driver.member().shared_memory(number));
        let found = found.filter(|_| kind == FILE && flags == 0).ok_or(ERROR_INVALID_VALUE)?;
        let device = driver.device_of(found.gpu_index).ok_or(ERROR_INVALID_VALUE)?;
        // Nothing can be allocated from it.
        pool.put(driver.pools.create(driver, Some(device), 1, false)?)
    }

    cuMemPoolExportPointer 11020 cuMemPoolExportPointer(data: Out<IpcHandle>, pointer: DevicePointer) {
        let driver = driver()?;
        let found = driver.heap.find(pointer).ok_or(ERROR_INVALID_VALUE)?;
        if !matches!(found.kind, Kind::Pool { .. }) {
            return Err(ERROR_INVALID_VALUE);
        }
        data.put(ipc::describe(driver, found.base)?)
    }

    cuMemPoolImportPointer 11020 cuMemPoolImportPointer(
        pointer: Out<DevicePointer>, pool: Handle, data: Out<IpcHandle>,
    ) {
        driver()?.pools.with(pool, |_| Ok(()))?;
        ipc::open(&pointer, data.get()?, Kind::ForeignPool)
    }

    cuMemAllocAsync 11020 cuMemAllocAsync(
        pointer: Out<DevicePointer>, bytes: usize, stream: Handle,
    ) / 11020 cuMemAllocAsync_ptsz as own {
        let (driver, context) = (driver()?, streams::context_of(stream, own)?);
        let pool = driver.pools.of_device(driver, context.device)?;
        allocate(&pointer, bytes, pool, (stream, own))
    }

    cuMemAllocFromPoolAsync 11020 cuMemAllocFromPoolAsync(
        pointer: Out<DevicePointer>, bytes: usize, pool: Handle, stream: Handle,
    ) / 11020 cuMemAllocFromPoolAsync_ptsz as own {
        allocate(&pointer, bytes, pool, (stream, own))
    }

    cuMemFreeAsync 11020 cuMemFreeAsync(
        pointer: DevicePointer, stream: Handle,
    ) / 11020 cuMemFreeAsync_ptsz as own {
        let (driver, stream) = (driver()?, streams::find(stream, own)?);
        if let Some(capture) = stream.capture.lock().clone() {
            return capture.add(stream.id, Node::new(Work::Free { address: pointer }));
        }
        let is_freed = |kind| {
            !matches!(kind, Kind::Host | Kind::Mapped | Kind::Foreign)
        };
        let gone = driver.heap.remove(pointer, is_freed).ok_or(ERROR_INVALID_VALUE)?;
        // Until the stream has come so far, the memory stays charged to the GPU.
        if matches!(gone.kind, Kind::Device | Kind::Managed) {
            let mark = driver.mark(stream.context.gpu_index, stream.behind());
            driver.heap.free_at(driver, mark, gone);
        } else {
            heap::release(driver, &gone);
        }
        Ok(())
    }
}

fn of_place(place: Location, kind: u32) -> Answer<Handle> {
    let driver = driver()?;
    match (kind, place.place()) {
        (PINNED, MemoryLocation::Gpu(device)) => driver.pools.of_device(driver, device),
        (PINNED, MemoryLocation::Host) => driver.pools.of_host(driver),
        (MANAGED, MemoryLocation::Nowhere) => driver.pools.of_managed(driver),
        // Managed memory of one GPU alone has no pool of its own here.
        (MANAGED, _) => Err(ERROR_NOT_SUPPORTED),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

fn allocate(
    pointer: &Out<DevicePointer>,
    bytes: usize,
    pool: Handle,
    (stream, own): (Handle, bool),
) -> Answer {
    let (driver, stream) = (driver()?, streams::find(stream, own)?);
    if pointer.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let bytes = bytes as u64;
    if let Some(capture) = stream.capture.lock().clone() {
        let address = driver
            .arena
            .take(bytes.max(4096))
            .ok_or(ERROR_OUT_OF_MEMORY)?;
        let gpu_index = stream.context.gpu_index;
        capture.add(
            stream.id,
            Node::new(Work::Alloc {
                address,
                bytes,
                gpu_index,
            }),
        )?;
        return pointer.put(address);
    }
    pointer.put(driver.pools.take(driver, stream.context, pool, bytes)?)
}
