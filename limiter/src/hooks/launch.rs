//! The calls that put work on a device: kernels in every form, and graphs. Each becomes a key under
//! which its cost is known, and the stream in which it runs. Copies and host functions are not
//! compute. A kernel's arguments are never read.

use core::ffi::{c_uint, c_void};

use aliquot_pacer::cost::key;
use aliquot_pacer::scale::Extent;

use super::graph;
use crate::device_pace::LaunchWork;
use crate::ffi::{Code, Handle, Out, PER_THREAD_STREAM, long};
use crate::pace;
use crate::stream::goes_into_capture;

/// Distinguishes graphs from functions.
const GRAPH: u64 = u64::MAX;

/// The beginning of `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
}

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchParameters {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    arguments: *mut c_void,
}

/// The stream of a call; `PER_THREAD`: its stream 0 is the thread's own.
pub(crate) fn stream_of<const PER_THREAD: bool>(stream: Handle) -> Handle {
    if PER_THREAD && stream == 0 {
        PER_THREAD_STREAM
    } else {
        stream
    }
}

fn product([x, y, z]: [c_uint; 3]) -> u64 {
    u64::from(x)
        .wrapping_mul(u64::from(y))
        .wrapping_mul(u64::from(z))
}

#[inline]
fn work(function: Handle, grid: [c_uint; 3], block: [c_uint; 3], stream: Handle) -> LaunchWork {
    let (blocks, threads) = (product(grid), product(block));
    LaunchWork {
        key: key([long(function), blocks, threads]),
        stream,
        extent: Extent {
            function: long(function),
            amount: blocks.wrapping_mul(threads.max(1)),
        },
    }
}

#[inline]
#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn kernel<const PER_THREAD: bool>(
    real: extern "C" fn(
        Handle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Handle,
        *mut c_void,
        *mut c_void,
    ) -> Code,
    function: Handle,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    width: c_uint,
    height: c_uint,
    depth: c_uint,
    shared: c_uint,
    stream: Handle,
    arguments: *mut c_void,
    extra: *mut c_void,
) -> Code {
    let of = stream_of::<PER_THREAD>(stream);
    let work = work(function, [x, y, z], [width, height, depth], of);
    pace::launch(work, move || {
        real(
            function, x, y, z, width, height, depth, shared, stream, arguments, extra,
        )
    })
}

#[inline]
pub(crate) fn kernel_ex<const PER_THREAD: bool>(
    real: extern "C" fn(Out<LaunchConfig>, Handle, *mut c_void, *mut c_void) -> Code,
    config: Out<LaunchConfig>,
    function: Handle,
    arguments: *mut c_void,
    extra: *mut c_void,
) -> Code {
    let Some(launch) = config.get() else {
        return real(config, function, arguments, extra);
    };
    let of = stream_of::<PER_THREAD>(launch.stream);
    pace::launch(work(function, launch.grid, launch.block, of), move || {
        real(config, function, arguments, extra)
    })
}

#[expect(clippy::too_many_arguments, reason = "the driver's own")]
pub(crate) fn cooperative<const PER_THREAD: bool>(
    real: extern "C" fn(
        Handle,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Handle,
        *mut c_void,
    ) -> Code,
    function: Handle,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    width: c_uint,
    height: c_uint,
    depth: c_uint,
    shared: c_uint,
    stream: Handle,
    arguments: *mut c_void,
) -> Code {
    let of = stream_of::<PER_THREAD>(stream);
    let work = work(function, [x, y, z], [width, height, depth], of);
    pace::launch(work, move || {
        real(
            function, x, y, z, width, height, depth, shared, stream, arguments,
        )
    })
}

/// Several launches at once, one on each of several devices: paced and charged as one of them on
/// the device of the current context.
pub(crate) fn multi_device(
    real: extern "C" fn(Out<LaunchParameters>, c_uint, c_uint) -> Code,
    launches: Out<LaunchParameters>,
    count: c_uint,
    flags: c_uint,
) -> Code {
    let Some(first) = launches.get().filter(|_| count > 0) else {
        return real(launches, count, flags);
    };
    let work = work(first.function, first.grid, first.block, first.stream);
    pace::launch(work, move || real(launches, count, flags))
}

pub(crate) fn single(real: extern "C" fn(Handle) -> Code, function: Handle) -> Code {
    pace::launch(work(function, [1; 3], [0; 3], 0), move || real(function))
}

pub(crate) fn grid(
    real: extern "C" fn(Handle, i32, i32) -> Code,
    function: Handle,
    width: i32,
    height: i32,
) -> Code {
    let size = [width.unsigned_abs(), height.unsigned_abs(), 1];
    pace::launch(work(function, size, [0; 3], 0), move || {
        real(function, width, height)
    })
}

pub(crate) fn grid_async(
    real: extern "C" fn(Handle, i32, i32, Handle) -> Code,
    function: Handle,
    width: i32,
    height: i32,
    stream: Handle,
) -> Code {
    let size = [width.unsigned_abs(), height.unsigned_abs(), 1];
    pace::launch(work(function, size, [0; 3], stream), move || {
        real(function, width, height, stream)
    })
}

pub(crate) fn graph<const PER_THREAD: bool>(
    real: extern "C" fn(Handle, Handle) -> Code,
    handle: Handle,
    stream: Handle,
) -> Code {
    let work = LaunchWork {
        key: key([long(handle), GRAPH, 0]),
        stream: stream_of::<PER_THREAD>(stream),
        extent: Extent::UNKNOWN,
    };
    pace::launch(work, move || {
        let call = || real(handle, stream);
        // What becomes part of another graph takes nothing now, and a capture may forbid the question.
        if goes_into_capture(work.stream) {
            call()
        } else {
            graph::charged_after(call)
        }
    })
}
