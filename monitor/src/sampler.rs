//! Takes one sample of all that is measured, from disk, driver and `/proc`. A part that cannot be
//! read does not fail the whole sample.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aliquot_core::PodUid;
use aliquot_node_state::mps;
use aliquot_node_state::processes::{ProcessIdentity, Processes};
use aliquot_node_state::state::StateDirectory;
use aliquot_nvml::Usage;
use aliquot_region::host::{self, CountersReadError};
use aliquot_region::limits::{HostLimitsPage, YIELDS};
use rustix::time::{ClockId, clock_gettime};

use crate::busy::UtilizationSamples;
use crate::container_cgroups::ContainerCgroups;
use crate::container_names::ContainerNames;
use crate::devices::{self, GpuSample, InventoryCache};
use crate::managed_containers::{ContainerReader, ManagedContainer, ManagedContainers};
use crate::node_sample::{Counters, DevicePage, NodeContext, NodeSample, ProcessSample};
use crate::pods::{Pod, Pods};

/// Takes samples, and caches what need not be read each time.
pub struct Sampler {
    driver: Arc<dyn Usage>,
    reader: ContainerReader,
    processes: Processes,
    pods: Pods,
    container_cgroups: ContainerCgroups,
    names: ContainerNames,
    /// Pods that had a process on a GPU in the last sample.
    busy: Option<BTreeSet<PodUid>>,
    /// Containers that had one, by pod and the runtime's id.
    seen: BTreeSet<(PodUid, String)>,
    exiting: ExitingProcesses,
    mps: PathBuf,
    own: Option<PodUid>,
    gpus: InventoryCache,
    samples: UtilizationSamples,
    pages: BTreeMap<String, HostLimitsPage>,
    pub failures: BTreeMap<&'static str, u64>,
}

impl Sampler {
    /// Samples this driver and the containers below the agent's state directory.
    pub fn new(driver: Arc<dyn Usage>, state: &Path, processes: Processes, pods: Pods) -> Self {
        let own = processes.info(std::process::id());
        Self {
            own: own.and_then(|known| known.location.pod),
            driver,
            reader: ContainerReader::new(state.to_owned()),
            processes,
            pods,
            container_cgroups: ContainerCgroups::default(),
            names: ContainerNames::read(state),
            busy: None,
            seen: BTreeSet::new(),
            exiting: ExitingProcesses::default(),
            mps: StateDirectory(state).mps(),
            gpus: InventoryCache::default(),
            samples: UtilizationSamples::default(),
            pages: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Takes one sample. Blocks.
    pub fn sample(&mut self) -> (NodeSample, Vec<GpuSample>) {
        let pods = self.pods.all();
        let listed = self.reader.read();
        let containers = self.active_containers(listed, &pods);
        let (gpus, failed) = self.gpus.now(&*self.driver);
        if let Some(error) = failed {
            self.failed("inventory", "", &error);
        }
        let before: Vec<_> = containers.all.iter().map(counters).collect();
        let mut sample = NodeSample {
            context: self.context(&gpus, &containers, pods),
            containers: Arc::clone(&containers),
            ..NodeSample::default()
        };
        for container in &containers.all {
            self.read_page(container, &mut sample);
        }
        for gpu in &gpus {
            for one in &gpu.instances {
                sample.gpus.insert(one.uuid.clone(), gpu.uuid.clone());
            }
            self.processes_of(&gpu.uuid, &mut sample);
        }
        self.exiting.update(&mut sample.processes);
        let locations = sample.processes.iter().map(|one| &one.process.location);
        let seen = locations
            .filter_map(|location| Some((location.pod.clone()?, location.container.clone()?)));
        self.seen = seen.collect();
        sample.taken_at = monotonic();
        sample.counters = with_counters_after(before, &sample, &gpus);
        // The processes on a GPU that is missing in the inventory are not known.
        let known = devices::devices(&gpus, |_| true);
        let used = (0..containers.all.len()).flat_map(|at| sample.device_uuids(at));
        let missing = used.filter(|uuid| !known.contains(uuid));
        let unknown: Vec<String> = missing.map(str::to_owned).collect();
        self.gpus.set_missing(!unknown.is_empty());
        sample.blind.extend(unknown);
        for (container, counters) in containers.all.iter().zip(&sample.counters) {
            if let Some(Err(error)) = counters
                && !error.is_caused_by_tenant()
                && !is_gone(error)
            {
                self.failed("counters", &container.id, error);
            }
        }
        let last = self.busy.take().filter(|_| !sample.blind.is_empty());
        let processes = sample.processes.iter();
        let busy = processes.filter_map(|one| one.process.location.pod.clone());
        self.busy = Some(busy.chain(last.into_iter().flatten()).collect());
        let is_on_new = |one: &ProcessSample| sample.context.is_on_new_instance(one);
        if sample.processes.iter().any(is_on_new) {
            self.gpus.invalidate();
        }
        let names = &sample.context.container_names;
        sample.cgroups = self
            .container_cgroups
            .find(&containers.all, names, &self.processes);
        let ids = containers.ids();
        self.pages.retain(|id, _| ids.contains(id.as_str()));
        (sample, gpus)
    }

    /// The limits page of a container, to write to.
    pub fn page(&mut self, container: &ManagedContainer) -> Option<&HostLimitsPage> {
        if !self.pages.contains_key(&container.id) {
            let page = HostLimitsPage::open(&container.directory.limits());
            match page {
                Ok(page) => drop(self.pages.insert(container.id.clone(), page)),
                Err(error) => {
                    self.failed("limits", &container.id, &error);
                    return None;
                }
            }
        }
        self.pages.get(&container.id)
    }

    /// Ends every call-back of lent memory, before the monitor stops.
    pub fn end_call_backs(&self) {
        for page in self.pages.values() {
            for device in 0..page.page().devices() {
                page.set_called_back(device, false);
            }
        }
    }

    /// Writes to the limits pages what each container is charged on each device: the charges of an
    /// evaluation. Blocks.
    pub fn write_charges(&mut self, containers: &[ManagedContainer], charges: &[Vec<Option<u64>>]) {
        for (container, charges) in containers.iter().zip(charges) {
            for (device, charge) in charges.iter().enumerate() {
                if let Some(bytes) = charge
                    && let Some(page) = self.page(container)
                    && device < page.page().devices()
                {
                    page.set_overhead(device, *bytes);
                }
            }
        }
    }

    fn read_page(&mut self, container: &ManagedContainer, sample: &mut NodeSample) {
        let mut pages = vec![DevicePage::default(); container.devices.len()];
        let mut current_uuids = Vec::new();
        if let Some(page) = self.page(container) {
            current_uuids.extend(page.uuids().take(pages.len()));
            let page = page.page();
            for (device, found) in pages.iter_mut().enumerate().take(page.devices()) {
                *found = DevicePage {
                    limit: page.memory(device),
                    request: page.request(device),
                    guaranteed: page.guaranteed(device),
                    overhead: page.overhead(device),
                };
            }
            if page.flags() & YIELDS != 0 {
                sample.yields.insert(container.id.clone());
            }
        }
        sample.pages.push(pages);
        sample.context.current_uuids.push(current_uuids);
    }

    /// The containers of pods that have not ended, or that have a process on a GPU, without the init
    /// containers that have succeeded. Nothing runs in the others.
    fn active_containers(
        &self,
        read: Arc<ManagedContainers>,
        pods: &BTreeMap<PodUid, Arc<Pod>>,
    ) -> Arc<ManagedContainers> {
        let is_inactive = |container: &ManagedContainer| {
            let Some((pod, busy)) = pods.get(&container.pod).zip(self.busy.as_ref()) else {
                return false;
            };
            if pod.ended {
                return !busy.contains(&container.pod);
            }
            let is_of_it = |(uid, id): &(PodUid, String)| {
                *uid == container.pod && pod.containers.get(id) == Some(&container.name)
            };
            pod.ended_containers.contains(&container.name) && !self.seen.iter().any(is_of_it)
        };
        if !read.all.iter().any(is_inactive) {
            return read;
        }
        let mut containers = ManagedContainers::clone(&read);
        containers.all.retain(|container| !is_inactive(container));
        Arc::new(containers)
    }

    fn processes_of(&mut self, gpu: &str, sample: &mut NodeSample) {
        let found = match self.driver.processes(gpu) {
            Ok(found) => found,
            Err(error) => {
                self.failed("processes", gpu, &error);
                sample.blind.insert(gpu.to_owned());
                return;
            }
        };
        for one in found {
            if let Some(process) = self.processes.info(one.pid) {
                sample.processes.push(ProcessSample {
                    gpu: gpu.to_owned(),
                    instance: one.instance,
                    bytes: one.bytes,
                    process,
                });
            } else if self.processes.exists(one.pid) {
                // The host has no descriptor or memory left: nothing is known of what it uses.
                sample.blind.insert(gpu.to_owned());
            }
        }
        let is_busy = sample.processes_on(gpu).next().is_some();
        if is_busy && let Ok(memory) = self.driver.memory(gpu) {
            sample.in_use.insert(gpu.to_owned(), memory.used);
        }
        self.samples.set_clock(SystemTime::now());
        let since = self.samples.since(gpu);
        let shares = match self.driver.process_utilization(gpu, since) {
            Ok(Some(shares)) => shares,
            Ok(None) => {
                sample.uncorrected.insert(gpu.to_owned());
                return;
            }
            Err(error) => {
                self.failed("utilization", gpu, &error);
                sample.unsampled.insert(gpu.to_owned());
                return;
            }
        };
        let now = Instant::now();
        let processes = sample.processes_on(gpu);
        let pids: BTreeSet<u32> = processes.map(|one| one.process.identity.pid).collect();
        let runs = |pid: u32| pids.contains(&pid);
        if self.samples.take(gpu, &shares, runs, now) {
            sample.newly_sampled.insert(gpu.to_owned());
        }
        for (pid, busy) in self.samples.busy(gpu, now) {
            sample.busy.insert((gpu.to_owned(), pid), busy);
        }
    }

    fn context(
        &mut self,
        gpus: &[GpuSample],
        containers: &ManagedContainers,
        pods: BTreeMap<PodUid, Arc<Pod>>,
    ) -> NodeContext {
        let accepted = (!containers.unlisted).then_some(&containers.accepted);
        self.names.prune(&pods, &self.seen);
        let own = self.own.as_ref();
        let mps_pods = own.map(|own| self.pods.of_mps_supervisor(own));
        let mut context = NodeContext {
            mps_pods: mps_pods.unwrap_or_default(),
            container_names: self.names.update(accepted, &pods).clone(),
            pods,
            ..NodeContext::default()
        };
        if let Err(error) = self.names.write() {
            self.failed("names", "", &error);
        }
        for gpu in gpus {
            for one in &gpu.instances {
                let key = (gpu.uuid.clone(), one.numbers);
                context.instances.insert(key, one.clone());
            }
        }
        for status in mps::statuses(&self.mps) {
            context.servers.extend(status.processes());
        }
        context
    }

    fn failed(&mut self, what: &'static str, of: &str, error: &dyn std::error::Error) {
        *self.failures.entry(what).or_default() += 1;
        tracing::warn!(what, of, %error, "read failed; retrying at the next sample");
    }
}

/// The monotonic clock, which the limiter reads too.
fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// The counters file of a container with the limiter.
fn counters(
    container: &ManagedContainer,
) -> Option<Result<host::CountersSnapshot, CountersReadError>> {
    let read = || host::read(&container.directory.counters(), container.devices.len());
    container.limited.then(read)
}

/// Reads the counters again after the processes, but for containers on whose GPUs no process uses
/// memory that the counters could be compared with.
fn with_counters_after(
    before: Vec<Option<Result<host::CountersSnapshot, CountersReadError>>>,
    sample: &NodeSample,
    gpus: &[GpuSample],
) -> Vec<Option<Counters>> {
    let used: BTreeSet<&str> = sample.processes.iter().map(|one| &*one.gpu).collect();
    let quiet = devices::devices(gpus, |gpu| {
        !used.contains(&*gpu.uuid) && !sample.blind.contains(&gpu.uuid)
    });
    let containers = sample.containers.all.iter().enumerate().zip(before);
    let pairs = containers.map(|((at, container), before)| {
        let before = match before? {
            Ok(before) => before,
            Err(error) => return Some(Err(error)),
        };
        let after = if sample.device_uuids(at).all(|uuid| quiet.contains(uuid)) {
            Ok(before.clone())
        } else {
            counters(container)?
        };
        Some(after.map(|after| (before, after)))
    });
    pairs.collect()
}

/// Whether the file was removed with its container, or does not exist yet.
fn is_gone(error: &CountersReadError) -> bool {
    let gone = std::io::ErrorKind::NotFound;
    matches!(error, CountersReadError::Io { source, .. } if source.kind() == gone)
}

/// Samples after which an exiting process counts as any other: releasing tens of gigabytes takes the
/// driver seconds.
const MAX_EXITING: u32 = 20;

/// Exiting processes, whose memory is about to be released, with the number of samples since they
/// began to exit. A program may exit and leave its memory to another that shares it, so the state
/// does not last.
#[derive(Clone, Debug, Default)]
pub struct ExitingProcesses(BTreeMap<ProcessIdentity, u32>);

impl ExitingProcesses {
    /// Adds one sample: processes that have been exiting for too long no longer count as exiting.
    pub fn update(&mut self, processes: &mut [ProcessSample]) {
        let mut next = BTreeMap::new();
        for one in processes.iter_mut().filter(|one| one.process.exiting) {
            let identity = one.process.identity;
            let samples = self.0.get(&identity).map_or(1, |samples| samples + 1);
            next.insert(identity, samples);
            one.process.exiting = samples <= MAX_EXITING;
        }
        self.0 = next;
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
