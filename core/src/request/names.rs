//! The five resources of a container, their ranges, and the cluster's names for them.

use super::{MAX_GPU_MIB, MAX_GPUS};
use crate::mig;

/// The five resources of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Number of vGPUs, each on a GPU of its own.
    Gpu,
    /// MiB on each of them.
    Memory,
    /// The same in percent of the device.
    MemoryPercentage,
    /// Percent of each device's compute.
    Cores,
    /// 0 is high, 1 is low.
    Priority,
}

impl Resource {
    /// All five, in display order.
    pub const ALL: [Self; 5] = [
        Self::Gpu,
        Self::Memory,
        Self::MemoryPercentage,
        Self::Cores,
        Self::Priority,
    ];

    pub(super) fn index(self) -> usize {
        match self {
            Self::Gpu => 0,
            Self::Memory => 1,
            Self::MemoryPercentage => 2,
            Self::Cores => 3,
            Self::Priority => 4,
        }
    }

    pub(super) fn range(self) -> (u64, u64) {
        match self {
            Self::Gpu => (0, MAX_GPUS),
            Self::Memory => (1, MAX_GPU_MIB),
            Self::MemoryPercentage => (1, 100),
            Self::Cores => (0, 100),
            Self::Priority => (0, 1),
        }
    }

    /// The expected form, for error messages.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Gpu => "a whole number of GPUs, 0 to 64",
            Self::Memory => "a whole number of MiB, 1 to 1048576",
            Self::MemoryPercentage => "a whole percentage of the GPU's memory, 1 to 100",
            Self::Cores => "a whole percentage of the GPU's compute, 0 to 100",
            Self::Priority => "0 (high) or 1 (low)",
        }
    }
}

/// The cluster's names of the five resources. All are configurable, as in HAMi.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNames([String; 5]);

impl Default for ResourceNames {
    fn default() -> Self {
        Self(
            [
                "nvidia.com/gpu",
                "nvidia.com/gpumem",
                "nvidia.com/gpumem-percentage",
                "nvidia.com/gpucores",
                "nvidia.com/priority",
            ]
            .map(str::to_owned),
        )
    }
}

impl ResourceNames {
    /// The default names with those in `changed` replaced.
    pub fn with(changed: impl IntoIterator<Item = (Resource, String)>) -> Self {
        let mut names = Self::default();
        for (resource, name) in changed {
            names.0[resource.index()] = name;
        }
        names
    }

    /// The cluster's name for `resource`.
    pub fn of(&self, resource: Resource) -> &str {
        &self.0[resource.index()]
    }
}

/// Whether this is another GPU resource than the main one: of MIG instances, or one of the
/// `extra` resources that renamed GPUs are advertised under.
pub fn is_other(name: &str, extra: &[String]) -> bool {
    name.starts_with(mig::RESOURCES) || extra.iter().any(|extra| extra == name)
}
