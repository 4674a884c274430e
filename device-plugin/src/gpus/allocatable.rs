//! The allocatable devices of this node: whole GPUs and MIG instances, each with its replicas under
//! a resource name. A GPU whose mode is unknown is not advertised.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::GpuUuid;
use aliquot_core::inventory::{self, Gpu, Health, RefusedPod};
use aliquot_core::mig::published::Mig;
use aliquot_core::mig::{self, MigProfile};
use aliquot_node_state::device_id::DeviceIds;
use aliquot_nvml as nvml;
use aliquot_profiles::mode;
use aliquot_profiles::{Defaults, Mode, Reservation};

use crate::gpus::namespace_reservations;
use crate::modes;
use crate::node_view::NodeCondition;

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
    /// The profile condition; `None` without a configuration.
    pub profile: Option<NodeCondition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLayout {
    pub mode: Mode,
    /// Why it accepts no new allocation.
    pub cordon: Option<String>,
    /// Its mode is being switched: no pod may start on it.
    pub switching: bool,
    /// Its mode is being set up again, and its instances may still be missing.
    pub restoring: bool,
    pub reserve: Vec<Reservation>,
}

impl GpuLayout {
    pub fn serving(mode: Mode) -> Self {
        Self {
            mode,
            cordon: None,
            switching: false,
            restoring: false,
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
        let mut devices = modes::of(&gpu_layout.mode).devices(whole, gpu);
        for device in &mut devices {
            if let Some(own) = health_of(device.uuid.as_str(), health) {
                device.health = own;
            }
            // A GPU that somebody else partitioned cannot be shared as a whole.
            if gpu.mig.enabled && device.mig.is_none() {
                device.mode = inventory::Mode::Unknown;
            }
        }
        namespace_reservations::apply(&mut devices, &gpu_layout.reserve);
        devices
    });
    devices.collect()
}

/// A whole GPU before its mode is applied.
fn whole(gpu: &nvml::GpuFacts, health: &[nvml::DeviceHealth], default_resource: &str) -> Gpu {
    let health = health_of(&gpu.uuid, health).unwrap_or(Health::Ok);
    let links = gpu.links.iter();
    let (uuid, model) = (gpu.uuid.as_str().into(), gpu.model.clone());
    Gpu {
        replicas: 0,
        mode: inventory::Mode::Unknown,
        resource: default_resource.to_owned(),
        numa: gpu.numa,
        health,
        links: links
            .map(|(uuid, score)| (uuid.as_str().into(), *score))
            .collect(),
        ..Gpu::vgpu(uuid, gpu.index, model, gpu.usable())
    }
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
