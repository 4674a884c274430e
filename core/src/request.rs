//! What one container asks for: the five resources, their ranges and defaults.
//!
//! Fed by: the webhook and the scheduler, with resource values as text.
//! Must not: know field paths or pods; who calls adds the place to the error.

use thiserror::Error;

use crate::quantity::{self, QuantityError};
use crate::units::{Mib, Percent};

/// More memory than any card has: 1 TiB, in MiB.
pub const MAX_CARD_MIB: u64 = 1 << 20;
/// More cards than any node has.
pub const MAX_CARDS: u64 = 64;

/// The five things a container can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Number of vGPUs, each on a card of its own.
    Gpu,
    /// MiB on each of them.
    Memory,
    /// The same in percent of the card.
    MemoryPercentage,
    /// Percent of each card's compute.
    Cores,
    /// 0 high, 1 low.
    Priority,
}

impl Resource {
    /// All five, in the order in which they are shown.
    pub const ALL: [Self; 5] = [
        Self::Gpu,
        Self::Memory,
        Self::MemoryPercentage,
        Self::Cores,
        Self::Priority,
    ];

    fn index(self) -> usize {
        match self {
            Self::Gpu => 0,
            Self::Memory => 1,
            Self::MemoryPercentage => 2,
            Self::Cores => 3,
            Self::Priority => 4,
        }
    }

    fn range(self) -> (u64, u64) {
        match self {
            Self::Gpu => (0, MAX_CARDS),
            Self::Memory => (1, MAX_CARD_MIB),
            Self::MemoryPercentage => (1, 100),
            Self::Cores => (0, 100),
            Self::Priority => (0, 1),
        }
    }

    /// The accepted form, for error texts.
    pub fn accepted(self) -> &'static str {
        match self {
            Self::Gpu => "a whole number of cards, 0 to 64",
            Self::Memory => "a whole number of MiB, 1 to 1048576",
            Self::MemoryPercentage => "a whole percentage of the card's memory, 1 to 100",
            Self::Cores => "a whole percentage of the card's compute, 0 to 100",
            Self::Priority => "0 (high) or 1 (low)",
        }
    }
}

/// What the cluster calls the five resources. All configurable, as in HAMi.
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

/// What a bare `nvidia.com/gpu: 1` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BareGpu {
    /// `defaultMem` and `defaultCores`, as in HAMi 2.4 and this project's table of values.
    #[default]
    Seed,
    /// A whole card, as with NVIDIA's plugin and newer HAMi.
    Whole,
}

/// What is filled in where a container says nothing. Helm: `scheduler.default*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Count for a container that asks for memory or cores only; 0 fills in nothing.
    pub count: u32,
    /// Memory for a container without any; 0 means all of the card.
    pub memory: Mib,
    /// Compute for a container without any.
    pub cores: Percent,
    /// Meaning of a count alone.
    pub bare_gpu: BareGpu,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            count: 1,
            memory: Mib(5000),
            cores: Percent(0),
            bare_gpu: BareGpu::Seed,
        }
    }
}

/// Memory on each card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// This many MiB.
    Mib(Mib),
    /// This part of the card that is chosen, of its scaled memory.
    Share(Percent),
}

/// A container's share, complete: on each of `count` different cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// Number of cards, at least 1.
    pub count: u32,
    /// Memory on each.
    pub memory: Memory,
    /// Compute on each; 100 means alone on the card.
    pub cores: Percent,
}

/// Why a container's resources cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Not a whole number.
    #[error("{source}; accepted: {}{}", .resource.accepted(), hint(*.resource, .source))]
    Quantity {
        /// Which resource.
        resource: Resource,
        /// What is wrong with the number.
        source: QuantityError,
    },
    /// A whole number outside the range.
    #[error("{value:?} is out of range; accepted: {}", .resource.accepted())]
    OutOfRange {
        /// Which resource.
        resource: Resource,
        /// The text as it came.
        value: String,
    },
    /// Both forms of memory at once.
    #[error("memory is asked for twice, in MiB and in percent; accepted: one of the two")]
    MemoryTwice,
    /// A count of 0 beside a memory or compute request.
    #[error(
        "\"0\" cards but memory or compute of them; accepted: 1 to 64 cards, or no other GPU resource"
    )]
    SharesOfNoCard,
}

impl RequestError {
    /// The resource that the error is about.
    pub fn resource(&self) -> Resource {
        match self {
            Self::Quantity { resource, .. } | Self::OutOfRange { resource, .. } => *resource,
            Self::MemoryTwice => Resource::MemoryPercentage,
            Self::SharesOfNoCard => Resource::Gpu,
        }
    }
}

fn hint(resource: Resource, error: &QuantityError) -> String {
    match (resource, error) {
        (Resource::Memory, QuantityError::BinarySuffix { mib: Some(mib), .. }) => {
            format!(" (write {mib}, the unit is MiB)")
        }
        _ => String::new(),
    }
}

/// The numbers a container wrote itself, checked one by one and together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written([Option<u64>; 5]);

/// One value that a default supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Which resource was not written.
    pub resource: Resource,
    /// The value that holds instead.
    pub value: u64,
}

impl Written {
    /// Reads the five resources; `value_of` looks one up by its kind.
    /// All faults are reported, not only the first.
    pub fn read<'a>(
        value_of: impl Fn(Resource) -> Option<&'a str>,
    ) -> Result<Self, Vec<RequestError>> {
        let mut written = Self::default();
        let mut errors = Vec::new();
        for resource in Resource::ALL {
            let Some(text) = value_of(resource) else {
                continue;
            };
            let (least, most) = resource.range();
            match quantity::whole(text) {
                Ok(number) if (least..=most).contains(&number) => {
                    written.0[resource.index()] = Some(number);
                }
                Ok(_) => errors.push(RequestError::OutOfRange {
                    resource,
                    value: text.to_owned(),
                }),
                Err(source) => errors.push(RequestError::Quantity { resource, source }),
            }
        }
        let has = |resource| written.get(resource).is_some();
        if has(Resource::Memory) && has(Resource::MemoryPercentage) {
            errors.push(RequestError::MemoryTwice);
        }
        if written.get(Resource::Gpu) == Some(0) && written.asks_beyond_count() {
            errors.push(RequestError::SharesOfNoCard);
        }
        if errors.is_empty() {
            Ok(written)
        } else {
            Err(errors)
        }
    }

    /// What the container wrote for `resource`.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        self.0[resource.index()]
    }

    fn asks_beyond_count(&self) -> bool {
        [
            Resource::Memory,
            Resource::MemoryPercentage,
            Resource::Cores,
        ]
        .iter()
        .any(|&resource| self.get(resource).is_some())
    }

    /// The container wants a share of a GPU (after `defaults.count` is applied).
    pub fn asks(&self, defaults: &Defaults) -> bool {
        match self.get(Resource::Gpu) {
            Some(count) => count > 0,
            None => defaults.count > 0 && self.asks_beyond_count(),
        }
    }

    /// The values that the defaults supply, in the order of [`Resource::ALL`].
    /// Empty when the container asks for no share.
    pub fn fills(&self, defaults: &Defaults) -> Vec<Fill> {
        if !self.asks(defaults) {
            return Vec::new();
        }
        let missing = |resource| self.get(resource).is_none();
        let mut fills = Vec::new();
        let mut fill = |resource, value| fills.push(Fill { resource, value });
        let bare = !self.asks_beyond_count();
        let whole = bare && defaults.bare_gpu == BareGpu::Whole;
        if missing(Resource::Gpu) {
            fill(Resource::Gpu, u64::from(defaults.count));
        }
        if missing(Resource::Memory) && missing(Resource::MemoryPercentage) {
            if whole || defaults.memory == Mib(0) {
                fill(Resource::MemoryPercentage, 100);
            } else {
                fill(Resource::Memory, defaults.memory.0);
            }
        }
        if missing(Resource::Cores) {
            let cores = if whole {
                Percent::WHOLE
            } else {
                defaults.cores
            };
            fill(Resource::Cores, u64::from(cores.0));
        }
        if missing(Resource::Priority) {
            fill(Resource::Priority, 1);
        }
        fills
    }

    /// The complete share, defaults applied; `None` when no share is asked for.
    pub fn ask(&self, defaults: &Defaults) -> Option<Ask> {
        if !self.asks(defaults) {
            return None;
        }
        let mut full = *self;
        for Fill { resource, value } in self.fills(defaults) {
            full.0[resource.index()] = Some(value);
        }
        let number = |resource| u32::try_from(full.get(resource).unwrap_or(0)).unwrap_or(u32::MAX);
        let memory = match full.get(Resource::MemoryPercentage) {
            Some(_) => Memory::Share(Percent(number(Resource::MemoryPercentage))),
            None => Memory::Mib(Mib(full.get(Resource::Memory).unwrap_or(0))),
        };
        Some(Ask {
            count: number(Resource::Gpu),
            memory,
            cores: Percent(number(Resource::Cores)),
        })
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
