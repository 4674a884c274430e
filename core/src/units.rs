//! Quantities with their unit in the type: [`Mib`], [`Percent`] and [`MilliCpu`], and a
//! host's CPU and memory. Arithmetic saturates.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Memory in MiB (2^20 bytes), the unit of `nvidia.com/gpumem`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Mib(pub u64);

/// Percent of a device's compute (`nvidia.com/gpucores`) or of its memory
/// (`nvidia.com/gpumem-percentage`). A sum over pods may exceed 100.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Percent(pub u32);

/// Thousandths of a CPU, as in `cpu: 500m`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MilliCpu(pub u64);

impl Percent {
    pub const WHOLE: Self = Self(100);
}

impl Mib {
    /// This percentage of `self`, rounded down (HAMi's rule: `Totalmem * percentage / 100`
    /// in integers).
    pub fn share(self, percent: Percent) -> Self {
        // Real memory sizes take this path, which is much faster.
        if let Some(product) = self.0.checked_mul(percent.0.into()) {
            return Self(product / 100);
        }
        let share = u128::from(self.0) * u128::from(percent.0) / 100;
        Self(u64::try_from(share).unwrap_or(u64::MAX))
    }

    pub fn bytes(self) -> u64 {
        self.0.saturating_mul(1 << 20)
    }
}

macro_rules! arithmetic {
    ($type:ident, $suffix:literal) => {
        impl Add for $type {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $type {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sum for $type {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::default(), Self::add)
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $suffix), self.0)
            }
        }
    };
}

arithmetic!(Mib, " MiB");
arithmetic!(Percent, " %");
arithmetic!(MilliCpu, "m CPU");

/// CPU and memory of a node or of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostResources {
    /// Thousandths of a CPU.
    pub cpu: MilliCpu,
    /// Host memory.
    pub memory: Mib,
}

impl HostResources {
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            memory: self.memory + other.memory,
        }
    }

    /// `self` without `other`; 0 where `other` is larger.
    pub fn less(self, other: Self) -> Self {
        Self {
            cpu: MilliCpu(self.cpu.0.saturating_sub(other.cpu.0)),
            memory: Mib(self.memory.0.saturating_sub(other.memory.0)),
        }
    }

    /// Whether `other` fits into this.
    pub fn covers(self, other: Self) -> bool {
        self.cpu >= other.cpu && self.memory >= other.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_shares_down_without_overflow() {
        assert_eq!(Mib(81_920).share(Percent(50)), Mib(40_960));
        assert_eq!(Mib(24_564).share(Percent(33)), Mib(8_106));
        assert_eq!(Mib(u64::MAX).share(Percent(100)), Mib(u64::MAX));
    }
}
