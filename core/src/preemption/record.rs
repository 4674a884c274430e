//! A plan as it is written on the preemptor: the annotation `aliquot.dev/preemption`.
//!
//! Written before the first eviction, so that whoever leads next continues this
//! plan and makes no other. Fed by: the scheduler, which alone writes it.
//! Must not: be planned again where it cannot be read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocation::CodecError;
use crate::id::{GpuUuid, NodeName, PodUid};
use crate::usage::Use;

/// The pod annotation that carries a [`Record`].
pub const PREEMPTION: &str = "aliquot.dev/preemption";
/// The version that this release writes.
pub const VERSION: u32 = 1;

/// Whether a plan goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Its victims end, or have ended, and its share is held.
    Open,
    /// The pod was not bound in time. It gets no second plan.
    GivenUp,
}

/// A pod that ends for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// The pod.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this text.
    pub v: u32,
    /// Whether it goes on.
    pub state: State,
    /// Where the pod will fit.
    pub node: NodeName,
    /// Who ends for it.
    pub victims: Vec<Victim>,
    /// What is held for it of which card.
    pub hold: BTreeMap<GpuUuid, Use>,
    /// When it is given up, in seconds since 1970.
    pub until: u64,
}

impl Record {
    /// The annotation's text. Equal plans give equal texts.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text. Unknown fields are passed over.
    pub fn decode(text: &str) -> Result<Self, CodecError> {
        let record: Self =
            serde_json::from_str(text).map_err(|source| CodecError::Decode { source })?;
        if record.v != VERSION {
            return Err(CodecError::Version {
                found: record.v,
                read: VERSION,
            });
        }
        Ok(record)
    }
}
