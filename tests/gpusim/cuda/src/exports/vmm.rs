//! Virtual memory management. A shareable handle is a descriptor (`model/src/exports.rs`); the
//! contents of shared memory are not shared.

use std::fs::File;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};

use aliquot_gpusim_model::exports::number_of;

use crate::calls::calls;
use crate::codes::{
    ERROR_INVALID_DEVICE, ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED, ERROR_OPERATING_SYSTEM,
};
use crate::driver::driver;
use crate::ffi::Out;
use crate::heap::Kind;
use crate::streams;
use crate::types::{
    AccessDescriptor, AllocationProperties, ArrayMapping, DevicePointer, Handle, MemoryLocation,
};
use crate::vmm::{FILE, GRANULARITY};

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: u32 = 1;

calls! { CALLS:
    cuMemGetAllocationGranularity 10020 cuMemGetAllocationGranularity(
        size: Out<usize>, properties: Out<AllocationProperties>, option: u32,
    ) {
        let location = properties.get()?.location;
        if let MemoryLocation::Gpu(device) = location.place() {
            driver()?.gpu_index(device)?;
        }
        if option > 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        size.put(usize::try_from(GRANULARITY).map_err(|_| ERROR_INVALID_VALUE)?)
    }

    cuMemAddressReserve 10020 cuMemAddressReserve(
        pointer: Out<DevicePointer>, size: usize, alignment: usize, _hint: DevicePointer, flags: u64,
    ) {
        let driver = driver()?;
        if flags != 0 || pointer.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        pointer.put(driver.vmm.reserve(driver, size as u64, alignment as u64)?)
    }

    cuMemAddressFree 10020 cuMemAddressFree(pointer: DevicePointer, size: usize) {
        let driver = driver()?;
        driver.vmm.free(driver, pointer, size as u64)
    }

    cuMemCreate 10020 cuMemCreate(
        handle: Out<Handle>, size: usize, properties: Out<AllocationProperties>, flags: u64,
    ) {
        let driver = driver()?;
        if flags != 0 || handle.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        handle.put(driver.vmm.create(driver, size as u64, properties.get()?)?)
    }

    cuMemRelease 10020 cuMemRelease(handle: Handle) {
        let driver = driver()?;
        driver.vmm.release(driver, handle)
    }

    cuMemRetainAllocationHandle 11000 cuMemRetainAllocationHandle(handle: Out<Handle>, address: u64) {
        handle.put(driver()?.vmm.retain(address)?)
    }

    cuMemMap 10020 cuMemMap(
        pointer: DevicePointer, size: usize, offset: usize, handle: Handle, flags: u64,
    ) {
        let driver = driver()?;
        if flags != 0 || offset != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        driver.vmm.map(driver, (pointer, size as u64), handle)
    }

    cuMemUnmap 10020 cuMemUnmap(pointer: DevicePointer, size: usize) {
        let driver = driver()?;
        driver.vmm.unmap(driver, (pointer, size as u64))
    }

    cuMemSetAccess 10020 cuMemSetAccess(
        pointer: DevicePointer, size: usize, wanted: Out<AccessDescriptor>, count: usize,
    ) {
        let driver = driver()?;
        let wanted = wanted.get_all(count)?;
        for one in &wanted {
            if let MemoryLocation::Gpu(device) = one.location.place() {
                driver.gpu_index(device).map_err(|_| ERROR_INVALID_DEVICE)?;
            }
        }
        if wanted.is_empty() {
            return Err(ERROR_INVALID_VALUE);
        }
        driver.vmm.set_access((pointer, size as u64))
    }

    cuMemGetHandleForAddressRange 11070 cuMemGetHandleForAddressRange(
        handle: Out<i32>, pointer: DevicePointer, size: usize, kind: u32, flags: u64,
    ) {
        let found = driver()?.heap.find(pointer).ok_or(ERROR_INVALID_VALUE)?;
        let inside = size > 0 && size as u64 <= found.size - (pointer - found.base);
        if kind != DMA_BUF || flags > 1 || handle.is_null() || !inside {
            return Err(ERROR_INVALID_VALUE);
        }
        // Another device reaches what stays where it is.
        if !matches!(found.kind, Kind::Device | Kind::Mapped) {
            return Err(ERROR_NOT_SUPPORTED);
        }
        handle.put(new_file().map_err(|_| ERROR_OPERATING_SYSTEM)?.into_raw_fd())
    }

    cuMemExportToShareableHandle 10020 cuMemExportToShareableHandle(
        shared: Out<i32>, handle: Handle, kind: u32, flags: u64,
    ) {
        let driver = driver()?;
        if kind != FILE {
            return Err(ERROR_NOT_SUPPORTED);
        }
        if flags != 0 || shared.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        shared.put(driver.vmm.export(driver, handle)?.into_raw_fd())
    }

    cuMemImportFromShareableHandle 10020 cuMemImportFromShareableHandle(
        handle: Out<Handle>, shared: u64, kind: u32,
    ) {
        let driver = driver()?;
        if kind != FILE {
            return Err(ERROR_NOT_SUPPORTED);
        }
        let number = i32::try_from(shared).ok().and_then(number_of);
        let shared = number.and_then(|number| driver.member().shared_memory(number));
        handle.put(driver.vmm.import(driver, shared.ok_or(ERROR_INVALID_VALUE)?)?)
    }

    cuMemGetAllocationPropertiesFromHandle 10020 cuMemGetAllocationPropertiesFromHandle(
        properties: Out<AllocationProperties>, handle: Handle,
    ) {
        properties.put(driver()?.vmm.properties(handle)?)
    }

    cuMemMapArrayAsync 11010 cuMemMapArrayAsync(
        list: Out<ArrayMapping>, count: u32, stream: Handle,
    ) / 11010 cuMemMapArrayAsync_ptsz as own {
        let driver = driver()?;
        streams::find(stream, own)?;
        for one in list.get_all(count as usize)? {
            let array = driver.objects.arrays.get(one.array)?;
            match one.operation {
                MAP if array.memory.is_none() => driver.vmm.map_array(one.array, one.handle)?,
                UNMAP => driver.vmm.unmap_array(driver, one.array),
                _ => return Err(ERROR_INVALID_VALUE),
            }
        }
        Ok(())
    }
}

/// `CUmemOperationType`.
const MAP: u32 = 1;
const UNMAP: u32 = 2;

fn new_file() -> std::io::Result<File> {
    // SAFETY: the name ends with a zero, and a new descriptor has no other owner.
    let descriptor = unsafe { libc::memfd_create(c"gpusim".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}
