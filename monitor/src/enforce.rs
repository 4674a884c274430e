//! What enforces each container's memory limit: the limiter in its container, MPS, and the driver's
//! limits for cgroups, which no program can bypass and which the monitor sets. All that apply are used
//! at once.

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

/// The names of what enforces the limit of each device of each container.
pub type EnforcedBy = Vec<Vec<Vec<&'static str>>>;

/// The driver's memory limits for cgroups.
pub struct DriverLimits {
    driver: Arc<dyn MemoryLimits>,
    /// Limits and when they were set, by GPU and cgroup.
    set: BTreeMap<(String, String), (CgroupLimits, Instant)>,
    /// Removed cgroups, which have no processes.
    gone: BTreeSet<(String, String)>,
    /// GPUs without limits, and when that was found.
    without: BTreeMap<String, Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitStatus {
    Yes,
    No,
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

    /// Sets the limits of a sample's containers, and returns what enforces the limit of each. Blocks.
    pub fn enforce(&mut self, sample: &NodeSample) -> EnforcedBy {
        let both = sample.cgroups.values().chain(sample.candidates.values());
        let cgroups: BTreeSet<&String> = both.flatten().collect();
        self.set.retain(|(_, cgroup), _| cgroups.contains(cgroup));
        self.gone.retain(|(_, cgroup)| cgroups.contains(cgroup));
        let containers = sample.containers.all.iter().enumerate();
        containers
            .map(|(at, container)| {
                let devices = container.devices.iter().enumerate();
                devices
                    .map(|(index, device)| {
                        self.enforce_share(sample, container, device, sample.page(at, index))
                    })
                    .collect()
            })
            .collect()
    }

    fn enforce_share(
        &mut self,
        sample: &NodeSample,
        container: &ManagedContainer,
        device: &ContainerDevice,
        page: DevicePage,
    ) -> Vec<&'static str> {
        let key = (container.pod.clone(), container.name.clone());
        if let Some(cgroups) = sample.candidates.get(&key) {
            // One of these is the container's; until its id is reported, all are limited.
            self.limit_share(container, device, page, cgroups);
        }
        let own = sample.cgroups.get(&key);
        let by_driver = own.is_some_and(|own| self.limit_share(container, device, page, own));
        let by_mps = device.mode == Mode::Mps && device.memory.0 > 0;
        [
            ("library", container.limited && page.limit > 0),
            ("mps", by_mps),
            ("driver", by_driver),
        ]
        .into_iter()
        .filter_map(|(name, applies)| applies.then_some(name))
        .collect()
    }

    /// Limits these cgroups of a container, if the driver can; returns whether all with processes are
    /// limited.
    fn limit_share(
        &mut self,
        container: &ManagedContainer,
        device: &ContainerDevice,
        page: DevicePage,
        cgroups: &BTreeSet<String>,
    ) -> bool {
        let gpu = device.uuid.as_str();
        let is_shared = matches!(device.mode, Mode::Vgpu | Mode::Mps);
        // A MIG instance limits memory by itself.
        let is_whole_gpu = device.profile.is_none() && !gpu.starts_with("MIG-");
        let has_limit = page.limit > 0 && !container.effective.uncontrolled;
        let without = self.without.get(gpu);
        if without.is_some_and(|then| then.elapsed() < RETRY)
            || !(is_shared && is_whole_gpu && has_limit)
        {
            return false;
        }
        // Each is tried, even if another one fails.
        let all: Vec<LimitStatus> = cgroups
            .iter()
            .map(|cgroup| self.limit(gpu, cgroup, driver_limits(page)))
            .collect();
        all.contains(&LimitStatus::Yes) && !all.contains(&LimitStatus::No)
    }

    fn limit(&mut self, gpu: &str, cgroup: &str, limits: CgroupLimits) -> LimitStatus {
        let key = (gpu.to_owned(), cgroup.to_owned());
        let before = self.set.get(&key).filter(|(set, _)| *set == limits);
        let (is_known, then) = (before.is_some(), before.map(|(_, then)| *then));
        if then.is_some_and(|then| then.elapsed() < RETRY) {
            return LimitStatus::Yes;
        }
        if self.gone.contains(&key) {
            return LimitStatus::Gone;
        }
        let path = format!("{CGROUPS}{cgroup}");
        let answer = self.driver.limit_memory(gpu, Path::new(&path), limits);
        if answer.is_err() {
            self.set.remove(&key);
        }
        match answer {
            Ok(()) => {
                if !is_known {
                    tracing::info!(
                        gpu,
                        cgroup,
                        soft = limits.soft,
                        hard = limits.hard,
                        "the driver limits the memory of a container"
                    );
                }
                self.set.insert(key, (limits, Instant::now()));
                LimitStatus::Yes
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

/// Nothing of a request may be evicted, and what is beyond it is lent; of a limit beyond the device's
/// own memory, only its part of that memory can stay there.
fn driver_limits(page: DevicePage) -> CgroupLimits {
    let soft = match page.physical {
        0 => page.request,
        physical => physical.min(page.request),
    };
    CgroupLimits {
        soft,
        hard: page.limit,
    }
}

#[cfg(test)]
#[path = "enforce_tests.rs"]
mod tests;
