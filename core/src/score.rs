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
}

/// A policy's name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?} is not a policy; accepted: binpack, spread")]
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
        let add = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
        Self {
            seats: add(self.seats, other.seats),
            cores: add(self.cores, other.cores),
            memory: add(self.memory, other.memory),
        }
    }

    /// The three used parts added up, in millionths: 0 (empty) to 3,000,000.
    fn fullness(self) -> u64 {
        let part = |(used, total): (u64, u64)| {
            let used = used.min(total).saturating_mul(1_000_000);
            used.checked_div(total).unwrap_or(0)
        };
        part(self.seats) + part(self.cores) + part(self.memory)
    }
}

/// The score of a choice that would leave `load` behind. Higher is better.
pub fn score(policy: Policy, load: Load) -> u64 {
    match policy {
        Policy::Binpack => load.fullness(),
        Policy::Spread => 3_000_000 - load.fullness(),
    }
}
