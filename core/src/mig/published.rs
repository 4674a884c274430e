//! What a node's inventory says of a unit that MIG makes.
//!
//! Fed by: the node's agent. Must not: say who holds an instance; that is known
//! from the pods' allocations alone.

use serde::{Deserialize, Serialize};

use super::Geometry;
use crate::id::{GpuUuid, Namespace};

/// What MIG makes of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Mig {
    /// It is an instance of a card that is cut for good; the card itself is no unit.
    Part(Part),
    /// It is a card whose instances are made when pods need them.
    Dynamic(Cut),
    /// Something that this release does not know: it takes nothing.
    Unknown(serde_json::Value),
}

/// An instance that is there for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The card.
    pub parent: GpuUuid,
    /// As the driver names it.
    pub profile: String,
    /// Its first memory slice.
    pub start: u8,
    /// The driver's id of the GPU instance.
    pub gi: u32,
    /// The driver's id of the compute instance.
    pub ci: u32,
}

/// A card that is cut as pods come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// What it can be cut into: only the profiles that its owner allows.
    #[serde(flatten)]
    pub geometry: Geometry,
    /// The instances that exist now, held or idle.
    #[serde(default)]
    pub instances: Vec<Made>,
    /// Places that are kept for pods of some namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved: Vec<Reserved>,
}

/// A place on a card that is kept for pods of some namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The instance that they may have there.
    #[serde(flatten)]
    pub place: Placed,
    /// Whose pods.
    pub namespaces: Vec<Namespace>,
}

/// An instance that was made for a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// As the driver names it.
    pub profile: String,
    /// Its first memory slice.
    pub start: u8,
    /// Its own uuid: `MIG-…`.
    pub uuid: GpuUuid,
    /// The driver's id of the GPU instance.
    pub gi: u32,
    /// The driver's id of the compute instance.
    pub ci: u32,
}

/// The instance of a dynamic card that a container was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placed {
    /// As the driver names it.
    pub profile: String,
    /// Its first memory slice.
    pub start: u8,
}

impl Mig {
    /// The card that is cut as pods come.
    pub fn dynamic(&self) -> Option<&Cut> {
        match self {
            Self::Dynamic(cut) => Some(cut),
            Self::Part(_) | Self::Unknown(_) => None,
        }
    }

    /// The instance that is there for good.
    pub fn part(&self) -> Option<&Part> {
        match self {
            Self::Part(part) => Some(part),
            Self::Dynamic(_) | Self::Unknown(_) => None,
        }
    }
}

impl Placed {
    /// The name under which the books know this instance of this card, such as
    /// `GPU-…/1g.5gb@6`: it has no uuid before it is made.
    pub fn unit(&self, card: &GpuUuid) -> GpuUuid {
        format!("{card}/{}@{}", self.profile, self.start).into()
    }

    /// The card and the instance of such a name.
    pub fn of(unit: &GpuUuid) -> Option<(&str, Self)> {
        let (card, placed) = unit.as_str().split_once('/')?;
        let (profile, start) = placed.rsplit_once('@')?;
        let placed = Self {
            profile: profile.to_owned(),
            start: start.parse().ok()?,
        };
        Some((card, placed))
    }
}
