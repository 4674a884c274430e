//! Placement of managed memory: advice, prefetch, and attributes of a range.

use crate::calls::calls;
use crate::codes::ERROR_INVALID_VALUE;
use crate::driver::driver;
use crate::ffi::Answer;
use crate::heap::{Allocation, Kind};
use crate::streams;
use crate::types::{Device, DevicePointer, Handle, Location};
use crate::vmm::ON_DEVICE;

/// `CU_DEVICE_CPU`.
const HOST: Device = -1;

calls! { CALLS:
    cuMemPrefetchAsync 8000 cuMemPrefetchAsync(
        pointer: DevicePointer, bytes: usize, device: Device, stream: Handle,
    ) / 8000 cuMemPrefetchAsync_ptsz as own {
        prefetch((pointer, bytes), device, (stream, own))
    }

    cuMemPrefetchAsync 12020 cuMemPrefetchAsync_v2(
        pointer: DevicePointer, bytes: usize, place: Location, _flags: u32, stream: Handle,
    ) / 12020 cuMemPrefetchAsync_v2_ptsz as own {
        let device = if place.kind == ON_DEVICE { place.id } else { HOST };
        prefetch((pointer, bytes), device, (stream, own))
    }

    cuMemAdvise 8000 cuMemAdvise(pointer: DevicePointer, bytes: usize, advice: u32, device: Device) {
        advise((pointer, bytes), advice, device)
    }

    cuMemAdvise 12020 cuMemAdvise_v2(pointer: DevicePointer, bytes: usize, advice: u32, place: Location) {
        advise((pointer, bytes), advice, if place.kind == ON_DEVICE { place.id } else { HOST })
    }
}

fn managed((pointer, bytes): (u64, usize)) -> Answer<Allocation> {
    let found = driver()?.heap.find(pointer).ok_or(ERROR_INVALID_VALUE)?;
    let left = found.size - (pointer - found.base);
    if found.kind == Kind::Managed && bytes > 0 && bytes as u64 <= left {
        Ok(found)
    } else {
        Err(ERROR_INVALID_VALUE)
    }
}

fn prefetch(range: (u64, usize), device: Device, (stream, own): (Handle, bool)) -> Answer {
    let (driver, found) = (driver()?, managed(range)?);
    streams::context_of(stream, own)?;
    let range = (range.0, range.1 as u64);
    if device == HOST {
        driver.residency.move_to_host(driver, &found, range);
        return Ok(());
    }
    let gpu_index = driver.gpu_index(device)?;
    driver.residency.touch(driver, gpu_index, &found, range);
    Ok(())
}

fn advise(range: (u64, usize), advice: u32, device: Device) -> Answer {
    managed(range)?;
    if device != HOST {
        driver()?.gpu_index(device)?;
    }
    match advice {
        1..=6 => Ok(()),
        _ => Err(ERROR_INVALID_VALUE),
    }
}
