//! Which GPU gets an instance, and where on it: the placement that costs the fewest
//! placements of other instances.
//!
//! The remaining capacity of a GPU is the number of starts that its profiles have left,
//! each weighted by its memory slices; the placement that lowers it least is best. An idle
//! instance costs nothing: it is reused, or destroyed. An allocated one is never touched.
//! The node agent and the scheduler both decide here, so that they agree.

use std::cmp::Reverse;

use super::{Geometry, Instance};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstancePlacement {
    /// The GPU, as an index of those that were offered.
    pub gpu: usize,
    /// The profile, as an index in that GPU's geometry.
    pub profile: usize,
    /// The first memory slice.
    pub start: u8,
    /// The instance exists already and is idle.
    pub ready: bool,
    /// The starts of idle instances that must be destroyed first.
    pub destroys: Vec<u8>,
}

/// The best placement for an instance of this profile on one of the GPUs, or `None` if a
/// pod must end first.
///
/// Least loss first; then the first GPU; on it an existing instance, then the fewest to
/// destroy, then the highest start. Preferring the fullest GPU to the first would refuse
/// more (`tests::arrivals` compares both).
pub fn place(gpus: &[(&Geometry, &[Instance])], name: &str) -> Option<InstancePlacement> {
    let gpus = gpus.iter().enumerate();
    let offers = gpus.filter_map(|(gpu, (geometry, all))| {
        let profile = geometry.find(name)?;
        let (loss, found) = on_gpu(geometry, all, profile, |_| true)?;
        Some(((loss, gpu), InstancePlacement { gpu, ..found }))
    });
    let best = offers.min_by_key(|(cost, _)| *cost);
    best.map(|(_, placement)| placement)
}

/// The same on one GPU, at one of the `allowed` starts, with the loss of remaining
/// capacity.
pub fn on_gpu(
    geometry: &Geometry,
    all: &[Instance],
    profile: usize,
    allowed: impl Fn(u8) -> bool,
) -> Option<(u32, InstancePlacement)> {
    let mut allocated: Vec<Instance> = all.iter().copied().filter(|one| one.busy).collect();
    let starts: Vec<u8> = geometry.starts(profile, &allocated).collect();
    let remaining_capacity = remaining_capacity(geometry, &allocated);
    let mut best: Option<((u32, _, Reverse<u8>), InstancePlacement)> = None;
    for start in starts.into_iter().filter(|start| allowed(*start)) {
        let found = offer(geometry, all, profile, start);
        allocated.push(Instance::busy(profile, start));
        let loss = remaining_capacity - self::remaining_capacity(geometry, &allocated);
        allocated.pop();
        let effort = (Reverse(found.ready), found.destroys.len());
        let cost = (loss, effort, Reverse(start));
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, found));
        }
    }
    best.map(|((loss, ..), found)| (loss, found))
}

/// What must happen to create an instance of this profile at this start.
fn offer(geometry: &Geometry, all: &[Instance], profile: usize, start: u8) -> InstancePlacement {
    let idle = || all.iter().filter(|one| !one.busy);
    let ready = idle().any(|one| (one.profile, one.start) == (profile, start));
    let requested = &geometry.profiles()[profile];
    let mut destroys: Vec<u8> = Vec::new();
    if !ready {
        let overlaps = |one: &&Instance| {
            let slices = geometry.profiles()[one.profile].slices(one.start);
            slices & requested.slices(start) != 0
        };
        destroys.extend(idle().filter(overlaps).map(|one| one.start));
        // Idle instances may also use up the compute slices or the profile's maximum.
        let mut left: Vec<Instance> = all.to_vec();
        left.retain(|one| one.busy || !destroys.contains(&one.start));
        while !geometry.starts(profile, &left).any(|open| open == start) {
            let Some(at) = left.iter().rposition(|one| !one.busy) else {
                break;
            };
            destroys.push(left.remove(at).start);
        }
    }
    InstancePlacement {
        gpu: 0,
        profile,
        start,
        ready,
        destroys,
    }
}

/// The remaining capacity of a GPU with these instances.
fn remaining_capacity(geometry: &Geometry, allocated: &[Instance]) -> u32 {
    let profiles = geometry.profiles().iter().enumerate();
    let each = profiles.map(|(at, profile)| {
        let starts = u32::try_from(geometry.starts(at, allocated).count()).unwrap_or(0);
        starts * u32::from(profile.size)
    });
    each.sum()
}
