//! Copies and fills in stream order. They take the CPU time of a launch, and the data is there when the
//! call returns.

use crate::calls::calls;
use crate::capture::{Node, Work};
use crate::driver::driver;
use crate::exports::copy::{copy, fill, known, timed};
use crate::ffi::Answer;
use crate::streams;
use crate::types::{DevicePointer, Handle};

calls! { CALLS:
    cuMemcpyAsync 4000 cuMemcpyAsync(
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) / 7000 cuMemcpyAsync_ptsz as own {
        in_order(stream, own, || copy(to, from, bytes))
    }

    cuMemcpyHtoDAsync 3020 cuMemcpyHtoDAsync_v2(
        to: DevicePointer, from: u64, bytes: usize, stream: Handle,
    ) / 7000 cuMemcpyHtoDAsync_v2_ptsz as own {
        in_order(stream, own, || known(to, bytes).and_then(|()| copy(to, from, bytes)))
    }

    cuMemcpyDtoHAsync 3020 cuMemcpyDtoHAsync_v2(
        to: u64, from: DevicePointer, bytes: usize, stream: Handle,
    ) / 7000 cuMemcpyDtoHAsync_v2_ptsz as own {
        in_order(stream, own, || known(from, bytes).and_then(|()| copy(to, from, bytes)))
    }

    cuMemcpyDtoDAsync 3020 cuMemcpyDtoDAsync_v2(
        to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle,
    ) / 7000 cuMemcpyDtoDAsync_v2_ptsz as own {
        in_order(stream, own, || known(from, bytes).and_then(|()| copy(to, from, bytes)))
    }

    cuMemsetD8Async 3020 cuMemsetD8Async(
        to: DevicePointer, value: u8, count: usize, stream: Handle,
    ) / 7000 cuMemsetD8Async_ptsz as own {
        in_order(stream, own, || fill(to, value, count))
    }

    cuMemsetD16Async 3020 cuMemsetD16Async(
        to: DevicePointer, value: u16, count: usize, stream: Handle,
    ) / 7000 cuMemsetD16Async_ptsz as own {
        in_order(stream, own, || fill(to, value, count))
    }

    cuMemsetD32Async 3020 cuMemsetD32Async(
        to: DevicePointer, value: u32, count: usize, stream: Handle,
    ) / 7000 cuMemsetD32Async_ptsz as own {
        in_order(stream, own, || fill(to, value, count))
    }
}

/// Does it now, unless the stream is captured.
fn in_order(stream: Handle, own: bool, now: impl FnOnce() -> Answer) -> Answer {
    let stream = streams::find(stream, own)?;
    if let Some(capture) = stream.capture.lock().clone() {
        return capture.add(stream.id, Node::new(Work::Other));
    }
    driver()?.spend_launch_time(stream.context.gpu_index);
    timed(&stream, now)
}
