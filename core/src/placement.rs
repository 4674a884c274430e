//! Places one container after the other on the node's devices, or collects each device's
//! reason for refusing. [`crate::fit`] gives the order. The node's state is not changed:
//! what earlier containers of the pod take is in `shares`.

mod instances;
mod numa;

use crate::choose::{self, Candidate, DeviceSelection};
use crate::demand::{Demand, Stage};
use crate::fit::FitTrace;
use crate::gpu_policy::GpuPolicy;
use crate::inventory::Mode;
use crate::mig::{self, Instance};
use crate::node::{Align, DeviceState, NodeState};
use crate::reason::{Reason, Refusal};
use crate::request::GpuRequest;
use crate::scorer::Scorer;
use crate::sharing;
use crate::usage::{self, DeviceUse};
use numa::NumaNode;

/// One container's share of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerShare {
    pub(crate) container: usize,
    /// An index in the demand's resources.
    pub(crate) resource: u8,
    pub(crate) device: usize,
    pub(crate) used: DeviceUse,
    /// The instance, on a GPU under dynamic MIG.
    pub(crate) instance: Option<Instance>,
    /// A whole GPU for a container that asked for less.
    pub(crate) waste: bool,
    /// By how much less its GPU can serve in instances.
    pub(crate) loss: u32,
}

/// Places all requests in this order.
pub(crate) fn place(
    scorer: &Scorer<'_>,
    order: &[(usize, &GpuRequest)],
    policy: GpuPolicy,
    trace: &mut impl FitTrace,
) -> Result<Vec<ContainerShare>, Refusal> {
    let mut placer = ContainerPlacer {
        scorer,
        policy,
        shares: Vec::with_capacity(order.len()),
        candidates: Vec::with_capacity(scorer.node.devices.len()),
        numa: None,
    };
    let align = placer.align();
    if align == Align::Nothing {
        for &(container, request) in order {
            trace.container(container);
            placer.place_request(container, request, trace)?;
        }
    } else {
        placer.place_aligned(order, align, trace)?;
    }
    Ok(placer.shares)
}

struct ContainerPlacer<'a, 'n> {
    scorer: &'a Scorer<'n>,
    policy: GpuPolicy,
    shares: Vec<ContainerShare>,
    candidates: Vec<Candidate>,
    /// While one NUMA node is tried: only its devices.
    numa: Option<NumaNode>,
}

impl ContainerPlacer<'_, '_> {
    fn place_request(
        &mut self,
        container: usize,
        request: &GpuRequest,
        trace: &mut impl FitTrace,
    ) -> Result<(), Refusal> {
        let (node, demand) = (self.scorer.node, self.scorer.demand);
        let rules = &demand.rules;
        let devices = if rules.same_device { 1 } else { request.count };
        let selection = DeviceSelection {
            count: usize::try_from(devices).unwrap_or(usize::MAX),
            one_numa: self.align() != Align::Nothing,
            numa_key: self.policy.numa_key(),
            links: self.policy.links,
        };
        let name = demand.resource(request);
        let dynamic = !node.dynamic_mig.is_empty() && name.starts_with(mig::RESOURCES);
        if selection.count > node.devices.len() && !dynamic {
            return Err(Refusal::of(Reason::NodeInsufficientDevice));
        }
        let mut refusal = self.evaluate_devices(container, request, trace);
        if dynamic && self.candidates.len() < selection.count {
            return self.place_instances(container, request, selection, refusal, trace);
        }
        if let Err(reason) = choose::select_devices(node, selection, &mut self.candidates) {
            if reason == Reason::NumaNotFit && dynamic {
                return self.place_instances(container, request, selection, refusal, trace);
            }
            if reason == Reason::NumaNotFit {
                for &Candidate { place, .. } in &self.candidates {
                    let (_, used, _) = self.share_on(container, request, place);
                    trace.device(place, used, Some(reason));
                    refusal.add(reason);
                }
            } else if !self.candidates.is_empty() {
                refusal.add(reason);
            }
            return Err(refusal);
        }
        self.take(container, request, selection.count);
        Ok(())
    }

    /// Collects the candidates among GPUs and fixed instances.
    fn evaluate_devices(
        &mut self,
        container: usize,
        request: &GpuRequest,
        trace: &mut impl FitTrace,
    ) -> Refusal {
        let Self { scorer, policy, .. } = *self;
        let (node, demand) = (scorer.node, scorer.demand);
        let mut resources = node.resources.iter();
        let name = demand.resource(request);
        let resource = resources.position(|known| **known == *name);
        // Rules about the devices themselves; most pods have none.
        let rules = &demand.rules;
        let restricted = node.inventory.as_ref().filter(|_| rules.restrict_devices());
        let reserving = node
            .inventory
            .as_ref()
            .filter(|_| !node.reserved_for.is_empty());
        let first = demand.containers[container].stage == Stage::Init;
        let mut refusal = Refusal::default();
        self.candidates.clear();
        for (place, device) in node.devices.iter().enumerate() {
            if device.mode == Mode::Mig && instances::serves(node, place, name) {
                continue;
            }
            let (own, used, wrong) = self.share_on(container, request, place);
            let other_resource = resource != Some(usize::from(device.resource));
            let other = || other_resource.then(|| mismatched(node, place, name));
            let excluded = || restricted.and_then(|found| rules.refuse(&found.gpus[place]));
            let reserved =
                || reserving.and_then(|found| demand.refused_by_reservation(&found.gpus[place]));
            let refused = device
                .closed
                .or_else(other)
                .or_else(excluded)
                .or_else(reserved)
                .or(wrong)
                .or_else(|| capacity_refusal(device, &used, policy))
                .or_else(|| self.off_numa_node(device))
                .map(|reason| pinned(reason, demand));
            trace.device(place, used, refused);
            if let Some(reason) = refused {
                refusal.add(reason);
                continue;
            }
            self.candidates.push(Candidate {
                outside_apps: first && !self.shares.iter().any(|s| s.device == place),
                waste: is_waste(device, &own, request),
                rank: scorer.device(policy, place, used),
                place,
            });
        }
        refusal
    }

    /// What the container would get of a device, what the pod would then use of it, and why
    /// the device's sharing mode cannot serve the request.
    fn share_on(
        &self,
        container: usize,
        request: &GpuRequest,
        place: usize,
    ) -> (DeviceUse, DeviceUse, Option<Reason>) {
        let Scorer { node, demand, .. } = *self.scorer;
        let alone = demand.uses_single_device(container);
        let (own, wrong) = sharing::share_on(node, place, request, &demand.rules, alone);
        let used = pod_use(demand, &self.shares, Some((container, own)), place);
        (own, used, wrong)
    }

    /// Gives the container the first candidates.
    fn take(&mut self, container: usize, request: &GpuRequest, count: usize) {
        for &Candidate { place, waste, .. } in &self.candidates[..count] {
            let Scorer { node, demand, .. } = *self.scorer;
            self.shares.push(ContainerShare {
                container,
                resource: request.resource,
                device: place,
                used: sharing::share_on(node, place, request, &demand.rules, true).0,
                instance: None,
                waste,
                loss: 0,
            });
        }
    }
}

/// The reason for a device that is advertised under another resource.
fn mismatched(node: &NodeState, place: usize, name: &str) -> Reason {
    let gpu = node.inventory.as_ref().and_then(|i| i.gpus.get(place));
    let is_mig = gpu.is_some_and(|gpu| gpu.mig.is_some());
    match (is_mig, name.starts_with(mig::RESOURCES)) {
        (true, true) => Reason::CardMigProfileMismatch,
        (true, false) => Reason::CardModeMismatch,
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
        Reason::CardPinned
    } else {
        reason
    }
}

/// The container would get a whole GPU though it asked for less.
fn is_waste(device: &DeviceState, own: &DeviceUse, request: &GpuRequest) -> bool {
    device.mode == Mode::Exclusive && request.resource == 0 && request.cores < own.cores
}

/// Why the device has no capacity for this use. `mutex` is checked right after the replicas
/// (HAMi 4.6 rule 7) and requires a device without any other share.
fn capacity_refusal(device: &DeviceState, used: &DeviceUse, policy: GpuPolicy) -> Option<Reason> {
    let refused = device.refuse(used);
    let busy = policy.idle && (device.allocated.pods > 0 || used.replicas > 1);
    match refused {
        Some(Reason::CardTimeSlicingExhausted) => refused,
        _ if busy => Some(Reason::ExclusiveDeviceAllocateConflict),
        _ => refused,
    }
}

/// The pod's effective use of `device` with `shares`, and with `more` of a container added.
fn pod_use(
    demand: &Demand,
    shares: &[ContainerShare],
    more: Option<(usize, DeviceUse)>,
    device: usize,
) -> DeviceUse {
    if let (true, Some((_, used))) = (shares.is_empty(), more) {
        return used;
    }
    let here = shares.iter().filter(|share| share.device == device);
    let mut on_device: Vec<(usize, DeviceUse)> = here.map(|s| (s.container, s.used)).collect();
    on_device.extend(more);
    use_on_device(demand, on_device)
}

fn use_on_device(demand: &Demand, mut containers: Vec<(usize, DeviceUse)>) -> DeviceUse {
    containers.sort_by_key(|(container, _)| *container);
    let stage = |container: usize| demand.containers[container].stage;
    usage::on_device(containers.into_iter().map(|(c, used)| (stage(c), used)))
}

/// Uses by device index, and instances by their index among the uses.
type PlacedUses = (Vec<(usize, DeviceUse)>, Vec<(usize, Instance)>);

/// The pod's effective use of each device in `shares`, and which of them are instances, by
/// their indices in the list.
pub(crate) fn uses(demand: &Demand, shares: &[ContainerShare]) -> PlacedUses {
    if let [share] = shares {
        let instance = share.instance.map(|instance| (0, instance));
        return (
            vec![(share.device, share.used)],
            instance.into_iter().collect(),
        );
    }
    let device_of =
        |share: &ContainerShare| (share.device, share.instance.map(|i| (i.start, i.profile)));
    let mut devices: Vec<_> = shares.iter().map(device_of).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut uses = Vec::with_capacity(devices.len());
    let mut instances = Vec::new();
    for (place, (device, instance)) in devices.into_iter().enumerate() {
        let here = shares.iter().filter(|s| device_of(s) == (device, instance));
        let containers = here.map(|share| (share.container, share.used)).collect();
        uses.push((device, use_on_device(demand, containers)));
        instances.extend(instance.map(|(start, profile)| {
            let busy = true;
            let instance = Instance {
                profile,
                start,
                busy,
            };
            (place, instance)
        }));
    }
    (uses, instances)
}
