//! Devices: count, names, numbers, attributes, peers.

use std::ffi::c_char;

use aliquot_gpusim_model::model::text;

use crate::attributes;
use crate::calls::calls;
use crate::codes::ERROR_INVALID_VALUE;
use crate::driver::{driver, total_memory};
use crate::ffi::Out;
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
