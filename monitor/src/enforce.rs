//! What enforces each container's memory limit, behind one trait: the limiter in its container, MPS,
//! and the driver's limits for cgroups, which no program can bypass. All that apply are used at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::inventory::Mode;
use aliquot_nvml::{CgroupLimits, LimitError, MemoryLimits};

use crate::managed_containers::{ContainerDevice, ManagedContainer};
use crate::node_sample::NodeSample;

/// The cgroup file system.
const CGROUPS: &str = "/sys/fs/cgroup";
/// A GPU without limits is tried again after this: it may have been partitioned. A limit that was set
/// is set again: a GPU reset, or another program, may have removed it.
const RETRY: Duration = Duration::from_mins(1);

/// The names of what enforces the limit of each device of each container.
pub type EnforcedBy = Vec<Vec<Vec<&'static str>>>;

/// A container's share of one device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceShare<'a> {
    /// The container.
    pub container: &'a ManagedContainer,
    /// The device.
    pub device: &'a ContainerDevice,
    /// Memory limit in bytes; 0: unknown.
    pub limit: u64,
    /// Of it, what the container requested.
    pub request: u64,
    /// Of it, what is the container's part of the device's own memory; 0: all.
    pub physical: u64,
    /// The container's cgroups, as paths below the root of the hierarchy.
    pub cgroups: &'a BTreeSet<String>,
}

impl DeviceShare<'_> {
    /// The driver's limits for the container's cgroups. Nothing of its request may be evicted, and what
    /// is beyond it is lent; of a limit beyond the device's own memory, only its part of that memory
    /// can stay there.
    fn driver_limits(&self) -> CgroupLimits {
        let physical = Some(self.physical).filter(|physical| *physical > 0);
        CgroupLimits {
            soft: physical.map_or(self.request, |physical| physical.min(self.request)),
            hard: self.limit,
        }
    }
}

/// Something that enforces memory limits.
pub trait Enforcement: Send {
    /// The value of the metrics' label `by`.
    fn name(&self) -> &'static str;

    /// Enforces a limit from now on, if it can; returns whether it does.
    fn enforce(&mut self, share: DeviceShare<'_>) -> bool;

    /// Whether GPUs support it, by uuid, as far as that was tried.
    fn offered(&self) -> BTreeMap<String, bool> {
        BTreeMap::new()
    }

    /// Drops the state of all cgroups but these.
    fn retain_cgroups(&mut self, _cgroups: &BTreeSet<&String>) {}
}

/// The limiter, which the agent injected into the container.
#[derive(Debug)]
pub struct Limiter;

impl Enforcement for Limiter {
    fn name(&self) -> &'static str {
        "library"
    }

    fn enforce(&mut self, share: DeviceShare<'_>) -> bool {
        share.container.limited && share.limit > 0
    }
}

/// The MPS daemon's limit for its clients, which the agent set.
#[derive(Debug)]
pub struct Mps;

impl Enforcement for Mps {
    fn name(&self) -> &'static str {
        "mps"
    }

    fn enforce(&mut self, share: DeviceShare<'_>) -> bool {
        share.device.mode == Mode::Mps && share.device.memory.0 > 0
    }
}

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

/// Whether a cgroup is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimitStatus {
    Yes,
    No,
    /// It was removed, so it has no processes.
    Gone,
}

impl DriverLimits {
    /// The limits of this driver.
    pub fn new(driver: Arc<dyn MemoryLimits>) -> Self {
        Self {
            driver,
            set: BTreeMap::new(),
            gone: BTreeSet::new(),
            without: BTreeMap::new(),
        }
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

impl Enforcement for DriverLimits {
    fn name(&self) -> &'static str {
        "driver"
    }

    fn enforce(&mut self, share: DeviceShare<'_>) -> bool {
        let (device, gpu) = (share.device, share.device.uuid.as_str());
        let is_shared = matches!(device.mode, Mode::Vgpu | Mode::Mps);
        // A MIG instance limits memory by itself.
        let is_whole_gpu = device.profile.is_none() && !gpu.starts_with("MIG-");
        let has_limit = share.limit > 0 && !share.container.effective.uncontrolled;
        let driver = self.without.get(gpu);
        if driver.is_some_and(|then| then.elapsed() < RETRY) || share.cgroups.is_empty() {
            return false;
        }
        if !(is_shared && is_whole_gpu && has_limit) {
            return false;
        }
        // Each is tried, even if another one fails.
        let cgroups = share.cgroups.iter();
        let all: Vec<LimitStatus> = cgroups
            .map(|cgroup| self.limit(gpu, cgroup, share.driver_limits()))
            .collect();
        all.contains(&LimitStatus::Yes) && !all.contains(&LimitStatus::No)
    }

    fn offered(&self) -> BTreeMap<String, bool> {
        let without = self.without.keys().map(|gpu| (gpu.clone(), false));
        let with = self.set.keys().map(|(gpu, _)| (gpu.clone(), true));
        without.chain(with).collect()
    }

    fn retain_cgroups(&mut self, cgroups: &BTreeSet<&String>) {
        self.set.retain(|(_, cgroup), _| cgroups.contains(cgroup));
        self.gone.retain(|(_, cgroup)| cgroups.contains(cgroup));
    }
}

/// All means of enforcement.
pub struct Enforcements(Vec<Box<dyn Enforcement>>);

impl Enforcements {
    /// With the limits of this driver.
    pub fn new(driver: Arc<dyn MemoryLimits>) -> Self {
        Self(vec![
            Box::new(Limiter),
            Box::new(Mps),
            Box::new(DriverLimits::new(driver)),
        ])
    }

    /// Whether the driver supports cgroup memory limits, by GPU, as far as that was tried.
    pub fn offered(&self) -> BTreeMap<String, bool> {
        self.0.iter().flat_map(|one| one.offered()).collect()
    }

    /// Enforces the limits of a sample's containers, and returns by what. Blocks.
    pub fn enforce(&mut self, sample: &NodeSample) -> EnforcedBy {
        let none = BTreeSet::new();
        let both = sample.cgroups.values().chain(sample.candidates.values());
        let all: BTreeSet<&String> = both.flatten().collect();
        for one in &mut self.0 {
            one.retain_cgroups(&all);
        }
        let mut enforced_by = EnforcedBy::new();
        for (at, container) in sample.containers.all.iter().enumerate() {
            let key = (container.pod.clone(), container.name.clone());
            let cgroups = sample.cgroups.get(&key).unwrap_or(&none);
            let of_device = |all: &[Vec<u64>], index: usize| {
                let found = all.get(at).and_then(|devices| devices.get(index));
                found.copied().unwrap_or(0)
            };
            let devices = container.devices.iter().enumerate().map(|(index, device)| {
                let share = DeviceShare {
                    container,
                    device,
                    limit: of_device(&sample.limits, index),
                    request: of_device(&sample.requests, index),
                    physical: of_device(&sample.physical, index),
                    cgroups,
                };
                if let Some(cgroups) = sample.candidates.get(&key) {
                    // One of these is the container's; until its id is reported, all are limited.
                    for one in &mut self.0 {
                        one.enforce(DeviceShare { cgroups, ..share });
                    }
                }
                let enforced = self.0.iter_mut().filter_map(|one| {
                    let name = one.name();
                    one.enforce(share).then_some(name)
                });
                enforced.collect()
            });
            enforced_by.push(devices.collect());
        }
        enforced_by
    }
}

#[cfg(test)]
#[path = "enforce_tests.rs"]
mod tests;
