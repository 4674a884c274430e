//! Prepares the start of one container: writes its limits page, counters file and CDI specs from its
//! accepted allocation. A container with several resources gets one set of mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::inventory::{Gpu, Mode};
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{GpuUuid, Grant, Mib, Percent, PodUid};
use aliquot_region::limits::{PageError, SIZE};
use parking_lot::{Mutex, MutexGuard};
use thiserror::Error;

use crate::allocation::capabilities::AllowedCapabilities;
use crate::allocation::cdi::{self, Edits, Spec, SpecRefusal};
use crate::allocation::container_directory;
use crate::allocation::context_memory::context_sizes;
use crate::allocation::device_nodes::{self, DeviceNodes, Majors, MissingNode};
use crate::allocation::environment::{self};
use crate::allocation::host::{self, NvidiaSpecs};
use crate::allocation::injection::{self, InstalledLimiter, KnownShims};
use crate::allocation::limits;
use crate::allocation::node_allocations::NodeAllocations;
use crate::allocation::validation::Refusal;
use crate::files::{self, FileError};
use crate::gpus::allocatable::NodeLayout;
use crate::gpus::host_device::HostDevice;
use crate::gpus::inventory::{PublishedNode, RuntimeStatus};
use crate::modes::{ContainerGrant, ModeEdits, ModeError, mps};
use crate::paths::SpecFolders;
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::allocate_answer::NonCdiAnswer;
use aliquot_node_state::checkpoint::{self, CheckpointEntry, CheckpointError};
use aliquot_node_state::container_directory::PRELOAD_LIST;
use aliquot_node_state::device_id::AnswerName;
use aliquot_node_state::limits::EffectiveLimits;
use aliquot_serve::fail_point;

/// NVIDIA's specs are read again after this: a driver update changes them.
const SPECS_MAX_AGE: Duration = Duration::from_millis(200);
/// All files are written again after this, whatever has changed: somebody may have changed them.
const ALL_AFTER: Duration = Duration::from_mins(5);
/// Pods whose files can be written at the same time.
const POD_LOCKS: u64 = 16;

/// Why a container's files cannot be written.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// The container was refused. The text is for the user.
    #[error("{0}")]
    Refused(Refusal),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Nothing would bring the CUDA driver's library into the container, or hold it to its limits.
    #[error(
        "container {container} would start without libcuda.so.1: no CDI spec of NVIDIA's has it for {}{}, and NVIDIA's container runtime does not start this container; expected nvidia-ctk on the node, with which the agent generates such a spec, or `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`; the kubelet retries",
        gpus.join(", "),
        in_parentheses(refused)
    )]
    NoDriver {
        /// The container.
        container: String,
        /// Its devices.
        gpus: Vec<String>,
        /// Why specs of NVIDIA's on the node are not used.
        refused: Vec<SpecRefusal>,
    },
    /// The driver's programs in the container could not open a device node that they need.
    #[error("container {container} would start without {source}; the kubelet retries")]
    NoDeviceNode {
        /// The container.
        container: String,
        /// The node.
        source: MissingNode,
    },
    /// A device's sharing mode cannot be applied to the container.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// The devices do not fit into a limits page.
    #[error("container {container}: {source}")]
    Page {
        /// The container.
        container: String,
        /// What does not fit.
        source: PageError,
    },
    /// A CDI spec cannot be written as JSON.
    #[error("cannot encode the CDI spec {name}: {source}")]
    Encode {
        /// Its name.
        name: AnswerName,
        /// The encoder's error.
        source: serde_json::Error,
    },
}

/// The refusals in parentheses; empty without one.
fn in_parentheses(refused: &[SpecRefusal]) -> String {
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if refused.is_empty() {
        return String::new();
    }
    format!(" ({})", refused.join("; "))
}

/// Writes the files of containers.
pub struct Preparer {
    allocations: Arc<NodeAllocations>,
    limiter: Option<InstalledLimiter>,
    /// The size to charge for a context on every device; `None`: an estimate for each GPU.
    context: Option<Mib>,
    specs: Mutex<Option<(Instant, Arc<NvidiaSpecs>)>>,
    shims: KnownShims,
    pod_locks: Vec<Mutex<()>>,
    refreshed: Mutex<Option<WrittenFiles>>,
}

/// The result of an update of all containers' files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// How many containers have their files.
    pub containers: usize,
    /// How many of them were set up again, since what their files follow from has changed.
    pub changed: usize,
    /// What could not be done, each once.
    pub problems: BTreeSet<String>,
}

/// What the files of all containers follow from, beside the pods' accepted allocations.
#[derive(PartialEq)]
struct NodeInputs {
    devices: BTreeMap<GpuUuid, HostDevice>,
    gpus: Vec<Gpu>,
    layout: NodeLayout,
    runtime: Option<RuntimeStatus>,
    specs: Arc<NvidiaSpecs>,
    majors: Majors,
}

/// Which containers have the files that follow from these inputs.
struct WrittenFiles {
    inputs: NodeInputs,
    since: Instant,
    /// By the first name.
    containers: BTreeMap<String, Arc<AcceptedAllocation>>,
}

/// The devices of a container, and what its limits page and environment show of its grants.
struct ContainerDevices {
    devices: Vec<HostDevice>,
    shown: Vec<Grant>,
    edits: ModeEdits,
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
            allocations,
            limiter,
            context,
            specs: Mutex::default(),
            shims: KnownShims::default(),
            pod_locks: (0..POD_LOCKS).map(|_| Mutex::default()).collect(),
            refreshed: Mutex::default(),
        }
    }

    /// What is known of this node's allocations.
    pub fn allocations(&self) -> &Arc<NodeAllocations> {
        &self.allocations
    }

    /// The limiter, if this node has one.
    pub fn limiter(&self) -> Option<&InstalledLimiter> {
        self.limiter.as_ref()
    }

    /// Locks the files of this pod. Must be locked before the store.
    pub(crate) fn lock_pod(&self, pod: &PodUid) -> MutexGuard<'_, ()> {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let index = usize::try_from(hasher.hash_one(pod) % POD_LOCKS).unwrap_or_default();
        self.pod_locks[index].lock()
    }

    /// Updates the files of every accepted pod in the checkpoint (NVIDIA's own spec may have
    /// changed), where they follow from something else than at the last update. What fails for one
    /// entry stops no other; its container reports the same error at its next start.
    pub fn refresh(&self) -> Result<Refreshed, CheckpointError> {
        let entries = self.allocations.entries()?;
        let node = self.allocations.published.get();
        let store = &self.allocations.store;
        let mut refreshed = Refreshed::default();
        let mut last = self.refreshed.lock();
        let mut known = self.written_files(last.take(), &node);
        let (mut written, mut failed) = (BTreeMap::new(), BTreeMap::new());
        for holders in checkpoint::entries_by_container(&entries) {
            let _locked = self.lock_pod(&holders[0].pod);
            let Some(accepted) = store.lock().get(&holders[0].pod).cloned() else {
                continue;
            };
            let mut names = holders.iter().filter_map(|holder| holder.name.as_ref());
            if !names.all(|name| accepted.names.contains(name.as_str())) {
                continue;
            }
            let container = &holders[0].container;
            let name = holders.iter().find_map(|holder| holder.name.as_ref());
            let name = name.map_or("", AnswerName::as_str).to_owned();
            let pod = format!("{}/{}", accepted.namespace, accepted.pod_name);
            let names = checkpoint::names_by_container(holders.iter().copied());
            if let Err(error) = store.lock().record_names(&accepted.pod, names) {
                let text = format!("cannot store which files belong to pod {pod}: {error}");
                refreshed.problems.insert(text);
            }
            // No instance is created again for a pod that has ended.
            if has_instances(&accepted) && !self.allocations.is_live(&accepted.pod) {
                continue;
            }
            if known.containers.get(&name) == Some(&accepted) {
                refreshed.containers += 1;
                written.insert(name, accepted);
                continue;
            }
            match self.prepare(&accepted, &holders, &node) {
                Ok(problems) => {
                    refreshed.containers += 1;
                    refreshed.changed += 1;
                    if problems.is_empty() {
                        written.insert(name, accepted);
                    }
                    refreshed.problems.extend(problems);
                }
                Err(error) => {
                    failed
                        .entry(error.to_string())
                        .or_insert_with(|| format!("container {container} of pod {pod}"));
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

    /// What was written last, if it follows from what is known of the node now.
    fn written_files(&self, last: Option<WrittenFiles>, node: &PublishedNode) -> WrittenFiles {
        let paths = &self.allocations.paths;
        let inputs = NodeInputs {
            devices: node.devices.clone(),
            gpus: node.inventory.gpus.clone(),
            layout: node.layout.clone(),
            runtime: node.runtime.clone(),
            specs: self.nvidia_specs(&paths.nvidia_cdi),
            majors: Majors::read(&paths.proc_devices),
        };
        let last = last.filter(|last| last.inputs == inputs && last.since.elapsed() < ALL_AFTER);
        last.unwrap_or_else(|| WrittenFiles {
            inputs,
            since: Instant::now(),
            containers: BTreeMap::new(),
        })
    }

    /// Writes the files of one container, whose names are those of `holders`, in the order of their
    /// resources: limits page, counters file and CDI spec of the first, and for each further one a
    /// CDI spec with the same variables. Returns what is wrong although the container can start.
    pub(crate) fn prepare(
        &self,
        accepted: &AcceptedAllocation,
        holders: &[&CheckpointEntry],
        node: &PublishedNode,
    ) -> Result<Vec<String>, PrepareError> {
        let container = holders[0].container.as_str();
        let grants = accepted.allocation.grants(container);
        let effective = accepted.effective(container);
        let mut names = holders.iter().filter_map(|holder| holder.name.as_ref());
        let (Some(name), Some(grants), Some(effective)) = (names.next(), grants, effective) else {
            let refusal = Refusal::NoShare(container.to_owned());
            return Err(PrepareError::Refused(refusal));
        };
        let ContainerDevices {
            devices,
            shown,
            mut edits,
        } = self.set_up_devices(accepted, container, grants, node)?;
        let page = self.limits_page(accepted, container, &devices, &shown, effective, node)?;
        let directory = self
            .allocations
            .paths
            .container_directories
            .join(name.as_str());
        let enforced = edits.limited && !effective.uncontrolled;
        let limiter = self.limiter.as_ref().filter(|_| enforced);
        if let Some(named) = &holders[0].non_cdi {
            if prepare_directory(&directory, &page, limiter)? {
                log_instances(accepted, container, &devices);
            }
            create_preload_list(&directory, named)?;
            return Ok(Vec::new());
        }
        // Nothing is written for a container that would have no driver.
        let mut driver = self.driver_edits(container, &devices, grants, node, &mut edits)?;
        if prepare_directory(&directory, &page, limiter)? {
            log_instances(accepted, container, &devices);
        }
        let directory_name = directory.display().to_string();
        let mut problems = Vec::new();
        if let Some(limiter) = limiter {
            let host_root = &self.allocations.paths.nvidia_cdi.host_root;
            let shims;
            (shims, problems) =
                limiter.install_driver_shims(&driver.edits, host_root, &self.shims)?;
            injection::inject(&mut driver.edits, &directory_name, limiter, &shims);
        }
        let mounts_driver = injection::mounts_driver(&driver.edits);
        let priority = accepted.allocation.priority;
        let variables = environment::variables(&edits, &shown, priority, effective, mounts_driver);
        driver.edits.mounts.append(&mut edits.mounts);
        let (own, trees) = (variables.clone(), host::mounts_whole_trees());
        self.write_spec(name, &cdi::spec(name, own, &directory_name, &driver, trees))?;
        fail_point::at("SpecWritten");
        for name in names {
            self.write_spec(name, &cdi::variables_only(name, variables.clone()))?;
        }
        Ok(problems)
    }

    /// Sets up each granted device for the container, by its sharing mode. Never removes an instance
    /// that other pods use.
    fn set_up_devices(
        &self,
        accepted: &AcceptedAllocation,
        container: &str,
        grants: &[Grant],
        node: &PublishedNode,
    ) -> Result<ContainerDevices, PrepareError> {
        let mode_of = |device: &GpuUuid| Some(accepted.mode(device));
        if let Some(device) = mps::mps_device_beside_others(grants, mode_of) {
            let refusal = Refusal::MpsBesideOther(container.to_owned(), device.clone());
            return Err(PrepareError::Refused(refusal));
        }
        let others = if has_instances(accepted) {
            let store = self.allocations.store.lock();
            self.allocations.others(&accepted.pod, &store)
        } else {
            Vec::new()
        };
        let mut devices = Vec::with_capacity(grants.len());
        let mut shown = grants.to_vec();
        let mut edits = ModeEdits::default();
        for (index, grant) in grants.iter().enumerate() {
            let device = node.devices.get(&grant.gpu).cloned();
            let gone = || PrepareError::Refused(Refusal::DeviceGone(grant.gpu.clone()));
            let mut device = device.ok_or_else(gone)?;
            let other_instances = placed_instances(accepted, &others, &grant.gpu);
            let share = ContainerGrant {
                pod: &accepted.pod,
                container,
                grant,
                index,
                mode: accepted.mode(&grant.gpu),
                device: &device,
                other_instances: &other_instances,
            };
            let mode = share.mode;
            self.allocations.modes.add_edits(&share, &mut edits)?;
            if let Some(instance) = edits.instance.take() {
                device.instance = Some(instance);
            }
            if mode == Mode::Timeslice {
                // Nothing is allocated of it: the whole device is the limit.
                let device = node.inventory.gpu(&grant.gpu);
                shown[index].memory = device.map_or(grant.memory, |device| device.memory);
            }
            if mode == Mode::Mps {
                // The MPS daemon enforces it, by share of the SMs and not of time.
                shown[index].cores = Percent(0);
            }
            devices.push(device);
        }
        // The driver may have a new UUID for an instance.
        for device in &devices {
            let Some(instance) = &device.instance else {
                continue;
            };
            let known = edits.visible.iter_mut();
            let known = known.filter(|name| *name == device.uuid.as_str());
            known.for_each(|name| name.clone_from(&instance.current));
        }
        Ok(ContainerDevices {
            devices,
            shown,
            edits,
        })
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
        let names: Vec<&str> = devices.iter().map(HostDevice::current_uuid).collect();
        let contexts = context_sizes(self.context, shown, node);
        let page = limits::page(shown, &names, priority, effective, &contexts, |gpu| {
            let device = node.inventory.gpu(gpu)?;
            // What was advertised when the pod was accepted, whatever is now.
            Some((device.memory, *accepted.promised.get(gpu)?))
        });
        page.map_err(|source| PrepareError::Page {
            container: container.to_owned(),
            source,
        })
    }

    /// The edits that provide the driver for these devices, with the numbers of their device nodes
    /// and without what their profiles do not allow. Fails where the container would have no driver.
    fn driver_edits(
        &self,
        container: &str,
        devices: &[HostDevice],
        grants: &[Grant],
        node: &PublishedNode,
        edits: &mut ModeEdits,
    ) -> Result<cdi::Driver, PrepareError> {
        let paths = &self.allocations.paths;
        let specs = self.nvidia_specs(&paths.nvidia_cdi);
        let (root, nodes) = (paths.driver_root.as_ref(), &paths.capabilities);
        let mut driver = host::driver(&specs.usable, root, nodes, devices);
        let runtime = node.runtime.as_ref();
        // As long as that is not known, a container that was accepted before does not wait for it.
        let injected = runtime.is_none_or(|runtime| runtime.injects_driver);
        if !has_driver(&driver.edits, injected) {
            let gpus: Vec<_> = node
                .readings
                .facts
                .gpus
                .iter()
                .map(host::named_gpu)
                .collect();
            return Err(PrepareError::NoDriver {
                container: container.to_owned(),
                gpus: devices
                    .iter()
                    .map(|one| one.current_uuid().to_owned())
                    .collect(),
                refused: specs.refusals(&gpus),
            });
        }
        let completed = DeviceNodes::of(root).complete(
            &mut driver.edits,
            &device_nodes::required(devices, nodes),
            &paths.proc_devices,
        );
        // Without the driver in the edits, NVIDIA's runtime adds it with its device nodes.
        if let Err(source) = completed
            && injection::mounts_driver(&driver.edits)
        {
            return Err(PrepareError::NoDeviceNode {
                container: container.to_owned(),
                source,
            });
        }
        let devices = grants.iter().filter_map(|g| node.inventory.gpu(&g.gpu));
        if let Some(allowed) = AllowedCapabilities::of_all(devices, &node.layout) {
            allowed.filter_edits(&mut driver.edits);
            edits.variables.push(allowed.variable());
        }
        injection::set_hook_environment(&mut driver.edits);
        Ok(driver)
    }

    /// [`host::specs`], read again after [`SPECS_MAX_AGE`].
    fn nvidia_specs(&self, folders: &SpecFolders) -> Arc<NvidiaSpecs> {
        let mut cached = self.specs.lock();
        if let Some((read, specs)) = &*cached
            && read.elapsed() < SPECS_MAX_AGE
        {
            return Arc::clone(specs);
        }
        let specs = Arc::new(host::specs(folders));
        *cached = Some((Instant::now(), Arc::clone(&specs)));
        specs
    }

    fn write_spec(&self, name: &AnswerName, spec: &Spec) -> Result<(), PrepareError> {
        let text = serde_json::to_vec_pretty(spec).map_err(|source| PrepareError::Encode {
            name: name.clone(),
            source,
        })?;
        files::put(
            &self
                .allocations
                .paths
                .cdi
                .join(cdi::file_name(name.as_str())),
            &text,
        )?;
        Ok(())
    }
}

/// Returns whether the limits page is new or has changed.
fn prepare_directory(
    directory: &Path,
    page: &[u8; SIZE],
    limiter: Option<&InstalledLimiter>,
) -> Result<bool, FileError> {
    let changed = container_directory::create(directory, page)?;
    if let Some(limiter) = limiter {
        injection::add_to_directory(directory, limiter)?;
    }
    fail_point::at("DirectoryWritten");
    Ok(changed)
}

/// Creates the preload list that an answer mounts, empty where nothing limits the container.
fn create_preload_list(directory: &Path, named: &NonCdiAnswer) -> Result<(), FileError> {
    let list = directory.join(PRELOAD_LIST);
    if named.preloads && !list.exists() {
        files::put(&list, b"")?;
    }
    Ok(())
}

/// Whether something brings the driver's CUDA library into a container: these edits, or NVIDIA's
/// runtime, if it injects the driver into the container.
fn has_driver(edits: &Edits, injected: bool) -> bool {
    injected || injection::mounts_driver(edits)
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
            uuid = instance.current,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn driver_comes_from_our_edits_or_nvidia_runtime() {
        for (library, injected, expected) in [
            ("libcuda.so.1", false, true),
            ("libcuda.so.580.82.07", false, true),
            ("libcudadebugger.so.1", false, false),
            ("libnvidia-ml.so.1", false, false),
            ("libnvidia-ml.so.1", true, true),
        ] {
            let path = format!("/usr/lib64/{library}");
            let edits = Edits {
                mounts: vec![json!({"hostPath": "/lib", "containerPath": path})],
                ..Edits::default()
            };
            assert_eq!(has_driver(&edits, injected), expected, "{library}");
        }
    }

    #[test]
    fn creates_preload_list_once_before_container() {
        let directory = tempfile::tempdir().expect("tempdir");
        let list = directory.path().join(PRELOAD_LIST);
        let named = |preloads| NonCdiAnswer {
            visible: BTreeSet::new(),
            preloads,
        };
        create_preload_list(directory.path(), &named(false)).expect("nothing to do");
        assert!(!list.exists());
        create_preload_list(directory.path(), &named(true)).expect("made");
        assert_eq!(std::fs::read(&list).expect("there"), b"");
        std::fs::write(&list, "ours").expect("written");
        create_preload_list(directory.path(), &named(true)).expect("left");
        assert_eq!(std::fs::read(&list).expect("there"), b"ours");
    }
}
