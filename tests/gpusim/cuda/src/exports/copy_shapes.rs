//! Copies of rectangles between ranges and arrays.

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::context::current;
use crate::driver::driver;
use crate::exports::copy::{after, copy, in_default};
use crate::ffi::{self, Answer, Out};
use crate::types::{Copy2d, DevicePointer, Handle};

calls! { CALLS:
    cuMemcpy2D 3020 cuMemcpy2D_v2(parameters: Out<Copy2d>) / 7000 cuMemcpy2D_v2_ptds as own {
        in_default(own, || copy_2d(&parameters.get()?))
    }

    cuMemcpy2DUnaligned 3020 cuMemcpy2DUnaligned_v2(
        parameters: Out<Copy2d>,
    ) / 7000 cuMemcpy2DUnaligned_v2_ptds as own {
        in_default(own, || copy_2d(&parameters.get()?))
    }

    cuMemcpyHtoA 3020 cuMemcpyHtoA_v2(
        array: Handle, offset: usize, from: u64, bytes: usize,
    ) / 7000 cuMemcpyHtoA_v2_ptds as own {
        after(own)?;
        ffi::copy(in_array(array, offset, bytes)?, from, bytes);
        Ok(())
    }

    cuMemcpyAtoH 3020 cuMemcpyAtoH_v2(
        to: u64, array: Handle, offset: usize, bytes: usize,
    ) / 7000 cuMemcpyAtoH_v2_ptds as own {
        after(own)?;
        ffi::copy(to, in_array(array, offset, bytes)?, bytes);
        Ok(())
    }

    cuMemcpyDtoA 3020 cuMemcpyDtoA_v2(
        array: Handle, offset: usize, from: DevicePointer, bytes: usize,
    ) / 7000 cuMemcpyDtoA_v2_ptds as own {
        after(own)?;
        ffi::copy(in_array(array, offset, bytes)?, from, bytes);
        Ok(())
    }

    cuMemcpyAtoD 3020 cuMemcpyAtoD_v2(
        to: DevicePointer, array: Handle, offset: usize, bytes: usize,
    ) / 7000 cuMemcpyAtoD_v2_ptds as own {
        in_default(own, || copy(to, in_array(array, offset, bytes)?, bytes))
    }
}

/// Arrays up to this size retain contents, as allocations do.
const MOST_CONTENTS: u64 = 64 << 20;

fn in_array(array: Handle, offset: usize, bytes: usize) -> Answer<u64> {
    current()?;
    let array = driver()?.objects.arrays.get(array, ERROR_INVALID_HANDLE)?;
    let (base, size) = array.contents()?;
    let end = (offset as u64).checked_add(bytes as u64);
    match end {
        Some(end) if end <= size && size <= MOST_CONTENTS => Ok(base + offset as u64),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

/// One side of a copy: the address of its first row, and bytes between rows.
struct Side {
    address: u64,
    pitch: usize,
}

pub(crate) fn copy_2d(shape: &Copy2d) -> Answer {
    current()?;
    let from = side(
        shape.src_type,
        (
            shape.src_host.expose_provenance() as u64,
            shape.src_device,
            shape.src_array,
        ),
        shape.src_pitch,
        (shape.src_x, shape.src_y),
        (shape.width, shape.height),
    )?;
    let to = side(
        shape.dst_type,
        (
            shape.dst_host.expose_provenance() as u64,
            shape.dst_device,
            shape.dst_array,
        ),
        shape.dst_pitch,
        (shape.dst_x, shape.dst_y),
        (shape.width, shape.height),
    )?;
    (0..shape.height).try_for_each(|row| {
        let at = |side: &Side| side.address + (side.pitch * row) as u64;
        copy(at(&to), at(&from), shape.width)
    })
}

fn side(
    kind: u32,
    (host, device, array): (u64, DevicePointer, Handle),
    pitch: usize,
    (x, y): (usize, usize),
    (width, height): (usize, usize),
) -> Answer<Side> {
    let pitch = if pitch == 0 { width } else { pitch };
    let (base, pitch) = match kind {
        1 => (host, pitch),
        2 | 4 => (device, pitch),
        3 => {
            let array_pitch = driver()?
                .objects
                .arrays
                .get(array, ERROR_INVALID_HANDLE)?
                .pitch()?;
            let pitch = usize::try_from(array_pitch).map_err(|_| ERROR_INVALID_VALUE)?;
            let end = pitch * (y + height.max(1) - 1) + x + width;
            (in_array(array, 0, end)?, pitch)
        }
        _ => return Err(ERROR_INVALID_VALUE),
    };
    if x + width > pitch && height > 1 {
        return Err(ERROR_INVALID_VALUE);
    }
    Ok(Side {
        address: base + (pitch * y + x) as u64,
        pitch,
    })
}
