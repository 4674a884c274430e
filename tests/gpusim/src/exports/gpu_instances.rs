//! GPU instances: the profiles and placements that a GPU supports; creating and destroying them.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::calls;
use super::mig::code;
use crate::ffi::{Answer, Out, put_list, struct_version, text_field};
use crate::mig::instances;
use crate::mig::profiles::{self, Profile};
use crate::model::{ON, text};
use crate::{handles, library};

/// One more than NVML's last name for a kind of instance.
const KINDS: c_uint = 17;

/// The profile of this kind, whether or not MIG is on.
fn of_kind(device: nvmlDevice_t, kind: c_uint) -> Answer<Profile> {
    let gpu = library::gpu(device)?;
    if kind >= KINDS {
        return Err(INVALID_ARGUMENT);
    }
    let mut all = profiles::of(text(&gpu.model)).into_iter();
    all.find(|one| one.kind == kind).ok_or(NOT_SUPPORTED)
}

calls! {
    nvmlDeviceGetGpuInstanceProfileInfo(
        device: nvmlDevice_t, kind: c_uint, info: Out<nvmlGpuInstanceProfileInfo_t>,
    ) {
        let profile = of_kind(device, kind)?;
        let [copy, decoder, encoder, jpeg, ofa] = profile.engines;
        info.put(nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.most,
            multiprocessorCount: profile.sms,
            copyEngineCount: copy,
            decoderCount: decoder,
            encoderCount: encoder,
            jpegCount: jpeg,
            ofaCount: ofa,
            memorySizeMB: profile.memory,
        })
    }

    nvmlDeviceGetGpuInstanceProfileInfoV(
        device: nvmlDevice_t, kind: c_uint, info: Out<nvmlGpuInstanceProfileInfo_v2_t>,
    ) {
        let profile = of_kind(device, kind)?;
        info.check_version(2)?;
        let [copy, decoder, encoder, jpeg, ofa] = profile.engines;
        let name: [c_char; 96] = text_field(&format!("MIG {}", profile.name));
        info.put(nvmlGpuInstanceProfileInfo_v2_t {
            version: struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2),
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.most,
            multiprocessorCount: profile.sms,
            copyEngineCount: copy,
            decoderCount: decoder,
            encoderCount: encoder,
            jpegCount: jpeg,
            ofaCount: ofa,
            memorySizeMB: profile.memory,
            name,
        })
    }

    /// Every placement of the profile, taken or not, and while MIG is off too.
    nvmlDeviceGetGpuInstancePossiblePlacements
        | nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: nvmlDevice_t, id: c_uint, placements: Out<nvmlGpuInstancePlacement_t>,
        count: Out<c_uint>,
    ) {
        let profile = instances::profile_by_id(&*library::gpu(device)?, id).map_err(code)?;
        let size = profile.size;
        let all = profile.starts.iter();
        let all: Vec<_> = all
            .map(|start| nvmlGpuInstancePlacement_t {
                start: *start,
                size,
            })
            .collect();
        if placements.is_null() {
            return count.put(c_uint::try_from(all.len()).map_err(|_| INVALID_ARGUMENT)?);
        }
        put_list(&count, &placements, &all)
    }

    nvmlDeviceCreateGpuInstance(
        device: nvmlDevice_t, id: c_uint, instance: Out<nvmlGpuInstance_t>,
    ) {
        create(device, id, None, &instance)
    }

    nvmlDeviceCreateGpuInstanceWithPlacement(
        device: nvmlDevice_t, id: c_uint, placement: Out<nvmlGpuInstancePlacement_t>,
        instance: Out<nvmlGpuInstance_t>,
    ) {
        let placement = placement.get()?;
        create(
            device,
            id,
            Some((placement.start, placement.size)),
            &instance,
        )
    }
}

fn create(
    device: nvmlDevice_t,
    id: c_uint,
    placement: Option<(u32, u32)>,
    instance: &Out<nvmlGpuInstance_t>,
) -> Answer {
    library::gpu(device)?;
    let gpu_index = library::index(device)?;
    if instance.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let serial = library::change_machine(|machine| {
        instances::create(machine, gpu_index, id, placement).map_err(code)
    })?;
    instance.put(handles::gpu_instance(serial))
}

calls! {
    nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t) {
        library::state()?;
        let serial = handles::serial_of_gpu_instance(instance).ok_or(INVALID_ARGUMENT)?;
        library::change_machine(|machine| instances::destroy(machine, serial).map_err(code))
    }

    /// The instances of one profile; the caller's list has room for as many as there can be.
    nvmlDeviceGetGpuInstances(
        device: nvmlDevice_t, id: c_uint, instances: Out<nvmlGpuInstance_t>, count: Out<c_uint>,
    ) {
        let gpu = library::gpu(device)?;
        let profile = instances::enabled_profile(&gpu, id).map_err(code)?;
        let all = gpu.gpu_instances().into_iter();
        let all = all.filter(|one| one.profile == profile.id);
        let all: Vec<_> = all.map(|one| handles::gpu_instance(one.serial)).collect();
        count.put(c_uint::try_from(all.len()).map_err(|_| INVALID_ARGUMENT)?)?;
        instances.put_all(&all)
    }

    nvmlDeviceGetGpuInstanceById(
        device: nvmlDevice_t, id: c_uint, instance: Out<nvmlGpuInstance_t>,
    ) {
        let gpu = library::gpu(device)?;
        if gpu.mig != ON {
            return Err(NOT_SUPPORTED);
        }
        let found = gpu.gpu_instances().into_iter().find(|one| one.id == id);
        instance.put(handles::gpu_instance(found.ok_or(NOT_FOUND)?.serial))
    }

    nvmlGpuInstanceGetInfo(instance: nvmlGpuInstance_t, info: Out<nvmlGpuInstanceInfo_t>) {
        let machine = library::machine()?;
        let serial = handles::serial_of_gpu_instance(instance).ok_or(INVALID_ARGUMENT)?;
        let found = instances::gpu_instance(&machine, serial);
        let (gpu_index, found) = found.ok_or(INVALID_ARGUMENT)?;
        info.put(nvmlGpuInstanceInfo_t {
            device: library::handle(gpu_index),
            id: found.id,
            profileId: found.profile,
            placement: nvmlGpuInstancePlacement_t {
                start: found.start,
                size: found.size,
            },
        })
    }
}
