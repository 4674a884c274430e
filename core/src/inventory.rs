//! What a node has: the content of the node annotation `aliquot.dev/inventory`.
//!
//! Fed by: the node's agent, which alone writes it.
//! Must not: fail on fields of a newer release; a version it does not read is an error, and so is
//! a card that is named twice.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::allocation::CodecError;
use crate::id::{GpuUuid, Namespace, PodUid};
use crate::mig::published::{Mig, Placed};
use crate::units::{Mib, Percent};
use crate::usage::Use;

/// The node annotation that carries an [`Inventory`].
pub const INVENTORY: &str = "aliquot.dev/inventory";
/// The version that this release writes.
pub const VERSION: u32 = 1;

/// How a card is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Shares held by libvgpu.so.
    Vgpu,
    /// One pod at a time.
    Exclusive,
    /// Shares in turns, without limits.
    Timeslice,
    /// Shares through NVIDIA's MPS.
    Mps,
    /// Cut into instances.
    Mig,
    /// A mode that this release does not know.
    #[serde(other)]
    Unknown,
}

impl Mode {
    /// The word of the wire, as metrics say it too.
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

/// Whether new shares may be placed on a card. On the wire `ok`, or the reason
/// why not (such as `lost` or `xid 79`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Health {
    /// Usable.
    Ok,
    /// Not usable, and why.
    Sick(String),
}

impl From<String> for Health {
    fn from(text: String) -> Self {
        if text == "ok" {
            Self::Ok
        } else {
            Self::Sick(text)
        }
    }
}

impl From<Health> for String {
    fn from(health: Health) -> Self {
        match health {
            Health::Ok => "ok".to_owned(),
            Health::Sick(reason) => reason,
        }
    }
}

/// One unit: a card, or an instance of a card that is cut for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its uuid, as NVML prints it: `GPU-…` or `MIG-…`.
    pub uuid: GpuUuid,
    /// NVML's index; an instance has its card's.
    pub index: u32,
    /// NVML's product name.
    pub model: String,
    /// Physical memory.
    pub memory: Mib,
    /// Memory that may be promised: `memory * deviceMemoryScaling`.
    pub scaled: Mib,
    /// Compute that may be promised: 100.
    pub cores: Percent,
    /// Shares that it can carry at once, such as `deviceSplitCount`; none of a card
    /// that is cut as pods come.
    pub seats: u32,
    /// How it is shared.
    pub mode: Mode,
    /// The resource that its seats are advertised under.
    pub resource: String,
    /// NUMA node, where the driver knows one.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Whether new shares may be placed.
    pub health: Health,
    /// Link score to each other card of the node; higher is closer.
    #[serde(default)]
    pub links: BTreeMap<GpuUuid, u32>,
    /// What MIG makes of it.
    #[serde(default)]
    pub mig: Option<Mig>,
    /// Why it takes nothing new although it is healthy, such as a change of its mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<String>,
    /// What a container gets of a seat that wrote neither memory nor compute (mps).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub even: Option<Even>,
    /// Each container may have one seat only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub strict: bool,
    /// Only pods of these namespaces may have shares of it; where none is named, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Namespace>,
}

/// A part of a card. Nothing of one of the two: of that there is no limit and
/// nothing is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Even {
    /// Memory.
    pub memory: Mib,
    /// Compute.
    pub cores: Percent,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What the kubelet's Topology Manager aligns together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// All containers of a pod.
    Pod,
    /// Each container by itself; so it is, too, where a later release says another word.
    #[default]
    #[serde(other)]
    Container,
}

impl Scope {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_container(&self) -> bool {
        *self == Self::Container
    }
}

/// A share whose pod object is gone while its processes still run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lingering {
    /// The pod it was given to.
    pub pod: PodUid,
    /// The unit, by the name of [`crate::Grant::unit`].
    pub gpu: GpuUuid,
    /// Memory still held.
    pub memory: Mib,
    /// Compute still held.
    pub cores: Percent,
    /// Seats still held.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub seats: u32,
}

impl Lingering {
    /// What it takes of its card.
    pub fn used(&self) -> Use {
        Use {
            seats: self.seats,
            ..Use::of(self.memory, self.cores)
        }
    }
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// A card that another plugin's pod holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The card: booked whole.
    pub gpu: GpuUuid,
    /// Who holds it, `namespace/name`.
    pub pod: String,
}

/// A pod that the node's agent refused to start, or wants ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The pod.
    pub pod: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What the user was told.
    pub reason: String,
}

/// All that a node publishes, sorted by card index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Version of this text.
    pub v: u32,
    /// Versions of the allocation annotation that the agent reads.
    pub reads: Vec<u32>,
    /// Driver version.
    #[serde(default)]
    pub driver: String,
    /// The kubelet's Topology Manager policy.
    #[serde(rename = "topologyPolicy", default)]
    pub topology_policy: String,
    /// What its Topology Manager aligns together.
    #[serde(
        rename = "topologyScope",
        default,
        skip_serializing_if = "Scope::is_container"
    )]
    pub topology_scope: Scope,
    /// The cards.
    pub gpus: Vec<Gpu>,
    /// Shares that outlived their pods.
    #[serde(default)]
    pub lingering: Vec<Lingering>,
    /// Cards held by others.
    #[serde(default)]
    pub foreign: Vec<Foreign>,
    /// Pods refused by the agent.
    #[serde(default)]
    pub refused: Vec<Refused>,
    /// Running pods that must leave their sick card, by the policy of the node's owner.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evict: Vec<Refused>,
}

impl Lingering {
    /// The card: of an instance that was made for the pod, the one it is on.
    pub fn card(&self) -> &str {
        Placed::of(&self.gpu).map_or(self.gpu.as_str(), |(card, _)| card)
    }
}

impl Inventory {
    /// The annotation's text. The order of everything is fixed: equal
    /// inventories give equal texts.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text. Unknown fields are passed over.
    pub fn decode(text: &str) -> Result<Self, CodecError> {
        let inventory: Self =
            serde_json::from_str(text).map_err(|source| CodecError::Decode { source })?;
        if inventory.v != VERSION {
            return Err(CodecError::Version {
                found: inventory.v,
                read: VERSION,
            });
        }
        inventory.with_each_card_once()
    }

    /// The same, unless it names a card twice.
    pub(crate) fn with_each_card_once(self) -> Result<Self, CodecError> {
        let mut seen = BTreeSet::new();
        if let Some(again) = self.gpus.iter().find(|gpu| !seen.insert(&gpu.uuid)) {
            let uuid = again.uuid.clone();
            return Err(CodecError::CardTwice { uuid });
        }
        Ok(self)
    }

    /// The card of this uuid.
    pub fn gpu(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == *uuid)
    }
}
