//! How good a choice is: one number per node or card, higher is better.
//!
//! Formula (HAMi's default weights 1/1/1): fullness is the used part of seats,
//! of compute and of memory, added up, with the new pod counted in; `binpack`
//! prefers the fullest, `spread` the emptiest.
//! Must not: use floating point; equal states must give equal scores.

use std::str::FromStr;

use thiserror::Error;

/// Which of two choices that fit is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The fullest: keeps whole cards and nodes free.
    Binpack,
    /// The emptiest: keeps neighbours few.
    Spread,
    /// Least growth of what typical pods cannot use ([`crate::fragmentation`]).
    Fragmentation,
}

/// The policies' names, for error texts.
pub const NAMES: &str = "binpack, spread, fragmentation";

/// A policy's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?} is not a policy; accepted: {NAMES}")]
pub struct UnknownPolicy {
    /// The text as it came.
    pub value: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "binpack" => Ok(Self::Binpack),
            "spread" => Ok(Self::Spread),
            "fragmentation" => Ok(Self::Fragmentation),
            _ => Err(UnknownPolicy {
                value: text.to_owned(),
            }),
        }
    }
}

/// Used and total of the three things that a card has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Seats taken and in all.
    pub seats: (u64, u64),
    /// Percent of compute promised and in all.
    pub cores: (u64, u64),
    /// MiB promised and in all.
    pub memory: (u64, u64),
}

impl Load {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        let add = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        Self {
            seats: add(self.seats, other.seats),
            cores: add(self.cores, other.cores),
            memory: add(self.memory, other.memory),
        }
    }

    /// The three used parts, each times its weight, added up, in millionths: 0
    /// (empty) to the sum of the weights times 1,000,000.
    fn fullness(self, weights: Weights) -> u64 {
        let part = |(used, total): (u64, u64), weight: u32| {
            let used = used.min(total).saturating_mul(1_000_000);
            used.checked_div(total).unwrap_or(0) * u64::from(weight)
        };
        part(self.seats, weights.seats)
            + part(self.cores, weights.cores)
            + part(self.memory, weights.memory)
    }
}

/// How much each of the three counts (HAMi 4.7, `device-scoring-weights`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    /// Of the seats.
    pub seats: u32,
    /// Of the compute.
    pub cores: u32,
    /// Of the memory.
    pub memory: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            seats: 1,
            cores: 1,
            memory: 1,
        }
    }
}

impl Weights {
    fn most(self) -> u64 {
        1_000_000 * u64::from(self.seats + self.cores + self.memory)
    }
}

/// The score of a choice that would leave `load` behind. Higher is better.
/// `fragmentation` looks at more than a load; by that alone the fuller is better.
pub fn score(policy: Policy, load: Load) -> u64 {
    weighted(policy, load, Weights::default())
}

/// The same with weights of the pod's own.
pub fn weighted(policy: Policy, load: Load, weights: Weights) -> u64 {
    match policy {
        Policy::Binpack | Policy::Fragmentation => load.fullness(weights),
        Policy::Spread => weights.most() - load.fullness(weights),
    }
}
