//! The identity of a GPU: names, numbers, PCI address, compute capability.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlPciInfo_t, nvmlPciInfoExt_t,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::{calls, getters, texts};
use crate::ffi::{Out, put_text, struct_version, text_field};
use crate::library;
use crate::model::{Gpu, text};

texts! {
    nvmlDeviceGetSerial = |gpu| text(&gpu.serial).to_owned();
    nvmlDeviceGetVbiosVersion = |gpu| text(&gpu.vbios).to_owned();
}

getters! {
    nvmlDeviceGetMinorNumber: c_uint = |gpu| Ok(gpu.minor);
    nvmlDeviceGetBrand: c_uint = |gpu| Ok(gpu.brand);
    nvmlDeviceGetArchitecture: c_uint = |gpu| Ok(gpu.architecture);
    nvmlDeviceGetNumGpuCores: c_uint = |gpu| Ok(gpu.cores);
    nvmlDeviceGetBoardId: c_uint = |gpu| Ok(gpu.pci_bus << 8);
    nvmlDeviceGetMultiGpuBoard: c_uint = |_| Ok(0);
    nvmlDeviceGetDisplayMode: c_uint = |_| Ok(0);
    nvmlDeviceGetDisplayActive: c_uint = |_| Ok(0);
    nvmlDeviceGetPciInfo: nvmlPciInfo_t = |gpu| Ok(pci_info(gpu));
    nvmlDeviceGetPciInfo_v2: nvmlPciInfo_t = |gpu| Ok(pci_info(gpu));
    nvmlDeviceGetPciInfo_v3: nvmlPciInfo_t = |gpu| Ok(pci_info(gpu));
    nvmlDeviceGetCurrPcieLinkGeneration: c_uint = |gpu| Ok(gpu.pcie_generation);
    nvmlDeviceGetMaxPcieLinkGeneration: c_uint = |gpu| Ok(gpu.pcie_generation);
    nvmlDeviceGetCurrPcieLinkWidth: c_uint = |_| Ok(16);
    nvmlDeviceGetMaxPcieLinkWidth: c_uint = |_| Ok(16);
    // The answer on every machine where the GPUs are not NUMA nodes of their own; the node
    // beside the GPU is nvmlDeviceGetMemoryAffinity's answer.
    nvmlDeviceGetNumaNodeId: c_uint = |_| Err(NOT_SUPPORTED);
}

calls! {
    nvmlDeviceGetName(device: nvmlDevice_t, buffer: Out<c_char>, length: c_uint) {
        put_text(&buffer, length, &library::device(device)?.name())
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

    nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, out: Out<nvmlPciInfoExt_t>) {
        let gpu = library::gpu(device)?;
        out.check_version(1)?;
        out.put(nvmlPciInfoExt_t {
            version: struct_version::<nvmlPciInfoExt_t>(1),
            domain: gpu.pci_domain,
            bus: gpu.pci_bus,
            device: gpu.pci_device,
            pciDeviceId: gpu.pci_device_id,
            pciSubSystemId: gpu.pci_subsystem_id,
            baseClass: 0x03,
            subClass: 0x02,
            busId: text_field(&gpu.bus_id()),
        })
    }
}

pub(super) fn pci_info(gpu: &Gpu) -> nvmlPciInfo_t {
    let place = (gpu.pci_domain, gpu.pci_bus, gpu.pci_device);
    pci_place(place, gpu.pci_device_id, gpu.pci_subsystem_id)
}

pub(super) fn pci_place(
    (domain, bus, device): (u32, u32, u32),
    device_id: u32,
    subsystem_id: u32,
) -> nvmlPciInfo_t {
    let legacy: [c_char; 16] = text_field(&format!("{domain:04X}:{bus:02X}:{device:02X}.0"));
    nvmlPciInfo_t {
        busIdLegacy: legacy,
        domain,
        bus,
        device,
        pciDeviceId: device_id,
        pciSubSystemId: subsystem_id,
        busId: text_field(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    }
}
