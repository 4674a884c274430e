//! Names without a version whose newer forms answer the same.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstancePlacement_t, nvmlReturn_t,
};

use super::{gpu_instances, mig};
use crate::ffi::{Out, answer};
use crate::library;

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes(
    device: nvmlDevice_t,
    attributes: Out<nvmlDeviceAttributes_t>,
) -> nvmlReturn_t {
    mig::nvmlDeviceGetAttributes_v2(device, attributes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements(
    device: nvmlDevice_t,
    id: c_uint,
    placements: Out<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    gpu_instances::nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count)
}

/// Since CUDA 11 the excluded GPUs.
#[unsafe(no_mangle)]
extern "C" fn nvmlGetBlacklistDeviceCount(count: Out<c_uint>) -> nvmlReturn_t {
    no_devices(&count)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGetExcludedDeviceCount(count: Out<c_uint>) -> nvmlReturn_t {
    no_devices(&count)
}

/// No units (S-class chassis) either.
#[unsafe(no_mangle)]
extern "C" fn nvmlUnitGetCount(count: Out<c_uint>) -> nvmlReturn_t {
    no_devices(&count)
}

fn no_devices(count: &Out<c_uint>) -> nvmlReturn_t {
    answer(|| {
        library::state()?;
        count.put(0)
    })
}
