//! All that was read in one sample: of containers, GPUs and their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_node_state::processes::ProcessStatus;
use aliquot_region::host::{CountersReadError, CountersSnapshot};

use crate::busy::ProcessBusy;
use crate::container_cgroups::Cgroups;
use crate::devices::InstanceSample;
use crate::managed_containers::ManagedContainers;
use crate::pods::Pod;

/// A counters file, read before and after the driver.
pub type Counters = Result<(CountersSnapshot, CountersSnapshot), CountersReadError>;

#[derive(Debug, Default)]
pub struct NodeSample {
    /// By the monotonic clock, when the counters files were about to be read for the second time.
    pub taken_at: Duration,
    pub containers: Arc<ManagedContainers>,
    /// What the limits page of each container says of each device.
    pub pages: Vec<Vec<DevicePage>>,
    /// Ids of the containers that free lent memory when they are notified.
    pub yields: BTreeSet<String>,
    /// The counters file of each container; `None` for one without the limiter.
    pub counters: Vec<Option<Counters>>,
    pub processes: Vec<ProcessSample>,
    /// GPUs whose processes could not be read, or that are missing in the inventory.
    pub blind: BTreeSet<String>,
    /// Bytes in use of each GPU with processes, read after their sizes.
    pub in_use: BTreeMap<String, u64>,
    /// The GPU of each MIG instance, by the instance's uuid.
    pub gpus: BTreeMap<String, String>,
    /// How much of its GPU each process used, where there is a driver sample of the last second.
    pub busy: BTreeMap<(String, u32), ProcessBusy>,
    /// GPUs with a new driver sample of processes.
    pub newly_sampled: BTreeSet<String>,
    /// GPUs of whose processes the driver reports no utilization: rates there are not corrected.
    pub uncorrected: BTreeSet<String>,
    /// GPUs of whose processes the utilization could not be read.
    pub unsampled: BTreeSet<String>,
    pub cgroups: Cgroups,
    pub context: NodeContext,
}

impl NodeSample {
    pub fn page(&self, at: usize, device: usize) -> DevicePage {
        let page = self.pages.get(at).and_then(|pages| pages.get(device));
        page.copied().unwrap_or_default()
    }

    pub fn counters_of(&self, at: usize) -> Option<&Counters> {
        self.counters.get(at)?.as_ref()
    }

    pub fn device_uuid(&self, at: usize, device: usize) -> &str {
        let current_uuids = self.context.current_uuids.get(at);
        let current = current_uuids.and_then(|all| all.get(device));
        let allocated = || self.containers.all[at].devices[device].uuid.as_str();
        current.map_or_else(allocated, String::as_str)
    }

    pub fn device_uuids(&self, at: usize) -> impl Iterator<Item = &str> {
        let devices = 0..self.containers.all[at].devices.len();
        devices.map(move |device| self.device_uuid(at, device))
    }

    /// The shares: index of each container, and of each device in it.
    pub fn shares(&self) -> impl Iterator<Item = (usize, usize)> {
        let containers = self.containers.all.iter().enumerate();
        containers.flat_map(|(at, one)| (0..one.devices.len()).map(move |device| (at, device)))
    }

    pub fn processes_on(&self, gpu: &str) -> impl Iterator<Item = &ProcessSample> {
        self.processes.iter().filter(move |one| one.gpu == gpu)
    }

    /// Whether the driver said what the processes on a GPU used of its compute.
    pub fn is_utilization_known(&self, gpu: &str) -> bool {
        !self.uncorrected.contains(gpu) && !self.unsampled.contains(gpu)
    }

    /// Of these GPUs, those with processes whose memory the driver does not report, and those that
    /// this sample says nothing about: without processes, or unreadable.
    pub fn unmeasured<'a>(
        &self,
        gpus: impl Iterator<Item = &'a str>,
    ) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut unmeasured, mut unknown) = (BTreeSet::new(), BTreeSet::new());
        for gpu in gpus {
            let mut processes = self.processes_on(gpu).peekable();
            if processes.peek().is_none() || self.blind.contains(gpu) {
                unknown.insert(gpu.to_owned());
            } else if processes.any(|one| one.bytes.is_none()) {
                unmeasured.insert(gpu.to_owned());
            }
        }
        (unmeasured, unknown)
    }

    pub fn gpu(&self, at: usize, device: usize) -> &str {
        let uuid = self.device_uuid(at, device);
        self.gpus.get(uuid).map_or(uuid, String::as_str)
    }
}

/// What a limits page says of a device, in bytes; 0: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePage {
    pub limit: u64,
    /// Of the limit, what the container requested; the rest is lent.
    pub request: u64,
    /// Of the limit, what the driver must not evict.
    pub guaranteed: u64,
    pub overhead: u64,
}

/// A process that has a GPU open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    pub gpu: String,
    /// Its MIG instance, by the driver's ids.
    pub instance: Option<(u32, u32)>,
    /// Bytes that it uses; `None` where the driver does not report them.
    pub bytes: Option<u64>,
    pub process: ProcessStatus,
}

/// What attribution needs besides processes and containers.
#[derive(Clone, Debug, Default)]
pub struct NodeContext {
    pub container_names: BTreeMap<(PodUid, String), String>,
    pub pods: BTreeMap<PodUid, Arc<Pod>>,
    /// The current uuid of each device of each container, from the limits pages; empty for a container
    /// whose page cannot be read.
    pub current_uuids: Vec<Vec<String>>,
    pub instances: BTreeMap<(String, (u32, u32)), InstanceSample>,
    pub servers: BTreeSet<u32>,
    /// The pods of the MPS supervisor: their GPU processes are MPS servers, even before it reports
    /// them.
    pub mps_pods: BTreeSet<PodUid>,
}

impl NodeContext {
    /// Whether a process is on a MIG instance that was created after the last inventory.
    pub fn is_on_new_instance(&self, one: &ProcessSample) -> bool {
        one.instance.is_some_and(|numbers| {
            let key = (one.gpu.clone(), numbers);
            !self.instances.contains_key(&key)
        })
    }
}
