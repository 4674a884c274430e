//! Arrays and mipmapped arrays.

use crate::array::{Array, most_levels};
use crate::calls::calls;
use crate::codes::ERROR_INVALID_VALUE;
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::types::{Array3dDescriptor, ArrayDescriptor, Handle};

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

    cuMipmappedArrayCreate 5000 cuMipmappedArrayCreate(
        array: Out<Handle>, descriptor: Out<Array3dDescriptor>, levels: u32,
    ) {
        let shape = descriptor.get()?;
        create(&array, shape, levels.min(most_levels(&shape)))
    }

    cuMipmappedArrayDestroy 5000 cuMipmappedArrayDestroy(array: Handle) { destroy(array) }
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
    driver.objects.arrays.remove(array)?.give(driver);
    driver.vmm.unmap_array(driver, array);
    Ok(())
}
