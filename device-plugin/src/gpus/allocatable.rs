//! The allocatable devices of this node: whole GPUs and MIG instances, each with its replicas under
//! a resource name. A GPU whose mode is unknown is not advertised.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::{self, Gpu, Health, RefusedPod};
use aliquot_core::mig::published::{CreatedInstance, DynamicMig, FixedInstance, Mig};
use aliquot_core::mig::{self, MigProfile};
use aliquot_core::{GpuUuid, Percent};
use aliquot_node_state::device_id::DeviceIds;
use aliquot_nvml as nvml;
use aliquot_profiles::mode::{self, InstanceSharing, LayoutEntry, Strategy};
use aliquot_profiles::mps::even_share;
use aliquot_profiles::{Defaults, Mode, Reservation};

use crate::gpus::namespace_reservations;

/// Device ids that living pods use, by resource.
pub type AllocatedIds = BTreeMap<String, DeviceIds>;

/// How the node's GPUs are shared now, by the layout reconciler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLayout {
    /// The resource of GPUs that have no name of their own.
    pub default_resource: String,
    /// How each GPU is shared. A GPU that is missing is not advertised.
    pub gpus: BTreeMap<GpuUuid, GpuLayout>,
    /// Resources that were advertised once and are not any more.
    pub removed_resources: BTreeSet<String>,
    /// Pods to evict from GPUs whose mode changes.
    pub evict: Vec<RefusedPod>,
    /// Status, reason and message of the profile condition; `None` without a configuration.
    pub profile: Option<[String; 3]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLayout {
    pub mode: Mode,
    /// Why it accepts no new allocation.
    pub cordon: Option<String>,
    /// Its mode is being switched: no pod may start on it.
    pub switching: bool,
    /// What of it is reserved for namespaces.
    pub reserve: Vec<Reservation>,
}

impl GpuLayout {
    /// A GPU that accepts allocations.
    pub fn serving(mode: Mode) -> Self {
        Self {
            mode,
            cordon: None,
            switching: false,
            reserve: Vec::new(),
        }
    }
}

impl NodeLayout {
    /// vgpu on all GPUs: the layout of a node without a configuration.
    pub fn built_in(
        facts: &nvml::DriverInventory,
        default_resource: &str,
        defaults: &Defaults,
    ) -> Self {
        let mode = Mode::Vgpu(mode::Vgpu::default()).with_defaults(defaults);
        let gpu_layout =
            |gpu: &nvml::GpuFacts| (gpu.uuid.as_str().into(), GpuLayout::serving(mode.clone()));
        Self {
            default_resource: default_resource.to_owned(),
            gpus: facts.gpus.iter().map(gpu_layout).collect(),
            ..Self::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceReplicas {
    pub resource: String,
    /// The numbers of the replicas; a device id is `<uuid>::<number>`.
    pub numbers: Vec<u32>,
}

/// The allocatable devices of all GPUs, by index of their GPU.
pub fn allocatable_devices(
    facts: &nvml::DriverInventory,
    health: &[nvml::DeviceHealth],
    layout: &NodeLayout,
) -> Vec<Gpu> {
    let gpus = facts.gpus.iter().filter_map(|gpu| {
        let gpu_layout = layout.gpus.get(&GpuUuid::from(gpu.uuid.as_str()))?;
        Some((gpu, gpu_layout))
    });
    let devices = gpus.flat_map(|(gpu, gpu_layout)| {
        let mut whole = whole(gpu, health, &layout.default_resource);
        whole.cordon.clone_from(&gpu_layout.cordon);
        let mut devices = match &gpu_layout.mode {
            Mode::Vgpu(settings) => vec![whole_vgpu(whole, gpu, settings)],
            Mode::Exclusive(settings) => vec![exclusive(whole, settings)],
            Mode::Timeslice(settings) => vec![timeslice(whole, settings)],
            Mode::Mps(settings) => vec![mps(whole, settings)],
            Mode::Mig(settings) => mig(&whole, gpu, health, settings),
            Mode::Unmanaged => Vec::new(),
        };
        namespace_reservations::apply(&mut devices, &gpu_layout.reserve);
        devices
    });
    devices.collect()
}

/// A whole GPU before its mode is applied.
fn whole(gpu: &nvml::GpuFacts, health: &[nvml::DeviceHealth], default_resource: &str) -> Gpu {
    let health = health_of(&gpu.uuid, health).unwrap_or(Health::Ok);
    let links = gpu.links.iter();
    Gpu {
        uuid: gpu.uuid.as_str().into(),
        index: gpu.index,
        model: gpu.model.clone(),
        memory: gpu.usable(),
        scaled: gpu.usable(),
        cores: Percent::WHOLE,
        replicas: 0,
        mode: inventory::Mode::Unknown,
        resource: default_resource.to_owned(),
        numa: gpu.numa,
        health,
        links: links
            .map(|(uuid, score)| (uuid.as_str().into(), *score))
            .collect(),
        mig: None,
        cordon: None,
        even_share: None,
        strict: false,
        reserved: Vec::new(),
    }
}

/// A device in mode vgpu. The settings have all defaults filled in.
fn vgpu(device: Gpu, settings: &mode::Vgpu) -> Gpu {
    let scaling = settings.memory_scaling.unwrap_or(mode::Scaling::ONE);
    Gpu {
        mode: inventory::Mode::Vgpu,
        replicas: settings.split.unwrap_or(1),
        scaled: scaling.of(device.memory),
        ..device
    }
}

/// A whole GPU in mode vgpu. One that somebody else partitioned cannot be shared as a whole.
fn whole_vgpu(device: Gpu, gpu: &nvml::GpuFacts, settings: &mode::Vgpu) -> Gpu {
    let mut device = vgpu(device, settings);
    if gpu.mig.enabled {
        device.mode = inventory::Mode::Unknown;
    }
    device
}

fn exclusive(device: Gpu, settings: &mode::Exclusive) -> Gpu {
    Gpu {
        mode: inventory::Mode::Exclusive,
        replicas: 1,
        resource: settings.rename.clone().unwrap_or(device.resource),
        ..device
    }
}

fn timeslice(device: Gpu, settings: &mode::Timeslice) -> Gpu {
    Gpu {
        mode: inventory::Mode::Timeslice,
        replicas: settings.replicas,
        resource: settings.rename.clone().unwrap_or(device.resource),
        strict: settings.strict,
        ..device
    }
}

fn mps(device: Gpu, settings: &mode::Mps) -> Gpu {
    Gpu {
        mode: inventory::Mode::Mps,
        replicas: settings.replicas,
        even_share: Some(even_share(device.memory, settings)),
        strict: settings.strict,
        resource: settings.rename.clone().unwrap_or(device.resource),
        ..device
    }
}

/// The devices of a GPU in mode mig; `whole` holds what they have in common.
fn mig(
    whole: &Gpu,
    gpu: &nvml::GpuFacts,
    health: &[nvml::DeviceHealth],
    settings: &mode::Mig,
) -> Vec<Gpu> {
    if settings.dynamic {
        return dynamic_mig(whole, gpu, &settings.allow)
            .into_iter()
            .collect();
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
                _ => mig::resource(&instance.profile),
            },
            health: health_of(uuid, health).unwrap_or_else(|| whole.health.clone()),
            links: BTreeMap::new(),
            mig: Some(Mig::Fixed(FixedInstance {
                parent: whole.uuid.clone(),
                profile: instance.profile.clone(),
                start: instance.start,
                gi: instance.id,
                ci: device.id,
            })),
            ..whole.clone()
        };
        devices.extend(match &slice.on {
            None => vec![exclusive(part, &mode::Exclusive::default())],
            Some(InstanceSharing::Vgpu(settings)) => vec![vgpu(part, settings)],
            Some(InstanceSharing::Timeslice(settings)) => vec![timeslice(part, settings)],
            Some(InstanceSharing::Mps(settings)) => vec![mps(part, settings)],
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
fn dynamic_mig(whole: &Gpu, gpu: &nvml::GpuFacts, allow: &[String]) -> Option<Gpu> {
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
        mode: inventory::Mode::Mig,
        replicas: 0,
        mig: Some(Mig::Dynamic(DynamicMig {
            geometry,
            instances,
            reserved: Vec::new(),
        })),
        ..whole.clone()
    })
}

fn health_of(uuid: &str, health: &[nvml::DeviceHealth]) -> Option<Health> {
    let found = health.iter().find(|one| one.uuid == uuid)?;
    Some(match &found.health {
        nvml::DriverHealth::Ok => Health::Ok,
        nvml::DriverHealth::Lost(_) => Health::Unhealthy("lost".to_owned()),
        nvml::DriverHealth::RecoveryRequested(action) => {
            Health::Unhealthy(format!("recovery {action}"))
        }
        nvml::DriverHealth::Xid(code) => Health::Unhealthy(format!("xid {code}")),
        nvml::DriverHealth::FabricNotReady(registration) => {
            Health::Unhealthy(format!("fabric registration {registration}"))
        }
    })
}

/// The replicas of a device by resource. A device in an unknown mode has none.
pub fn replicas_by_resource(device: &Gpu) -> Vec<ResourceReplicas> {
    match device.mode {
        inventory::Mode::Unknown => Vec::new(),
        inventory::Mode::Mig => dynamic_mig_replicas(device),
        _ => vec![ResourceReplicas {
            resource: device.resource.clone(),
            numbers: (0..device.replicas).collect(),
        }],
    }
}

/// The replicas of a GPU with dynamic MIG: each start of each profile. This upper bound is all that
/// the kubelet knows; the scheduler knows what fits beside existing instances.
fn dynamic_mig_replicas(device: &Gpu) -> Vec<ResourceReplicas> {
    let dynamic = device.mig.as_ref().and_then(Mig::dynamic);
    let profiles = dynamic
        .into_iter()
        .flat_map(|dynamic| dynamic.geometry.profiles());
    let offer = |profile: &MigProfile| ResourceReplicas {
        resource: mig::resource(&profile.name),
        numbers: profile.starts.iter().copied().map(u32::from).collect(),
    };
    profiles.map(offer).collect()
}

pub fn parent_gpu(device: &Gpu) -> &GpuUuid {
    match &device.mig {
        Some(Mig::Fixed(part)) => &part.parent,
        _ => &device.uuid,
    }
}

#[cfg(test)]
#[path = "allocatable_tests.rs"]
mod tests;
