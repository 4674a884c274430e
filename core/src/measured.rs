//! What is used of each GPU and each share of a node now: the answer of a monitor's `GET /usage`.
//!
//! ```json
//! {"node": "n1", "taken_at": 1790000000,
//!  "gpus": [{"gpu": "GPU-…", "memory": 31000, "sm": 72, "temperature": 61, "power": 240}],
//!  "shares": [{"gpu": "GPU-…", "device": "GPU-…", "namespace": "ci", "pod": "p", "container": "main",
//!              "limit": 3000, "memory": 2100, "sm": 28, "throttled": 12,
//!              "processes": 2, "peak": {"memory": 2900, "sm": 64}}]}
//! ```
//!
//! Memory is in MiB, `sm` and `throttled` in percent, `temperature` in degrees Celsius, `power` in watts.
//! A MIG instance is an entry of `gpus` too, with temperature and power of its GPU; for a share in one,
//! `device` is the instance. `null` is what the driver does not report, never 0. A share whose limit is
//! above what it requested also has `request`. `peak` is the most since the monitor started.

use serde::{Deserialize, Serialize};

use crate::id::{GpuUuid, NodeName};
use crate::units::{Mib, Percent};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUsage {
    pub node: NodeName,
    /// When the sample completed, in seconds since 1970; stays behind while the driver does not answer.
    pub taken_at: u64,
    pub gpus: Vec<GpuUsage>,
    /// Each device of each container with a share.
    pub shares: Vec<ShareUsage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUsage {
    pub gpu: GpuUuid,
    /// Memory in use by anybody.
    pub memory: Option<Mib>,
    /// How much of the time a kernel ran.
    pub sm: Option<Percent>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Watts.
    pub power: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShareName {
    pub gpu: GpuUuid,
    /// The GPU, or the MIG instance on it.
    pub device: GpuUuid,
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

/// A container's use of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareUsage {
    #[serde(flatten)]
    pub name: ShareName,
    /// Memory that it may use; `None` for a container without limits.
    pub limit: Option<Mib>,
    /// What it requested, if it may use more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Mib>,
    #[serde(flatten)]
    pub used: Used,
    /// The most that it used.
    #[serde(default)]
    pub peak: Peak,
}

/// The most that a container used of a device since its monitor started; 0 where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Memory.
    pub memory: Mib,
    /// Compute of the GPU.
    pub sm: Percent,
}

/// How many containers would fit a device with this memory if each needed the largest memory and the largest
/// compute of these peaks at the same time: at least 1. `None` if nothing was used.
pub fn replicas(memory: Mib, peaks: impl IntoIterator<Item = Peak>) -> Option<u64> {
    let mut most = Peak::default();
    for peak in peaks {
        most.memory = most.memory.max(peak.memory);
        most.sm = most.sm.max(peak.sm);
    }
    let by_memory = memory.0.checked_div(most.memory.0);
    let by_compute = u64::from(Percent::WHOLE.0).checked_div(most.sm.0.into());
    let fitting = [by_memory, by_compute].into_iter().flatten().min()?;
    Some(fitting.max(1))
}

/// What a container uses of a device, or several containers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub memory: Option<Mib>,
    /// Compute of the GPU that they used.
    pub sm: Option<Percent>,
    /// How much of the time launches waited for the share; more than 100 where several threads wait.
    pub throttled: Option<Percent>,
    /// Processes on the device; in mode mps, its clients.
    #[serde(default)]
    pub processes: Option<u64>,
}

impl Used {
    /// Both together; unknown as soon as one of them is.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let both = |a: Option<Percent>, b: Option<Percent>| Some(a? + b?);
        Self {
            memory: self.memory.zip(other.memory).map(|(a, b)| a + b),
            sm: both(self.sm, other.sm),
            throttled: both(self.throttled, other.throttled),
            processes: self.processes.zip(other.processes).map(|(a, b)| a + b),
        }
    }

    /// Whether launches wait.
    pub fn is_throttled(self) -> bool {
        self.throttled.is_some_and(|part| part > Percent(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ts_14_suggests_as_many_replicas_as_largest_peaks_allow() {
        let check = |peaks: &[(u64, u32)], expected: Option<u64>| {
            let used = peaks.iter().map(|&(memory, sm)| Peak {
                memory: Mib(memory),
                sm: Percent(sm),
            });
            assert_eq!(replicas(Mib(40_960), used), expected, "{peaks:?}");
        };
        check(&[(3_000, 5), (5_000, 2)], Some(8));
        check(&[(3_000, 30), (5_000, 2)], Some(3));
        check(&[(0, 10)], Some(10));
        check(&[(1_000, 0)], Some(40));
        check(&[(50_000, 100)], Some(1));
        check(&[(0, 0)], None);
        check(&[], None);
    }
}
