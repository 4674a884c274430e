//! `nvmlDeviceGetFieldValues`: many values at once, each with its own answer; a field that is not
//! simulated is not supported.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
};

use super::calls;
use crate::ffi::Out;
use crate::library;
use crate::model::Gpu;

/// The action that the driver requests after an error.
const RECOVERY_ACTION: u32 = 230;

calls! {
    nvmlDeviceGetFieldValues(device: nvmlDevice_t, count: c_int, values: Out<nvmlFieldValue_t>) {
        let gpu = library::gpu(device)?;
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        if count == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let filled = values
            .get_all(count)?
            .into_iter()
            .map(|asked| fill(&gpu, asked));
        values.put_all(&filled.collect::<Vec<_>>())
    }
}

fn fill(gpu: &Gpu, asked: nvmlFieldValue_t) -> nvmlFieldValue_t {
    if asked.fieldId != RECOVERY_ACTION {
        return nvmlFieldValue_t {
            nvmlReturn: NOT_SUPPORTED,
            ..asked
        };
    }
    nvmlFieldValue_t {
        valueType: UNSIGNED_INT,
        nvmlReturn: SUCCESS,
        value: nvmlValue_t {
            ullVal: gpu.recovery_action.into(),
        },
        ..asked
    }
}
