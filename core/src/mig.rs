//! How a card can be cut into instances (MIG), and how one is cut now.
//!
//! A card has memory slices in a row; an instance takes some that lie together
//! from one of the starts that its profile allows, and a number of compute slices.
//! Fed by: what NVML tells of a card, or [`table`] where no card is at hand.
//! Must not: choose; that is [`place`].

pub mod place;
pub mod published;
pub mod table;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use self::published::Placed;
use crate::units::Mib;

/// Most memory slices that a card may have: one bit each.
const MOST_SLICES: u8 = 16;

/// What the resources of instances begin with.
pub const RESOURCES: &str = "nvidia.com/mig-";

/// The resource that instances of this profile are asked for under, such as
/// `nvidia.com/mig-1g.5gb.me`: a resource's name has no plus sign.
pub fn resource(profile: &str) -> String {
    format!("{RESOURCES}{}", profile.replace('+', "."))
}

/// The resource is that of instances of this profile.
pub fn is_resource_of(resource: &str, profile: &str) -> bool {
    let name = resource.strip_prefix(RESOURCES);
    name.is_some_and(|name| {
        let plain = |byte| if byte == b'+' { b'.' } else { byte };
        name.bytes().eq(profile.bytes().map(plain))
    })
}

/// One kind of instance that a card can be cut into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// As the driver names it, such as `1g.10gb` or `1g.10gb+me`.
    pub name: String,
    /// Compute slices.
    pub compute: u8,
    /// Memory slices.
    pub size: u8,
    /// Memory of an instance.
    pub memory: Mib,
    /// Where its memory slices may start.
    pub starts: Vec<u8>,
    /// Most instances of it on one card at once.
    pub most: u8,
}

/// All that one model of card can be cut into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Geometry {
    /// Compute slices of the whole card: 7, or 4 on smaller ones.
    compute: u8,
    profiles: Vec<Profile>,
}

/// A [`Geometry`] as it came.
#[derive(Deserialize)]
struct Unchecked {
    compute: u8,
    profiles: Vec<Profile>,
}

/// A geometry that no card has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// An instance would end beyond the slices that a card can have.
    #[error("profile {name}: {size} slices from {start}; accepted: 1 to {MOST_SLICES} in all")]
    Beyond {
        /// The profile.
        name: String,
        /// Where it would start.
        start: u8,
        /// Its memory slices.
        size: u8,
    },
    /// Two profiles have one name.
    #[error("profile {0} is there twice")]
    Twice(String),
}

/// An instance on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Which of the geometry's profiles it has.
    pub profile: usize,
    /// Its first memory slice.
    pub start: u8,
    /// A pod holds it. One that nobody holds is kept for the next who asks for
    /// its profile, until its slices are needed.
    pub busy: bool,
}

/// What is taken of a card.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// Memory slices, one bit each.
    slices: u16,
    /// Compute slices.
    compute: u8,
}

impl Profile {
    /// The memory slices of an instance that starts here.
    pub fn slices(&self, start: u8) -> u16 {
        let all = u32::MAX >> (32 - u32::from(self.size.clamp(1, MOST_SLICES)));
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
    /// The geometry of a card with so many compute slices.
    pub fn new(compute: u8, profiles: Vec<Profile>) -> Result<Self, GeometryError> {
        for (at, profile) in profiles.iter().enumerate() {
            let (name, size) = (&profile.name, profile.size);
            if profiles[..at].iter().any(|other| other.name == *name) {
                return Err(GeometryError::Twice(name.clone()));
            }
            let fits = |start: u8| size > 0 && start.saturating_add(size) <= MOST_SLICES;
            if let Some(&start) = profile.starts.iter().find(|start| !fits(**start)) {
                let name = name.clone();
                return Err(GeometryError::Beyond { name, start, size });
            }
        }
        Ok(Self { compute, profiles })
    }

    /// The same card, cut only into what `allowed` says of a profile's name.
    #[must_use]
    pub fn only(&self, allowed: impl Fn(&str) -> bool) -> Self {
        let profiles = self.profiles.iter();
        Self {
            compute: self.compute,
            profiles: profiles.filter(|one| allowed(&one.name)).cloned().collect(),
        }
    }

    /// The profiles, in the driver's order.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// The place of the profile of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.profiles
            .iter()
            .position(|profile| profile.name == name)
    }

    /// The instance is of one of the profiles, at one of its starts.
    pub fn has(&self, instance: Instance) -> bool {
        let profile = self.profiles.get(instance.profile);
        profile.is_some_and(|profile| profile.starts.contains(&instance.start))
    }

    /// The instance that somebody holds, if it is one of these.
    pub fn instance(&self, held: &Placed) -> Option<Instance> {
        let instance = Instance {
            profile: self.find(&held.profile)?,
            start: held.start,
            busy: true,
        };
        self.has(instance).then_some(instance)
    }

    /// What these instances take together.
    fn taken(&self, instances: &[Instance]) -> Taken {
        instances.iter().fold(Taken::default(), |taken, instance| {
            taken.and(&self.profiles[instance.profile], instance.start)
        })
    }

    /// Where an instance of this profile may start beside these, lowest first.
    pub fn starts(&self, profile: usize, beside: &[Instance]) -> impl Iterator<Item = u8> {
        let found = &self.profiles[profile];
        let taken = self.taken(beside);
        let alike = beside.iter().filter(|other| other.profile == profile);
        let many = alike.count() >= usize::from(found.most);
        let starts = found.starts.iter().copied();
        starts.filter(move |&start| !many && self.open(found, start, taken))
    }

    /// The memory slices, one bit each, and the number of compute slices that these leave.
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

    /// Compute slices of the whole card.
    pub fn compute(&self) -> u8 {
        self.compute
    }

    fn open(&self, profile: &Profile, start: u8, taken: Taken) -> bool {
        taken.slices & profile.slices(start) == 0
            && taken.compute.saturating_add(profile.compute) <= self.compute
    }
}

impl Taken {
    fn and(self, profile: &Profile, start: u8) -> Self {
        Self {
            slices: self.slices | profile.slices(start),
            compute: self.compute.saturating_add(profile.compute),
        }
    }
}
