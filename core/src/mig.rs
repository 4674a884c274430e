//! How a GPU can be partitioned into MIG instances, and how it is.
//!
//! A GPU has a row of memory slices; an instance takes adjacent ones from one of the starts
//! that its profile allows, and a number of compute slices. The facts come from NVML, or
//! from [`table`] without a GPU at hand; [`place`] chooses.

pub mod dynamic;
pub mod place;
pub mod published;
pub mod table;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use self::published::MigPlacement;
use crate::units::Mib;

/// The most memory slices of a GPU: one bit each.
const MAX_SLICES: u8 = 16;

/// The prefix of the resources of MIG instances.
pub const RESOURCES: &str = "nvidia.com/mig-";

/// The resource for instances of this profile, such as `nvidia.com/mig-1g.5gb.me`: resource
/// names have no plus sign.
pub fn resource(profile: &str) -> String {
    format!("{RESOURCES}{}", profile.replace('+', "."))
}

/// Whether a known GPU model has such instances. kube-scheduler asks the extender about resources that
/// its configuration lists, which are these.
pub fn is_known(resource: &str) -> bool {
    let mut names = table::names().into_iter();
    names.any(|profile| is_resource_of(resource, &profile))
}

pub fn is_resource_of(resource: &str, profile: &str) -> bool {
    let name = resource.strip_prefix(RESOURCES);
    name.is_some_and(|name| {
        let plain = |byte| if byte == b'+' { b'.' } else { byte };
        name.bytes().eq(profile.bytes().map(plain))
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigProfile {
    /// The driver's name, such as `1g.10gb` or `1g.10gb+me`.
    pub name: String,
    pub compute: u8,
    /// Memory slices.
    pub size: u8,
    pub memory: Mib,
    /// Where its memory slices may start.
    pub starts: Vec<u8>,
    /// The most instances of it on one GPU at once.
    pub most: u8,
}

/// The MIG profiles of one GPU model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Geometry {
    /// Compute slices of the whole GPU: 7, or 4 on smaller ones.
    compute: u8,
    profiles: Vec<MigProfile>,
}

/// A [`Geometry`] before validation.
#[derive(Deserialize)]
struct Unchecked {
    compute: u8,
    profiles: Vec<MigProfile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    #[error("profile {name}: {size} slices from {start}; expected: 1 to {MAX_SLICES} in all")]
    Beyond { name: String, start: u8, size: u8 },
    #[error("duplicate profile {0}")]
    DuplicateProfile(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Its profile, as an index in the geometry.
    pub profile: usize,
    /// Its first memory slice.
    pub start: u8,
    /// Allocated to a pod. An idle instance is retained for the next request for its profile,
    /// until its slices are needed.
    pub busy: bool,
}

impl Instance {
    pub fn busy(profile: usize, start: u8) -> Self {
        Self {
            profile,
            start,
            busy: true,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct UsedSlices {
    /// Memory slices, one bit each.
    slices: u16,
    compute: u8,
}

impl MigProfile {
    /// The memory slices of an instance at this start, one bit each.
    pub fn slices(&self, start: u8) -> u16 {
        let all = u32::MAX >> (32 - u32::from(self.size.clamp(1, MAX_SLICES)));
        u16::try_from(all << start & u32::from(u16::MAX)).unwrap_or(u16::MAX)
    }
}

impl TryFrom<Unchecked> for Geometry {
    type Error = GeometryError;

    fn try_from(found: Unchecked) -> Result<Self, GeometryError> {
        Self::new(found.compute, found.profiles)
    }
}

impl Geometry {
    /// The geometry of a GPU with this many compute slices.
    pub fn new(compute: u8, profiles: Vec<MigProfile>) -> Result<Self, GeometryError> {
        for (at, profile) in profiles.iter().enumerate() {
            let (name, size) = (&profile.name, profile.size);
            if profiles[..at].iter().any(|other| other.name == *name) {
                return Err(GeometryError::DuplicateProfile(name.clone()));
            }
            let fits = |start: u8| size > 0 && start.saturating_add(size) <= MAX_SLICES;
            if let Some(&start) = profile.starts.iter().find(|start| !fits(**start)) {
                let name = name.clone();
                return Err(GeometryError::Beyond { name, start, size });
            }
        }
        Ok(Self { compute, profiles })
    }

    /// The same GPU with only the profiles whose names are `allowed`.
    #[must_use]
    pub fn only(&self, allowed: impl Fn(&str) -> bool) -> Self {
        let profiles = self.profiles.iter();
        Self {
            compute: self.compute,
            profiles: profiles.filter(|one| allowed(&one.name)).cloned().collect(),
        }
    }

    /// The profiles, in the driver's order.
    pub fn profiles(&self) -> &[MigProfile] {
        &self.profiles
    }

    /// The index of the profile with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.profiles
            .iter()
            .position(|profile| profile.name == name)
    }

    /// Whether the instance has one of the profiles and one of its starts.
    pub fn has(&self, instance: Instance) -> bool {
        let profile = self.profiles.get(instance.profile);
        profile.is_some_and(|profile| profile.starts.contains(&instance.start))
    }

    pub fn instance(&self, placement: &MigPlacement) -> Option<Instance> {
        let instance = Instance::busy(self.find(&placement.profile)?, placement.start);
        self.has(instance).then_some(instance)
    }

    /// What these instances use together.
    fn taken(&self, instances: &[Instance]) -> UsedSlices {
        instances
            .iter()
            .fold(UsedSlices::default(), |taken, instance| {
                taken.and(&self.profiles[instance.profile], instance.start)
            })
    }

    /// The starts that an instance of this profile may have beside these, ascending.
    pub fn starts(&self, profile: usize, beside: &[Instance]) -> impl Iterator<Item = u8> {
        let found = &self.profiles[profile];
        let taken = self.taken(beside);
        let alike = beside.iter().filter(|other| other.profile == profile);
        let many = alike.count() >= usize::from(found.most);
        let starts = found.starts.iter().copied();
        starts.filter(move |&start| !many && self.open(found, start, taken))
    }

    /// Whether `accepts` takes one of the ways to place instances of these profiles together: it gets
    /// each way, and none twice where equal profiles follow each other.
    pub fn any_placement(
        &self,
        profiles: &[usize],
        accepts: &mut dyn FnMut(&[Instance]) -> bool,
    ) -> bool {
        self.any_placement_beside(&mut Vec::new(), profiles, accepts)
    }

    fn any_placement_beside(
        &self,
        placed: &mut Vec<Instance>,
        profiles: &[usize],
        accepts: &mut dyn FnMut(&[Instance]) -> bool,
    ) -> bool {
        let Some((&profile, rest)) = profiles.split_first() else {
            return accepts(placed);
        };
        let alike = placed.last().filter(|last| last.profile == profile);
        let after = alike.map(|last| last.start);
        let starts: Vec<u8> = self.starts(profile, placed).collect();
        for start in starts.into_iter().filter(|start| Some(*start) > after) {
            placed.push(Instance::busy(profile, start));
            let found = self.any_placement_beside(placed, rest, accepts);
            placed.pop();
            if found {
                return true;
            }
        }
        false
    }

    /// The memory slices, one bit each, and the number of compute slices that these leave
    /// free.
    pub fn left(&self, beside: &[Instance]) -> (u16, u8) {
        let taken = self.taken(beside);
        let each = self.profiles.iter().flat_map(|profile| {
            let starts = profile.starts.iter();
            starts.map(|start| profile.slices(*start))
        });
        let all = each.fold(0, |all, slices| all | slices);
        let compute = self.compute.saturating_sub(taken.compute);
        (all & !taken.slices, compute)
    }

    /// Compute slices of the whole GPU.
    pub fn compute(&self) -> u8 {
        self.compute
    }

    fn open(&self, profile: &MigProfile, start: u8, taken: UsedSlices) -> bool {
        taken.slices & profile.slices(start) == 0
            && taken.compute.saturating_add(profile.compute) <= self.compute
    }
}

impl UsedSlices {
    fn and(self, profile: &MigProfile, start: u8) -> Self {
        Self {
            slices: self.slices | profile.slices(start),
            compute: self.compute.saturating_add(profile.compute),
        }
    }
}
