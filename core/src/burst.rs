//! What a share may use beyond its request while nobody else uses it: the request is allocated,
//! quotas and packing count it alone, and the limit is what the container sees.

use serde::{Deserialize, Serialize};

use crate::units::{Mib, Percent};

/// The pod annotation with the limit of each share's memory, in MiB.
pub const MEMORY_LIMIT: &str = "aliquot.dev/gpumem-limit";
/// The pod annotation with the limit of each share's compute, in percent of the device.
pub const CORES_LIMIT: &str = "aliquot.dev/gpucores-limit";
/// The pod annotation that says `yield`: the pod is asked to free lent memory before it is ended.
pub const BURST: &str = "aliquot.dev/burst";

/// Limits above the request of each share of a pod; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Burst {
    /// The limit of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Mib>,
    /// The limit of compute; without one, all idle compute may be lent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<Percent>,
    /// The containers free lent memory when they are asked to.
    #[serde(rename = "yield", default, skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
}
