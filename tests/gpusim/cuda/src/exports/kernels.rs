//! What programs ask of kernels and functions beside their attributes: parameters, occupancy, the
//! list of an image's functions. A simulated kernel has no known parameters.

use std::sync::Arc;

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE, ERROR_NOT_FOUND};
use crate::context::current;
use crate::driver::driver;
use crate::exports::library::{self, Kernel};
use crate::exports::module::{self, Function};
use crate::ffi::{Answer, Out, TextIn};
use crate::types::{Device, DevicePointer, Handle, LaunchConfiguration};

calls! { CALLS:
    cuFuncGetParamCount 13020 cuFuncGetParamCount(function: Handle, count: Out<usize>) {
        find(function)?;
        count.put(0)
    }

    cuFuncGetParamInfo 12040 cuFuncGetParamInfo(
        function: Handle, _index: usize, _offset: Out<usize>, _size: Out<usize>,
    ) {
        find(function)?;
        Err(ERROR_INVALID_VALUE)
    }

    cuFuncIsLoaded 12040 cuFuncIsLoaded(state: Out<u32>, function: Handle) {
        find(function)?;
        state.put(LOADED)
    }

    cuFuncLoad 12040 cuFuncLoad(function: Handle) { find(function).map(|_| ()) }

    cuFuncSetSharedMemConfig 4020 cuFuncSetSharedMemConfig(function: Handle, _config: u32) {
        find(function).map(|_| ())
    }

    cuKernelGetLibrary 12050 cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) {
        library.put(find_kernel(kernel)?.library)
    }

    cuKernelGetParamCount 13020 cuKernelGetParamCount(kernel: Handle, count: Out<usize>) {
        find_kernel(kernel)?;
        count.put(0)
    }

    cuKernelGetParamInfo 12040 cuKernelGetParamInfo(
        kernel: Handle, _index: usize, _offset: Out<usize>, _size: Out<usize>,
    ) {
        find_kernel(kernel)?;
        Err(ERROR_INVALID_VALUE)
    }

    cuKernelSetAttribute 12000 cuKernelSetAttribute(
        _attribute: u32, _value: i32, kernel: Handle, device: Device,
    ) {
        driver()?.gpu_index(device)?;
        find_kernel(kernel).map(|_| ())
    }

    cuKernelSetCacheConfig 12000 cuKernelSetCacheConfig(
        kernel: Handle, _config: u32, device: Device,
    ) {
        driver()?.gpu_index(device)?;
        find_kernel(kernel).map(|_| ())
    }

    cuLibraryGetKernelCount 12040 cuLibraryGetKernelCount(count: Out<u32>, library: Handle) {
        count.put(u32::try_from(names_of(library)?.len()).map_err(|_| ERROR_INVALID_VALUE)?)
    }

    cuLibraryEnumerateKernels 12040 cuLibraryEnumerateKernels(
        kernels: Out<Handle>, count: u32, library: Handle,
    ) {
        let names = names_of(library)?;
        for (index, name) in (0..count).zip(&names) {
            kernels.put_at(index as usize, library::add_kernel(library, name)?)?;
        }
        Ok(())
    }

    cuLibraryGetManaged 12000 cuLibraryGetManaged(
        _pointer: Out<DevicePointer>, _bytes: Out<usize>, library: Handle, name: TextIn,
    ) {
        lacks(library, &name)
    }

    cuLibraryGetUnifiedFunction 12000 cuLibraryGetUnifiedFunction(
        _function: Out<Handle>, library: Handle, name: TextIn,
    ) {
        lacks(library, &name)
    }

    cuModuleEnumerateFunctions 12040 cuModuleEnumerateFunctions(
        functions: Out<Handle>, count: u32, module: Handle,
    ) {
        let known = driver()?.objects.modules.get(module, ERROR_INVALID_HANDLE)?;
        let mut names: Vec<&String> = known.entries.iter().flatten().collect();
        names.sort_unstable();
        for (index, name) in (0..count).zip(names) {
            functions.put_at(index as usize, module::function(module, name)?)?;
        }
        Ok(())
    }

    cuModuleGetTexRef 2000 cuModuleGetTexRef(_texture: Out<Handle>, module: Handle, name: TextIn) {
        name.read()?;
        driver()?.objects.modules.get(module, ERROR_INVALID_HANDLE)?;
        Err(ERROR_NOT_FOUND)
    }

    cuModuleGetSurfRef 3000 cuModuleGetSurfRef(
        _surface: Out<Handle>, module: Handle, name: TextIn,
    ) {
        name.read()?;
        driver()?.objects.modules.get(module, ERROR_INVALID_HANDLE)?;
        Err(ERROR_NOT_FOUND)
    }

    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: Handle, block: i32, _shared: usize, _flags: u32,
    ) {
        find_any(function)?;
        let threads = u32::try_from(block).map_err(|_| ERROR_INVALID_VALUE)?;
        if !(1..=MOST_THREADS).contains(&threads) {
            return Err(ERROR_INVALID_VALUE);
        }
        blocks.put((RESIDENT_THREADS / threads).min(32).cast_signed())
    }

    cuOccupancyMaxPotentialBlockSize 6050 cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: Handle, _shared_of: u64, _shared: usize,
        limit: i32,
    ) {
        best_block(&grid, &block, function, limit)
    }

    cuOccupancyMaxPotentialBlockSizeWithFlags 7000 cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: Handle, _shared_of: u64, _shared: usize,
        limit: i32, _flags: u32,
    ) {
        best_block(&grid, &block, function, limit)
    }

    cuOccupancyAvailableDynamicSMemPerBlock 10020 cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, function: Handle, blocks: i32, _block: i32,
    ) {
        find_any(function)?;
        let blocks = usize::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        bytes.put((SHARED_BYTES / blocks.ok_or(ERROR_INVALID_VALUE)?).min(SHARED_BYTES_OF_BLOCK))
    }

    cuOccupancyMaxPotentialClusterSize 11070 cuOccupancyMaxPotentialClusterSize(
        size: Out<i32>, function: Handle, configuration: Out<LaunchConfiguration>,
    ) {
        find_any(function)?;
        configuration.get()?;
        size.put(8)
    }

    cuOccupancyMaxActiveClusters 11070 cuOccupancyMaxActiveClusters(
        clusters: Out<i32>, function: Handle, configuration: Out<LaunchConfiguration>,
    ) {
        find_any(function)?;
        configuration.get()?;
        clusters.put(driver()?.multiprocessors(current()?.gpu_index).cast_signed())
    }
}

/// `CU_FUNCTION_LOADING_STATE_LOADED`.
const LOADED: u32 = 1;
/// Threads of a block, and threads and bytes of shared memory of a multiprocessor.
const MOST_THREADS: u32 = 1024;
const RESIDENT_THREADS: u32 = 2048;
const SHARED_BYTES: usize = 167_936;
const SHARED_BYTES_OF_BLOCK: usize = 49_152;

fn find(function: Handle) -> Answer<Arc<Function>> {
    driver()?
        .objects
        .functions
        .get(function, ERROR_INVALID_HANDLE)
}

fn find_kernel(kernel: Handle) -> Answer<Arc<Kernel>> {
    driver()?.objects.kernels.get(kernel, ERROR_INVALID_HANDLE)
}

/// A function or a kernel, either of which these calls take.
fn find_any(function: Handle) -> Answer {
    let function_found = find(function).map(|_| ());
    function_found.or_else(|_| find_kernel(function).map(|_| ()))
}

/// The names of a library's kernels, in order, as far as its image is PTX.
fn names_of(library: Handle) -> Answer<Vec<String>> {
    let libraries = &driver()?.objects.libraries;
    let known = libraries.get(library, ERROR_INVALID_HANDLE)?;
    let names = module::entries(&known.image).unwrap_or_default();
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort_unstable();
    Ok(names)
}

/// No image here has variables or unified functions.
fn lacks(library: Handle, name: &TextIn) -> Answer {
    name.read()?;
    let libraries = &driver()?.objects.libraries;
    libraries.get(library, ERROR_INVALID_HANDLE)?;
    Err(ERROR_NOT_FOUND)
}

fn best_block(grid: &Out<i32>, block: &Out<i32>, function: Handle, limit: i32) -> Answer {
    find_any(function)?;
    let limit = u32::try_from(limit).map_err(|_| ERROR_INVALID_VALUE)?;
    let threads = if limit == 0 {
        MOST_THREADS
    } else {
        limit.min(MOST_THREADS)
    };
    let multiprocessors = driver()?.multiprocessors(current()?.gpu_index);
    let blocks = multiprocessors * (RESIDENT_THREADS / threads).min(32);
    grid.put(blocks.cast_signed())?;
    block.put(threads.cast_signed())
}
