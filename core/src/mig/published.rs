//! MIG in a node's inventory. Which pod has an instance is known from the pods' allocations
//! alone.

use serde::{Deserialize, Serialize};

use super::Geometry;
use crate::id::{GpuUuid, Namespace};

/// A device's part in MIG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Mig {
    /// A fixed MIG instance; its GPU itself is not allocatable.
    Fixed(FixedInstance),
    /// A GPU whose instances are created when pods need them.
    Dynamic(DynamicMig),
    /// Unknown to this release: takes nothing.
    Unknown(serde_json::Value),
}

/// A MIG instance of a fixed layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedInstance {
    pub parent: GpuUuid,
    /// The driver's name of its profile.
    pub profile: String,
    /// Its first memory slice.
    pub start: u8,
    /// The driver's id of the GPU instance.
    pub gi: u32,
    /// The driver's id of the compute instance.
    pub ci: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicMig {
    /// Its profiles, only those that the administrator allows.
    #[serde(flatten)]
    pub geometry: Geometry,
    /// The instances that exist now, allocated or idle.
    #[serde(default)]
    pub instances: Vec<CreatedInstance>,
    /// Placements reserved for pods of some namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<ReservedPlacement>,
}

/// A placement that is reserved for pods of some namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedPlacement {
    #[serde(flatten)]
    pub placement: MigPlacement,
    pub namespaces: Vec<Namespace>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedInstance {
    /// The driver's name of its profile.
    pub profile: String,
    /// Its first memory slice.
    pub start: u8,
    /// Its own UUID: `MIG-…`.
    pub uuid: GpuUuid,
    /// The driver's id of the GPU instance.
    pub gi: u32,
    /// The driver's id of the compute instance.
    pub ci: u32,
}

/// The placement of an instance on a GPU under dynamic MIG.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigPlacement {
    /// The driver's name of the profile.
    pub profile: String,
    /// Its first memory slice.
    pub start: u8,
}

impl Mig {
    pub fn dynamic(&self) -> Option<&DynamicMig> {
        match self {
            Self::Dynamic(dynamic) => Some(dynamic),
            Self::Fixed(_) | Self::Unknown(_) => None,
        }
    }

    pub fn fixed(&self) -> Option<&FixedInstance> {
        match self {
            Self::Fixed(part) => Some(part),
            Self::Dynamic(_) | Self::Unknown(_) => None,
        }
    }
}

impl MigPlacement {
    /// The ledger's key of this instance on this GPU, such as `GPU-…/1g.5gb@6`: it has no
    /// UUID before it is created.
    pub fn device_key(&self, gpu: &GpuUuid) -> GpuUuid {
        format!("{gpu}/{}@{}", self.profile, self.start).into()
    }

    pub fn parse_device_key(key: &GpuUuid) -> Option<(&str, Self)> {
        let (gpu, placed) = key.as_str().split_once('/')?;
        let (profile, start) = placed.rsplit_once('@')?;
        let placed = Self {
            profile: profile.to_owned(),
            start: start.parse().ok()?,
        };
        Some((gpu, placed))
    }

    /// The UUID of a key's GPU, and the instance on it; the whole key for another device.
    pub fn split_device_key(key: &GpuUuid) -> (&str, Option<Self>) {
        let instance = Self::parse_device_key(key);
        instance.map_or((key.as_str(), None), |(gpu, placed)| (gpu, Some(placed)))
    }
}
