//! Places instances on GPUs under dynamic MIG where fixed instances are not enough.
//! [`crate::mig::place`] chooses the start on each GPU.

use super::{ContainerPlacer, ContainerShare, FitTrace, NumaNode, device};
use crate::demand::Demand;
use crate::inventory::Gpu;
use crate::mig::dynamic::{self, DynamicMigState};
use crate::mig::place::on_gpu;
use crate::mig::published::{DynamicMig, Mig, ReservedPlacement};
use crate::mig::{self, Geometry, Instance};
use crate::node::NodeState;
use crate::refusal::{Reason, Refusal};
use crate::request::{GpuRequest, Memory};
use crate::score::{DeviceSelection, Scorer};
use crate::units::Percent;
use crate::usage::{DeviceUse, Stage};

/// Where an instance would go.
#[derive(Clone, Copy, Debug)]
struct InstanceOffer {
    /// By how much less the GPU can serve afterwards ([`crate::mig::place`]).
    loss: u32,
    instance: Instance,
}

impl ContainerPlacer<'_, '_> {
    /// Takes the candidates, and new instances for the rest; all on one NUMA node where
    /// that is required.
    pub(super) fn place_instances(
        &mut self,
        container: usize,
        request: &GpuRequest,
        selection: DeviceSelection,
        mut refusal: Refusal,
        trace: &mut impl FitTrace,
    ) -> Result<(), Refusal> {
        let node = self.scorer.node;
        let mut numas: Vec<Option<NumaNode>> = vec![self.numa];
        if selection.one_numa && selection.count > 1 && self.numa.is_none() {
            numas = node
                .devices
                .iter()
                .map(|device| Some(NumaNode(device.numa)))
                .collect();
            numas.sort_unstable();
            numas.dedup();
        }
        let all = std::mem::take(&mut self.candidates);
        let before = self.shares.len();
        let mut refused = Vec::new();
        for numa in numas {
            let here =
                |place: usize| numa.is_none_or(|numa| NumaNode(node.devices[place].numa) == numa);
            self.candidates = all.iter().copied().filter(|c| here(c.place)).collect();
            self.candidates.sort_unstable();
            let ready = self.candidates.len().min(selection.count);
            self.take(container, request, ready);
            match self.instances(container, request, selection.count - ready, here) {
                Ok(()) => {
                    for share in &self.shares[before..] {
                        trace.device(share.device, share.used, None);
                    }
                    return Ok(());
                }
                Err(why) => refused.extend(why),
            }
            self.shares.truncate(before);
        }
        if self.numa.is_some() {
            let mig_states = node.dynamic_mig.iter();
            let elsewhere = mig_states.filter(|mig_state| {
                self.off_numa_node(&node.devices[mig_state.device])
                    .is_some()
            });
            refused.extend(elsewhere.map(|mig_state| {
                let (place, used, offer) = self.offer(mig_state, request);
                (place, used, offer.err().unwrap_or(Reason::NumaNotFit))
            }));
        }
        if all.len() >= selection.count {
            // There are enough of them, but on different NUMA nodes.
            refused.extend(
                all.iter()
                    .map(|candidate| (candidate.place, candidate.pod_use, Reason::NumaNotFit)),
            );
        }
        for (place, used, reason) in refused {
            trace.device(place, used, Some(reason));
            refusal.add(reason);
        }
        if refusal == Refusal::default() {
            refusal.add(Reason::AllocatedCardsInsufficientRequest);
        }
        Err(refusal)
    }

    /// Adds this many instances on the GPUs that are `here`, each where it costs least, or
    /// returns each GPU's reason for refusing.
    fn instances(
        &mut self,
        container: usize,
        request: &GpuRequest,
        missing: usize,
        here: impl Fn(usize) -> bool,
    ) -> Result<(), Vec<(usize, DeviceUse, Reason)>> {
        let node = self.scorer.node;
        for _ in 0..missing {
            if let Some(again) = self.reused(container, request, &here) {
                self.shares.push(again);
                continue;
            }
            let mig_states = node
                .dynamic_mig
                .iter()
                .filter(|mig_state| here(mig_state.device));
            let offers = mig_states.map(|mig_state| self.offer(mig_state, request));
            let mut best: Option<(usize, DeviceUse, InstanceOffer)> = None;
            let mut refused = Vec::new();
            for (device, used, offer) in offers {
                match offer {
                    Ok(offer) if best.is_none_or(|(.., b)| offer.loss < b.loss) => {
                        best = Some((device, used, offer));
                    }
                    Ok(_) => {}
                    Err(reason) => refused.push((device, used, reason)),
                }
            }
            let Some((device, used, offer)) = best else {
                return Err(refused);
            };
            self.shares.push(ContainerShare {
                container,
                resource: request.resource,
                device,
                used,
                pod_use: used,
                instance: Some(offer.instance),
                waste: false,
                loss: offer.loss,
            });
        }
        Ok(())
    }

    /// For an init container: an instance of the pod that belongs to a container which
    /// starts after this one has finished.
    fn reused(
        &self,
        container: usize,
        request: &GpuRequest,
        here: impl Fn(usize) -> bool,
    ) -> Option<ContainerShare> {
        let demand = self.scorer.demand;
        let stage = |container: usize| demand.containers[container].stage;
        if stage(container) != Stage::Init || (demand.rules.same_device && request.count > 1) {
            return None;
        }
        let enough =
            |used: DeviceUse| !request.written.memory || asked(request, used) <= used.memory.0;
        let own = |share: &ContainerShare| {
            let mut own = self.shares.iter().filter(|s| s.container == container);
            own.any(|o| (o.device, o.instance) == (share.device, share.instance))
        };
        let free = self.shares.iter().find(|share| {
            let alike = share.resource == request.resource && share.instance.is_some();
            let runs_later = stage(share.container) != Stage::Sidecar;
            alike && runs_later && here(share.device) && enough(share.used) && !own(share)
        });
        free.map(|share| ContainerShare {
            container,
            loss: 0,
            ..*share
        })
    }

    /// What this GPU offers beside what the pod has of it already.
    fn offer(
        &self,
        mig_state: &DynamicMigState,
        request: &GpuRequest,
    ) -> (usize, DeviceUse, Result<InstanceOffer, Reason>) {
        let Scorer { node, demand, .. } = *self.scorer;
        let place = mig_state.device;
        let whole = DeviceUse::new(node.devices[place].scaled, Percent::WHOLE);
        let Some((gpu, found)) = dynamic_gpu(node, place) else {
            return (place, whole, Err(Reason::CardTypeMismatch));
        };
        let name = demand.resource(request);
        let profile = dynamic::profile_of(&found.geometry, name);
        let used = profile.map_or(whole, |profile| instance_use(&found.geometry, profile));
        let device = &node.devices[place];
        let rules = &demand.rules;
        // An instance has one replica.
        let several = rules.same_device && request.count > 1;
        let small = request.written.memory && asked(request, used) > used.memory.0;
        let idle = self.policy.idle && device.allocated.pods > 0;
        let refused = device
            .closed
            .or_else(|| rules.refuse(gpu))
            .or_else(|| device::reserved_for_others(gpu, demand))
            .or_else(|| several.then_some(Reason::CardTimeSlicingExhausted))
            .or_else(|| small.then_some(Reason::CardInsufficientMemory))
            .or_else(|| idle.then_some(Reason::ExclusiveDeviceAllocateConflict));
        let offer = refused.map_or_else(
            || {
                let here = self.shares.iter().filter(|share| share.device == place);
                let more: Vec<Instance> = here.filter_map(|share| share.instance).collect();
                best_offer(mig_state, gpu, found, name, &more, demand)
            },
            Err,
        );
        (place, used, offer)
    }
}

/// The memory that was requested, of an instance that has this much.
fn asked(request: &GpuRequest, used: DeviceUse) -> u64 {
    match request.memory {
        Memory::Mib(memory) => memory.0,
        Memory::Share(part) => used.memory.share(part).0,
    }
}

/// The GPU under dynamic MIG at this index.
fn dynamic_gpu(node: &NodeState, place: usize) -> Option<(&Gpu, &DynamicMig)> {
    let gpu = node.inventory.as_ref()?.gpus.get(place)?;
    Some((gpu, gpu.mig.as_ref().and_then(Mig::dynamic)?))
}

pub(super) fn serves(node: &NodeState, place: usize, name: &str) -> bool {
    name.starts_with(mig::RESOURCES) && dynamic_gpu(node, place).is_some()
}

/// The best placement for one more instance of this resource beside `more` of the same
/// pod, at a start that the pod's rules allow: one reserved for its namespace,
/// otherwise one without a reservation.
fn best_offer(
    mig_state: &DynamicMigState,
    gpu: &Gpu,
    found: &DynamicMig,
    resource: &str,
    more: &[Instance],
    demand: &Demand,
) -> Result<InstanceOffer, Reason> {
    let geometry = &found.geometry;
    let Some(profile) = dynamic::profile_of(geometry, resource) else {
        return Err(Reason::MigProfileMismatch);
    };
    if mig_state.inconsistent {
        return Err(Reason::ExclusiveDeviceAllocateConflict);
    }
    let requested = &geometry.profiles()[profile];
    let rules = &demand.rules;
    let allowed = |start: u8| rules.allow_instance(gpu, found, &requested.name, start);
    if !requested.starts.iter().any(|start| allowed(*start)) {
        return Err(Reason::CardUuidMismatch);
    }
    let mut all = mig_state.clone();
    for instance in more {
        all.allocate_instance(*instance);
    }
    let mut occupied = all.clone();
    occupied.apply_reservations(found, &demand.namespace);
    let own = |start: u8| {
        let here = |reserved: &&ReservedPlacement| {
            (&reserved.placement.profile, reserved.placement.start) == (&requested.name, start)
        };
        let mut reserved = found.reserved.iter().filter(here);
        allowed(start) && reserved.any(|reserved| reserved.namespaces.contains(&demand.namespace))
    };
    let reserved = on_gpu(geometry, &occupied.instances, profile, own).map(|(_, place)| (0, place));
    let best = reserved.or_else(|| on_gpu(geometry, &occupied.instances, profile, allowed));
    if let Some((loss, place)) = best {
        let instance = Instance::busy(place.profile, place.start);
        return Ok(InstanceOffer { loss, instance });
    }
    if on_gpu(geometry, &all.instances, profile, allowed).is_some() {
        return Err(Reason::GpuReserved);
    }
    all.instances.retain(|one| one.busy);
    let (memory, compute) = geometry.left(&all.instances);
    Err(if !rules.pins.is_empty() {
        Reason::GpuPinned
    } else if memory.count_ones() < u32::from(requested.size) {
        Reason::CardInsufficientMemory
    } else if compute < requested.compute {
        Reason::CardInsufficientCore
    } else {
        Reason::MigNoPlacement
    })
}

/// What an instance uses of its GPU: its memory, and its part of the compute.
fn instance_use(geometry: &Geometry, profile: usize) -> DeviceUse {
    let found = &geometry.profiles()[profile];
    let part = 100 * u32::from(found.compute) / u32::from(geometry.compute().max(1));
    DeviceUse::new(found.memory, Percent(part.min(100)))
}
