//! A preemption plan as recorded on the preemptor: the annotation `aliquot.dev/preemption`.
//!
//! It is written before the first eviction, so that the next leader continues this plan and
//! makes no other. A pod whose record is unreadable gets no new plan.

use serde::{Deserialize, Serialize};

use crate::allocation::{self, CodecError};
use crate::id::{NodeName, PodUid};
use crate::usage::DeviceUses;

/// The pod annotation that carries a [`PreemptionRecord`].
pub const PREEMPTION: &str = "aliquot.dev/preemption";
/// The version that this release writes.
pub const VERSION: u32 = 1;
/// Seconds from a plan that was given up to the pod's next one: they double, up to the second.
const PAUSE: (u64, u64) = (60, 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanState {
    /// Its victims are being evicted or have ended, and its share is reserved.
    Open,
    /// The pod was not bound in time. It gets another plan after a pause.
    GivenUp,
}

/// A pod that is evicted for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    pub uid: PodUid,
    /// Its namespace and name, for whoever reads the annotation: empty where that is another one than
    /// the preemptor's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreemptionRecord {
    pub v: u32,
    pub state: PlanState,
    /// The node on which the pod will fit.
    pub node: NodeName,
    pub victims: Vec<Victim>,
    /// What is reserved for the pod of each device.
    pub reserved: DeviceUses,
    /// When the plan is given up, in seconds since 1970; once it is, when the pod may get another.
    pub until: u64,
    /// How many plans the pod has had with this one.
    #[serde(
        default = "allocation::one",
        skip_serializing_if = "allocation::is_one"
    )]
    pub attempt: u32,
}

impl PreemptionRecord {
    /// This plan, given up at a time in seconds since 1970. A pod that cannot run for another reason
    /// must not evict one set of pods after another, so the pauses grow.
    #[must_use]
    pub fn given_up(&self, now: u64) -> Self {
        let doublings = self.attempt.saturating_sub(1).min(6);
        Self {
            state: PlanState::GivenUp,
            until: now.saturating_add((PAUSE.0 << doublings).min(PAUSE.1)),
            ..self.clone()
        }
    }

    /// The annotation's text. Equal plans give equal texts.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text, ignoring unknown fields.
    pub fn decode(text: &str) -> Result<Self, CodecError> {
        allocation::decode(text, VERSION, |record: &Self| record.v)
    }
}
