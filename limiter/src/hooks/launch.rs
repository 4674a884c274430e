//! The calls that put work on a device: kernels in every form, and graphs. Each becomes a key under
//! which its cost is known, and the stream in which it runs. Copies and host functions are not
//! compute. A kernel's arguments are never read.

use core::ffi::{c_uint, c_void};

use aliquot_pacer::cost::key;
use aliquot_pacer::scale::Extent;

use super::graph;
use crate::device_pace::LaunchWork;
use crate::ffi::{Code, Handle, Out, long};
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

/// Makes a call that runs a kernel once, with a grid of blocks of threads.
#[inline]
pub(crate) fn kernel(
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    pace::launch(work(function, grid, block, stream), call)
}

/// The same, by a configuration.
#[inline]
pub(crate) fn configured(
    config: Out<LaunchConfig>,
    function: Handle,
    stream_of: impl Fn(Handle) -> Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    match config.get() {
        Some(one) => kernel(function, one.grid, one.block, stream_of(one.stream), call),
        None => call(),
    }
}

/// Several launches at once, one on each of several devices: paced and charged as one of them on
/// the device of the current context.
pub(crate) fn multi_device(
    launches: Out<LaunchParameters>,
    count: c_uint,
    call: impl FnOnce() -> Code,
) -> Code {
    match launches.get().filter(|_| count > 0) {
        Some(first) => kernel(first.function, first.grid, first.block, first.stream, call),
        None => call(),
    }
}

pub(crate) fn graph(handle: Handle, stream: Handle, call: impl FnOnce() -> Code) -> Code {
    let work = LaunchWork {
        key: key([long(handle), GRAPH, 0]),
        stream,
        extent: Extent::UNKNOWN,
    };
    pace::launch(work, move || {
        // What becomes part of another graph takes nothing now, and a capture may forbid the question.
        if goes_into_capture(stream) {
            call()
        } else {
            graph::charged_after(call)
        }
    })
}
