//! Compute instances: parts of a GPU instance's compute slices, each a device of its own.

use std::ffi::c_uint;

use aliquot_gpusim_model::mig::{GpuInstance, MigDevice};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::calls;
use super::mig::code;
use crate::ffi::{Answer, Out};
use crate::mig::instances;
use crate::model::Gpu;
use crate::{handles, library};

/// One more than NVML's last name for a kind.
const KINDS: c_uint = 8;
/// The one way to share engines that there is.
const SHARED_ENGINES: c_uint = 0;

/// A GPU instance as it is now, with its GPU.
fn inside(instance: nvmlGpuInstance_t) -> Answer<(Box<Gpu>, GpuInstance, u64)> {
    let machine = library::machine()?;
    let serial = handles::serial_of_gpu_instance(instance).ok_or(INVALID_ARGUMENT)?;
    let (gpu_index, found) = instances::gpu_instance(&machine, serial).ok_or(INVALID_ARGUMENT)?;
    Ok((library::gpu(library::handle(gpu_index))?, found, serial))
}

fn compute_instance(instance: nvmlComputeInstance_t) -> Answer<MigDevice> {
    let machine = library::machine()?;
    let serial = handles::serial_of_compute_instance(instance).ok_or(INVALID_ARGUMENT)?;
    let mut all = machine.instances().into_iter();
    let found = all.find(|one| one.compute.serial == serial);
    found.ok_or(INVALID_ARGUMENT)
}

/// Compute slices of a profile that the instance has.
fn slices(found: &GpuInstance, id: c_uint) -> Answer<u32> {
    let slices = instances::compute_slices(id).filter(|slices| *slices <= found.slices);
    slices.ok_or(NOT_SUPPORTED)
}

calls! {
    nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: nvmlGpuInstance_t, kind: c_uint, engines: c_uint,
        info: Out<nvmlComputeInstanceProfileInfo_t>,
    ) {
        let (gpu, found, _) = inside(instance)?;
        if kind >= KINDS || engines != SHARED_ENGINES {
            return Err(INVALID_ARGUMENT);
        }
        let slices = slices(&found, kind)?;
        let outer = instances::enabled_profile(&gpu, found.profile).map_err(code)?;
        let [copy, decoder, encoder, jpeg, ofa] = outer.engines;
        info.put(nvmlComputeInstanceProfileInfo_t {
            id: kind,
            sliceCount: slices,
            instanceCount: found.slices / slices,
            multiprocessorCount: found.sms * slices / found.slices,
            sharedCopyEngineCount: copy,
            sharedDecoderCount: decoder,
            sharedEncoderCount: encoder,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
        })
    }

    nvmlGpuInstanceCreateComputeInstance(
        instance: nvmlGpuInstance_t, id: c_uint, made: Out<nvmlComputeInstance_t>,
    ) {
        let (_, _, outer) = inside(instance)?;
        if made.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let serial = library::change_machine(|machine| {
            if instances::take_creation_failure(machine, outer) {
                return Ok(None);
            }
            let serial = instances::create_compute(machine, outer, id);
            serial.map(Some).map_err(code)
        })?;
        let serial = serial.ok_or(INSUFFICIENT_RESOURCES)?;
        made.put(handles::compute_instance(serial))
    }

    nvmlComputeInstanceDestroy(instance: nvmlComputeInstance_t) {
        let found = compute_instance(instance)?;
        // This reading includes CUDA processes.
        let gpu = library::gpu(library::handle(found.gpu_index))?;
        let used = |outer, inner| {
            gpu.running().iter().any(|process| {
                instances::uses_instance(
                    (process.gpu_instance, process.compute_instance),
                    (outer, inner),
                )
            })
        };
        library::change_machine(|machine| {
            instances::destroy_compute(machine, found.compute.serial, used).map_err(code)
        })
    }

    nvmlGpuInstanceGetComputeInstances(
        instance: nvmlGpuInstance_t, id: c_uint, instances: Out<nvmlComputeInstance_t>,
        count: Out<c_uint>,
    ) {
        let (gpu, found, _) = inside(instance)?;
        slices(&found, id)?;
        let all = gpu.compute_instances(found.id).into_iter();
        let all = all.filter(|one| one.profile == id);
        let all: Vec<_> = all
            .map(|one| handles::compute_instance(one.serial))
            .collect();
        count.put(c_uint::try_from(all.len()).map_err(|_| INVALID_ARGUMENT)?)?;
        instances.put_all(&all)
    }

    /// `device` is the handle of the instance's own device.
    nvmlComputeInstanceGetInfo_v2(
        instance: nvmlComputeInstance_t, info: Out<nvmlComputeInstanceInfo_t>,
    ) {
        let found = compute_instance(instance)?;
        info.put(nvmlComputeInstanceInfo_t {
            device: handles::mig_device(found.compute.serial),
            gpuInstance: handles::gpu_instance(found.gpu.serial),
            id: found.compute.id,
            profileId: found.compute.profile,
            placement: nvmlComputeInstancePlacement_t {
                start: found.compute.start,
                size: found.compute.slices,
            },
        })
    }
}
