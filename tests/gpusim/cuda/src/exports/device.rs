//! Devices: count, names, numbers, attributes, peers.

use std::ffi::c_char;

use aliquot_gpusim_model::model::{Gpu, text};

use crate::attributes;
use crate::calls::calls;
use crate::codes::{ERROR_INVALID_DEVICE, ERROR_INVALID_VALUE};
use crate::driver::{driver, total_memory};
use crate::ffi::{Out, TextIn};
use crate::types::{Device, Uuid};

calls! { CALLS:
    cuDeviceGetCount 2000 cuDeviceGetCount(count: Out<i32>) { count.put(driver()?.count()) }

    cuDeviceGet 2000 cuDeviceGet(device: Out<Device>, ordinal: i32) {
        driver()?.gpu_index(ordinal)?;
        device.put(ordinal)
    }

    cuDeviceGetName 2000 cuDeviceGetName(name: Out<c_char>, length: i32, device: Device) {
        let model = driver()?.gpu(device, |gpu| text(&gpu.model).to_owned())?;
        name.put_text(length, &model)
    }

    cuDeviceGetUuid 9020 cuDeviceGetUuid(uuid: Out<Uuid>, device: Device) {
        uuid.put(driver()?.gpu(device, |gpu| uuid_bytes(text(&gpu.uuid)))?)
    }

    // Since version 2 that of the MIG instance.
    cuDeviceGetUuid 11040 cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: Device) {
        let driver = driver()?;
        let own = driver.gpu(device, |gpu| uuid_bytes(text(&gpu.uuid)))?;
        uuid.put(driver.instance().map_or(own, uuid_bytes))
    }

    cuDeviceTotalMem 2000 cuDeviceTotalMem(bytes: Out<u32>, device: Device) {
        bytes.put(u32::try_from(driver()?.gpu(device, total_memory)?).unwrap_or(u32::MAX))
    }

    cuDeviceTotalMem 3020 cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device) {
        let total = driver()?.gpu(device, total_memory)?;
        bytes.put(usize::try_from(total).map_err(|_| ERROR_INVALID_VALUE)?)
    }

    cuDeviceGetAttribute 2000 cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: Device) {
        let driver = driver()?;
        if attribute == attributes::MULTIPROCESSORS {
            let gpu_index = driver.gpu_index(device)?;
            return value.put(driver.multiprocessors(gpu_index).cast_signed());
        }
        let found = driver.gpu(device, |gpu| attributes::of(gpu, attribute))?;
        value.put(found.ok_or(ERROR_INVALID_VALUE)?)
    }

    cuDeviceComputeCapability 2000 cuDeviceComputeCapability(
        major: Out<i32>, minor: Out<i32>, device: Device,
    ) {
        let (first, second) = driver()?.gpu(device, |gpu| (gpu.capability_major, gpu.capability_minor))?;
        major.put(first.cast_signed())?;
        minor.put(second.cast_signed())
    }

    cuDeviceGetProperties 2000 cuDeviceGetProperties(properties: Out<i32>, device: Device) {
        let values = driver()?.gpu(device, |gpu| PROPERTIES.map(|one| attributes::of(gpu, one)))?;
        values.into_iter().enumerate().try_for_each(|(index, value)| {
            properties.put_at(index, value.unwrap_or(0))
        })
    }

    cuDeviceGetExecAffinitySupport 11040 cuDeviceGetExecAffinitySupport(
        supported: Out<i32>, _kind: u32, device: Device,
    ) {
        driver()?.gpu_index(device)?;
        supported.put(0)
    }

    cuDeviceGetPCIBusId 4010 cuDeviceGetPCIBusId(name: Out<c_char>, length: i32, device: Device) {
        let place = driver()?.gpu(device, place)?;
        name.put_text(length, &place)
    }

    cuDeviceGetByPCIBusId 4010 cuDeviceGetByPCIBusId(device: Out<Device>, name: TextIn) {
        let (driver, wanted) = (driver()?, name.read()?.to_lowercase());
        let mut ordinals = 0..driver.count();
        let found = ordinals.find(|ordinal| {
            let own = driver.gpu(*ordinal, place).unwrap_or_default();
            own == wanted || own.strip_prefix("0000:") == Some(&wanted)
        });
        device.put(found.ok_or(ERROR_INVALID_DEVICE)?)
    }

    cuDeviceCanAccessPeer 4000 cuDeviceCanAccessPeer(can: Out<i32>, device: Device, peer: Device) {
        let driver = driver()?;
        let (first, second) = (driver.gpu_index(device)?, driver.gpu_index(peer)?);
        can.put(i32::from(first != second))
    }

    cuDeviceGetP2PAttribute 8000 cuDeviceGetP2PAttribute(
        value: Out<i32>, attribute: i32, device: Device, peer: Device,
    ) {
        let driver = driver()?;
        if driver.gpu_index(device)? == driver.gpu_index(peer)? {
            return Err(ERROR_INVALID_DEVICE);
        }
        value.put(match attribute {
            1 | 4 => 0,
            2 | 3 => 1,
            _ => return Err(ERROR_INVALID_VALUE),
        })
    }
}

/// The attributes that are the fields of `CUdevprop`, in order.
const PROPERTIES: [i32; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

fn place(gpu: &Gpu) -> String {
    format!(
        "{:04x}:{:02x}:{:02x}.0",
        gpu.pci_domain, gpu.pci_bus, gpu.pci_device
    )
}

/// The 16 bytes of `GPU-…` or `MIG-…`; a uuid of another form gives its letters.
fn uuid_bytes(shown: &str) -> Uuid {
    let digits: String = shown.chars().skip(4).filter(|c| *c != '-').collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(number) if digits.len() == 32 => number.to_be_bytes(),
        _ => {
            let mut bytes = [0; 16];
            bytes
                .iter_mut()
                .zip(digits.bytes())
                .for_each(|(to, from)| *to = from);
            bytes
        }
    }
}
