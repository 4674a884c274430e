//! Which nodes and which devices are better, as an administrator or a pod writes it. The
//! devices of a node have sort keys in the order written, and two rules beside them (HAMi
//! 4.7, "GPU policy").

use std::str::FromStr;

use thiserror::Error;

use crate::excerpt::Excerpt;

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

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?} is not a policy; expected: {NAMES}")]
pub struct UnknownPolicy {
    pub value: Excerpt,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "binpack" => Ok(Self::Binpack),
            "spread" => Ok(Self::Spread),
            "fragmentation" => Ok(Self::Fragmentation),
            _ => Err(UnknownPolicy { value: text.into() }),
        }
    }
}

/// The weights of the three (HAMi 4.7, `device-scoring-weights`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    pub replicas: u32,
    pub cores: u32,
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
    /// The fullness of a device of which everything is used, in millionths.
    pub(crate) fn most(self) -> u64 {
        1_000_000 * u64::from(self.replicas + self.cores + self.memory)
    }
}

/// The number of different keys.
pub const MAX_KEYS: usize = 3;

/// One way to compare two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuSortKey {
    Load(Policy),
    /// By NUMA node: those that can take the whole request first.
    Numa,
}

/// How the devices of a node are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpuPolicy {
    /// The first key decides, the next among equals; the lowest index last.
    pub keys: [Option<GpuSortKey>; MAX_KEYS],
    /// `mutex`: only devices without any allocation.
    pub idle: bool,
    /// `topology`: by their links, before the keys.
    pub links: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{value:?} is not a GPU policy; expected: at most one of {NAMES}, and each of numa, mutex, topology at most once, comma-separated"
)]
pub struct UnknownGpuPolicy {
    pub value: Excerpt,
}

impl From<Policy> for GpuPolicy {
    fn from(policy: Policy) -> Self {
        Self {
            keys: [Some(GpuSortKey::Load(policy)), None, None],
            idle: false,
            links: false,
        }
    }
}

impl GpuPolicy {
    /// The same rules with the devices in another order.
    pub fn ordered_by(self, policy: Policy) -> Self {
        Self {
            keys: Self::from(policy).keys,
            ..self
        }
    }

    /// The index of the `numa` key, if it is one of the keys.
    pub fn numa_key(&self) -> Option<usize> {
        self.keys
            .iter()
            .position(|key| *key == Some(GpuSortKey::Numa))
    }
}

impl FromStr for GpuPolicy {
    type Err = UnknownGpuPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownGpuPolicy> {
        let unknown = || UnknownGpuPolicy { value: text.into() };
        let mut policy = Self {
            keys: [None; MAX_KEYS],
            idle: false,
            links: false,
        };
        let mut loads = 0;
        let mut at = 0;
        for name in text.split(',').map(str::trim) {
            let key = match name {
                "mutex" if !policy.idle => {
                    policy.idle = true;
                    continue;
                }
                "topology" | "topology-aware" if !policy.links => {
                    policy.links = true;
                    continue;
                }
                "numa" if policy.numa_key().is_none() => GpuSortKey::Numa,
                name if loads == 0 => {
                    loads += 1;
                    GpuSortKey::Load(name.parse().map_err(|_| unknown())?)
                }
                _ => return Err(unknown()),
            };
            policy.keys[at] = Some(key);
            at += 1;
        }
        // HAMi: an empty chain of keys sorts as `spread` does.
        if loads == 0 {
            policy.keys[at] = Some(GpuSortKey::Load(Policy::Spread));
        }
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, keys: &[GpuSortKey], idle: bool, links: bool) {
        let policy: GpuPolicy = text.parse().unwrap();
        let found: Vec<_> = policy.keys.into_iter().flatten().collect();
        assert_eq!((&*found, policy.idle, policy.links), (keys, idle, links));
    }

    #[test]
    fn parses_gpu_policies_alone_and_in_chains() {
        use GpuSortKey::{Load, Numa};
        let (fullest, emptiest) = (Load(Policy::Binpack), Load(Policy::Spread));
        check("binpack", &[fullest], false, false);
        check("numa,binpack", &[Numa, fullest], false, false);
        check("spread, numa", &[emptiest, Numa], false, false);
        check("numa", &[Numa, emptiest], false, false);
        check("mutex", &[emptiest], true, false);
        check("topology-aware", &[emptiest], false, true);
        check("mutex,topology,numa,binpack", &[Numa, fullest], true, true);
    }

    #[test]
    fn rejects_unknown_gpu_policy_with_expected_values() {
        for text in [
            "",
            "fullest",
            "binpack,",
            "binpack,spread",
            "numa,numa",
            "mutex,mutex",
        ] {
            let error = text.parse::<GpuPolicy>().unwrap_err().to_string();
            let named = format!("{text:?} is not a GPU policy; expected: at most one of binpack,");
            assert!(error.starts_with(&named), "{error}");
        }
    }
}
