//! Copies of rectangles and blocks. Arrays take no part in them.

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED};
use crate::context::current;
use crate::exports::copy::{copy, fill_rows, in_default};
use crate::exports::copy_async::in_order;
use crate::ffi::{Answer, Out};
use crate::types::{Copy2d, DevicePointer, Handle};

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Side {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: u64,
    device: DevicePointer,
    array: Handle,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy3d {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
    depth: usize,
}

calls! { CALLS:
    cuMemcpy2D 3020 cuMemcpy2D_v2(parameters: Out<Copy2d>) / 7000 cuMemcpy2D_v2_ptds as own {
        in_default(own, || copy_2d(&parameters.get()?))
    }

    cuMemcpy2DUnaligned 3020 cuMemcpy2DUnaligned_v2(
        parameters: Out<Copy2d>,
    ) / 7000 cuMemcpy2DUnaligned_v2_ptds as own {
        in_default(own, || copy_2d(&parameters.get()?))
    }

    cuMemcpy2DAsync 3020 cuMemcpy2DAsync_v2(
        parameters: Out<Copy2d>, stream: Handle,
    ) / 7000 cuMemcpy2DAsync_v2_ptsz as own {
        let shape = parameters.get()?;
        in_order(stream, own, || copy_2d(&shape))
    }

    cuMemcpy3D 3020 cuMemcpy3D_v2(parameters: Out<Copy3d>) / 7000 cuMemcpy3D_v2_ptds as own {
        in_default(own, || copy_3d(&parameters.get()?))
    }

    cuMemcpy3DAsync 3020 cuMemcpy3DAsync_v2(
        parameters: Out<Copy3d>, stream: Handle,
    ) / 7000 cuMemcpy3DAsync_v2_ptsz as own {
        let shape = parameters.get()?;
        in_order(stream, own, || copy_3d(&shape))
    }

    cuMemsetD2D8Async 3020 cuMemsetD2D8Async(
        to: DevicePointer, pitch: usize, value: u8, width: usize, height: usize, stream: Handle,
    ) / 7000 cuMemsetD2D8Async_ptsz as own {
        in_order(stream, own, || fill_rows(to, pitch, value, (width, height)))
    }

    cuMemsetD2D16Async 3020 cuMemsetD2D16Async(
        to: DevicePointer, pitch: usize, value: u16, width: usize, height: usize, stream: Handle,
    ) / 7000 cuMemsetD2D16Async_ptsz as own {
        in_order(stream, own, || fill_rows(to, pitch, value, (width, height)))
    }

    cuMemsetD2D32Async 3020 cuMemsetD2D32Async(
        to: DevicePointer, pitch: usize, value: u32, width: usize, height: usize, stream: Handle,
    ) / 7000 cuMemsetD2D32Async_ptsz as own {
        in_order(stream, own, || fill_rows(to, pitch, value, (width, height)))
    }
}

fn copy_2d(shape: &Copy2d) -> Answer {
    current()?;
    let width = shape.width;
    let host = |pointer: *const std::ffi::c_void| pointer.expose_provenance() as u64;
    let start = |kind, host, device, pitch: usize, (x, y): (usize, usize)| {
        let base = base(kind, host, device)?;
        let pitch = if pitch == 0 { width } else { pitch };
        if x + width > pitch && shape.height > 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        Ok((base + (pitch * y + x) as u64, pitch))
    };
    let (from, from_pitch) = start(
        shape.src_type,
        host(shape.src_host),
        shape.src_device,
        shape.src_pitch,
        (shape.src_x, shape.src_y),
    )?;
    let (to, to_pitch) = start(
        shape.dst_type,
        host(shape.dst_host),
        shape.dst_device,
        shape.dst_pitch,
        (shape.dst_x, shape.dst_y),
    )?;
    (0..shape.height).try_for_each(|row| {
        let from = from + (from_pitch * row) as u64;
        copy(to + (to_pitch * row) as u64, from, width)
    })
}

/// Where a side of a copy begins, by its `CUmemorytype`.
fn base(kind: u32, host: u64, device: DevicePointer) -> Answer<u64> {
    match kind {
        1 => Ok(host),
        2 | 4 => Ok(device),
        3 => Err(ERROR_NOT_SUPPORTED),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

fn copy_3d(shape: &Copy3d) -> Answer {
    for layer in 0..shape.depth {
        for row in 0..shape.height {
            let to = address(&shape.to, layer, row)?;
            copy(to, address(&shape.from, layer, row)?, shape.width)?;
        }
    }
    Ok(())
}

/// Where a row of a side begins.
fn address(side: &Side, layer: usize, row: usize) -> Answer<u64> {
    let base = base(side.kind, side.host, side.device)?;
    let rows = (side.z + layer) * side.height + side.y + row;
    Ok(base + (rows * side.pitch + side.x) as u64)
}
