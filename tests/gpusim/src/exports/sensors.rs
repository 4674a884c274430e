//! A GPU's sensors: utilisation, temperature, power, clocks.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlTemperature_t,
    nvmlUtilization_t,
};

use super::{calls, getters};
use crate::ffi::{Answer, Out};
use crate::library;
use crate::model::Gpu;

const SAMPLING_PERIOD_US: c_uint = 167_000;

getters! {
    nvmlDeviceGetUtilizationRates: nvmlUtilization_t = |gpu| Ok(nvmlUtilization_t {
        gpu: gpu.utilisation,
        memory: gpu.memory_utilisation,
    });
    nvmlDeviceGetPowerUsage: c_uint = |gpu| Ok(gpu.power);
    nvmlDeviceGetPowerManagementLimit: c_uint = |gpu| Ok(gpu.power_limit);
    nvmlDeviceGetEnforcedPowerLimit: c_uint = |gpu| Ok(gpu.power_limit);
    nvmlDeviceGetPowerManagementDefaultLimit: c_uint = |gpu| Ok(gpu.power_default_limit);
    nvmlDeviceGetTotalEnergyConsumption: c_ulonglong = |gpu| Ok(gpu.energy);
    nvmlDeviceGetPerformanceState: c_uint = |gpu| Ok(gpu.pstate);
    nvmlDeviceGetPowerState: c_uint = |gpu| Ok(gpu.pstate);
    nvmlDeviceGetFanSpeed: c_uint = |gpu| match gpu.fan {
        u32::MAX => Err(NOT_SUPPORTED),
        percent => Ok(percent),
    };
}

calls! {
    nvmlDeviceGetTemperature(device: nvmlDevice_t, sensor: c_uint, degrees: Out<c_uint>) {
        let gpu = library::gpu(device)?;
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        degrees.put(gpu.temperature)
    }

    nvmlDeviceGetTemperatureV(device: nvmlDevice_t, out: Out<nvmlTemperature_t>) {
        let gpu = library::gpu(device)?;
        out.check_version(1)?;
        let asked = out.get()?;
        if asked.sensorType != 0 {
            return Err(INVALID_ARGUMENT);
        }
        out.put(nvmlTemperature_t {
            temperature: gpu.temperature.cast_signed() as c_int,
            ..asked
        })
    }

    nvmlDeviceGetTemperatureThreshold(
        device: nvmlDevice_t, threshold: c_uint, degrees: Out<c_uint>,
    ) {
        library::gpu(device)?;
        degrees.put(match threshold {
            0 => 92,
            1 => 89,
            2 => 95,
            3 => 85,
            4..=7 => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_ARGUMENT),
        })
    }

    nvmlDeviceGetPowerManagementLimitConstraints(
        device: nvmlDevice_t, least: Out<c_uint>, most: Out<c_uint>,
    ) {
        let gpu = library::gpu(device)?;
        least.put(gpu.power_default_limit / 4)?;
        most.put(gpu.power_default_limit)
    }

    nvmlDeviceGetEncoderUtilization(
        device: nvmlDevice_t, percent: Out<c_uint>, period: Out<c_uint>,
    ) {
        sampled(device, &percent, &period, |gpu| gpu.encoder_utilisation)
    }

    nvmlDeviceGetDecoderUtilization(
        device: nvmlDevice_t, percent: Out<c_uint>, period: Out<c_uint>,
    ) {
        sampled(device, &percent, &period, |gpu| gpu.decoder_utilisation)
    }
}

fn sampled(
    device: nvmlDevice_t,
    percent: &Out<c_uint>,
    period: &Out<c_uint>,
    get: fn(&Gpu) -> u32,
) -> Answer {
    percent.put(get(&*library::gpu(device)?))?;
    period.put(SAMPLING_PERIOD_US)
}

calls! {
    nvmlDeviceGetClockInfo(device: nvmlDevice_t, clock: c_uint, mhz: Out<c_uint>) {
        of_kind(device, clock, &mhz, |gpu| gpu.clocks)
    }

    nvmlDeviceGetMaxClockInfo(device: nvmlDevice_t, clock: c_uint, mhz: Out<c_uint>) {
        of_kind(device, clock, &mhz, |gpu| gpu.max_clocks)
    }
}

pub(super) fn of_kind(
    device: nvmlDevice_t,
    clock: c_uint,
    mhz: &Out<c_uint>,
    get: fn(&Gpu) -> [u32; 4],
) -> Answer {
    let clocks = get(&*library::gpu(device)?);
    let clock = usize::try_from(clock).map_err(|_| INVALID_ARGUMENT)?;
    mhz.put(*clocks.get(clock).ok_or(INVALID_ARGUMENT)?)
}

calls! {
    /// No traffic is simulated.
    nvmlDeviceGetPcieThroughput(
        device: nvmlDevice_t, counter: c_uint, kib_per_second: Out<c_uint>,
    ) {
        library::gpu(device)?;
        if counter > 1 {
            return Err(INVALID_ARGUMENT);
        }
        kib_per_second.put(0)
    }
}
