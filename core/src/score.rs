//! How good a choice is: one number for each node or device, higher is better.
//!
//!
//! Fullness is the sum of the used parts of replicas, compute and memory, including the new
//! pod (HAMi's default weights 1/1/1); `binpack` prefers the fullest, `spread` the
//! emptiest. Integers only: equal states must give equal scores.

use std::str::FromStr;

use thiserror::Error;

/// Which of two choices that fit is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The fullest: saves whole devices and nodes.
    Binpack,
    /// The emptiest: pods share with few others.
    Spread,
    /// The least growth of what typical pods cannot use ([`crate::fragmentation`]).
    Fragmentation,
}

/// The policies' names, for error messages.
pub const NAMES: &str = "binpack, spread, fragmentation";

/// An unknown policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?} is not a policy; expected: {NAMES}")]
pub struct UnknownPolicy {
    /// The text as given.
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

/// Used and total amounts of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Replicas.
    pub replicas: (u64, u64),
    /// Compute in percent.
    pub cores: (u64, u64),
    /// Memory in MiB.
    pub memory: (u64, u64),
}

impl Load {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        let add = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        Self {
            replicas: add(self.replicas, other.replicas),
            cores: add(self.cores, other.cores),
            memory: add(self.memory, other.memory),
        }
    }

    /// The weighted sum of the three used parts, in millionths: 0 (empty) to the sum of the
    /// weights times 1,000,000.
    fn fullness(self, weights: Weights) -> u64 {
        let part = |(used, total): (u64, u64), weight: u32| {
            let used = used.min(total).saturating_mul(1_000_000);
            used.checked_div(total).unwrap_or(0) * u64::from(weight)
        };
        part(self.replicas, weights.replicas)
            + part(self.cores, weights.cores)
            + part(self.memory, weights.memory)
    }
}

/// The weights of the three (HAMi 4.7, `device-scoring-weights`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    /// Of the replicas.
    pub replicas: u32,
    /// Of the compute.
    pub cores: u32,
    /// Of the memory.
    pub memory: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            replicas: 1,
            cores: 1,
            memory: 1,
        }
    }
}

impl Weights {
    fn most(self) -> u64 {
        1_000_000 * u64::from(self.replicas + self.cores + self.memory)
    }
}

/// The score of a choice that would lead to `load`. Higher is better. `fragmentation` needs
/// more than a load; here it prefers the fuller.
pub fn score(policy: Policy, load: Load) -> u64 {
    weighted(policy, load, Weights::default())
}

/// The same with weights that the pod chose.
pub fn weighted(policy: Policy, load: Load, weights: Weights) -> u64 {
    match policy {
        Policy::Binpack | Policy::Fragmentation => load.fullness(weights),
        Policy::Spread => weights.most() - load.fullness(weights),
    }
}
