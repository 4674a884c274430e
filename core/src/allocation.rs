//! What a pod was allocated: the content of the pod annotation `aliquot.dev/allocation`.
//!
//! Only the scheduler writes it, with the Binding. An allocation that cannot be read takes
//! the whole node (fail closed; see [`crate::ledger`]).

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::burst::Burst;
use crate::excerpt::Excerpt;
use crate::id::{GpuUuid, NodeName};
use crate::mig::published::MigPlacement;
use crate::units::{Mib, Percent};

/// The pod annotation that carries an [`Allocation`].
pub const ALLOCATION: &str = "aliquot.dev/allocation";
/// The version that this release writes.
pub const VERSION: u32 = 1;
/// The API server's limit for all annotations of an object, keys and values, in bytes
/// (apimachinery `TotalAnnotationSizeLimitB`).
pub const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// Why an annotation cannot be written or read.
#[derive(Debug, Error)]
pub enum CodecError {
    #[error("cannot encode the annotation")]
    Encode { source: serde_json::Error },
    #[error("cannot read the annotation: {}", Excerpt::of(.source))]
    Decode { source: serde_json::Error },
    #[error("the annotation has version {found}, this release reads {read}")]
    Version { found: u32, read: u32 },
    /// An inventory names one device twice: its shares could be counted on one entry and
    /// allocated on the other.
    #[error("the annotation names device {uuid} twice")]
    DuplicateDevice { uuid: GpuUuid },
}

/// Reads an annotation's text of this version, ignoring unknown fields.
pub(crate) fn decode<T: DeserializeOwned>(
    text: &str,
    read: u32,
    version: impl Fn(&T) -> u32,
) -> Result<T, CodecError> {
    let value = serde_json::from_str(text).map_err(|source| CodecError::Decode { source })?;
    let found = version(&value);
    if found != read {
        return Err(CodecError::Version { found, read });
    }
    Ok(value)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The resource under which it was requested.
    pub resource: String,
    /// The GPU, or the fixed MIG instance.
    pub gpu: GpuUuid,
    /// Memory in MiB, with percentages resolved. 0 on a time-sliced GPU.
    pub memory: Mib,
    /// Compute in percent; 100 means exclusive use.
    pub cores: Percent,
    /// Replicas of the device that the share consists of.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub replicas: u32,
    /// The placement of the instance on a GPU under dynamic MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigPlacement>,
    /// What it may use beyond that while the device has it idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
}

impl Grant {
    /// The most memory that the container may use: its limit, at least its request.
    pub fn memory_limit(&self) -> Mib {
        let limit = self.burst.and_then(|burst| burst.memory);
        limit.map_or(self.memory, |limit| self.memory.max(limit))
    }

    /// The key under which the ledger tracks the device: the UUID of the GPU or of the
    /// fixed instance, or the GPU and placement of an instance that is created for the pod.
    pub fn device_key(&self) -> GpuUuid {
        match &self.mig {
            Some(placed) => placed.device_key(&self.gpu),
            None => self.gpu.clone(),
        }
    }
}

pub(crate) fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn is_one(number: &u32) -> bool {
    *number == 1
}

/// Everything that a pod was allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    pub v: u32,
    pub node: NodeName,
    /// App containers by name.
    pub containers: BTreeMap<String, Vec<Grant>>,
    /// Init containers and sidecars by name.
    #[serde(default)]
    pub init: BTreeMap<String, Vec<Grant>>,
    /// 0 is high, 1 is low.
    pub priority: u8,
}

impl Allocation {
    /// The annotation's text. Equal allocations give equal texts.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text, ignoring unknown fields.
    pub fn decode(text: &str) -> Result<Self, CodecError> {
        decode(text, VERSION, |allocation: &Self| allocation.v)
    }

    pub fn grants(&self, container: &str) -> Option<&[Grant]> {
        self.containers
            .get(container)
            .or_else(|| self.init.get(container))
            .map(Vec::as_slice)
    }

    /// Every container's grants by name.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[Grant])> {
        self.containers
            .iter()
            .chain(&self.init)
            .map(|(name, grants)| (name.as_str(), grants.as_slice()))
    }
}
