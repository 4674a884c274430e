//! GPUs under dynamic MIG: which instances exist, which are allocated, and where the next
//! one goes.
//!
//!
//! An allocated instance is never moved or changed.

use crate::demand::Demand;
use crate::id::Namespace;
use crate::inventory::Gpu;
use crate::mig::place::on_gpu;
use crate::mig::published::{self, Mig, MigPlacement, ReservedPlacement};
use crate::mig::{Geometry, Instance, is_resource_of};
use crate::node::NodeState;
use crate::reason::Reason;
use crate::units::{Mib, Percent};
use crate::usage::{DeviceUse, DeviceUses};

/// The MIG state of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicMigState {
    /// The GPU's index among the node's devices.
    pub device: usize,
    /// Its instances: the allocated ones, and existing idle ones.
    pub instances: Vec<Instance>,
    /// A pod is allocated something that is no instance of the geometry: then it is unknown
    /// what is free.
    pub inconsistent: bool,
}

/// Where an instance would go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstanceOffer {
    /// By how much less the GPU can serve afterwards ([`crate::mig::place`]).
    pub(crate) loss: u32,
    pub(crate) instance: Instance,
}

impl DynamicMigState {
    /// The GPU with the instances that its node agent found, all idle.
    pub(crate) fn new(device: usize, found: &published::DynamicMig) -> Self {
        let known = found.instances.iter().filter_map(|made| {
            Some(Instance {
                profile: found.geometry.find(&made.profile)?,
                start: made.start,
                busy: false,
            })
        });
        Self {
            device,
            instances: known.collect(),
            inconsistent: false,
        }
    }

    /// Marks this placement as allocated; `None` for an allocation that is no placement.
    pub(crate) fn allocate(&mut self, geometry: &Geometry, allocated: Option<&MigPlacement>) {
        match allocated.and_then(|allocated| geometry.instance(allocated)) {
            Some(instance) => self.allocate_instance(instance),
            None => self.inconsistent = true,
        }
    }

    /// Marks this instance as allocated.
    pub(crate) fn allocate_instance(&mut self, instance: Instance) {
        let same =
            |one: &&mut Instance| (one.profile, one.start) == (instance.profile, instance.start);
        match self.instances.iter_mut().find(same) {
            Some(one) => one.busy = true,
            None => self.instances.push(instance),
        }
    }

    /// Which memory slices are free, and where instances of this resource may start, as
    /// text for users; `None` for a resource of no profile of the GPU.
    pub(crate) fn describe_free_slices(
        &self,
        geometry: &Geometry,
        resource: &str,
    ) -> Option<String> {
        let profile = &geometry.profiles()[profile_of(geometry, resource)?];
        let allocated: Vec<Instance> = self
            .instances
            .iter()
            .copied()
            .filter(|one| one.busy)
            .collect();
        let (free, _) = geometry.left(&allocated);
        let bits = (0..16_u8).filter(|bit| free & (1 << bit) != 0);
        let list = |numbers: &mut dyn Iterator<Item = u8>| {
            let texts: Vec<String> = numbers.map(|number| number.to_string()).collect();
            texts.join(", ")
        };
        let free = match list(&mut { bits }) {
            none if none.is_empty() => "no slice is free".to_owned(),
            some => format!("free slices: {some}"),
        };
        let starts = list(&mut profile.starts.iter().copied());
        let (name, size) = (&profile.name, profile.size);
        Some(format!(
            "{free}; {name} needs {size} adjacent, starting at {starts}"
        ))
    }

    /// Whether no two allocated instances overlap and the GPU can have all of them.
    pub fn is_consistent(&self, geometry: &Geometry) -> bool {
        let allocated: Vec<Instance> = self
            .instances
            .iter()
            .copied()
            .filter(|one| one.busy)
            .collect();
        (0..allocated.len()).all(|at| {
            let mut starts = geometry.starts(allocated[at].profile, &allocated[..at]);
            starts.any(|start| start == allocated[at].start)
        })
    }

    /// The best placement for one more instance of this resource beside `more` of the same
    /// pod, at a start that the pod's rules allow: one reserved for its namespace,
    /// otherwise one without a reservation.
    pub(crate) fn offer(
        &self,
        gpu: &Gpu,
        found: &published::DynamicMig,
        resource: &str,
        more: &[Instance],
        demand: &Demand,
    ) -> Result<InstanceOffer, Reason> {
        let geometry = &found.geometry;
        let Some(profile) = profile_of(geometry, resource) else {
            return Err(Reason::CardMigProfileMismatch);
        };
        if self.inconsistent {
            return Err(Reason::ExclusiveDeviceAllocateConflict);
        }
        let requested = &geometry.profiles()[profile];
        let rules = &demand.rules;
        let allowed = |start: u8| rules.allow_instance(gpu, found, &requested.name, start);
        if !requested.starts.iter().any(|start| allowed(*start)) {
            return Err(Reason::CardUuidMismatch);
        }
        let mut all = self.clone();
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
            allowed(start)
                && reserved.any(|reserved| reserved.namespaces.contains(&demand.namespace))
        };
        let reserved =
            on_gpu(geometry, &occupied.instances, profile, own).map(|(_, place)| (0, place));
        let best = reserved.or_else(|| on_gpu(geometry, &occupied.instances, profile, allowed));
        if let Some((loss, place)) = best {
            let (profile, start) = (place.profile, place.start);
            let instance = Instance {
                profile,
                start,
                busy: true,
            };
            return Ok(InstanceOffer { loss, instance });
        }
        if on_gpu(geometry, &all.instances, profile, allowed).is_some() {
            return Err(Reason::CardReserved);
        }
        all.instances.retain(|one| one.busy);
        let (memory, compute) = geometry.left(&all.instances);
        Err(if !rules.pins.is_empty() {
            Reason::CardPinned
        } else if memory.count_ones() < u32::from(requested.size) {
            Reason::CardInsufficientMemory
        } else if compute < requested.compute {
            Reason::CardInsufficientCore
        } else {
            Reason::CardMigNoPlacement
        })
    }

    /// Marks placements reserved for other namespaces as allocated; a placement that is
    /// partly in use is not reserved any more.
    fn apply_reservations(&mut self, found: &published::DynamicMig, namespace: &Namespace) {
        let geometry = &found.geometry;
        let others = found.reserved.iter();
        for reserved in others.filter(|reserved| !reserved.namespaces.contains(namespace)) {
            let Some(place) = geometry.instance(&reserved.placement) else {
                continue;
            };
            let slices = |one: &Instance| geometry.profiles()[one.profile].slices(one.start);
            let mut allocated = self.instances.iter().filter(|one| one.busy);
            if allocated.all(|one| slices(one) & slices(&place) == 0) {
                self.allocate_instance(place);
            }
        }
    }
}

/// Whether a pod with this allocation uses a device that the demand's pins name, or a part
/// of it.
pub fn blocks_pinned_device(node: &NodeState, demand: &Demand, allocated: &DeviceUses) -> bool {
    let gpus = node.inventory.iter().flat_map(|inventory| &inventory.gpus);
    let mut meant = gpus.flat_map(|gpu| demand.rules.pins.iter().map(move |pin| (gpu, pin)));
    meant.any(|(gpu, pin)| {
        let Some(found) = gpu.mig.as_ref().and_then(Mig::dynamic) else {
            return pin.may_be(gpu) && allocated.contains_key(&gpu.uuid);
        };
        let profiles = found.geometry.profiles();
        let requested = profiles.iter().flat_map(|profile| {
            let named = demand.resources.iter();
            let mut asked = named.filter(|name| is_resource_of(name, &profile.name));
            let starts = profile.starts.iter().filter(|start| {
                let name = &profile.name;
                pin.allows(gpu, found, name, **start)
            });
            let starts = if asked.next().is_some() {
                Some(starts)
            } else {
                None
            };
            starts
                .into_iter()
                .flatten()
                .map(|start| profile.slices(*start))
        });
        let requested = requested.fold(0, |all, slices| all | slices);
        allocated
            .keys()
            .filter_map(MigPlacement::parse_device_key)
            .any(|(device, placed)| {
                let profile = profiles.iter().find(|p| p.name == placed.profile);
                let slices = profile.map_or(u16::MAX, |profile| profile.slices(placed.start));
                device == gpu.uuid.as_str() && slices & requested != 0
            })
    })
}

/// The profile that this resource is for.
pub(crate) fn profile_of(geometry: &Geometry, resource: &str) -> Option<usize> {
    let mut profiles = geometry.profiles().iter();
    profiles.position(|profile| is_resource_of(resource, &profile.name))
}

/// What an instance uses of its GPU: its memory, and its part of the compute.
pub(crate) fn instance_use(geometry: &Geometry, profile: usize) -> DeviceUse {
    let found = &geometry.profiles()[profile];
    let part = 100 * u32::from(found.compute) / u32::from(geometry.compute().max(1));
    DeviceUse::of(found.memory, Percent(part.min(100)))
}

/// The memory of the largest instance that could be created now.
pub(crate) fn largest_instance(mig_state: &DynamicMigState, geometry: &Geometry) -> Option<Mib> {
    let allocated: Vec<Instance> = mig_state
        .instances
        .iter()
        .copied()
        .filter(|one| one.busy)
        .collect();
    let able = (0..geometry.profiles().len()).filter(|profile| {
        !mig_state.inconsistent && geometry.starts(*profile, &allocated).next().is_some()
    });
    able.map(|profile| geometry.profiles()[profile].memory)
        .max()
}
