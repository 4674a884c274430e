//! Facts of a board that programs print and that differ little between machines: clocks that
//! applications may set, why clocks are reduced, fans, buses, engines that do nothing here.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::{calls, getters, sensors};
use crate::ffi::Out;
use crate::library;

/// `NVML_BUS_TYPE_PCIE`.
const PCIE: c_uint = 2;
/// All of `nvmlClocksEventReason*`.
const ALL_REASONS: c_ulonglong = 0x1ff;
const SAMPLING_PERIOD_US: c_uint = 167_000;

getters! {
    nvmlDeviceGetCurrentClocksEventReasons: c_ulonglong = |_| Ok(0);
    nvmlDeviceGetCurrentClocksThrottleReasons: c_ulonglong = |_| Ok(0);
    nvmlDeviceGetSupportedClocksEventReasons: c_ulonglong = |_| Ok(ALL_REASONS);
    nvmlDeviceGetSupportedClocksThrottleReasons: c_ulonglong = |_| Ok(ALL_REASONS);
    nvmlDeviceGetNumFans: c_uint = |gpu| Ok(u32::from(gpu.fan != u32::MAX));
    nvmlDeviceGetBusType: c_uint = |_| Ok(PCIE);
    nvmlDeviceGetMemoryBusWidth: c_uint = |_| Ok(5120);
    nvmlDeviceGetGpuMaxPcieLinkGeneration: c_uint = |gpu| Ok(gpu.pcie_generation);
    nvmlDeviceGetPcieReplayCounter: c_uint = |_| Ok(0);
    nvmlDeviceGetPowerManagementMode: c_uint = |_| Ok(1);
    nvmlDeviceGetVirtualizationMode: c_uint = |_| Ok(0);
    nvmlDeviceGetAccountingMode: c_uint = |_| Ok(0);
    nvmlDeviceGetModuleId: c_uint = |gpu| Ok(gpu.minor);
}

calls! {
    nvmlDeviceGetFanSpeed_v2(device: nvmlDevice_t, fan: c_uint, percent: Out<c_uint>) {
        match library::gpu(device)?.fan {
            u32::MAX => Err(NOT_SUPPORTED),
            _ if fan > 0 => Err(INVALID_ARGUMENT),
            speed => percent.put(speed),
        }
    }

    /// The second argument is the clock, the third whether the current or another value of it.
    nvmlDeviceGetClock(device: nvmlDevice_t, clock: c_uint, value: c_uint, mhz: Out<c_uint>) {
        match value {
            0 => sensors::of_kind(device, clock, &mhz, |gpu| gpu.clocks),
            1..=3 => sensors::of_kind(device, clock, &mhz, |gpu| gpu.max_clocks),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    nvmlDeviceGetApplicationsClock
        | nvmlDeviceGetDefaultApplicationsClock
        | nvmlDeviceGetMaxCustomerBoostClock(
        device: nvmlDevice_t, clock: c_uint, mhz: Out<c_uint>,
    ) {
        sensors::of_kind(device, clock, &mhz, |gpu| gpu.max_clocks)
    }

    nvmlDeviceGetJpgUtilization | nvmlDeviceGetOfaUtilization(
        device: nvmlDevice_t, percent: Out<c_uint>, period: Out<c_uint>,
    ) {
        library::gpu(device)?;
        percent.put(0)?;
        period.put(SAMPLING_PERIOD_US)
    }

    nvmlDeviceGetEncoderStats(
        device: nvmlDevice_t, sessions: Out<c_uint>, frames: Out<c_uint>, latency: Out<c_uint>,
    ) {
        library::gpu(device)?;
        sessions.put(0)?;
        frames.put(0)?;
        latency.put(0)
    }

    nvmlDeviceGetGspFirmwareMode(device: nvmlDevice_t, enabled: Out<c_uint>, default: Out<c_uint>) {
        library::gpu(device)?;
        enabled.put(1)?;
        default.put(1)
    }

    nvmlDeviceOnSameBoard(first: nvmlDevice_t, second: nvmlDevice_t, same: Out<c_int>) {
        library::gpu(first)?;
        library::gpu(second)?;
        same.put(c_int::from(
            library::index(first)? == library::index(second)?,
        ))
    }
}
