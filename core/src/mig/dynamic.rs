//! GPUs under dynamic MIG: which instances exist, and which are allocated.
//!
//! An allocated instance is never moved or changed.

use super::published::{self, MigPlacement};
use super::{Geometry, Instance, is_resource_of};
use crate::id::Namespace;
use crate::units::Mib;

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

    pub(crate) fn allocate_instance(&mut self, instance: Instance) {
        let same =
            |one: &&mut Instance| (one.profile, one.start) == (instance.profile, instance.start);
        match self.instances.iter_mut().find(same) {
            Some(one) => one.busy = true,
            None => self.instances.push(instance),
        }
    }

    fn allocated(&self) -> Vec<Instance> {
        let all = self.instances.iter().copied();
        all.filter(|one| one.busy).collect()
    }

    /// Which memory slices are free, and where instances of this resource may start, as
    /// text for users; `None` for a resource of no profile of the GPU.
    pub(crate) fn describe_free_slices(
        &self,
        geometry: &Geometry,
        resource: &str,
    ) -> Option<String> {
        let profile = &geometry.profiles()[profile_of(geometry, resource)?];
        let allocated = self.allocated();
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
        let allocated = self.allocated();
        (0..allocated.len()).all(|at| {
            let mut starts = geometry.starts(allocated[at].profile, &allocated[..at]);
            starts.any(|start| start == allocated[at].start)
        })
    }

    /// Marks placements reserved for other namespaces as allocated; a placement that is
    /// partly in use is not reserved any more.
    pub(crate) fn apply_reservations(
        &mut self,
        found: &published::DynamicMig,
        namespace: &Namespace,
    ) {
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

pub(crate) fn profile_of(geometry: &Geometry, resource: &str) -> Option<usize> {
    let mut profiles = geometry.profiles().iter();
    profiles.position(|profile| is_resource_of(resource, &profile.name))
}

/// The memory of the largest instance that could be created now.
pub(crate) fn largest_instance(mig_state: &DynamicMigState, geometry: &Geometry) -> Option<Mib> {
    let allocated = mig_state.allocated();
    let able = (0..geometry.profiles().len()).filter(|profile| {
        !mig_state.inconsistent && geometry.starts(*profile, &allocated).next().is_some()
    });
    able.map(|profile| geometry.profiles()[profile].memory)
        .max()
}
