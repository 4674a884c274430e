//! What one container asks for: the five resources, their ranges and defaults.
//!
//! Fed by: the webhook and the scheduler, with resource values as text.
//! Must not: know field paths or pods; who calls adds the place to the error.

mod ask;
mod names;

use thiserror::Error;

use crate::quantity::{self, QuantityError};
use crate::units::{Mib, Percent};

pub use ask::{Ask, Memory, Wrote};
pub use names::{Resource, ResourceNames, is_other};

/// More memory than any card has: 1 TiB, in MiB.
pub const MAX_CARD_MIB: u64 = 1 << 20;
/// More cards than any node has.
pub const MAX_CARDS: u64 = 64;

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

/// The pod annotation in which the webhook lists what it filled in, by container
/// and resource: `{"main":{"nvidia.com/gpumem":"5000"}}`.
pub const DEFAULTED: &str = "aliquot.dev/defaulted";

/// Reads a number of units under any resource of ours.
pub fn count(text: &str) -> Result<u32, RequestError> {
    let resource = Resource::Gpu;
    let number = quantity::whole(text);
    let number = number.map_err(|source| RequestError::Quantity { resource, source })?;
    let fits = u32::try_from(number).ok().filter(|_| number <= MAX_CARDS);
    fits.ok_or_else(|| RequestError::OutOfRange {
        resource,
        value: text.to_owned(),
    })
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
pub struct Written {
    numbers: [Option<u64>; 5],
    /// It asks for units under other resources of ours, too.
    others: bool,
}

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
                    written.numbers[resource.index()] = Some(number);
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

    /// The same container, which asks under other resources of ours, too. Its
    /// memory and compute are of those, unless it writes a number of cards.
    pub fn beside_others(self) -> Self {
        Self {
            others: true,
            ..self
        }
    }

    /// What the container wrote for `resource`.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        self.numbers[resource.index()]
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
            None => !self.others && defaults.count > 0 && self.asks_beyond_count(),
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

    /// The complete share under the usual resource, defaults applied; `None` when
    /// none is asked for.
    pub fn ask(&self, defaults: &Defaults) -> Option<Ask> {
        if !self.asks(defaults) {
            return None;
        }
        let mut full = *self;
        for Fill { resource, value } in self.fills(defaults) {
            full.numbers[resource.index()] = Some(value);
        }
        Some(Ask {
            wrote: self.wrote(),
            ..full.amounts(full.number(Resource::Gpu))
        })
    }

    /// The share under another resource of ours, of which so many units are asked:
    /// no default is filled in. What is written is of these units unless there is a
    /// number of cards beside it.
    pub fn ask_under(&self, resource: u8, count: u32) -> Ask {
        let cards = self.get(Resource::Gpu).is_some();
        let mut own = if cards { Self::default() } else { *self };
        let wrote = own.wrote();
        if !wrote.memory {
            own.numbers[Resource::MemoryPercentage.index()] = Some(100);
        }
        Ask {
            resource,
            wrote,
            ..own.amounts(count)
        }
    }

    fn wrote(&self) -> Wrote {
        let wrote = |resource| self.get(resource).is_some();
        Wrote {
            memory: wrote(Resource::Memory) || wrote(Resource::MemoryPercentage),
            cores: wrote(Resource::Cores),
        }
    }

    fn number(&self, resource: Resource) -> u32 {
        u32::try_from(self.get(resource).unwrap_or(0)).unwrap_or(u32::MAX)
    }

    fn amounts(&self, count: u32) -> Ask {
        let memory = match self.get(Resource::MemoryPercentage) {
            Some(_) => Memory::Share(Percent(self.number(Resource::MemoryPercentage))),
            None => Memory::Mib(Mib(self.get(Resource::Memory).unwrap_or(0))),
        };
        Ask::of(count, memory, Percent(self.number(Resource::Cores)))
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
