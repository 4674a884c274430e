//! Compute mode and persistence mode, which root may change for every process at once, and the
//! driver model, which Linux has not.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};

use super::getters;
use crate::ffi::{Answer, Out, answer};
use crate::library;

getters! {
    nvmlDeviceGetComputeMode: c_uint = |gpu| Ok(gpu.compute_mode);
    nvmlDeviceGetPersistenceMode: c_uint = |gpu| Ok(gpu.persistence);
}

/// `NVML_COMPUTEMODE_EXCLUSIVE_THREAD` (1) is gone from the GPUs simulated here.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: c_uint) -> nvmlReturn_t {
    answer(|| {
        library::change(device, |gpu| match mode {
            0 | 2 | 3 => {
                gpu.compute_mode = mode;
                Ok(())
            }
            1 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_ARGUMENT),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPersistenceMode(device: nvmlDevice_t, mode: c_uint) -> nvmlReturn_t {
    answer(|| {
        library::change(device, |gpu| {
            if mode > 1 {
                return Err(INVALID_ARGUMENT);
            }
            gpu.persistence = mode;
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDriverModel(
    device: nvmlDevice_t,
    _current: Out<c_uint>,
    _pending: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| windows_only(device))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDriverModel_v2(
    device: nvmlDevice_t,
    _current: Out<c_uint>,
    _pending: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| windows_only(device))
}

fn windows_only(device: nvmlDevice_t) -> Answer {
    library::gpu(device)?;
    Err(NOT_SUPPORTED)
}
