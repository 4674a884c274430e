//! The identity of a GPU: names, numbers, PCI address, compute capability.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlPciInfo_t};

use super::{calls, getters};
use crate::ffi::{Out, put_text, text_field};
use crate::library;
use crate::model::{Gpu, text};

/// What recent drivers answer for every data-centre GPU.
const BRAND_NVIDIA: c_uint = 14;

getters! {
    nvmlDeviceGetMinorNumber: c_uint = |gpu| Ok(gpu.minor);
    nvmlDeviceGetBrand: c_uint = |_| Ok(BRAND_NVIDIA);
    nvmlDeviceGetArchitecture: c_uint = |gpu| Ok(gpu.architecture);
    nvmlDeviceGetPciInfo: nvmlPciInfo_t = |gpu| Ok(pci_info(gpu));
    nvmlDeviceGetPciInfo_v2: nvmlPciInfo_t = |gpu| Ok(pci_info(gpu));
    nvmlDeviceGetPciInfo_v3: nvmlPciInfo_t = |gpu| Ok(pci_info(gpu));
}

calls! {
    nvmlDeviceGetName(device: nvmlDevice_t, buffer: Out<c_char>, length: c_uint) {
        put_text(&buffer, length, &library::device(device)?.name())
    }

    nvmlDeviceGetSerial(device: nvmlDevice_t, buffer: Out<c_char>, length: c_uint) {
        put_text(&buffer, length, text(&library::gpu(device)?.serial))
    }

    nvmlDeviceGetUUID(device: nvmlDevice_t, buffer: Out<c_char>, length: c_uint) {
        put_text(&buffer, length, &library::device(device)?.uuid())
    }

    nvmlDeviceGetIndex(device: nvmlDevice_t, out: Out<c_uint>) {
        library::gpu(device)?;
        let gpu_index = library::index(device)?;
        let gpu_indexes = library::visible_devices()?.gpu_indexes(&*library::machine()?);
        let index = gpu_indexes.iter().position(|visible| *visible == gpu_index);
        out.put(c_uint::try_from(index.unwrap_or(gpu_index)).expect("less than MAX_GPUS"))
    }

    nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: Out<c_int>, minor: Out<c_int>) {
        let gpu = library::gpu(device)?;
        major.put(gpu.capability_major.cast_signed())?;
        minor.put(gpu.capability_minor.cast_signed())
    }
}

pub(super) fn pci_info(gpu: &Gpu) -> nvmlPciInfo_t {
    pci_place(gpu.pci_bus, gpu.pci_device_id)
}

pub(super) fn pci_place(bus: u32, device_id: u32) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: text_field(&format!("0000:{bus:02X}:00.0")),
        domain: 0,
        bus,
        device: 0,
        pciDeviceId: device_id,
        pciSubSystemId: device_id,
        busId: text_field(&format!("00000000:{bus:02X}:00.0")),
    }
}
