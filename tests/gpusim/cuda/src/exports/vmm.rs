//! Virtual memory management. A shareable handle is a file that names memory and its owner; the
//! contents of shared memory are not shared.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};

use crate::calls::calls;
use crate::codes::{
    ERROR_INVALID_DEVICE, ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED,
    ERROR_OPERATING_SYSTEM,
};
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::heap::Kind;
use crate::memory_file::{self, MemoryFile};
use crate::streams;
use crate::types::{
    AccessDescriptor, AllocationProperties, ArrayMapping, DevicePointer, Handle, Location,
    MemoryLocation,
};
use crate::vmm::{GRANULARITY, MemoryDescription};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE: u32 = 1;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF: u32 = 1;
const MARK: u64 = u64::from_ne_bytes(*b"ALQGPUVM");

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
        pointer: Out<DevicePointer>, size: usize, alignment: usize, _wish: DevicePointer, flags: u64,
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
        let exported = driver()?.vmm.describe(handle)?;
        if kind != FILE {
            return Err(ERROR_NOT_SUPPORTED);
        }
        if flags != 0 || shared.is_null() || exported.properties.handle_types & FILE == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let (file, watched) = write(&exported).map_err(|_| ERROR_OPERATING_SYSTEM)?;
        driver()?.vmm.add_file(handle, watched);
        shared.put(file.into_raw_fd())
    }

    cuMemImportFromShareableHandle 10020 cuMemImportFromShareableHandle(
        handle: Out<Handle>, shared: u64, kind: u32,
    ) {
        let driver = driver()?;
        if kind != FILE {
            return Err(ERROR_NOT_SUPPORTED);
        }
        let (exported, from) = read(shared)?;
        handle.put(driver.vmm.import(driver, &exported, from))
    }

    cuMemMapArrayAsync 11010 cuMemMapArrayAsync(
        list: Out<ArrayMapping>, count: u32, stream: Handle,
    ) / 11010 cuMemMapArrayAsync_ptsz as own {
        let driver = driver()?;
        streams::find(stream, own)?;
        for one in list.get_all(count as usize)? {
            let array = driver.objects.arrays.get(one.array, ERROR_INVALID_HANDLE)?;
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

fn write(exported: &MemoryDescription) -> std::io::Result<(File, MemoryFile)> {
    let mut file = new_file()?;
    let location = exported.properties.location;
    let place = u64::from(location.kind) << 32 | u64::from(location.id.cast_unsigned());
    for word in [MARK, exported.size, place] {
        file.write_all(&word.to_ne_bytes())?;
    }
    memory_file::lock_shared(&file)?;
    let watched = MemoryFile::reopen(&file)?;
    Ok((file, watched))
}

fn read(shared: u64) -> Answer<(MemoryDescription, MemoryFile)> {
    let descriptor = i32::try_from(shared).map_err(|_| ERROR_INVALID_VALUE)?;
    // SAFETY: the descriptor is the caller's, open by its promise, and stays so: this borrows it.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let mut bytes = [0; 24];
    let whole = file.rewind().and_then(|()| file.read_exact(&mut bytes));
    whole.map_err(|_| ERROR_INVALID_VALUE)?;
    let (words, _) = bytes.as_chunks::<8>();
    let [mark, size, place] = [words[0], words[1], words[2]].map(u64::from_ne_bytes);
    let kind = u32::try_from(place >> 32).map_err(|_| ERROR_INVALID_VALUE)?;
    let id = u32::try_from(place & 0xffff_ffff).map_err(|_| ERROR_INVALID_VALUE)?;
    if mark != MARK {
        return Err(ERROR_INVALID_VALUE);
    }
    let location = Location {
        kind,
        id: id.cast_signed(),
    };
    let properties = AllocationProperties {
        kind: 1,
        handle_types: FILE,
        location,
        windows: 0,
        flags: [0; 8],
    };
    let from = MemoryFile::open_locked(&file).map_err(|_| ERROR_OPERATING_SYSTEM)?;
    Ok((MemoryDescription { size, properties }, from))
}
