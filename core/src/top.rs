//! What nodes and devices have, what is allocated and what is free. Whether something still
//! fits is asked of [`DeviceState::refuse`], as [`crate::fit`] does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{GpuUuid, NodeName};
use crate::inventory::{Gpu, Inventory, Mode};
use crate::mig::Instance;
use crate::mig::dynamic;
use crate::mig::published::Mig;
use crate::node::{DeviceState, NodeState};
use crate::units::{Mib, Percent};
use crate::usage::{AllocatedUse, DeviceUse};

/// Replicas, memory in MiB, compute in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAmount {
    pub replicas: u32,
    pub memory: Mib,
    pub cores: Percent,
}

impl From<DeviceUse> for DeviceAmount {
    fn from(used: DeviceUse) -> Self {
        Self {
            replicas: used.replicas,
            memory: used.memory,
            cores: used.cores,
        }
    }
}

impl DeviceAmount {
    /// What is allocated of each device; `None` if that is unreadable.
    pub fn of_each(allocated: &AllocatedUse) -> Option<BTreeMap<GpuUuid, Self>> {
        let uses = allocated.uses()?.iter();
        let each = uses.map(|(gpu, used)| (gpu.clone(), (*used).into()));
        Some(each.collect())
    }

    pub fn total(device: &DeviceState) -> Self {
        Self {
            replicas: device.replicas,
            memory: device.scaled,
            cores: device.cores,
        }
    }

    /// What is not allocated; nothing for a device that takes no new share.
    pub fn left(device: &DeviceState) -> Self {
        if device.closed.is_some() {
            return Self::default();
        }
        let used = &device.allocated.used;
        Self {
            replicas: device.replicas.saturating_sub(used.replicas),
            memory: device.free_memory(),
            cores: Percent(device.cores.0.saturating_sub(used.cores.0)),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            replicas: self.replicas + other.replicas,
            memory: self.memory + other.memory,
            cores: self.cores + other.cores,
        }
    }
}

/// The most memory that one more share with this much compute could have on the device;
/// `None` if not even the smallest fits.
pub fn largest(device: &DeviceState, cores: Percent) -> Option<Mib> {
    let left = DeviceAmount::left(device).memory;
    let fits = |memory| device.refuse(&DeviceUse::new(memory, cores)).is_none();
    (left > Mib(0) && fits(left)).then_some(left)
}

/// The orphaned shares on a GPU: their processes outlived their pods. They count as used
/// once the pod has left the ledger.
pub fn orphaned(inventory: &Inventory, gpu: &GpuUuid) -> DeviceAmount {
    let all = inventory.orphaned.iter();
    let shares = all.filter(|left| left.parent_gpu() == gpu.as_str());
    shares.fold(DeviceAmount::default(), |sum, left| {
        sum.plus(left.used().into())
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopAnswer {
    /// The compute of a container that asks for none.
    pub default_cores: Percent,
    /// This scheduler replica may bind.
    pub leads: bool,
    /// Every node with an inventory, by name.
    pub nodes: Vec<NodeTop>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTop {
    pub node: NodeName,
    /// Why it takes no pod at all.
    pub closed: Option<String>,
    /// The pods whose allocation cannot be read, as `namespace/name`; each of them closes
    /// the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// The GPUs with processes whose memory the driver does not report: nothing is charged for
    /// it there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<GpuUuid>,
    /// What processes outside every share hold of its GPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unmanaged: BTreeMap<GpuUuid, Mib>,
    /// Its devices, by index.
    pub gpus: Vec<GpuTop>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTop {
    pub gpu: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// NVML's product name.
    pub model: String,
    #[serde(default = "vgpu")]
    pub mode: Mode,
    /// The resource of its replicas; empty for a GPU under dynamic MIG.
    #[serde(default)]
    pub resource: String,
    /// The instances of a GPU under dynamic MIG; for a fixed instance, itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceTop>,
    /// Why it takes no new share.
    pub closed: Option<String>,
    pub pods: u32,
    pub total: DeviceAmount,
    /// What is allocated, including orphaned shares.
    pub used: DeviceAmount,
    pub left: DeviceAmount,
    /// The part of `used` that belongs to orphaned shares.
    pub orphaned: DeviceAmount,
    /// The most memory that a share with `gpucores: 0` could have now; under dynamic MIG,
    /// that of the largest instance.
    pub largest: Option<Mib>,
    /// The same for a share with the default compute.
    pub largest_with_default_cores: Option<Mib>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceTop {
    /// Its first memory slice.
    pub start: u8,
    /// The driver's name of its profile.
    pub profile: String,
    /// Allocated to a pod; otherwise idle.
    pub allocated: bool,
    /// Its UUID, once it is created.
    pub uuid: Option<GpuUuid>,
}

fn vgpu() -> Mode {
    Mode::Vgpu
}

fn instances(node: &NodeState, place: usize, gpu: &Gpu) -> Vec<InstanceTop> {
    if let Some(part) = gpu.mig.as_ref().and_then(Mig::fixed) {
        return vec![InstanceTop {
            start: part.start,
            profile: part.profile.clone(),
            allocated: node.devices[place].allocated.pods > 0,
            uuid: Some(gpu.uuid.clone()),
        }];
    }
    let Some((mig_state, found)) = node.dynamic(place) else {
        return Vec::new();
    };
    let line = |one: &Instance| {
        let profile = &found.geometry.profiles()[one.profile].name;
        let made = found.instances.iter();
        let mut same = made.filter(|m| (&m.profile, m.start) == (profile, one.start));
        InstanceTop {
            start: one.start,
            profile: profile.clone(),
            allocated: one.busy,
            uuid: same.next().map(|made| made.uuid.clone()),
        }
    };
    let mut lines: Vec<InstanceTop> = mig_state.instances.iter().map(line).collect();
    lines.sort();
    lines
}

impl NodeTop {
    /// A node with an inventory; `cores` is the default compute.
    pub fn new(name: &NodeName, node: &NodeState, cores: Percent) -> Option<Self> {
        let inventory = node.inventory.as_ref()?;
        let devices = inventory.gpus.iter().zip(&node.devices);
        let line = |(place, (gpu, device)): (usize, (&Gpu, &DeviceState))| {
            let device = &DeviceState {
                closed: node.closed.or(device.closed),
                ..*device
            };
            let most = |cores| match node.dynamic(place) {
                None => largest(device, cores),
                Some(_) if device.closed.is_some() => None,
                Some((mig_state, found)) => dynamic::largest_instance(mig_state, &found.geometry),
            };
            let allocated = node.counted_once(place);
            GpuTop {
                gpu: gpu.uuid.clone(),
                index: gpu.index,
                model: gpu.model.clone(),
                mode: gpu.mode,
                resource: match gpu.mode {
                    Mode::Mig => String::new(),
                    _ => gpu.resource.clone(),
                },
                instances: instances(node, place, gpu),
                closed: device.closed.map(|reason| reason.name().to_owned()),
                pods: allocated.pods,
                total: DeviceAmount::total(device),
                used: allocated.used.into(),
                left: DeviceAmount::left(device),
                orphaned: orphaned(inventory, &gpu.uuid),
                largest: most(Percent(0)),
                largest_with_default_cores: most(cores),
            }
        };
        Some(Self {
            node: name.clone(),
            closed: node.closed.map(|reason| reason.name().to_owned()),
            unreadable: Vec::new(),
            unmeasured: inventory.unmeasured.clone(),
            unmanaged: inventory.unmanaged.clone(),
            gpus: devices.enumerate().map(line).collect(),
        })
    }
}
