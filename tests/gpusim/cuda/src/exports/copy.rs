//! Copies and fills of plain ranges. Allocations of up to 64 MiB retain their contents (`heap`).
//! What moves within the GPU takes GPU time if the machine says how much; other copies take none.

use std::cell::Cell;

use crate::calls::calls;
use crate::capture::{self, Node, Work};
use crate::codes::ERROR_INVALID_VALUE;
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{self, Answer, Out, as_pointer};
use crate::heap::Kind;
use crate::streams::{self, Stream};
use crate::types::DevicePointer;

calls! { CALLS:
    cuMemcpy 4000 cuMemcpy(to: u64, from: u64, bytes: usize) / 7000 cuMemcpy_ptds as own {
        in_default(own, || copy(to, from, bytes))
    }

    cuMemcpyHtoD 3020 cuMemcpyHtoD_v2(
        to: DevicePointer, from: u64, bytes: usize,
    ) / 7000 cuMemcpyHtoD_v2_ptds as own {
        known(to, bytes)?;
        in_default(own, || copy(to, from, bytes))
    }

    cuMemcpyDtoH 3020 cuMemcpyDtoH_v2(
        to: u64, from: DevicePointer, bytes: usize,
    ) / 7000 cuMemcpyDtoH_v2_ptds as own {
        known(from, bytes)?;
        in_default(own, || copy(to, from, bytes))
    }

    cuMemcpyDtoD 3020 cuMemcpyDtoD_v2(
        to: DevicePointer, from: DevicePointer, bytes: usize,
    ) / 7000 cuMemcpyDtoD_v2_ptds as own {
        known(to, bytes)?;
        known(from, bytes)?;
        in_default(own, || copy(to, from, bytes))
    }

    cuMemsetD8 3020 cuMemsetD8_v2(
        to: DevicePointer, value: u8, count: usize,
    ) / 7000 cuMemsetD8_v2_ptds as own {
        in_default(own, || fill(to, value, count))
    }

    cuMemsetD16 3020 cuMemsetD16_v2(
        to: DevicePointer, value: u16, count: usize,
    ) / 7000 cuMemsetD16_v2_ptds as own {
        in_default(own, || fill(to, value, count))
    }

    cuMemsetD32 3020 cuMemsetD32_v2(
        to: DevicePointer, value: u32, count: usize,
    ) / 7000 cuMemsetD32_v2_ptds as own {
        in_default(own, || fill(to, value, count))
    }

    cuMemsetD2D8 3020 cuMemsetD2D8_v2(
        to: DevicePointer, pitch: usize, value: u8, width: usize, height: usize,
    ) / 7000 cuMemsetD2D8_v2_ptds as own {
        in_default(own, || fill_rows(to, pitch, value, (width, height)))
    }

    cuMemsetD2D16 3020 cuMemsetD2D16_v2(
        to: DevicePointer, pitch: usize, value: u16, width: usize, height: usize,
    ) / 7000 cuMemsetD2D16_v2_ptds as own {
        in_default(own, || fill_rows(to, pitch, value, (width, height)))
    }

    cuMemsetD2D32 3020 cuMemsetD2D32_v2(
        to: DevicePointer, pitch: usize, value: u32, width: usize, height: usize,
    ) / 7000 cuMemsetD2D32_v2_ptds as own {
        in_default(own, || fill_rows(to, pitch, value, (width, height)))
    }
}

/// Does it after the work of the default stream, in the CPU time of a launch, and queues the GPU time
/// that it takes.
fn in_default(own: bool, now: impl FnOnce() -> Answer) -> Answer {
    let (driver, stream) = (driver()?, streams::find(0, own)?);
    let gpu_index = stream.context.gpu_index;
    capture::check_stream(&stream)?;
    driver.spend_launch_time(gpu_index);
    driver.wait_until_done(gpu_index, stream.behind());
    timed(&stream, now)
}

thread_local! {
    /// Bytes that copies and fills of this thread moved within a GPU.
    static MOVED: Cell<u64> = const { Cell::new(0) };
}

fn count_moved(bytes: usize) {
    MOVED.set(MOVED.get() + bytes as u64);
}

/// Copies or fills, and queues the GPU time for what moved within the GPU on the stream.
pub(super) fn timed(stream: &Stream, now: impl FnOnce() -> Answer) -> Answer {
    MOVED.set(0);
    now()?;
    let work = driver()?.move_time(stream.context.gpu_index, MOVED.get());
    if work == 0 {
        return Ok(());
    }
    stream.run(|| Node::new(Work::Other), || work)
}

/// Whether an address is of memory on a GPU.
fn is_on_gpu(address: u64) -> Answer<bool> {
    let found = driver()?.heap.find(address);
    Ok(found.is_some_and(|found| found.kind != Kind::Host))
}

/// The range lies in one allocation.
pub(super) fn known(address: u64, bytes: usize) -> Answer {
    current()?;
    let found = driver()?.heap.find(address).ok_or(ERROR_INVALID_VALUE)?;
    let left = found.size - (address - found.base);
    if bytes as u64 <= left {
        Ok(())
    } else {
        Err(ERROR_INVALID_VALUE)
    }
}

/// Moves managed memory to the current context's GPU.
fn touch(address: u64, bytes: usize) -> Answer {
    let (driver, context) = (driver()?, current()?);
    if let Some(found) = driver
        .heap
        .find(address)
        .filter(|found| found.kind == Kind::Managed)
    {
        let range = (address, bytes as u64);
        driver
            .residency
            .touch(driver, context.gpu_index, &found, range);
    }
    Ok(())
}

/// Copies between any two addresses; an address unknown to the driver is host memory.
pub(crate) fn copy(to: u64, from: u64, bytes: usize) -> Answer {
    current()?;
    if bytes == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    touch(to, bytes)?;
    touch(from, bytes)?;
    if is_on_gpu(to)? && is_on_gpu(from)? {
        count_moved(bytes);
    }
    if driver()?.heap.write(to, bytes as u64)?.unwrap_or(true) {
        ffi::copy(to, from, bytes);
    }
    Ok(())
}

/// Fills a range with copies of a value.
pub(crate) fn fill<T: Copy>(to: DevicePointer, value: T, count: usize) -> Answer {
    current()?;
    let bytes = count
        .checked_mul(size_of::<T>())
        .ok_or(ERROR_INVALID_VALUE)?;
    if count == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(align_of::<T>() as u64) {
        return Err(ERROR_INVALID_VALUE);
    }
    touch(to, bytes)?;
    count_moved(bytes);
    let keeps_contents = driver()?.heap.write(to, bytes as u64)?;
    if keeps_contents.ok_or(ERROR_INVALID_VALUE)? {
        let place = Out::at(as_pointer(to).cast::<T>());
        (0..count).try_for_each(|index| place.put_at(index, value))?;
    }
    Ok(())
}

fn fill_rows<T: Copy>(
    to: DevicePointer,
    pitch: usize,
    value: T,
    (width, height): (usize, usize),
) -> Answer {
    (0..height).try_for_each(|row| fill(to + (pitch * row) as u64, value, width))
}
