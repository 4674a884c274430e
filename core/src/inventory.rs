//! A node's devices: the content of the node annotation `aliquot.dev/inventory`, which only
//! the node agent writes.
//!
//! Fields of a newer release are ignored; an unknown version or a duplicate device is an
//! error.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::allocation::{self, CodecError};
use crate::id::{GpuUuid, Namespace, PodUid};
use crate::mig::published::{Mig, MigPlacement};
use crate::units::{Mib, Percent};
use crate::usage::DeviceUse;

/// The node annotation that carries an [`Inventory`].
pub const INVENTORY: &str = "aliquot.dev/inventory";
/// The version that this release writes.
pub const VERSION: u32 = 1;

/// A device's sharing mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Shares limited by libvgpu.so.
    Vgpu,
    /// One pod at a time.
    Exclusive,
    /// Time-sliced, without limits.
    Timeslice,
    /// Shares through NVIDIA's MPS.
    Mps,
    /// Partitioned into MIG instances.
    Mig,
    /// A mode that this release does not know.
    #[serde(other)]
    Unknown,
}

impl Mode {
    /// The name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vgpu => "vgpu",
            Self::Exclusive => "exclusive",
            Self::Timeslice => "timeslice",
            Self::Mps => "mps",
            Self::Mig => "mig",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether new shares may be placed on a device. In JSON `ok`, or the reason why not (such
/// as `lost` or `xid 79`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Health {
    Ok,
    Unhealthy(String),
}

impl From<String> for Health {
    fn from(text: String) -> Self {
        if text == "ok" {
            Self::Ok
        } else {
            Self::Unhealthy(text)
        }
    }
}

impl From<Health> for String {
    fn from(health: Health) -> Self {
        match health {
            Health::Ok => "ok".to_owned(),
            Health::Unhealthy(reason) => reason,
        }
    }
}

/// An allocatable device: a GPU, or a fixed MIG instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its UUID, as NVML prints it: `GPU-…` or `MIG-…`.
    pub uuid: GpuUuid,
    /// NVML's index; for an instance, that of its GPU.
    pub index: u32,
    /// NVML's product name.
    pub model: String,
    /// Memory that programs can allocate, in MiB: the device's memory without what the driver
    /// reserves.
    pub memory: Mib,
    /// Memory that may be allocated: `memory * deviceMemoryScaling`.
    pub scaled: Mib,
    /// Compute that may be allocated, in percent: 100.
    pub cores: Percent,
    /// Replicas that the device plugin advertises for it (`deviceSplitCount`); 0 for a GPU
    /// under dynamic MIG.
    pub replicas: u32,
    pub mode: Mode,
    /// The resource under which its replicas are advertised.
    pub resource: String,
    /// NUMA node, if the driver knows it.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Whether new shares may be placed.
    pub health: Health,
    /// Link score to each other GPU of the node; higher is closer.
    #[serde(default)]
    pub links: BTreeMap<GpuUuid, u32>,
    #[serde(default)]
    pub mig: Option<Mig>,
    /// Why it takes no new shares although it is healthy, such as a change of its sharing
    /// mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<String>,
    /// What one replica gives a container that wrote neither memory nor compute (mps).
    #[serde(rename = "even", default, skip_serializing_if = "Option::is_none")]
    pub even_share: Option<EvenShare>,
    /// Each container may have only one replica.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Only pods of these namespaces may have shares of it; every namespace if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Namespace>,
}

impl Gpu {
    /// A healthy device in mode vgpu under `nvidia.com/gpu`, with one replica and no more memory than
    /// it has.
    pub fn vgpu(uuid: GpuUuid, index: u32, model: String, memory: Mib) -> Self {
        Self {
            uuid,
            index,
            model,
            memory,
            scaled: memory,
            cores: Percent::WHOLE,
            replicas: 1,
            mode: Mode::Vgpu,
            resource: "nvidia.com/gpu".to_owned(),
            numa: None,
            health: Health::Ok,
            links: BTreeMap::new(),
            mig: None,
            cordon: None,
            even_share: None,
            strict: false,
            reserved: Vec::new(),
        }
    }
}

/// An equal part of a device. 0 for one of the two means no limit and no accounting of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EvenShare {
    pub memory: Mib,
    pub cores: Percent,
}

/// What the kubelet's Topology Manager aligns together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyScope {
    /// All containers of a pod.
    Pod,
    /// Each container by itself; also assumed for values of a later release.
    #[default]
    #[serde(other)]
    Container,
}

impl TopologyScope {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_container(&self) -> bool {
        *self == Self::Container
    }
}

/// A share whose pod object is gone while its processes still run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanedShare {
    pub pod: PodUid,
    /// The device key ([`crate::Grant::device_key`]).
    pub gpu: GpuUuid,
    /// Memory still allocated.
    pub memory: Mib,
    /// Compute still allocated.
    pub cores: Percent,
    /// Replicas still allocated.
    #[serde(
        default = "allocation::one",
        skip_serializing_if = "allocation::is_one"
    )]
    pub replicas: u32,
}

impl OrphanedShare {
    pub fn used(&self) -> DeviceUse {
        DeviceUse {
            replicas: self.replicas,
            ..DeviceUse::new(self.memory, self.cores)
        }
    }
}

/// A GPU that a pod of another device plugin uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignAllocation {
    /// The GPU, which counts as fully allocated.
    pub gpu: GpuUuid,
    /// The pod, as `namespace/name`.
    pub pod: String,
}

/// A pod that the node agent refused to start, or that it wants evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedPod {
    pub pod: PodUid,
    pub namespace: String,
    pub name: String,
    /// The reason shown to the user.
    pub reason: String,
}

/// How far the node is with a resize ([`crate::resize`]): it enforces the new share, unless it says
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeReport {
    pub pod: PodUid,
    /// The number of what it was asked to enforce.
    pub generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// Why it will not enforce it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Everything that a node publishes, sorted by GPU index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub v: u32,
    /// Versions of the allocation annotation that the node agent reads.
    pub reads: Vec<u32>,
    #[serde(default)]
    pub driver: String,
    /// The kubelet's Topology Manager policy.
    #[serde(rename = "topologyPolicy", default)]
    pub topology_policy: String,
    /// What its Topology Manager aligns together.
    #[serde(
        rename = "topologyScope",
        default,
        skip_serializing_if = "TopologyScope::is_container"
    )]
    pub topology_scope: TopologyScope,
    pub gpus: Vec<Gpu>,
    /// Shares whose pods are gone.
    #[serde(default)]
    pub orphaned: Vec<OrphanedShare>,
    /// GPUs in use by other device plugins.
    #[serde(default)]
    pub foreign: Vec<ForeignAllocation>,
    /// Pods that the node agent refused.
    #[serde(default)]
    pub refused: Vec<RefusedPod>,
    /// Running pods to evict from an unhealthy device, as the node's administrator
    /// configured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evict: Vec<RefusedPod>,
    /// GPUs with processes whose memory the driver does not report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmeasured: Vec<GpuUuid>,
    /// Memory that processes outside every share hold, by GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unmanaged: BTreeMap<GpuUuid, Mib>,
    /// Pods that have device ids at the kubelet and whose allocation cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<PodUid>,
    /// The resizes of its pods that are under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resizes: Vec<ResizeReport>,
}

impl OrphanedShare {
    /// The UUID of the GPU that the share is on.
    pub fn parent_gpu(&self) -> &str {
        MigPlacement::split_device_key(&self.gpu).0
    }
}

impl Inventory {
    /// These devices alone, in the version that this release writes.
    pub fn new(gpus: Vec<Gpu>) -> Self {
        Self {
            v: VERSION,
            reads: vec![allocation::VERSION],
            driver: String::new(),
            topology_policy: String::new(),
            topology_scope: TopologyScope::default(),
            gpus,
            orphaned: Vec::new(),
            foreign: Vec::new(),
            refused: Vec::new(),
            evict: Vec::new(),
            unmeasured: Vec::new(),
            unmanaged: BTreeMap::new(),
            unreadable: Vec::new(),
            resizes: Vec::new(),
        }
    }

    /// The annotation's text. The order is fixed: equal inventories give equal texts.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text, ignoring unknown fields.
    pub fn decode(text: &str) -> Result<Self, CodecError> {
        let inventory = allocation::decode(text, VERSION, |inventory: &Self| inventory.v)?;
        Ok(inventory.reject_duplicates()?.with_shared_uuids())
    }

    /// The inventory with one copy of each GPU's UUID, which all links name.
    fn with_shared_uuids(mut self) -> Self {
        let uuids: BTreeSet<GpuUuid> = self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        for gpu in &mut self.gpus {
            let links = std::mem::take(&mut gpu.links).into_iter();
            let shared = |uuid: GpuUuid| uuids.get(&uuid).cloned().unwrap_or(uuid);
            gpu.links = links.map(|(uuid, score)| (shared(uuid), score)).collect();
        }
        self
    }

    /// The inventory, or an error if it names a device twice.
    fn reject_duplicates(self) -> Result<Self, CodecError> {
        let mut seen = BTreeSet::new();
        if let Some(again) = self.gpus.iter().find(|gpu| !seen.insert(&gpu.uuid)) {
            let uuid = again.uuid.clone();
            return Err(CodecError::DuplicateDevice { uuid });
        }
        Ok(self)
    }

    pub fn gpu(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == *uuid)
    }
}
