//! Finding GPUs: count, and handles by index, UUID (of instances too), serial number and PCI bus
//! id. A lost GPU still counts; asking for its handle returns the error that it is lost.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
};

use super::calls;
use crate::ffi::{Answer, Out, TextIn};
use crate::handles;
use crate::library;
use crate::model::{Gpu, text};

calls! {
    nvmlDeviceGetCount | nvmlDeviceGetCount_v2(count: Out<c_uint>) {
        let visible = library::visible_devices()?.gpu_indexes(&*library::machine()?);
        count.put(c_uint::try_from(visible.len()).map_err(|_| INVALID_ARGUMENT)?)
    }

    nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2(
        index: c_uint, device: Out<nvmlDevice_t>,
    ) {
        let machine = library::machine()?;
        let index = usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        let gpu_indexes = library::visible_devices()?.gpu_indexes(&machine);
        let gpu_index = *gpu_indexes.get(index).ok_or(INVALID_ARGUMENT)?;
        library::reachable(&machine.existing_gpus()[gpu_index])?;
        device.put(library::handle(gpu_index))
    }

    nvmlDeviceGetHandleByUUID(uuid: TextIn, device: Out<nvmlDevice_t>) {
        let (machine, visible) = (library::machine()?, library::visible_devices()?);
        let found = machine.instance(uuid.read()?);
        let Some(found) = found.filter(|found| visible.instance(&machine, found)) else {
            return by_text(&uuid, &device, |gpu, given| text(&gpu.uuid) == given);
        };
        library::reachable(&machine.gpus[found.gpu_index])?;
        device.put(handles::mig_device(found.compute.serial))
    }

    nvmlDeviceGetHandleBySerial(serial: TextIn, device: Out<nvmlDevice_t>) {
        by_text(&serial, &device, |gpu, given| text(&gpu.serial) == given)
    }

    nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2(
        bus_id: TextIn, device: Out<nvmlDevice_t>,
    ) {
        by_text(&bus_id, &device, has_bus_id)
    }
}

fn by_text(given: &TextIn, device: &Out<nvmlDevice_t>, is: fn(&Gpu, &str) -> bool) -> Answer {
    let machine = library::machine()?;
    let given = given.read()?;
    let mut gpu_indexes = library::visible_devices()?
        .gpu_indexes(&machine)
        .into_iter();
    let index = gpu_indexes.find(|gpu_index| is(&machine.existing_gpus()[*gpu_index], given));
    let index = index.ok_or(NOT_FOUND)?;
    library::reachable(&machine.existing_gpus()[index])?;
    device.put(library::handle(index))
}

/// `domain:bus:device.function` in hexadecimal, with any number of leading zeros or no domain.
fn has_bus_id(gpu: &Gpu, given: &str) -> bool {
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let place = given.strip_suffix(".0").unwrap_or(given);
    let parts: Option<Vec<u32>> = place.split(':').map(number).collect();
    matches!(parts.as_deref(), Some([0, bus, 0] | [bus, 0]) if *bus == gpu.pci_bus)
}
