//! One device: what a container gets of it in its sharing mode, and why it refuses the
//! container.
//!
//! No mode silently gives less than what the container asked for. Each device refuses for
//! the first reason in the order of [`DeviceCheck::refuse`]; what other pods are allocated is
//! checked by [`DeviceState::refuse`].

use super::ContainerShare;
use crate::demand::Demand;
use crate::inventory::{EvenShare, Gpu, Inventory, Mode};
use crate::mig;
use crate::node::{DeviceState, NodeState};
use crate::policy::GpuPolicy;
use crate::refusal::Reason;
use crate::request::{GpuRequest, Memory};
use crate::rules::DeviceRules;
use crate::units::{Mib, Percent};
use crate::usage::{self, DeviceUse};

/// What the devices of a node are checked for, besides the shares of their sharing modes.
pub(super) struct DeviceCheck<'a> {
    node: &'a NodeState,
    demand: &'a Demand,
    policy: GpuPolicy,
    /// The name of the requested resource, and its index among the node's.
    name: &'a str,
    resource: Option<usize>,
    /// Rules about the devices themselves; most pods have none.
    restricted: Option<&'a Inventory>,
    reserving: Option<&'a Inventory>,
}

impl<'a> DeviceCheck<'a> {
    /// The check for a request of this pod under the resource with this name.
    pub(super) fn new(
        node: &'a NodeState,
        demand: &'a Demand,
        policy: GpuPolicy,
        name: &'a str,
    ) -> Self {
        let inventory = node.inventory.as_deref();
        Self {
            node,
            demand,
            policy,
            name,
            resource: node.resources.iter().position(|known| **known == *name),
            restricted: inventory.filter(|_| demand.rules.restrict_devices()),
            reserving: inventory.filter(|_| !node.reserved_for.is_empty()),
        }
    }

    /// Why the device does not take `own` of a container, with which the pod would use `used` of
    /// it; `wrong` is what its sharing mode says.
    pub(super) fn refuse(
        &self,
        place: usize,
        (own, used): (&DeviceUse, &DeviceUse),
        wrong: Option<Reason>,
    ) -> Option<Reason> {
        let device = &self.node.devices[place];
        let other_resource = self.resource != Some(usize::from(device.resource));
        let other = || other_resource.then(|| mismatched(self.node, place, self.name));
        let excluded = || {
            let inventory = self.restricted?;
            self.demand.rules.refuse(&inventory.gpus[place])
        };
        let reserved = || {
            let inventory = self.reserving?;
            reserved_for_others(&inventory.gpus[place], self.demand)
        };
        device
            .closed
            .or_else(other)
            .or_else(excluded)
            .or_else(reserved)
            .or(wrong)
            .or_else(|| capacity_refusal(device, (own, used), self.policy))
            .map(|reason| pinned(reason, self.demand))
    }
}

/// Refuses a device that is reserved for other namespaces.
pub(super) fn reserved_for_others(gpu: &Gpu, demand: &Demand) -> Option<Reason> {
    let reserved = !gpu.reserved.is_empty() && !gpu.reserved.contains(&demand.namespace);
    reserved.then_some(Reason::GpuReserved)
}

/// The reason for a device that is advertised under another resource.
fn mismatched(node: &NodeState, place: usize, name: &str) -> Reason {
    let gpu = node.inventory.as_ref().and_then(|i| i.gpus.get(place));
    let is_mig = gpu.is_some_and(|gpu| gpu.mig.is_some());
    match (is_mig, name.starts_with(mig::RESOURCES)) {
        (true, true) => Reason::MigProfileMismatch,
        (true, false) => Reason::GpuModeMismatch,
        (false, _) => Reason::CardTypeMismatch,
    }
}

/// For a pod that names its device, the reason is that another pod uses it.
fn pinned(reason: Reason, demand: &Demand) -> Reason {
    let allocated = matches!(
        reason,
        Reason::CardTimeSlicingExhausted | Reason::ExclusiveDeviceAllocateConflict
    );
    if allocated && !demand.rules.pins.is_empty() {
        Reason::GpuPinned
    } else {
        reason
    }
}

/// The container would get a whole GPU though it asked for less.
pub(super) fn is_waste(device: &DeviceState, own: &DeviceUse, request: &GpuRequest) -> bool {
    device.mode == Mode::Exclusive && request.resource == 0 && request.cores < own.cores
}

/// Why the device has no capacity for this use. `mutex` is checked right after the replicas
/// (HAMi 4.6 rule 7) and requires a device without any other share than the container's own.
fn capacity_refusal(
    device: &DeviceState,
    (own, used): (&DeviceUse, &DeviceUse),
    policy: GpuPolicy,
) -> Option<Reason> {
    let refused = device.refuse(used);
    let busy = policy.idle && (device.allocated.pods > 0 || used.replicas > own.replicas);
    match refused {
        Some(Reason::CardTimeSlicingExhausted) => refused,
        _ if busy => Some(Reason::ExclusiveDeviceAllocateConflict),
        _ => refused,
    }
}

/// The pod's effective use of a device with these shares, and with `own` of a container
/// added.
pub(super) fn pod_use(
    demand: &Demand,
    shares: &[ContainerShare],
    (container, own): (usize, DeviceUse),
    device: usize,
) -> DeviceUse {
    if shares.is_empty() {
        return own;
    }
    let here = shares.iter().filter(|share| share.device == device);
    let mut uses: Vec<(usize, DeviceUse)> = here.map(|s| (s.container, s.used)).collect();
    uses.push((container, own));
    uses.sort_by_key(|(container, _)| *container);
    let stage = |container: usize| demand.containers[container].stage;
    usage::on_device(uses.into_iter().map(|(c, used)| (stage(c), used)))
}

/// The use of this device that the request leads to, and why its sharing mode cannot serve
/// the request. `alone`: the container gets no other device.
pub(super) fn share_on(
    node: &NodeState,
    place: usize,
    request: &GpuRequest,
    rules: &DeviceRules,
    alone: bool,
) -> (DeviceUse, Option<Reason>) {
    let device = &node.devices[place];
    let (memory, cores, wrong) = match device.mode {
        Mode::Vgpu => vgpu(node, place, request),
        Mode::Exclusive => exclusive(device, request),
        Mode::Timeslice => timeslice(request, rules),
        Mode::Mps => mps(node, place, request, alone),
        // Never whole: `super::instances` places instances on such a GPU.
        Mode::Mig | Mode::Unknown => (device.scaled, device.cores, Some(Reason::GpuModeMismatch)),
    };
    let strict = device.strict && request.count > 1;
    let wrong = if strict {
        Some(Reason::GpuStrict)
    } else {
        wrong
    };
    if !rules.same_device || request.count == 1 {
        return (DeviceUse::new(memory, cores), wrong);
    }
    let all = |one: u64| one.saturating_mul(request.count.into());
    let cores = u32::try_from(all(cores.0.into())).unwrap_or(u32::MAX);
    let used = DeviceUse {
        replicas: request.count,
        ..DeviceUse::new(Mib(all(memory.0)), Percent(cores))
    };
    (used, wrong)
}

/// Memory, compute, and the reason for refusing.
type ShareOrReason = (Mib, Percent, Option<Reason>);

fn memory(request: &GpuRequest, device: &DeviceState) -> Mib {
    match request.memory {
        Memory::Mib(memory) => memory,
        Memory::Share(part) => device.scaled.share(part),
    }
}

/// What was requested; under a resource without defaults, an equal part of the device (if
/// it has one) for amounts that were not written.
fn vgpu(node: &NodeState, place: usize, request: &GpuRequest) -> ShareOrReason {
    let device = &node.devices[place];
    let asked = (memory(request, device), request.cores, None);
    if request.resource == 0 || (request.written.memory && request.written.cores) {
        return asked;
    }
    match even(node, place) {
        Some(even) => (
            if request.written.memory {
                asked.0
            } else {
                even.memory
            },
            if request.written.cores {
                asked.1
            } else {
                even.cores
            },
            None,
        ),
        None => asked,
    }
}

/// The whole device, if that is at least what was written.
fn exclusive(device: &DeviceState, request: &GpuRequest) -> ShareOrReason {
    let more = request.written.memory && memory(request, device) > device.scaled;
    let wrong = more.then_some(Reason::CardInsufficientMemory);
    (device.scaled, device.cores, wrong)
}

/// Time-slicing limits nothing, so a container that wrote an amount does not go there
/// unless its pod prefers this mode.
fn timeslice(request: &GpuRequest, rules: &DeviceRules) -> ShareOrReason {
    let written =
        request.written.memory || request.written.cores || request.cores >= Percent::WHOLE;
    let preferred = rules.modes.contains(&Mode::Timeslice);
    let wrong = (written && !preferred).then_some(Reason::GpuModeMismatch);
    (Mib(0), Percent(0), wrong)
}

/// What was written, and an equal part for what was not. MPS has no compute of 0; the equal
/// part is more. A client sees the device of its daemon and no other.
fn mps(node: &NodeState, place: usize, request: &GpuRequest, alone: bool) -> ShareOrReason {
    let device = &node.devices[place];
    let whole = EvenShare {
        memory: device.scaled,
        cores: device.cores,
    };
    let even = even(node, place).unwrap_or(whole);
    let memory = if request.written.memory {
        memory(request, device)
    } else {
        even.memory
    };
    let cores = if request.written.cores && request.cores > Percent(0) {
        request.cores
    } else {
        even.cores
    };
    (memory, cores, (!alone).then_some(Reason::GpuModeMismatch))
}

fn even(node: &NodeState, place: usize) -> Option<EvenShare> {
    let inventory = node.inventory.as_ref()?;
    inventory.gpus.get(place)?.even_share
}
