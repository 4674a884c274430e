//! Compute mode, which root may change for every process at once, and persistence mode.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::{calls, getters};
use crate::library;

getters! {
    nvmlDeviceGetComputeMode: c_uint = |gpu| Ok(gpu.compute_mode);
    nvmlDeviceGetPersistenceMode: c_uint = |_| Ok(1);
}

calls! {
    /// `NVML_COMPUTEMODE_EXCLUSIVE_THREAD` (1) is gone from the GPUs simulated here.
    nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: c_uint) {
        library::change(device, |gpu| match mode {
            0 | 2 | 3 => {
                gpu.compute_mode = mode;
                Ok(())
            }
            1 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_ARGUMENT),
        })
    }
}
