//! What enforces each container's memory limit: the limiter in its container, MPS, and the driver's
//! limits for cgroups, which no program can bypass. All that apply are used at once. A hook sets
//! the driver's limits before a container starts; the monitor keeps them as the limits page says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::inventory::Mode;
use aliquot_nvml::{CgroupLimits, LimitError, MemoryLimits};

use crate::managed_containers::{ContainerDevice, ManagedContainer};
use crate::node_sample::{DevicePage, NodeSample};

const CGROUPS: &str = "/sys/fs/cgroup";
/// A GPU without limits is tried again after this: it may have been partitioned. A limit that was set
/// is set again: a GPU reset, or another program, may have removed it.
const RETRY: Duration = Duration::from_mins(1);

pub type EnforcedBy = Vec<Vec<Vec<&'static str>>>;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    pub by: EnforcedBy,
    /// Shares without a limit of the driver's until now: index of the container, and of its device.
    pub late: Vec<(usize, usize)>,
}

pub struct DriverLimits {
    driver: Arc<dyn MemoryLimits>,
    /// Limits and when they were set, by GPU and cgroup.
    set: BTreeMap<(String, String), (CgroupLimits, Instant)>,
    /// Removed cgroups, which have no processes.
    gone: BTreeSet<(String, String)>,
    /// GPUs without limits, and when that was found.
    without: BTreeMap<String, Instant>,
}

/// Of several cgroups of a container, the first in this order counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LimitStatus {
    No,
    /// From now on: it had none.
    Late,
    Yes,
    /// It was removed, so it has no processes.
    Gone,
}

impl DriverLimits {
    pub fn new(driver: Arc<dyn MemoryLimits>) -> Self {
        Self {
            driver,
            set: BTreeMap::new(),
            gone: BTreeSet::new(),
            without: BTreeMap::new(),
        }
    }

    /// Whether GPUs support them, by uuid, as far as that was tried.
    pub fn offered(&self) -> BTreeMap<String, bool> {
        let without = self.without.keys().map(|gpu| (gpu.clone(), false));
        let with = self.set.keys().map(|(gpu, _)| (gpu.clone(), true));
        without.chain(with).collect()
    }

    /// Sets the limits of a sample's containers where they are not set. Blocks.
    pub fn enforce(&mut self, sample: &NodeSample) -> Enforcement {
        let cgroups: BTreeSet<&String> = sample.cgroups.values().flatten().collect();
        self.set.retain(|(_, cgroup), _| cgroups.contains(cgroup));
        self.gone.retain(|(_, cgroup)| cgroups.contains(cgroup));
        let mut enforcement = Enforcement::default();
        for (at, container) in sample.containers.all.iter().enumerate() {
            let key = (container.pod.clone(), container.name.clone());
            let mut by = Vec::new();
            for (index, device) in container.devices.iter().enumerate() {
                let page = sample.page(at, index);
                let own = sample.cgroups.get(&key);
                let status = own.map_or(LimitStatus::No, |own| {
                    self.limit_share(container, device, page, own)
                });
                if status == LimitStatus::Late {
                    enforcement.late.push((at, index));
                }
                let is_by_driver = matches!(status, LimitStatus::Yes | LimitStatus::Late);
                let means = [
                    ("library", container.limited && page.limit > 0),
                    ("mps", device.mode == Mode::Mps && device.memory.0 > 0),
                    ("driver", is_by_driver),
                ];
                let each = means.into_iter();
                by.push(each.filter_map(|(name, is)| is.then_some(name)).collect());
            }
            enforcement.by.push(by);
        }
        enforcement
    }

    /// Limits these cgroups of a container, if the driver can.
    fn limit_share(
        &mut self,
        container: &ManagedContainer,
        device: &ContainerDevice,
        page: DevicePage,
        cgroups: &BTreeSet<String>,
    ) -> LimitStatus {
        let gpu = device.uuid.as_str();
        let is_shared = matches!(device.mode, Mode::Vgpu | Mode::Mps);
        // A MIG instance limits memory by itself.
        let is_whole_gpu = device.profile.is_none() && !gpu.starts_with("MIG-");
        let has_limit = page.limit > 0 && !container.effective.uncontrolled;
        let without = self.without.get(gpu);
        if without.is_some_and(|then| then.elapsed() < RETRY)
            || !(is_shared && is_whole_gpu && has_limit)
        {
            return LimitStatus::No;
        }
        let limits = CgroupLimits {
            soft: page.guaranteed,
            hard: page.limit,
        };
        // Each is tried, even if another one fails.
        let all = cgroups.iter().map(|cgroup| self.limit(gpu, cgroup, limits));
        all.min().unwrap_or(LimitStatus::Gone)
    }

    fn limit(&mut self, gpu: &str, cgroup: &str, limits: CgroupLimits) -> LimitStatus {
        let key = (gpu.to_owned(), cgroup.to_owned());
        let set = self.set.get(&key).filter(|(set, _)| *set == limits);
        let set_at = set.map(|(_, then)| *then);
        if set_at.is_some_and(|then| then.elapsed() < RETRY) {
            return LimitStatus::Yes;
        }
        if self.gone.contains(&key) {
            return LimitStatus::Gone;
        }
        let path = format!("{CGROUPS}{cgroup}");
        let current = || self.driver.memory_limit(gpu, Path::new(&path));
        let is_late = set_at.is_none() && current().is_ok_and(|limit| limit.hard.is_none());
        let answer = self.driver.limit_memory(gpu, Path::new(&path), limits);
        if answer.is_err() {
            self.set.remove(&key);
        }
        match answer {
            Ok(()) => {
                self.set.insert(key, (limits, Instant::now()));
                if is_late {
                    LimitStatus::Late
                } else {
                    LimitStatus::Yes
                }
            }
            Err(LimitError::NotOffered(_)) => {
                let known = self.without.insert(gpu.to_owned(), Instant::now());
                if known.is_none() {
                    tracing::info!(
                        gpu,
                        "the driver does not support cgroup memory limits; other means enforce shares"
                    );
                }
                LimitStatus::No
            }
            Err(LimitError::NoCgroup(_)) if !Path::new(&path).is_dir() => {
                self.gone.insert(key);
                LimitStatus::Gone
            }
            Err(error) => {
                tracing::warn!(gpu, cgroup, %error, "the driver does not limit the memory of a container");
                LimitStatus::No
            }
        }
    }
}

#[cfg(test)]
#[path = "enforce_tests.rs"]
mod tests;
