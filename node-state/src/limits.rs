//! A container's limits besides its grants, fixed when its pod is accepted.

use aliquot_region::limits::{OOM_KILLER, OVERSUBSCRIBE, UNCONTROLLED};
use serde::{Deserialize, Serialize};

/// When the compute limit of a container applies (`GPU_CORE_UTILIZATION_POLICY`). The agent decides
/// it, writes it to the accepted allocation and as a number to the limits page, where the arbiter
/// and the limiter read it. What lifts a limit is the arbiter's throttle flag; it never lifts one
/// that is forced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UtilizationPolicy {
    /// Unless the arbiter finds that there is no need: no other tenant is active on the device, or
    /// the container has high priority and no tenant on the device has low priority. Idle compute
    /// may be lent to it.
    #[default]
    Default,
    /// Always, and nothing is lent to it.
    Force,
    /// Never.
    Disable,
}

impl UtilizationPolicy {
    const ALL: [Self; 3] = [Self::Default, Self::Force, Self::Disable];

    /// The value of the variable, in upper or lower case; any unknown one counts as `default`.
    pub fn parse(text: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|policy| text.eq_ignore_ascii_case(policy.as_str()));
        found.unwrap_or_default()
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Force => "force",
            Self::Disable => "disable",
        }
    }

    /// The number on the limits page.
    pub fn word(self) -> u32 {
        match self {
            Self::Default => 0,
            Self::Force => 1,
            Self::Disable => 2,
        }
    }

    /// The policy with this number on the limits page; any unknown one counts as `default`, as in
    /// the limiter.
    pub fn from_word(word: u32) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|policy| policy.word() == word).unwrap_or_default()
    }
}

/// The limits of one container besides its grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectiveLimits {
    /// When the compute limit applies.
    pub utilization: UtilizationPolicy,
    /// The host kills a process when a container exceeds its memory.
    pub oom_killer: bool,
    /// One of its devices advertises more memory than it has (`memoryScaling` above 1).
    pub oversubscribe: bool,
    /// The pod asked to run without limits (`CUDA_DISABLE_CONTROL`).
    pub uncontrolled: bool,
}

impl EffectiveLimits {
    pub fn flags(self) -> u32 {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        flag(self.oversubscribe, OVERSUBSCRIBE)
            | flag(self.oom_killer, OOM_KILLER)
            | flag(self.uncontrolled, UNCONTROLLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_policy_as_number_on_limits_page() {
        for (number, policy) in [(0, "default"), (1, "force"), (2, "disable")] {
            assert_eq!(UtilizationPolicy::parse(policy).word(), number);
            assert_eq!(UtilizationPolicy::from_word(number).as_str(), policy);
        }
        assert_eq!(UtilizationPolicy::from_word(3), UtilizationPolicy::Default);
    }
}
