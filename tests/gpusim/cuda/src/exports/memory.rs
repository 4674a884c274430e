//! Memory of the GPU, managed memory, and what a pointer points to.

use crate::calls::calls;
use crate::capture;
use crate::codes::{ERROR_INVALID_VALUE, ERROR_NOT_FOUND};
use crate::context::{Context, current};
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::heap::{self, Allocation, Kind};
use crate::types::DevicePointer;

/// Rows start at multiples of this, as textures need.
const PITCH: usize = 512;

calls! { CALLS:
    cuMemGetInfo 3020 cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = current()?;
        let driver = driver()?;
        driver.heap.settle(driver);
        let (left, all) = driver.memory(context.gpu_index);
        free.put_if(usize::try_from(left).map_err(|_| ERROR_INVALID_VALUE)?);
        total.put_if(usize::try_from(all).map_err(|_| ERROR_INVALID_VALUE)?);
        Ok(())
    }

    cuMemGetInfo 2000 cuMemGetInfo(free: Out<u32>, total: Out<u32>) {
        let (left, all) = driver()?.memory(current()?.gpu_index);
        free.put_if(u32::try_from(left).unwrap_or(u32::MAX));
        total.put_if(u32::try_from(all).unwrap_or(u32::MAX));
        Ok(())
    }

    cuMemAlloc 3020 cuMemAlloc_v2(pointer: Out<DevicePointer>, bytes: usize) {
        let context = current()?;
        if pointer.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        capture::check_unsafe()?;
        let driver = driver()?;
        driver.heap.settle(driver);
        pointer.put(driver.heap.allocate_device(driver, context, bytes as u64)?)
    }

    cuMemAlloc 2000 cuMemAlloc(pointer: Out<u32>, bytes: u32) {
        let context = current()?;
        if pointer.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        let driver = driver()?;
        let base = driver.heap.allocate_device(driver, context, u64::from(bytes))?;
        // Its callers know addresses of 32 bits only.
        pointer.put(u32::try_from(base & u64::from(u32::MAX)).map_err(|_| ERROR_INVALID_VALUE)?)
    }

    cuMemAllocPitch 3020 cuMemAllocPitch_v2(
        pointer: Out<DevicePointer>, pitch: Out<usize>, width: usize, height: usize, element: u32,
    ) {
        let context = current()?;
        let sound = matches!(element, 4 | 8 | 16) && width > 0 && height > 0;
        if !sound || pointer.is_null() || pitch.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(ERROR_INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(ERROR_INVALID_VALUE)?;
        let driver = driver()?;
        pointer.put(driver.heap.allocate_device(driver, context, bytes as u64)?)?;
        pitch.put(row)
    }

    cuMemFree 3020 cuMemFree_v2(pointer: DevicePointer) {
        let context = current()?;
        capture::check_unsafe()?;
        let driver = driver()?;
        let is_device =
            |kind| !matches!(kind, Kind::Host | Kind::Mapped | Kind::Foreign);
        let gone = driver.heap.remove(pointer, is_device).ok_or(ERROR_INVALID_VALUE)?;
        // Freeing waits for what may still use the memory.
        driver.wait_until_idle(context.gpu_index);
        heap::release(driver, &gone);
        Ok(())
    }

    cuMemAllocManaged 6000 cuMemAllocManaged(pointer: Out<DevicePointer>, bytes: usize, flags: u32) {
        let context = current()?;
        if pointer.is_null() || !matches!(flags, 1 | 2) {
            return Err(ERROR_INVALID_VALUE);
        }
        let driver = driver()?;
        let base = driver.heap.allocate_unbacked(driver, context, bytes as u64, Kind::Managed)?;
        pointer.put(base)
    }

    cuMemGetAddressRange 3020 cuMemGetAddressRange_v2(
        base: Out<DevicePointer>, size: Out<usize>, pointer: DevicePointer,
    ) {
        current()?;
        let found = driver()?.heap.find(pointer).ok_or(ERROR_NOT_FOUND)?;
        base.put_if(found.base);
        size.put_if(usize::try_from(found.size).map_err(|_| ERROR_INVALID_VALUE)?);
        Ok(())
    }

    cuPointerGetAttribute 4000 cuPointerGetAttribute(
        data: Out<u64>, attribute: u32, pointer: DevicePointer,
    ) {
        driver()?;
        let found = driver()?.heap.find(pointer).ok_or(ERROR_INVALID_VALUE)?;
        put_attribute(&data, attribute, pointer, &found)
    }

    cuPointerGetAttributes 7000 cuPointerGetAttributes(
        count: u32, attributes: Out<u32>, data: Out<*mut u64>, pointer: DevicePointer,
    ) {
        let found = driver()?.heap.find(pointer);
        let count = usize::try_from(count).map_err(|_| ERROR_INVALID_VALUE)?;
        let wanted = attributes.get_all(count)?.into_iter().zip(data.get_all(count)?);
        for (attribute, place) in wanted {
            // A pointer that the driver does not know has empty attributes here.
            match &found {
                Some(found) => put_attribute(&Out::at(place), attribute, pointer, found)?,
                None => put_empty(&Out::at(place), attribute)?,
            }
        }
        Ok(())
    }
}

/// `CUmemorytype`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

fn put_attribute(
    place: &Out<u64>,
    attribute: u32,
    pointer: DevicePointer,
    found: &Allocation,
) -> Answer {
    let host = found.kind == Kind::Host;
    let word = |value: u32| place.narrow().put(value);
    let flag = |value: bool| place.byte().put(u8::from(value));
    match attribute {
        1 => place.put(found.context.map_or(0, Context::handle)),
        2 => word(if host { HOST } else { DEVICE }),
        3 => place.put(pointer),
        4 if host || found.kind == Kind::Managed => place.put(pointer),
        7 => place.put(found.id),
        8 => flag(found.kind == Kind::Managed),
        9 => word(
            found
                .context
                .map_or(0, |context| context.device)
                .cast_unsigned(),
        ),
        6 | 10 => flag(false),
        11 => place.put(found.base),
        12 => place.put(found.size),
        13 => flag(true),
        14 | 16 => word(0),
        15 => word(if host { 0 } else { 3 }),
        17 => place.put(0),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

fn put_empty(place: &Out<u64>, attribute: u32) -> Answer {
    match attribute {
        6 | 8 | 10 | 13 => place.byte().put(0),
        9 => place.narrow().put((-2_i32).cast_unsigned()),
        2 | 14..=16 => place.narrow().put(0),
        _ => place.put(0),
    }
}
