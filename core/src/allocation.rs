//! Who was given what: the content of the pod annotation `aliquot.dev/allocation`.
//!
//! Fed by: the scheduler, which writes it in the Binding and nowhere else.
//! Must not: be taken for free capacity when it cannot be read (fail closed;
//! see [`crate::ledger`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::{GpuUuid, NodeName};
use crate::mig::published::Placed;
use crate::units::{Mib, Percent};

/// The pod annotation that carries an [`Allocation`].
pub const ALLOCATION: &str = "aliquot.dev/allocation";
/// The version that this release writes.
pub const VERSION: u32 = 1;

/// Why an annotation's text cannot be written or read.
#[derive(Debug, Error)]
pub enum CodecError {
    /// Not representable as JSON.
    #[error("cannot encode the annotation")]
    Encode {
        /// What serde found.
        source: serde_json::Error,
    },
    /// Not the JSON that this release expects.
    #[error("cannot read the annotation: {source}")]
    Decode {
        /// What serde found.
        source: serde_json::Error,
    },
    /// A version that this release does not read.
    #[error("the annotation has version {found}, this release reads {read}")]
    Version {
        /// The version in the text.
        found: u32,
        /// The version that can be read.
        read: u32,
    },
    /// An inventory that names one card twice: its shares could be counted on
    /// one place and given away on the other.
    #[error("the annotation names card {uuid} twice")]
    CardTwice {
        /// The card.
        uuid: GpuUuid,
    },
}

/// A share of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The resource it was asked under.
    pub resource: String,
    /// The card, or the instance that is there for good.
    pub gpu: GpuUuid,
    /// Memory on it; percentages are resolved. Nothing where shares take turns.
    pub memory: Mib,
    /// Compute on it; 100 means alone.
    pub cores: Percent,
    /// Seats of it, which it has together.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub seats: u32,
    /// Which instance of it, on a card that is cut as pods come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Placed>,
}

impl Grant {
    /// The unit that the books know it under: the card, the instance that is there
    /// for good, or the one that is made for it.
    pub fn unit(&self) -> GpuUuid {
        match &self.mig {
            Some(placed) => placed.unit(&self.gpu),
            None => self.gpu.clone(),
        }
    }
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(seats: &u32) -> bool {
    *seats == 1
}

/// Everything that a pod was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Version of this text.
    pub v: u32,
    /// The node the shares are on.
    pub node: NodeName,
    /// App containers by name.
    pub containers: BTreeMap<String, Vec<Grant>>,
    /// Init containers and sidecars by name.
    #[serde(default)]
    pub init: BTreeMap<String, Vec<Grant>>,
    /// 0 high, 1 low.
    pub priority: u8,
}

impl Allocation {
    /// The annotation's text. Equal allocations give equal texts.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text. Unknown fields are passed over.
    pub fn decode(text: &str) -> Result<Self, CodecError> {
        let allocation: Self =
            serde_json::from_str(text).map_err(|source| CodecError::Decode { source })?;
        if allocation.v != VERSION {
            return Err(CodecError::Version {
                found: allocation.v,
                read: VERSION,
            });
        }
        Ok(allocation)
    }

    /// The grants of a container, whichever kind it is.
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
