//! The MIG mode of a GPU, and its MIG devices: finding them and their attributes.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlReturn_enum_NVML_ERROR_IN_USE as IN_USE,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};

use super::{calls, getters};
use crate::ffi::{Answer, Out};
use crate::mig::instances::{self, InstanceError, MigModeChange};
use crate::mig::profiles;
use crate::model::{ABSENT, Gpu, ON, text};
use crate::{handles, library};

getters! {
    nvmlDeviceGetMaxMigDeviceCount: c_uint = |gpu| Ok(if gpu.mig == ON { most(gpu) } else { 0 });
}

pub(super) fn code(refusal: InstanceError) -> nvmlReturn_t {
    match refusal {
        InstanceError::NotSupported => NOT_SUPPORTED,
        InstanceError::Invalid | InstanceError::NotFound => INVALID_ARGUMENT,
        InstanceError::NoFreePlacement => INSUFFICIENT_RESOURCES,
        InstanceError::InUse => IN_USE,
    }
}

fn most(gpu: &Gpu) -> c_uint {
    profiles::slices_of(&profiles::of(text(&gpu.model)))
}

calls! {
    nvmlDeviceGetMigMode(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>) {
        let gpu = library::gpu(device)?;
        if gpu.mig == ABSENT {
            return Err(NOT_SUPPORTED);
        }
        current.put(u32::from(gpu.mig == ON))?;
        pending.put(u32::from(gpu.mig_pending == ON))
    }

    /// The second answer is whether the mode is on already; `IN_USE` there: at the next reset.
    nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, activation: Out<nvmlReturn_t>) {
        let gpu = library::gpu(device)?;
        if mode > 1 || activation.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // No other process may have a GPU open that is reset for the change.
        let open = instances::resets(&gpu) && library::is_open_elsewhere(device)?;
        let used = open || !gpu.running().is_empty();
        let mut now = SUCCESS;
        library::change(device, |gpu| {
            if instances::switch(gpu, mode == 1, used).map_err(code)? == MigModeChange::Pending {
                now = IN_USE;
            }
            Ok(())
        })?;
        activation.put(now)
    }

    nvmlDeviceGetMigDeviceHandleByIndex(
        device: nvmlDevice_t, index: c_uint, instance: Out<nvmlDevice_t>,
    ) {
        let gpu = library::gpu(device)?;
        if gpu.mig == ABSENT {
            return Err(NOT_SUPPORTED);
        }
        if index >= most(&gpu) {
            return Err(INVALID_ARGUMENT);
        }
        let (machine, visible) = (library::machine()?, library::visible_devices()?);
        let mut all = gpu.instances(library::index(device)?);
        all.retain(|found| visible.instance(&machine, found));
        let place = usize::try_from(index).map_err(|_| INVALID_ARGUMENT)?;
        let found = all.get(place).ok_or(NOT_FOUND)?;
        instance.put(handles::mig_device(found.compute.serial))
    }

    nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is: Out<c_uint>) {
        is.put(u32::from(library::device(device)?.instance.is_some()))
    }

    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: nvmlDevice_t, gpu: Out<nvmlDevice_t>) {
        gpu.put(library::handle(instance(device)?.1.gpu_index))
    }

    nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: Out<c_uint>) {
        id.put(instance(device)?.1.gpu.id)
    }

    nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: Out<c_uint>) {
        id.put(instance(device)?.1.compute.id)
    }

    nvmlDeviceGetAttributes | nvmlDeviceGetAttributes_v2(
        device: nvmlDevice_t, attributes: Out<nvmlDeviceAttributes_t>,
    ) {
        let (gpu, found) = instance(device)?;
        let profile = instances::enabled_profile(&gpu, found.gpu.profile).map_err(code)?;
        let [copy, decoder, encoder, jpeg, ofa] = profile.engines;
        attributes.put(nvmlDeviceAttributes_t {
            multiprocessorCount: found.multiprocessors(),
            sharedCopyEngineCount: copy,
            sharedDecoderCount: decoder,
            sharedEncoderCount: encoder,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
            gpuInstanceSliceCount: found.gpu.slices,
            computeInstanceSliceCount: found.compute.slices,
            memorySizeMB: profile.memory,
        })
    }
}

/// The GPU and the instance of an instance's handle.
fn instance(device: nvmlDevice_t) -> Answer<(Box<Gpu>, aliquot_gpusim_model::mig::MigDevice)> {
    let found = library::device(device)?;
    let instance = found.instance.ok_or(INVALID_ARGUMENT)?;
    Ok((found.gpu, instance))
}
