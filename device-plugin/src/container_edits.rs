//! Writes the files of one container from its accepted allocation: limits page, counters file and
//! CDI specs. A container with several resources gets one set of mounts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aliquot_core::inventory::Mode;
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{GpuUuid, Grant, Percent, PodUid};

use crate::accepted::AcceptedAllocation;
use crate::capabilities::AllowedCapabilities;
use crate::cdi::{self, Edits, Spec};
use crate::checkpoint::{CheckpointEntry, CheckpointError};
use crate::device_id::AnswerName;
use crate::device_nodes::{self, DeviceNodes};
use crate::fail_point::{self, Point};
use crate::injection::InstalledLimiter;
use crate::inventory::PublishedNode;
use crate::modes::{ContainerGrant, ModeEdits, mps};
use crate::prestart::{PreStart, PreStartError};
use crate::runtime::device_list::RuntimeStatus;
use crate::validation::Refusal;
use crate::{environment, files, host, injection, limits, non_cdi};

impl PreStart {
    /// Updates the files of every accepted pod in the checkpoint (NVIDIA's own spec may have
    /// changed). Logs what fails for one entry: its container reports the same error at its next
    /// start. Returns the number of updated containers.
    pub fn refresh(&self) -> Result<usize, CheckpointError> {
        let entries = self.entries()?;
        let node = self.published.get();
        let mut served = 0;
        for holders in entries_by_container(&entries) {
            let _locked = self.call_state.lock_pod(&holders[0].pod);
            let Some(accepted) = self.store.lock().get(&holders[0].pod).cloned() else {
                continue;
            };
            let mut names = holders.iter().filter_map(|holder| holder.name.as_ref());
            if !names.all(|name| accepted.names.contains(name.as_str())) {
                continue;
            }
            let container = &holders[0].container;
            let names = names_by_container(holders.iter().copied());
            if let Err(error) = self.store.lock().record_names(&accepted.pod, names) {
                tracing::warn!(%error, "cannot store which pod these files belong to");
            }
            // No instance is created again for a pod that has ended.
            let mut grants = accepted.allocation.all().flat_map(|(_, grants)| grants);
            if grants.any(|grant| grant.mig.is_some()) && !self.is_live(&accepted.pod) {
                continue;
            }
            let others = self.others_for_dynamic_mig(&accepted, &self.store.lock());
            match self.write(&accepted, &others, &holders, &node) {
                Ok(()) => served += 1,
                Err(error) => {
                    let pod = &accepted.pod_name;
                    tracing::warn!(pod, container, %error, "cannot update the files of a container");
                }
            }
        }
        Ok(served)
    }

    /// Writes the files of one container, whose names are those of `holders`, in the order of their
    /// resources: limits page, counters file and CDI spec of the first, and for each further one a
    /// CDI spec with the same variables. Never removes an instance that `others` use.
    #[allow(
        clippy::too_many_lines,
        reason = "the steps of one start, in their order"
    )]
    pub(crate) fn write(
        &self,
        accepted: &AcceptedAllocation,
        others: &[Arc<AcceptedAllocation>],
        holders: &[&CheckpointEntry],
        node: &PublishedNode,
    ) -> Result<(), PreStartError> {
        let container = holders[0].container.as_str();
        let grants = accepted.allocation.grants(container);
        let effective = accepted.effective(container);
        let mut names = holders.iter().filter_map(|holder| holder.name.as_ref());
        let (Some(name), Some(grants), Some(effective)) = (names.next(), grants, effective) else {
            let refusal = Refusal::NoShare(container.to_owned());
            return Err(PreStartError::Refused(refusal));
        };
        let mode_of = |device: &GpuUuid| Some(accepted.mode(device));
        if let Some(device) = mps::mps_device_beside_others(grants, mode_of) {
            let refusal = Refusal::MpsBesideOther(container.to_owned(), device.clone());
            return Err(PreStartError::Refused(refusal));
        }
        let mut devices = Vec::with_capacity(grants.len());
        let mut shown = grants.to_vec();
        let mut edits = ModeEdits::default();
        for (index, grant) in grants.iter().enumerate() {
            let device = node.devices.get(&grant.gpu).cloned();
            let mut device = device.ok_or_else(|| PreStartError::DeviceGone {
                pod: accepted.pod.clone(),
                gpu: grant.gpu.clone(),
            })?;
            let other_instances = placed_instances(accepted, others, &grant.gpu);
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
            // Creating an instance, or enlarging an MPS daemon's share, takes seconds.
            if matches!(mode, Mode::Mig | Mode::Mps) {
                let apply = || self.modes.add_edits(&share, &mut edits);
                self.call_state.workers.release_while(apply)?;
            } else {
                self.modes.add_edits(&share, &mut edits)?;
            }
            if let Some(instance) = edits.instance.take() {
                device.instance = Some(instance);
            }
            if let Some(instance) = &device.instance {
                log_instance(accepted, container, instance);
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
        let priority = accepted.allocation.priority;
        let names_now: Vec<&str> = devices.iter().map(host::HostDevice::current_uuid).collect();
        let contexts = self.context.sizes(&shown, node);
        let page = limits::page(&shown, &names_now, priority, effective, &contexts, |gpu| {
            let device = node.inventory.gpu(gpu)?;
            // What was advertised when the pod was accepted, whatever is now.
            Some((device.memory, *accepted.promised.get(gpu)?))
        });
        let page = page.map_err(|source| PreStartError::Page {
            container: container.to_owned(),
            source,
        })?;
        let directory = self.paths.container_directories.join(name.as_str());
        let enforced = edits.limited && !effective.uncontrolled;
        let limiter = self.limiter.as_ref().filter(|_| enforced);
        if let Some(named) = &holders[0].non_cdi {
            self.prepare_directory(&directory, &page, limiter)?;
            return Ok(non_cdi::create_preload_list(&directory, named)?);
        }
        // Nothing is written for a container that would have no driver.
        let mut driver = self.driver_edits(container, &devices, grants, node, &mut edits)?;
        self.prepare_directory(&directory, &page, limiter)?;
        let directory_name = directory.display().to_string();
        if let Some(limiter) = limiter {
            let host_root = &self.paths.nvidia_cdi.host_root;
            let shims = limiter.install_driver_shims(&driver.edits, host_root)?;
            injection::inject(&mut driver.edits, &directory_name, limiter, &shims);
        }
        let mounts_driver = injection::mounts_driver(&driver.edits);
        let variables = environment::variables(&edits, &shown, priority, effective, mounts_driver);
        driver.edits.mounts.append(&mut edits.mounts);
        let (own, trees) = (variables.clone(), host::mounts_whole_trees());
        self.write_spec(name, &cdi::spec(name, own, &directory_name, &driver, trees))?;
        fail_point::at(Point::SpecWritten);
        for name in names {
            self.write_spec(name, &cdi::variables_only(name, variables.clone()))?;
        }
        Ok(())
    }

    /// The edits that provide the driver for these devices, with the numbers of their device nodes
    /// and without what their profiles do not allow. Fails where the container would have no driver.
    fn driver_edits(
        &self,
        container: &str,
        devices: &[host::HostDevice],
        grants: &[Grant],
        node: &PublishedNode,
        edits: &mut ModeEdits,
    ) -> Result<cdi::Driver, PreStartError> {
        let specs = self.call_state.specs(&self.paths.nvidia_cdi);
        let (root, nodes) = (self.paths.driver_root.as_ref(), &self.paths.capabilities);
        let mut driver = host::driver(&specs.usable, root, nodes, devices);
        if !has_driver(&driver.edits, node.runtime.as_ref()) {
            let gpus: Vec<_> = node.facts.gpus.iter().map(host::named_gpu).collect();
            return Err(PreStartError::NoDriver {
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
            &self.paths.proc_devices,
        );
        // Without the driver in the edits, NVIDIA's runtime adds it with its device nodes.
        if let Err(source) = completed
            && injection::mounts_driver(&driver.edits)
        {
            return Err(PreStartError::NoDeviceNode {
                container: container.to_owned(),
                source,
            });
        }
        let devices = grants.iter().filter_map(|g| node.inventory.gpu(&g.gpu));
        if let Some(allowed) = AllowedCapabilities::of_all(devices, &node.layout) {
            allowed.filter_edits(&mut driver.edits);
            edits.variables.push(allowed.variable());
        }
        Ok(driver)
    }

    /// Prepares a container directory: a preallocated one, or a new one.
    fn prepare_directory(
        &self,
        directory: &Path,
        page: &[u8; aliquot_region::limits::SIZE],
        limiter: Option<&InstalledLimiter>,
    ) -> Result<(), PreStartError> {
        if self.preallocated.take_directory(directory, limiter) {
            files::write_limits(directory, page)?;
        } else {
            files::container_directory(directory, page)?;
            if let Some(limiter) = limiter {
                injection::add_to_directory(directory, limiter)?;
            }
        }
        fail_point::at(Point::DirectoryWritten);
        Ok(())
    }

    fn write_spec(&self, name: &AnswerName, spec: &Spec) -> Result<(), PreStartError> {
        let text = serde_json::to_vec_pretty(spec).map_err(|source| PreStartError::Encode {
            name: name.clone(),
            source,
        })?;
        files::put(&self.paths.cdi.join(cdi::file_name(name.as_str())), &text)?;
        Ok(())
    }
}

/// Whether something brings the driver's CUDA library into a container: these edits, or NVIDIA's
/// runtime, unless it is known that it does not start the container.
fn has_driver(edits: &Edits, runtime: Option<&RuntimeStatus>) -> bool {
    injection::mounts_driver(edits) || runtime.is_none_or(|runtime| runtime.injects_driver)
}

fn log_instance(accepted: &AcceptedAllocation, container: &str, instance: &host::InstanceIds) {
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

/// The names of these entries, each with its container.
pub(crate) fn names_by_container<'a>(
    entries: impl IntoIterator<Item = &'a CheckpointEntry, IntoIter: Clone>,
) -> impl Iterator<Item = (&'a AnswerName, &'a str)> + Clone {
    let both = |entry: &'a CheckpointEntry| Some((entry.name.as_ref()?, entry.container.as_str()));
    entries.into_iter().filter_map(both)
}

/// The entries with a name, grouped by container, each in the order of the resources.
pub(crate) fn entries_by_container(entries: &[CheckpointEntry]) -> Vec<Vec<&CheckpointEntry>> {
    let mut found: BTreeMap<(&PodUid, &str), Vec<&CheckpointEntry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.name.is_some()) {
        let key = (&entry.pod, entry.container.as_str());
        found.entry(key).or_default().push(entry);
    }
    let mut found: Vec<Vec<&CheckpointEntry>> = found.into_values().collect();
    for entries in &mut found {
        entries.sort_by(|a, b| a.resource.cmp(&b.resource));
        entries.dedup();
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn driver_comes_from_our_edits_or_nvidia_runtime() {
        let of = |library: &str| Edits {
            mounts: vec![json!({"hostPath": "/lib", "containerPath": library})],
            ..Edits::default()
        };
        let runtime = |injects_driver| RuntimeStatus {
            injects_driver,
            ..RuntimeStatus::default()
        };
        let check = |library: &str, runtime: Option<&RuntimeStatus>, expected: bool| {
            assert_eq!(has_driver(&of(library), runtime), expected, "{library}");
        };
        for library in ["/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.580.82.07"] {
            check(library, Some(&runtime(false)), true);
        }
        for library in [
            "/usr/lib64/libcudadebugger.so.1",
            "/usr/lib64/libnvidia-ml.so.1",
        ] {
            check(library, Some(&runtime(false)), false);
            check(library, Some(&runtime(true)), true);
            // It is not known yet; a container that was accepted before does not wait for that.
            check(library, None, true);
        }
    }
}
