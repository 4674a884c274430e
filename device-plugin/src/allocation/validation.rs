//! Validates a pod at its first `PreStartContainer`: may it have what its annotation says? Pure:
//! the same input gives the same decision. An accepted pod is not validated again, but whether the
//! kubelet's device ids fit its allocation is checked at every start. Users read a refusal's text in
//! the pod's event, so it says what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::inventory::Health;
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::node::LedgerDevices;
use aliquot_core::usage::{AllocatedUse, DeviceUse};
use aliquot_core::{Allocation, Gpu, GpuUuid, Grant, Inventory, NodeName, PodUid, Reason};
use aliquot_node_state::accepted::{AcceptedAllocation, AcceptedContainer};
use aliquot_node_state::checkpoint::CheckpointEntry;
use thiserror::Error;

use crate::allocation::environment::NodeRules;
use crate::allocation::tenant_rights::NamespaceRights;
use crate::gpus::allocatable::{self, NodeLayout};
use crate::modes::{self, RequestedGrant};
use crate::pods::pod::Pod;

/// The priority of pods that ask for none.
const LOW: u8 = 1;

#[derive(Clone, Debug)]
pub struct Validator {
    pub node: NodeName,
    pub rules: NodeRules,
    /// Which of their own limits pods may set, by namespace; `None`: as in `rules`.
    pub namespace_rights: Option<NamespaceRights>,
}

/// What is known of a pod, and of the others on its node.
#[derive(Clone, Copy, Debug)]
pub struct ValidationInput<'a> {
    /// The node's devices, with their foreign and orphaned use.
    pub inventory: &'a Inventory,
    pub layout: &'a NodeLayout,
    pub uid: &'a PodUid,
    /// The pod of that uid; `None` when the API server has none on this node.
    pub pod: Option<&'a Pod>,
    /// The checkpoint's entries for this pod and these device ids.
    pub holders: &'a [CheckpointEntry],
    pub others: &'a [Arc<AcceptedAllocation>],
    /// What pods with an unreadable accepted allocation use, by what else is known of them.
    pub damaged: &'a [(PodUid, AllocatedUse)],
}

impl Validator {
    /// The allocation to store and to serve from now on.
    pub fn validate(&self, input: ValidationInput<'_>) -> Result<AcceptedAllocation, Refusal> {
        let pod = input
            .pod
            .ok_or_else(|| Refusal::UnknownPod(input.uid.clone()))?;
        if pod.mirror {
            return Err(Refusal::StaticPod(pod.full_name()));
        }
        let text = pod.allocation.as_deref();
        let text = text.ok_or_else(|| Refusal::NoAllocation(pod.full_name()))?;
        let mut allocation = Allocation::decode(text)
            .map_err(|error| Refusal::Unreadable(pod.full_name(), error.to_string()))?;
        if allocation.node != self.node {
            return Err(Refusal::OtherNode(allocation.node));
        }
        let rules = self.rules_of(pod);
        if !rules.rights.set_priority {
            allocation.priority = allocation.priority.max(LOW);
        }
        for holder in input.holders {
            check_holder(holder, &allocation)?;
        }
        let accepted = accepted_allocation(input, pod, allocation, rules)?;
        check_capacity(input, &accepted)?;
        Ok(accepted)
    }

    fn rules_of(&self, pod: &Pod) -> NodeRules {
        let rights = self.namespace_rights.as_ref();
        let rights = rights.map_or(self.rules.rights, |rights| rights.of(&pod.namespace));
        NodeRules {
            rights,
            ..self.rules
        }
    }
}

/// What is accepted, if there is capacity for it.
fn accepted_allocation(
    input: ValidationInput<'_>,
    pod: &Pod,
    allocation: Allocation,
    rules: NodeRules,
) -> Result<AcceptedAllocation, Refusal> {
    let (mut accepted_modes, mut promised) = (BTreeMap::new(), BTreeMap::new());
    let mut containers = Vec::new();
    for container in &pod.containers {
        let grants = allocation.grants(&container.name).unwrap_or_default();
        let mut is_scaled = false;
        for grant in grants {
            let Some(device) = input.inventory.gpu(&grant.gpu) else {
                continue;
            };
            let asked = RequestedGrant {
                container,
                grant,
                alone: grants.len() == 1,
                device,
            };
            let allowed = modes::of_device(device.mode).validate(&asked);
            allowed.map_err(Refusal::Mode)?;
            accepted_modes.insert(device.uuid.clone(), device.mode);
            if device.scaled > device.memory {
                is_scaled = true;
                promised.insert(device.uuid.clone(), device.scaled);
            }
        }
        containers.push(AcceptedContainer {
            name: container.name.clone(),
            stage: container.stage,
            effective: rules.effective_limits(&container.env, is_scaled),
        });
    }
    let mut accepted = AcceptedAllocation::new(
        input.uid.clone(),
        pod.namespace.clone(),
        pod.name.clone(),
        allocation,
        containers,
    );
    accepted.modes = accepted_modes;
    accepted.promised = promised;
    Ok(accepted)
}

/// Checks that the allocation names this container, with as many devices as it has device ids.
/// Repeated at every start: the kubelet may have allocated again.
pub fn check_holder(holder: &CheckpointEntry, allocation: &Allocation) -> Result<(), Refusal> {
    let grants = allocation.grants(&holder.container).unwrap_or_default();
    let granted = grants
        .iter()
        .filter(|grant| grant.resource == holder.resource)
        .map(|grant| usize::try_from(grant.replicas).unwrap_or(usize::MAX))
        .fold(0, usize::saturating_add);
    if granted == 0 {
        return Err(Refusal::NoShare(holder.container.clone()));
    }
    if granted != holder.ids.len() {
        return Err(Refusal::Count {
            container: holder.container.clone(),
            granted,
            allocated: holder.ids.len(),
        });
    }
    Ok(())
}

fn check_capacity(
    input: ValidationInput<'_>,
    accepted: &AcceptedAllocation,
) -> Result<(), Refusal> {
    let unreadable = |(_, used): &&(PodUid, AllocatedUse)| *used == AllocatedUse::Unreadable;
    if let Some((pod, _)) = input.damaged.iter().find(unreadable) {
        return Err(Refusal::ShareUnreadable(pod.clone()));
    }
    // Only pods on the same GPUs matter: hundreds may be on others.
    let gpus: BTreeSet<&str> = accepted.uses().keys().map(gpu_of).collect();
    let on_its_gpus = |device: &GpuUuid| gpus.contains(gpu_of(device));
    let mut open = input.inventory.clone();
    open.gpus.retain(|gpu| on_its_gpus(&gpu.uuid));
    for gpu in &mut open.gpus {
        // Pods bound before a GPU was cordoned may start on it.
        gpu.cordon = None;
    }
    // So may those bound before a process outside every share took memory of it.
    open.unmanaged.clear();
    let mut beside: Vec<(&PodUid, AllocatedUse)> = Vec::new();
    for other in input.others {
        if other.uses().keys().any(on_its_gpus) {
            beside.push((&other.pod, AllocatedUse::Known(other.uses().clone())));
        }
    }
    let beside = beside.iter().map(|(pod, used)| (*pod, used));
    let damaged = input.damaged.iter().map(|(pod, used)| (pod, used));
    let pods: Vec<_> = beside.chain(damaged).collect();
    let ledger = LedgerDevices::new(&open, &[], &pods);
    for (gpu, requested) in accepted.uses().clone() {
        let Some((index, full)) = ledger.refusal_of(&open, &gpu, &requested) else {
            return Err(Refusal::DeviceGone(gpu));
        };
        let (device, used) = (&open.gpus[index], &ledger.devices[index]);
        if let Health::Unhealthy(why) = &device.health {
            return Err(Refusal::Unhealthy(gpu, why.clone()));
        }
        let gpu_layout = input.layout.gpus.get(allocatable::parent_gpu(device));
        if let Some(gpu_layout) = gpu_layout.filter(|gpu_layout| gpu_layout.switching) {
            return Err(Refusal::Changing(
                gpu,
                gpu_layout.cordon.clone().unwrap_or_default(),
            ));
        }
        let offers = allocatable::replicas_by_resource(device);
        let offered = |grant: &Grant| offers.iter().any(|offer| offer.resource == grant.resource);
        let all = accepted.allocation.all().flat_map(|(_, grants)| grants);
        let all_offered = all.filter(|grant| grant.device_key() == gpu).all(offered);
        let reason = if all_offered {
            full
        } else {
            Some(Reason::CardTypeMismatch)
        };
        if let Some(reason) = reason {
            if all_offered && fits_later(&open, &pods, &gpu, &requested) {
                return Err(Refusal::Orphaned(gpu, reason));
            }
            return Err(Refusal::Full {
                gpu,
                reason,
                requested,
                used: used.allocated.used,
                device: Box::new(device.clone()),
            });
        }
    }
    Ok(())
}

/// Whether it fits once the processes of deleted pods have ended.
fn fits_later(
    inventory: &Inventory,
    pods: &[(&PodUid, &AllocatedUse)],
    gpu: &GpuUuid,
    requested: &DeviceUse,
) -> bool {
    let mut later = inventory.clone();
    later.orphaned.clear();
    let known = LedgerDevices::new(&later, &[], pods);
    let found = known.refusal_of(&later, gpu, requested);
    found.is_some_and(|(_, full)| full.is_none())
}

/// The inventory's UUID for a device: that of its GPU for an instance of dynamic MIG.
fn gpu_of(device: &GpuUuid) -> &str {
    MigPlacement::split_device_key(device).0
}

const RECREATE: &str = "delete the pod and create it again with `schedulerName: aliquot-scheduler` and without `spec.nodeName`";

/// Why a pod may not start, with what its user should do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error(
        "the API server has no pod with uid {0} on this node: a static pod cannot get a share of a GPU because it bypasses the scheduler; run it as a Deployment or DaemonSet with `schedulerName: aliquot-scheduler`"
    )]
    UnknownPod(PodUid),
    #[error(
        "{0} is a static pod, which bypasses the scheduler and therefore cannot get a share of a GPU; run it as a Deployment or DaemonSet with `schedulerName: aliquot-scheduler`"
    )]
    StaticPod(String),
    #[error(
        "{0} was bound to this node without an allocation (annotation aliquot.dev/allocation is missing): {RECREATE}"
    )]
    NoAllocation(String),
    #[error("annotation aliquot.dev/allocation of {0} is invalid ({1}): {RECREATE}")]
    Unreadable(String, String),
    #[error(
        "the pod's allocation is for node {0}, but the pod is bound to another node: {RECREATE}"
    )]
    OtherNode(NodeName),
    #[error("the pod's allocation has no devices for container {0}: {RECREATE}")]
    NoShare(String),
    /// The kubelet allocated another number of replicas than the allocation has devices.
    #[error(
        "container {container} has {granted} device(s) in its allocation, but the kubelet allocated {allocated} replica(s) to it: {RECREATE}"
    )]
    Count {
        container: String,
        /// Devices in its allocation.
        granted: usize,
        /// Device ids in the checkpoint.
        allocated: usize,
    },
    #[error(
        "{0} of the pod's allocation is no longer on this node: delete the pod and create it again"
    )]
    DeviceGone(GpuUuid),
    /// The sharing mode of a device cannot give a container what the allocation has of it.
    #[error("{0}")]
    Mode(String),
    /// What a pod that was accepted here uses is unknown.
    #[error(
        "the allocation of the pod with uid {0} can be read neither from the agent's store nor from its annotation, so the free capacity is unknown: ask your administrator to delete that pod"
    )]
    ShareUnreadable(PodUid),
    #[error(
        "{0} of the pod's allocation is unhealthy ({1}): wait for the GPU to recover, or delete the pod and create it again"
    )]
    Unhealthy(GpuUuid, String),
    #[error("{0} of the pod's allocation {1}: delete the pod and create it again")]
    Changing(GpuUuid, String),
    /// Processes of deleted pods still use what the device has left for the pod.
    #[error(
        "processes of a pod that was deleted still use {0} ({1}): the kubelet starts this pod when they have ended"
    )]
    Orphaned(GpuUuid, Reason),
    /// The device has too little left beside what was accepted before.
    #[error(
        "{gpu} has too little capacity left for this pod ({reason}): the pod needs {} and {} compute; other pods use {} of {}, {} compute and {} of {} replicas: delete the pod and create it again",
        requested.memory,
        requested.cores,
        used.memory,
        device.scaled,
        used.cores,
        used.replicas,
        device.replicas
    )]
    Full {
        gpu: GpuUuid,
        reason: Reason,
        /// What the pod's allocation has of it.
        requested: DeviceUse,
        /// What others use of it.
        used: DeviceUse,
        device: Box<Gpu>,
    },
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
