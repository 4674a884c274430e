//! Reads a GPU's current MIG layout. Every handle is used at once, since changes make handles stale.

use std::ffi::{CStr, c_uint};

use aliquot_core::Mib;
use aliquot_core::mig::Geometry;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t,
};

use super::profiles::{self, DriverProfile, byte};
use super::{GpuInstance, MigError, MigLayout};
use crate::calls::memory;

/// More instances of either kind than a GPU or an instance has slices.
const MOST: usize = 32;
/// `NVML_DEVICE_MIG_ENABLE`.
const ON: u32 = 1;

/// The GPU's profiles and instances; empty while MIG is off, though the driver reports profiles then
/// too.
pub(crate) fn layout(
    nvml: &Nvml,
    device: &Device,
    gpu: &str,
    memory: Mib,
) -> Result<MigLayout, MigError> {
    match device.mig_mode() {
        Ok(mode) if mode.current == ON => read_enabled_layout(nvml, device, gpu, memory),
        Ok(_) | Err(Cause::NotSupported) => Ok(MigLayout::default()),
        Err(source) => Err(MigError::Profiles {
            gpu: gpu.to_owned(),
            source,
        }),
    }
}

/// The layout of a GPU whose MIG is known to be enabled.
pub(crate) fn read_enabled_layout(
    nvml: &Nvml,
    device: &Device,
    gpu: &str,
    memory: Mib,
) -> Result<MigLayout, MigError> {
    let known = profiles::all(nvml, device, memory).map_err(|source| MigError::Profiles {
        gpu: gpu.to_owned(),
        source,
    })?;
    let profiles: Vec<_> = known.iter().map(|one| one.profile.clone()).collect();
    let compute = profiles.iter().map(|one| one.compute).max().unwrap_or(0);
    let geometry = Geometry::new(compute, profiles).map_err(|source| MigError::Geometry {
        gpu: gpu.to_owned(),
        source,
    })?;
    let mut instances = Vec::new();
    for one in &known {
        let all = instances_of(nvml, device, one).map_err(|source| MigError::Instances {
            gpu: gpu.to_owned(),
            source,
        })?;
        instances.extend(all);
    }
    instances.sort_by_key(|one| one.start);
    Ok(MigLayout {
        geometry: Some(geometry),
        instances,
    })
}

fn instances_of(
    nvml: &Nvml,
    device: &Device,
    known: &DriverProfile,
) -> Result<Vec<GpuInstance>, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut list: Vec<nvmlGpuInstance_t> = vec![std::ptr::null_mut(); MOST];
    let mut count = c_uint::try_from(MOST).map_err(|_| Cause::Unknown)?;
    // SAFETY: the symbol has this signature; the handle is this library's; the list has room for
    // more than a GPU has slices.
    nvml_try(unsafe { call(device.handle(), known.id, list.as_mut_ptr(), &raw mut count) })?;
    list.truncate(usize::try_from(count).map_err(|_| Cause::Unknown)?);
    let each = list.into_iter().map(|handle| instance(nvml, handle, known));
    each.collect()
}

/// A GPU instance with its compute instances.
pub(super) fn instance(
    nvml: &Nvml,
    handle: nvmlGpuInstance_t,
    known: &DriverProfile,
) -> Result<GpuInstance, Cause> {
    let info = info(nvml, handle)?;
    let mut devices = Vec::new();
    let mut reserved = Mib(0);
    for (id, slices) in compute_profiles(nvml, handle)? {
        for one in compute_instances(nvml, handle, id)? {
            let info = compute_info(nvml, one)?;
            reserved = reserved.max(reserved_memory(nvml, info.device));
            devices.push(super::MigDevice {
                uuid: uuid(nvml, info.device)?,
                id: info.id,
                whole: slices == c_uint::from(known.profile.compute),
            });
        }
    }
    Ok(GpuInstance {
        profile: known.profile.name.clone(),
        start: u8::try_from(info.placement.start).map_err(|_| Cause::Unknown)?,
        memory: Mib(known.profile.memory.0.saturating_sub(reserved.0)),
        id: info.id,
        devices,
    })
}

fn info(nvml: &Nvml, handle: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetInfo.as_ref())?;
    let mut info = nvmlGpuInstanceInfo_t {
        device: std::ptr::null_mut(),
        id: 0,
        profileId: 0,
        placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
    };
    // SAFETY: as in `instances_of`; the struct lives through the call.
    nvml_try(unsafe { call(handle, &raw mut info) })?;
    Ok(info)
}

/// Ids and compute slices of the compute instances that it may contain.
pub(super) fn compute_profiles(
    nvml: &Nvml,
    handle: nvmlGpuInstance_t,
) -> Result<Vec<(c_uint, c_uint)>, Cause> {
    let call = nvml_sym(
        nvml.lib()
            .nvmlGpuInstanceGetComputeInstanceProfileInfo
            .as_ref(),
    )?;
    let mut found = Vec::new();
    for kind in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
        let mut info = nvmlComputeInstanceProfileInfo_t {
            id: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
        };
        let engines = NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
        // SAFETY: as in `info`.
        match nvml_try(unsafe { call(handle, kind, engines, &raw mut info) }) {
            Ok(()) => found.push((info.id, info.sliceCount)),
            Err(Cause::NotSupported | Cause::InvalidArg) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

pub(super) fn compute_instances(
    nvml: &Nvml,
    handle: nvmlGpuInstance_t,
    id: c_uint,
) -> Result<Vec<nvmlComputeInstance_t>, Cause> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
    let mut list: Vec<nvmlComputeInstance_t> = vec![std::ptr::null_mut(); MOST];
    let mut count = c_uint::try_from(MOST).map_err(|_| Cause::Unknown)?;
    // SAFETY: as in `instances_of`.
    nvml_try(unsafe { call(handle, id, list.as_mut_ptr(), &raw mut count) })?;
    list.truncate(usize::try_from(count).map_err(|_| Cause::Unknown)?);
    Ok(list)
}

/// Contains a fresh handle of the MIG device: enumerating a GPU's devices may take seconds.
fn compute_info(
    nvml: &Nvml,
    handle: nvmlComputeInstance_t,
) -> Result<nvmlComputeInstanceInfo_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlComputeInstanceGetInfo_v2.as_ref())?;
    let mut info = nvmlComputeInstanceInfo_t {
        device: std::ptr::null_mut(),
        gpuInstance: std::ptr::null_mut(),
        id: 0,
        profileId: 0,
        placement: nvmlComputeInstancePlacement_t { start: 0, size: 0 },
    };
    // SAFETY: as in `info`.
    nvml_try(unsafe { call(handle, &raw mut info) })?;
    Ok(info)
}

/// What the driver reserves of the instance of a MIG device; 0 where it does not report that.
fn reserved_memory(nvml: &Nvml, device: nvmlDevice_t) -> Mib {
    // SAFETY: this library returned the handle, and it outlives the borrow.
    let device = unsafe { Device::new(device, nvml) };
    let read = memory(nvml, &device).ok();
    read.and_then(|(_, reserved)| reserved).unwrap_or(Mib(0))
}

fn uuid(nvml: &Nvml, device: nvmlDevice_t) -> Result<String, Cause> {
    const LENGTH: c_uint = 96;
    let call = nvml_sym(nvml.lib().nvmlDeviceGetUUID.as_ref())?;
    let mut text = [0; LENGTH as usize];
    // SAFETY: as in `info`; the length is the buffer's.
    nvml_try(unsafe { call(device, text.as_mut_ptr(), LENGTH) })?;
    let bytes: Vec<u8> = text.iter().copied().map(byte).collect();
    let uuid = CStr::from_bytes_until_nul(&bytes).map_err(|_| Cause::Unknown)?;
    Ok(uuid.to_str().map_err(|_| Cause::Unknown)?.to_owned())
}
