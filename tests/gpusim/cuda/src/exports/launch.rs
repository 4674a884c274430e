//! Launches of kernels. A kernel's time is drawn when it is launched (`times`).

use aliquot_gpusim_model::clock;

use crate::calls::calls;
use crate::capture::{Node, Work};
use crate::codes::{ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::driver::driver;
use crate::exports::library;
use crate::exports::module::Function;
use crate::ffi::{Answer, Out};
use crate::heap::Kind;
use crate::streams;
use crate::types::{Handle, LaunchConfiguration};

/// Grid and block.
type Shape = [u32; 6];

calls! { CALLS:
    cuLaunchKernel 4000 cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, _shared: u32, stream: Handle, parameters: Out<Out64>, _extra: u64,
    ) / 7000 cuLaunchKernel_ptsz as own {
        let shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        launch(function, shape, (stream, own), &parameters, false)
    }

    cuLaunchKernelEx 11060 cuLaunchKernelEx(
        configuration: Out<LaunchConfiguration>, function: Handle, parameters: Out<Out64>, _extra: u64,
    ) / 11060 cuLaunchKernelEx_ptsz as own {
        let wanted = configuration.get()?;
        launch(function, wanted.shape, (wanted.stream, own), &parameters, false)
    }

    cuLaunchCooperativeKernel 9000 cuLaunchCooperativeKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, _shared: u32, stream: Handle, parameters: Out<Out64>,
    ) / 9000 cuLaunchCooperativeKernel_ptsz as own {
        let shape = [grid_x, grid_y, grid_z, block_x, block_y, block_z];
        launch(function, shape, (stream, own), &parameters, true)
    }
}

/// Where an argument of a kernel lies.
type Out64 = *mut u64;

pub(super) fn launch(
    function: Handle,
    shape: Shape,
    (stream, own): (Handle, bool),
    parameters: &Out<Out64>,
    cooperative: bool,
) -> Answer {
    let driver = driver()?;
    let stream = streams::find(stream, own)?;
    let functions = &driver.objects.functions;
    let (function, known) = if let Ok(known) = functions.get(function) {
        (function, known)
    } else {
        let found = library::function_in(function, stream.context)?;
        let function = found.ok_or(ERROR_INVALID_HANDLE)?;
        (function, functions.get(function)?)
    };
    let threads = check(shape)?;
    let gpu_index = stream.context.gpu_index;
    if cooperative {
        let each = u64::from((2048 / threads).min(32));
        let most = u64::from(driver.multiprocessors(gpu_index)) * each;
        let blocks: u64 = shape[..3].iter().map(|length| u64::from(*length)).product();
        if blocks > most {
            return Err(ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    if !stream.is_captured() {
        let owner = stream.context.owner();
        owner.prepare_launch(driver, known.local_bytes)?;
    }
    let moved = if known.time.touches {
        touch(parameters, gpu_index)?
    } else {
        0
    };
    let node = || Node::new(Work::Kernel { function });
    stream.run(node, || draw(&known, gpu_index) + moved / BYTES_PER_NS)
}

/// Bytes that move between host and GPU in a nanosecond.
const BYTES_PER_NS: u64 = 12;

pub(crate) fn draw(function: &Function, gpu_index: usize) -> u64 {
    let swing = driver().map_or(0, |driver| driver.on_gpu(gpu_index, |gpu| gpu.clock_swing));
    function.time.draw(clock(), swing)
}

/// Threads of a block.
fn check(shape: Shape) -> Answer<u32> {
    let sound = shape.iter().all(|length| *length > 0) && shape[1] <= 65_535 && shape[2] <= 65_535;
    let threads = shape[3..]
        .iter()
        .try_fold(1_u32, |sum, length| sum.checked_mul(*length));
    let threads = threads.filter(|threads| sound && *threads <= 1024 && shape[5] <= 64);
    threads.ok_or(ERROR_INVALID_VALUE)
}

/// Moves the managed memory that a kernel uses to its GPU; returns the bytes moved.
fn touch(parameters: &Out<Out64>, gpu_index: usize) -> Answer<u64> {
    let driver = driver()?;
    let places = parameters.get_all(2)?;
    let address = Out::at(places[0]).get()?;
    let bytes = Out::at(places[1]).get()?;
    let found = driver
        .heap
        .find(address)
        .filter(|found| found.kind == Kind::Managed);
    Ok(found.map_or(0, |found| {
        driver
            .residency
            .touch(driver, gpu_index, &found, (address, bytes))
    }))
}
