//! What MIG answers before anything is cut: the mode, how many instances there may be, and that
//! no handle is an instance's.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};

use super::getters;
use crate::ffi::{Out, answer};
use crate::library;
use crate::model::{ABSENT, ON};

const MOST_INSTANCES: c_uint = 7;

getters! {
    nvmlDeviceGetMaxMigDeviceCount: c_uint =
        |gpu| Ok(if gpu.mig == ON { MOST_INSTANCES } else { 0 });
    nvmlDeviceIsMigDeviceHandle: c_uint = |_| Ok(0);
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: Out<c_uint>,
    pending: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| {
        let gpu = library::gpu(device)?;
        if gpu.mig == ABSENT {
            return Err(NOT_SUPPORTED);
        }
        current.put(u32::from(gpu.mig == ON))?;
        pending.put(u32::from(gpu.mig_pending == ON))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    _instance: Out<nvmlDevice_t>,
) -> nvmlReturn_t {
    answer(|| {
        if library::gpu(device)?.mig == ABSENT {
            return Err(NOT_SUPPORTED);
        }
        Err(if index < MOST_INSTANCES {
            NOT_FOUND
        } else {
            INVALID_ARGUMENT
        })
    })
}
