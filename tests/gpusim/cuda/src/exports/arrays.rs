//! Arrays and mipmapped arrays.

use crate::array::{ALIGNMENT, Array, depth_at, most_levels, size};
use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::types::{Array3dDescriptor, ArrayDescriptor, ArrayRequirements, Device, Handle};

calls! { CALLS:
    cuArrayCreate 3020 cuArrayCreate_v2(array: Out<Handle>, descriptor: Out<ArrayDescriptor>) {
        let flat = descriptor.get()?;
        create(&array, Array3dDescriptor {
            width: flat.width,
            height: flat.height,
            depth: 0,
            format: flat.format,
            channels: flat.channels,
            flags: 0,
        }, 1)
    }

    cuArray3DCreate 3020 cuArray3DCreate_v2(array: Out<Handle>, descriptor: Out<Array3dDescriptor>) {
        create(&array, descriptor.get()?, 1)
    }

    cuArrayDestroy 2000 cuArrayDestroy(array: Handle) { destroy(array) }

    cuArrayGetDescriptor 3020 cuArrayGetDescriptor_v2(out: Out<ArrayDescriptor>, array: Handle) {
        let full = described(array)?;
        out.put(ArrayDescriptor {
            width: full.width,
            height: full.height,
            format: full.format,
            channels: full.channels,
        })
    }

    cuArray3DGetDescriptor 3020 cuArray3DGetDescriptor_v2(out: Out<Array3dDescriptor>, array: Handle) {
        out.put(described(array)?)
    }

    cuArrayGetMemoryRequirements 11060 cuArrayGetMemoryRequirements(
        out: Out<ArrayRequirements>, array: Handle, _device: Device,
    ) {
        requirements(&out, array)
    }

    cuMipmappedArrayCreate 5000 cuMipmappedArrayCreate(
        array: Out<Handle>, descriptor: Out<Array3dDescriptor>, levels: u32,
    ) {
        let shape = descriptor.get()?;
        create(&array, shape, levels.min(most_levels(&shape)))
    }

    cuMipmappedArrayDestroy 5000 cuMipmappedArrayDestroy(array: Handle) { destroy(array) }

    cuMipmappedArrayGetMemoryRequirements 11060 cuMipmappedArrayGetMemoryRequirements(
        out: Out<ArrayRequirements>, array: Handle, _device: Device,
    ) {
        requirements(&out, array)
    }

    cuMipmappedArrayGetLevel 5000 cuMipmappedArrayGetLevel(
        out: Out<Handle>, array: Handle, level: u32,
    ) {
        current()?;
        let arrays = &driver()?.objects.arrays;
        let whole = arrays.get(array, ERROR_INVALID_HANDLE)?;
        if level >= whole.levels {
            return Err(ERROR_INVALID_VALUE);
        }
        let mut descriptor = whole.descriptor;
        for length in [&mut descriptor.width, &mut descriptor.height] {
            if *length > 0 {
                *length = (*length >> level).max(1);
            }
        }
        if descriptor.depth > 0 {
            descriptor.depth = depth_at(&descriptor, level);
        }
        out.put(arrays.add(Array {
            descriptor,
            levels: 1,
            context: whole.context,
            memory: None,
        }))
    }
}

fn create(out: &Out<Handle>, descriptor: Array3dDescriptor, levels: u32) -> Answer {
    let context = current()?;
    if out.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    let driver = driver()?;
    let array = Array::new(driver, context, descriptor, levels)?;
    out.put(driver.objects.arrays.add(array))
}

fn destroy(array: Handle) -> Answer {
    current()?;
    let driver = driver()?;
    driver
        .objects
        .arrays
        .remove(array, ERROR_INVALID_HANDLE)?
        .give(driver);
    driver.vmm.unmap_array(driver, array);
    Ok(())
}

fn described(array: Handle) -> Answer<Array3dDescriptor> {
    current()?;
    Ok(driver()?
        .objects
        .arrays
        .get(array, ERROR_INVALID_HANDLE)?
        .descriptor)
}

fn requirements(out: &Out<ArrayRequirements>, array: Handle) -> Answer {
    driver()?;
    let array = driver()?.objects.arrays.get(array, ERROR_INVALID_HANDLE)?;
    let bytes = size(&array.descriptor, array.levels)?;
    out.put(ArrayRequirements {
        size: usize::try_from(bytes).map_err(|_| ERROR_INVALID_VALUE)?,
        alignment: usize::try_from(ALIGNMENT).map_err(|_| ERROR_INVALID_VALUE)?,
        reserved: [0; 4],
    })
}
