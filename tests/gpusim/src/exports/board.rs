//! Facts of a board that programs print and that differ little between machines: clocks that
//! applications may set, why clocks are reduced, fans, buses, engines that do nothing here.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};

use super::{getters, sensors};
use crate::ffi::{Out, answer};
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

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFanSpeed_v2(
    device: nvmlDevice_t,
    fan: c_uint,
    percent: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| match library::gpu(device)?.fan {
        u32::MAX => Err(NOT_SUPPORTED),
        _ if fan > 0 => Err(INVALID_ARGUMENT),
        speed => percent.put(speed),
    })
}

/// The second argument is the clock, the third whether the current or another value of it.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClock(
    device: nvmlDevice_t,
    clock: c_uint,
    value: c_uint,
    mhz: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| match value {
        0 => sensors::of_kind(device, clock, &mhz, |gpu| gpu.clocks),
        1..=3 => sensors::of_kind(device, clock, &mhz, |gpu| gpu.max_clocks),
        _ => Err(INVALID_ARGUMENT),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetApplicationsClock(
    device: nvmlDevice_t,
    clock: c_uint,
    mhz: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| sensors::of_kind(device, clock, &mhz, |gpu| gpu.max_clocks))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDefaultApplicationsClock(
    device: nvmlDevice_t,
    clock: c_uint,
    mhz: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| sensors::of_kind(device, clock, &mhz, |gpu| gpu.max_clocks))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxCustomerBoostClock(
    device: nvmlDevice_t,
    clock: c_uint,
    mhz: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| sensors::of_kind(device, clock, &mhz, |gpu| gpu.max_clocks))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetJpgUtilization(
    device: nvmlDevice_t,
    percent: Out<c_uint>,
    period: Out<c_uint>,
) -> nvmlReturn_t {
    idle_engine(device, &percent, &period)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetOfaUtilization(
    device: nvmlDevice_t,
    percent: Out<c_uint>,
    period: Out<c_uint>,
) -> nvmlReturn_t {
    idle_engine(device, &percent, &period)
}

fn idle_engine(device: nvmlDevice_t, percent: &Out<c_uint>, period: &Out<c_uint>) -> nvmlReturn_t {
    answer(|| {
        library::gpu(device)?;
        percent.put(0)?;
        period.put(SAMPLING_PERIOD_US)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEncoderStats(
    device: nvmlDevice_t,
    sessions: Out<c_uint>,
    frames: Out<c_uint>,
    latency: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| {
        library::gpu(device)?;
        sessions.put(0)?;
        frames.put(0)?;
        latency.put(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGspFirmwareMode(
    device: nvmlDevice_t,
    enabled: Out<c_uint>,
    default: Out<c_uint>,
) -> nvmlReturn_t {
    answer(|| {
        library::gpu(device)?;
        enabled.put(1)?;
        default.put(1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceOnSameBoard(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    same: Out<c_int>,
) -> nvmlReturn_t {
    answer(|| {
        library::gpu(first)?;
        library::gpu(second)?;
        same.put(c_int::from(
            library::index(first)? == library::index(second)?,
        ))
    })
}
