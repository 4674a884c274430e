//! A GPU's sensors: utilisation, temperature, power, clocks.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlUtilization_t,
};

use super::{calls, getters};
use crate::ffi::{Answer, Out};
use crate::library;

getters! {
    nvmlDeviceGetUtilizationRates: nvmlUtilization_t = |gpu| Ok(nvmlUtilization_t {
        gpu: gpu.utilisation,
        memory: 0,
    });
    nvmlDeviceGetPowerUsage: c_uint = |gpu| Ok(gpu.power);
}

calls! {
    nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: c_uint, degrees: Out<c_uint>) {
        let gpu = library::gpu(device)?;
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        degrees.put(gpu.temperature)
    }

    nvmlDeviceGetClockInfo(device: nvmlDevice_t, clock: c_uint, mhz: Out<c_uint>) {
        put_clock(library::gpu(device)?.clocks, clock, &mhz)
    }

    nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, clock: c_uint, mhz: Out<c_uint>) {
        put_clock(library::gpu(device)?.max_clocks, clock, &mhz)
    }
}

fn put_clock(clocks: [u32; 4], clock: c_uint, mhz: &Out<c_uint>) -> Answer {
    let clock = usize::try_from(clock).map_err(|_| INVALID_ARGUMENT)?;
    mhz.put(*clocks.get(clock).ok_or(INVALID_ARGUMENT)?)
}
