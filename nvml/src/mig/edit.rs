//! Changes of a GPU's MIG layout. If a later step fails, earlier ones are undone.

use std::ffi::c_uint;

use aliquot_core::Mib;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as NO_CAPACITY,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};

use super::profiles::{self, DriverProfile};
use super::{Activation, GpuInstance, MigError, read};

pub(crate) fn switch(
    nvml: &Nvml,
    device: &Device,
    gpu: &str,
    on: bool,
) -> Result<Activation, MigError> {
    let step = || {
        let call = nvml_sym(nvml.lib().nvmlDeviceSetMigMode.as_ref())?;
        let mut activation: nvmlReturn_t = SUCCESS;
        // SAFETY: the symbol has this signature; the handle is this library's; the place for the
        // answer lives through the call.
        nvml_try(unsafe { call(device.handle(), u32::from(on), &raw mut activation) })?;
        Ok(match activation {
            SUCCESS => Activation::Now,
            _ => Activation::AtReset,
        })
    };
    step().map_err(|source| MigError::Switch {
        gpu: gpu.to_owned(),
        on,
        source,
    })
}

/// Creates a GPU instance at memory slice `start`, with one compute instance that spans it. If the
/// second fails, the first is destroyed again.
pub(crate) fn create(
    nvml: &Nvml,
    device: &Device,
    (gpu, memory): (&str, Mib),
    profile: &str,
    start: u8,
) -> Result<GpuInstance, MigError> {
    let known = profiles::all(nvml, device, memory).map_err(|source| MigError::Profiles {
        gpu: gpu.to_owned(),
        source,
    })?;
    let Some(one) = known.iter().find(|one| one.profile.name == profile) else {
        return Err(MigError::NoProfile {
            gpu: gpu.to_owned(),
            profile: profile.to_owned(),
            known: known.into_iter().map(|one| one.profile.name).collect(),
        });
    };
    let outer = create_gpu_instance(nvml, device, one, start).map_err(|source| {
        let (gpu, profile) = (gpu.to_owned(), profile.to_owned());
        match source {
            Cause::UnexpectedVariant(NO_CAPACITY) => MigError::NoCapacity {
                gpu,
                profile,
                start,
            },
            source => MigError::Create {
                gpu,
                profile,
                start,
                source,
            },
        }
    })?;
    let made =
        create_compute_instance(nvml, outer, one).and_then(|()| read::instance(nvml, outer, one));
    made.map_err(|source| {
        let left =
            destroy_compute_instances(nvml, outer).and_then(|()| destroy_gpu_instance(nvml, outer));
        MigError::Compute {
            gpu: gpu.to_owned(),
            profile: profile.to_owned(),
            start,
            source,
            left: left.err().map(Box::new),
        }
    })
}

fn create_gpu_instance(
    nvml: &Nvml,
    device: &Device,
    known: &DriverProfile,
    start: u8,
) -> Result<nvmlGpuInstance_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let place = nvmlGpuInstancePlacement_t {
        start: start.into(),
        size: known.profile.size.into(),
    };
    let mut made = std::ptr::null_mut();
    // SAFETY: as in `switch`; the placement lives through the call too.
    nvml_try(unsafe { call(device.handle(), known.id, &raw const place, &raw mut made) })?;
    Ok(made)
}

fn create_compute_instance(
    nvml: &Nvml,
    outer: nvmlGpuInstance_t,
    known: &DriverProfile,
) -> Result<(), Cause> {
    let all = read::compute_profiles(nvml, outer)?.into_iter();
    let slices_needed = c_uint::from(known.profile.compute);
    let mut fitting = all.filter(|(_, slices)| *slices == slices_needed);
    let (id, _) = fitting.next().ok_or(Cause::NotSupported)?;
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    let mut made = std::ptr::null_mut();
    // SAFETY: as in `switch`; the instance was just made.
    nvml_try(unsafe { call(outer, id, &raw mut made) })
}

/// Destroys a GPU instance and its compute instances.
pub(crate) fn destroy(nvml: &Nvml, device: &Device, gpu: &str, id: u32) -> Result<(), MigError> {
    let outer = match by_id(nvml, device, id) {
        Ok(outer) => outer,
        Err(Cause::NotFound) => {
            let gpu = gpu.to_owned();
            return Err(MigError::NoInstance { gpu, id });
        }
        Err(source) => {
            let gpu = gpu.to_owned();
            return Err(MigError::Instances { gpu, source });
        }
    };
    destroy_compute_instances(nvml, outer).map_err(|source| MigError::DestroyCompute {
        gpu: gpu.to_owned(),
        gpu_instance: id,
        source,
    })?;
    destroy_gpu_instance(nvml, outer).map_err(|source| MigError::Destroy {
        gpu: gpu.to_owned(),
        id,
        source,
    })
}

fn by_id(nvml: &Nvml, device: &Device, id: u32) -> Result<nvmlGpuInstance_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut found = std::ptr::null_mut();
    // SAFETY: as in `switch`.
    nvml_try(unsafe { call(device.handle(), id, &raw mut found) })?;
    Ok(found)
}

fn destroy_compute_instances(nvml: &Nvml, outer: nvmlGpuInstance_t) -> Result<(), Cause> {
    for (id, _) in read::compute_profiles(nvml, outer)? {
        for one in read::compute_instances(nvml, outer, id)? {
            destroy_compute_instance(nvml, one)?;
        }
    }
    Ok(())
}

fn destroy_compute_instance(nvml: &Nvml, inner: nvmlComputeInstance_t) -> Result<(), Cause> {
    let call = nvml_sym(nvml.lib().nvmlComputeInstanceDestroy.as_ref())?;
    // SAFETY: as in `switch`; the handle was just read.
    nvml_try(unsafe { call(inner) })
}

fn destroy_gpu_instance(nvml: &Nvml, outer: nvmlGpuInstance_t) -> Result<(), Cause> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceDestroy.as_ref())?;
    // SAFETY: as in `switch`; the handle was just read or made.
    nvml_try(unsafe { call(outer) })
}
