//! mig: a GPU partitioned into instances, by a fixed layout or dynamically. [`partitioner`] creates
//! and destroys them.

pub mod check;
pub mod instance_names;
mod partitioner;
pub mod plan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_core::mig::published::{CreatedInstance, DynamicMig, FixedInstance, Mig as Published};
use aliquot_core::mig::resource;
use aliquot_nvml::{self as nvml, DeviceHealth, GpuFacts};
use aliquot_profiles::mode::{Exclusive, InstanceSharing, LayoutEntry, Mig, Strategy};

use super::{exclusive, mps, timeslice, vgpu};
use crate::allocatable::{ResourceReplicas, health_of};
use crate::host::InstanceIds;

pub(super) use partitioner::MigPartitioner;

/// The allocatable devices of a GPU; `whole` holds what they have in common.
pub fn devices(whole: &Gpu, gpu: &GpuFacts, health: &[DeviceHealth], settings: &Mig) -> Vec<Gpu> {
    if settings.dynamic {
        return dynamic(whole, gpu, &settings.allow).into_iter().collect();
    }
    if settings.strategy == Strategy::None {
        return Vec::new();
    }
    let mut devices = Vec::new();
    for (slice, instance, device) in assign_instances(&settings.layout, &gpu.layout.instances) {
        let uuid = device.uuid.as_str();
        let part = Gpu {
            uuid: uuid.into(),
            memory: instance.memory,
            scaled: instance.memory,
            resource: match settings.strategy {
                Strategy::Single => whole.resource.clone(),
                _ => resource(&instance.profile),
            },
            health: health_of(uuid, health).unwrap_or_else(|| whole.health.clone()),
            links: BTreeMap::new(),
            mig: Some(Published::Fixed(FixedInstance {
                parent: whole.uuid.clone(),
                profile: instance.profile.clone(),
                start: instance.start,
                gi: instance.id,
                ci: device.id,
            })),
            ..whole.clone()
        };
        devices.extend(match &slice.on {
            None => vec![exclusive::device(part, &Exclusive::default())],
            Some(InstanceSharing::Vgpu(settings)) => vec![vgpu::instance(part, settings)],
            Some(InstanceSharing::Timeslice(settings)) => vec![timeslice::device(part, settings)],
            Some(InstanceSharing::Mps(settings)) => vec![mps::device(part, settings)],
        });
    }
    devices
}

/// Assigns instances to the entries of a layout: those of one profile in the order of their starts.
pub fn assign_instances<'a>(
    layout: &'a [LayoutEntry],
    instances: &'a [nvml::GpuInstance],
) -> Vec<(&'a LayoutEntry, &'a nvml::GpuInstance, &'a nvml::MigDevice)> {
    let whole = |one: &'a nvml::GpuInstance| Some((one, one.device()?));
    let mut left: Vec<_> = instances.iter().filter_map(whole).collect();
    left.sort_by_key(|(one, _)| one.start);
    let mut found = Vec::new();
    for slice in layout {
        for _ in 0..slice.count {
            if let Some(at) = left
                .iter()
                .position(|(one, _)| one.profile == slice.profile)
            {
                let (instance, device) = left.remove(at);
                found.push((slice, instance, device));
            }
        }
    }
    found
}

/// One device, unless the driver does not report the GPU's MIG profiles.
fn dynamic(whole: &Gpu, gpu: &GpuFacts, allow: &[String]) -> Option<Gpu> {
    let allowed = |name: &str| allow.is_empty() || allow.iter().any(|one| one == name);
    let geometry = gpu.layout.geometry.as_ref()?.only(allowed);
    let made = gpu.layout.instances.iter().filter_map(|one| {
        let device = one.device()?;
        Some(CreatedInstance {
            profile: one.profile.clone(),
            start: one.start,
            uuid: device.uuid.as_str().into(),
            gi: one.id,
            ci: device.id,
        })
    });
    let instances = made.collect();
    Some(Gpu {
        // The sizes of its instances determine what can be allocated.
        memory: gpu.memory,
        scaled: gpu.memory,
        mode: Shared::Mig,
        replicas: 0,
        mig: Some(Published::Dynamic(DynamicMig {
            geometry,
            instances,
            reserved: Vec::new(),
        })),
        ..whole.clone()
    })
}

/// The replicas of a GPU with dynamic MIG: each start of each profile. This upper bound is all that
/// the kubelet knows; the scheduler knows what fits beside existing instances.
pub fn replicas(device: &Gpu) -> Vec<ResourceReplicas> {
    let dynamic = device.mig.as_ref().and_then(Published::dynamic);
    let profiles = dynamic
        .into_iter()
        .flat_map(|dynamic| dynamic.geometry.profiles());
    let offer = |profile: &aliquot_core::mig::MigProfile| ResourceReplicas {
        resource: resource(&profile.name),
        numbers: profile.starts.iter().copied().map(u32::from).collect(),
    };
    profiles.map(offer).collect()
}

/// The names under `/dev` of the capability nodes of an instance on the GPU with this minor number,
/// as far as the driver reports them in `/proc/driver/nvidia/capabilities`: one for the GPU instance,
/// one for the compute instance in it.
pub fn capability_nodes(capabilities: &Path, minor: u32, instance: &InstanceIds) -> Vec<String> {
    let files = capability_files(capabilities, minor, instance);
    let numbers = files.iter().filter_map(|path| device_file_minor(path));
    numbers
        .map(|number| format!("nvidia-caps/nvidia-cap{number}"))
        .collect()
}

/// Where the driver lists them: the GPU instance's, and that of the compute instance in it.
pub fn capability_files(capabilities: &Path, minor: u32, instance: &InstanceIds) -> [PathBuf; 2] {
    let outer = capabilities.join(format!("gpu{minor}/mig/gi{}", instance.gpu_instance));
    let inner = outer.join(format!("ci{}", instance.compute_instance));
    [outer, inner].map(|folder| folder.join("access"))
}

/// The number of a capability node, in a line such as `DeviceFileMinor: 12`.
pub fn device_file_minor(path: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok())
}
