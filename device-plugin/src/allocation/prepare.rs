//! Prepares the start of one container: writes its limits page, counters file and CDI specs from its
//! accepted allocation. A container with several resources gets one set of mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::inventory::Gpu;
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{GpuUuid, Grant, Mib, PodUid};
use aliquot_nvml::may_limit_memory;
use aliquot_region::limits::{PageError, SIZE};
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;

use crate::allocation::container_directory;
use crate::allocation::context_memory::context_sizes;
use crate::allocation::environment;
use crate::allocation::limits;
use crate::allocation::node_allocations::NodeAllocations;
use crate::allocation::validation::Refusal;
use crate::container_edits::injection::InstalledLimiter;
use crate::container_edits::{ContainerEdits, EditInputs, EditsError};
use crate::files::FileError;
use crate::gpus::allocatable::NodeLayout;
use crate::gpus::inventory::PublishedNode;
use crate::host_device::HostDevice;
use crate::modes::{self, Capabilities, ContainerGrant, ModeError, ModeSetup};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::checkpoint::{self, CheckpointError, NamedContainer};
use aliquot_node_state::limits::EffectiveLimits;
use aliquot_serve::fail_point;

/// All files are written again after this, whatever has changed: somebody may have changed them.
const ALL_AFTER: Duration = Duration::from_mins(5);
/// Pods whose files can be written at the same time.
const POD_LOCKS: u64 = 16;

#[derive(Debug, Error)]
pub enum PrepareError {
    /// The container was refused. The text is for the user.
    #[error("{0}")]
    Refused(Refusal),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Edits(#[from] EditsError),
    #[error(transparent)]
    Mode(#[from] ModeError),
    #[error("container {container}: {source}")]
    Page {
        container: String,
        source: PageError,
    },
}

pub struct Preparer {
    allocations: Arc<NodeAllocations>,
    edits: ContainerEdits,
    /// The size to charge for a context on every device; `None`: an estimate for each GPU.
    context: Option<Mib>,
    pod_locks: Vec<Mutex<()>>,
    refreshed: Mutex<Option<WrittenFiles>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// How many containers have their files.
    pub containers: usize,
    /// How many of them were set up again, because the inputs of their files changed.
    pub changed: usize,
    /// What could not be done, each once.
    pub problems: BTreeSet<String>,
}

/// The inputs of all containers' files, beside the pods' accepted allocations.
#[derive(PartialEq)]
struct NodeInputs {
    devices: BTreeMap<GpuUuid, HostDevice>,
    gpus: Vec<Gpu>,
    layout: NodeLayout,
    driver_version: String,
    edits: EditInputs,
}

/// Which containers have the files that follow from these inputs.
struct WrittenFiles {
    inputs: NodeInputs,
    since: Instant,
    /// By the first name.
    containers: BTreeMap<String, Arc<AcceptedAllocation>>,
}

impl Preparer {
    /// `limiter`: the installed one, if this node has one; `context`: the administrator's size of a
    /// context.
    pub fn new(
        allocations: Arc<NodeAllocations>,
        limiter: Option<InstalledLimiter>,
        context: Option<Mib>,
    ) -> Self {
        Self {
            edits: ContainerEdits::new(&allocations.paths, limiter),
            allocations,
            context,
            pod_locks: (0..POD_LOCKS).map(|_| Mutex::default()).collect(),
            refreshed: Mutex::default(),
        }
    }

    pub fn allocations(&self) -> &Arc<NodeAllocations> {
        &self.allocations
    }

    pub fn edits(&self) -> &ContainerEdits {
        &self.edits
    }

    /// Locks the files of this pod. Must be locked before the store.
    pub(crate) fn lock_pod(&self, pod: &PodUid) -> MutexGuard<'_, ()> {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let index = usize::try_from(hasher.hash_one(pod) % POD_LOCKS).unwrap_or_default();
        self.pod_locks[index].lock()
    }

    /// Updates the files of every accepted pod in the checkpoint whose inputs changed since the
    /// last update: NVIDIA's own spec may have. A failure of one entry stops no other; its
    /// container reports the same error at its next start.
    pub fn refresh(&self) -> Result<Refreshed, CheckpointError> {
        let entries = self.allocations.entries()?;
        let node = self.allocations.published.get();
        let store = &self.allocations.store;
        let mut refreshed = Refreshed::default();
        let mut last = self.refreshed.lock();
        let mut known = self.written_files(last.take(), &node);
        let (mut written, mut failed) = (BTreeMap::new(), BTreeMap::new());
        for named in checkpoint::named_containers(&entries) {
            let _locked = self.lock_pod(named.pod);
            let Some(accepted) = store.lock().get(named.pod).cloned() else {
                continue;
            };
            if !named.names().all(|name| accepted.has_name(name)) {
                continue;
            }
            let (container, name) = (named.container, named.first.as_str().to_owned());
            // No instance is created again for a pod that has ended.
            if has_instances(&accepted) && !self.allocations.is_live(&accepted.pod) {
                continue;
            }
            if known.containers.get(&name) == Some(&accepted) {
                refreshed.containers += 1;
                written.insert(name, accepted);
                continue;
            }
            match self.prepare(&accepted, &named, &node) {
                Ok(problems) => {
                    refreshed.containers += 1;
                    refreshed.changed += 1;
                    if problems.is_empty() {
                        written.insert(name, accepted);
                    }
                    refreshed.problems.extend(problems);
                }
                Err(error) => {
                    failed.entry(error.to_string()).or_insert_with(|| {
                        let (namespace, pod) = (&accepted.namespace, &accepted.pod_name);
                        format!("container {container} of pod {namespace}/{pod}")
                    });
                }
            }
        }
        for (error, first) in failed {
            let text = format!("cannot update the files of containers, such as {first}: {error}");
            refreshed.problems.insert(text);
        }
        known.containers = written;
        *last = Some(known);
        Ok(refreshed)
    }

    /// What was written last, if its inputs are still the same.
    fn written_files(&self, last: Option<WrittenFiles>, node: &PublishedNode) -> WrittenFiles {
        let inputs = NodeInputs {
            devices: node.devices.clone(),
            gpus: node.inventory.gpus.clone(),
            layout: node.layout.clone(),
            driver_version: node.readings.facts.driver_version.clone(),
            edits: self.edits.inputs(),
        };
        let last = last.filter(|last| last.inputs == inputs && last.since.elapsed() < ALL_AFTER);
        last.unwrap_or_else(|| WrittenFiles {
            inputs,
            since: Instant::now(),
            containers: BTreeMap::new(),
        })
    }

    /// Writes the files of one container: limits page, counters file and CDI spec of its first name,
    /// and for each further one a CDI spec with the same variables. Returns what is wrong although
    /// the container can start.
    pub(crate) fn prepare(
        &self,
        accepted: &AcceptedAllocation,
        named: &NamedContainer<'_>,
        node: &PublishedNode,
    ) -> Result<Vec<String>, PrepareError> {
        let container = named.container;
        let grants = accepted.allocation.grants(container);
        let effective = accepted.effective(container);
        let (Some(grants), Some(effective)) = (grants, effective) else {
            let refusal = Refusal::NoShare(container.to_owned());
            return Err(PrepareError::Refused(refusal));
        };
        let (devices, mut setup) = self.set_up_devices(accepted, grants, node)?;
        let page =
            self.limits_page(accepted, container, &devices, &setup.shown, effective, node)?;
        let directory = self
            .allocations
            .paths
            .container_directories
            .join(named.first.as_str());
        let gpus = grants
            .iter()
            .filter_map(|grant| node.inventory.gpu(&grant.gpu));
        let allowed = Capabilities::on_all(gpus, &node.layout);
        let variables = &mut setup.variables;
        variables.extend(allowed.map(Capabilities::variable));
        let edits = &self.edits;
        // Nothing is written for a container that would have no driver.
        let mut driver = edits.driver(container, &devices, allowed)?;
        if container_directory::create(&directory, &page)? {
            log_instances(accepted, container, &devices);
        }
        let mut problems = Vec::new();
        if !effective.uncontrolled {
            let by_driver = may_limit_memory(&node.readings.facts.driver_version);
            problems = edits.limit(&mut driver, &directory, &setup, by_driver)?;
        }
        fail_point::at("DirectoryWritten");
        let priority = accepted.allocation.priority;
        let variables = environment::variables(&setup, priority, effective);
        driver.edits.mounts.append(&mut setup.mounts);
        let further = named.further.iter().copied();
        edits.write(named.first, further, &variables, &directory, &driver)?;
        Ok(problems)
    }

    /// Sets up each granted device for the container, by its sharing mode. Never removes an instance
    /// that other pods use.
    fn set_up_devices(
        &self,
        accepted: &AcceptedAllocation,
        grants: &[Grant],
        node: &PublishedNode,
    ) -> Result<(Vec<HostDevice>, ModeSetup), PrepareError> {
        let others = if has_instances(accepted) {
            let store = self.allocations.store.lock();
            self.allocations.others(&accepted.pod, &store)
        } else {
            Vec::new()
        };
        let mut devices = Vec::with_capacity(grants.len());
        let mut setup = ModeSetup::default();
        for grant in grants {
            let device = node.devices.get(&grant.gpu).cloned();
            let gone = || PrepareError::Refused(Refusal::DeviceGone(grant.gpu.clone()));
            let mut device = device.ok_or_else(gone)?;
            let other_instances = placed_instances(accepted, &others, &grant.gpu);
            let share = ContainerGrant {
                grant,
                device: node.inventory.gpu(&grant.gpu),
                other_instances: &other_instances,
            };
            let mode = modes::of_device(accepted.mode(&grant.gpu));
            let created = mode.prepare(&self.allocations.modes, &share, &mut setup)?;
            if created.is_some() {
                device.instance = created;
            }
            devices.push(device);
        }
        Ok((devices, setup))
    }

    fn limits_page(
        &self,
        accepted: &AcceptedAllocation,
        container: &str,
        devices: &[HostDevice],
        shown: &[Grant],
        effective: EffectiveLimits,
        node: &PublishedNode,
    ) -> Result<[u8; SIZE], PrepareError> {
        let priority = accepted.allocation.priority;
        let names: Vec<&str> = devices.iter().map(HostDevice::visible_uuid).collect();
        let contexts = context_sizes(self.context, shown, node);
        let page = limits::page(shown, &names, priority, effective, &contexts, |gpu| {
            let device = node.inventory.gpu(gpu)?;
            // What was advertised when the pod was accepted, not what is advertised now.
            Some((device.memory, *accepted.promised.get(gpu)?))
        });
        page.map_err(|source| PrepareError::Page {
            container: container.to_owned(),
            source,
        })
    }
}

/// Whether instances of dynamic MIG are created for it.
fn has_instances(accepted: &AcceptedAllocation) -> bool {
    let mut grants = accepted.allocation.all().flat_map(|(_, grants)| grants);
    grants.any(|grant| grant.mig.is_some())
}

fn log_instances(accepted: &AcceptedAllocation, container: &str, devices: &[HostDevice]) {
    for instance in devices.iter().filter_map(|one| one.instance.as_ref()) {
        tracing::info!(
            namespace = accepted.namespace,
            pod = accepted.pod_name,
            container,
            uuid = instance.uuid,
            gpu_instance = instance.gpu_instance,
            compute_instance = instance.compute_instance,
            "container gets a MIG instance"
        );
    }
}

/// The instances of a GPU under dynamic MIG that these pods use together.
fn placed_instances(
    accepted: &AcceptedAllocation,
    others: &[Arc<AcceptedAllocation>],
    gpu: &GpuUuid,
) -> Vec<MigPlacement> {
    let all = others.iter().map(|other| &**other).chain([accepted]);
    let grants = all.flat_map(|one| one.allocation.all().flat_map(|(_, grants)| grants));
    let here = grants.filter(|grant| grant.gpu == *gpu);
    here.filter_map(|grant| grant.mig.clone()).collect()
}
