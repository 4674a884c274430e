//! `nvmlDeviceGetFieldValues`: many values at once, each with its own answer; a field that is not
//! simulated is not supported. None of the fields here was renumbered between drivers.

use std::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
};

use super::calls;
use super::memory::ecc;
use crate::ffi::{Answer, Out};
use crate::library;
use crate::model::{Gpu, LINK_NONE};

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
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut value = nvmlFieldValue_t {
        timestamp: i64::try_from(now.as_micros()).unwrap_or(i64::MAX),
        latencyUsec: 0,
        valueType: UNSIGNED_INT,
        nvmlReturn: SUCCESS,
        value: nvmlValue_t { ullVal: 0 },
        ..asked
    };
    match field(gpu, asked.fieldId) {
        Ok(Field::Int(number)) => {
            value.value = nvmlValue_t {
                ullVal: number.into(),
            }
        }
        Ok(Field::Long(number)) => {
            value.valueType = UNSIGNED_LONG_LONG;
            value.value = nvmlValue_t { ullVal: number };
        }
        Err(code) => value.nvmlReturn = code,
    }
    value
}

enum Field {
    Int(c_uint),
    Long(u64),
}

fn field(gpu: &Gpu, id: c_uint) -> Answer<Field> {
    let links = gpu
        .nvlink
        .iter()
        .filter(|leads| **leads != LINK_NONE)
        .count();
    Ok(match id {
        // ECC now and after a reset.
        1 | 2 => Field::Int(ecc(gpu)?),
        // Volatile corrected and uncorrected memory errors.
        3 if ecc(gpu)? == 1 => Field::Long(gpu.ecc_corrected),
        4 if ecc(gpu)? == 1 => Field::Long(gpu.ecc_uncorrected),
        // Energy, NVLink count.
        83 => Field::Long(gpu.energy),
        91 => Field::Int(c_uint::try_from(links).map_err(|_| NOT_SUPPORTED)?),
        // Power: average, now; limits: most, default, current.
        185 | 186 => Field::Int(gpu.power),
        188 | 189 => Field::Int(gpu.power_default_limit),
        190 => Field::Int(gpu.power_limit),
        // The action that the driver requests after an error.
        230 => Field::Int(gpu.recovery_action),
        _ => return Err(NOT_SUPPORTED),
    })
}
