//! The allocatable devices of this node: whole GPUs and MIG instances, each with its replicas under
//! a resource name. A GPU whose mode is unknown is not advertised.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::{self, Gpu, Health};
use aliquot_core::{GpuUuid, Percent};
use aliquot_nvml as nvml;
use aliquot_profiles::{Defaults, Mode, Reservation};

use crate::device_id::{DeviceIds, MAX_ID};
use crate::inventory::PublishedNode;
use crate::modes::{exclusive, mig, mps, timeslice, vgpu};
use crate::namespace_reservations;
use crate::proto::v1beta1::{Device, TopologyInfo};
use crate::proto::{HEALTHY, UNHEALTHY};
use crate::topology;

/// Device ids that living pods use, by resource.
pub type AllocatedIds = BTreeMap<String, DeviceIds>;

/// How the node's GPUs are shared now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLayout {
    /// The resource of GPUs that have no name of their own.
    pub default_resource: String,
    /// How each GPU is shared. A GPU that is missing is not advertised.
    pub gpus: BTreeMap<GpuUuid, GpuLayout>,
}

/// How one GPU is shared now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLayout {
    /// The mode, with all defaults filled in.
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
        let mode = Mode::Vgpu(aliquot_profiles::mode::Vgpu::default()).with_defaults(defaults);
        let gpu_layout =
            |gpu: &nvml::GpuFacts| (gpu.uuid.as_str().into(), GpuLayout::serving(mode.clone()));
        Self {
            default_resource: default_resource.to_owned(),
            gpus: facts.gpus.iter().map(gpu_layout).collect(),
        }
    }
}

/// The replicas of a device under one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceReplicas {
    /// The resource.
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
            Mode::Vgpu(vgpu) => vec![vgpu::device(whole, gpu, vgpu)],
            Mode::Exclusive(settings) => vec![exclusive::device(whole, settings)],
            Mode::Timeslice(settings) => vec![timeslice::device(whole, settings)],
            Mode::Mps(settings) => vec![mps::device(whole, settings)],
            Mode::Mig(settings) => mig::devices(&whole, gpu, health, settings),
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

/// The health of a GPU or instance, if it was read.
pub(crate) fn health_of(uuid: &str, health: &[nvml::DeviceHealth]) -> Option<Health> {
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
        inventory::Mode::Mig => mig::replicas(device),
        _ => vec![ResourceReplicas {
            resource: device.resource.clone(),
            numbers: (0..device.replicas).collect(),
        }],
    }
}

/// The resources that the kubelet must know: those of the devices, and those of which living pods
/// still use replicas.
pub fn resources(node: &PublishedNode) -> BTreeSet<String> {
    let advertised = node.inventory.gpus.iter().flat_map(replicas_by_resource);
    let advertised = advertised.map(|replicas| replicas.resource);
    let allocated = node.allocated_ids.iter().filter(|(_, ids)| !ids.is_empty());
    advertised
        .chain(allocated.map(|(resource, _)| resource.clone()))
        .collect()
}

/// The devices of a resource to advertise to the kubelet, one for each replica. An id that is too
/// long for the kubelet is left out. Free replicas of an unhealthy device are unhealthy. Replicas
/// that living pods use are healthy, whatever happened to their device, and stay until the pods
/// end: otherwise the kubelet would count these pods against replicas of other devices. A replica
/// in use under an earlier resource name is not advertised under the new one. A node that the agent
/// is leaving has none.
pub fn plugin_devices(node: &PublishedNode, resource: &str) -> Vec<Device> {
    if node.leaving_node {
        return Vec::new();
    }
    let nothing = DeviceIds::new();
    let allocated = node.allocated_ids.get(resource).unwrap_or(&nothing);
    let policy = node.inventory.topology_policy.as_str();
    let mut replicas = Vec::new();
    let mut advertised = BTreeSet::new();
    for gpu in &node.inventory.gpus {
        for of_resource in replicas_by_resource(gpu)
            .iter()
            .filter(|o| o.resource == resource)
        {
            for &number in &of_resource.numbers {
                let id = format!("{}::{number}", gpu.uuid);
                // Dynamic MIG has the same numbers under several resources.
                if gpu.mode != inventory::Mode::Mig && is_allocated_elsewhere(node, resource, &id) {
                    continue;
                }
                let healthy = gpu.health == Health::Ok || allocated.contains(&id);
                advertised.insert(id.clone());
                replicas.push(device(id, healthy, topology::replica_topology(gpu, policy)));
            }
        }
    }
    let retained = allocated.iter().filter(|id| !advertised.contains(*id));
    replicas.extend(retained.map(|id| device(id.clone(), true, None)));
    replicas.retain(|replica| replica.id.len() <= MAX_ID);
    replicas
}

fn is_allocated_elsewhere(node: &PublishedNode, resource: &str, id: &str) -> bool {
    let mut others = node
        .allocated_ids
        .iter()
        .filter(|(name, _)| *name != resource);
    others.any(|(_, ids)| ids.contains(id))
}

/// Whether living pods use replicas that are not advertised any more.
pub fn allocated_beyond_advertised(node: &PublishedNode) -> bool {
    let mut advertised: BTreeMap<String, DeviceIds> = BTreeMap::new();
    for gpu in &node.inventory.gpus {
        for offer in replicas_by_resource(gpu) {
            let ids = offer
                .numbers
                .iter()
                .map(|number| format!("{}::{number}", gpu.uuid));
            advertised.entry(offer.resource).or_default().extend(ids);
        }
    }
    let nothing = DeviceIds::new();
    let mut allocated = node.allocated_ids.iter();
    allocated.any(|(resource, ids)| !ids.is_subset(advertised.get(resource).unwrap_or(&nothing)))
}

fn device(id: String, healthy: bool, topology: Option<TopologyInfo>) -> Device {
    Device {
        id,
        health: if healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology,
    }
}

#[cfg(test)]
#[path = "allocatable_tests.rs"]
mod tests;
