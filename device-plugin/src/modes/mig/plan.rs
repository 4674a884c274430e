//! How a card comes to be cut as its owner wrote: which instances stay, which go, which are made
//! and where.
//!
//! Fed by: the card's geometry, the layout, the instances that are there, the places that they
//! had before. Must not: end an instance that is right.

use aliquot_core::mig::published::Placed;
use aliquot_core::mig::{Geometry, Instance};
use aliquot_nvml as nvml;
use aliquot_profiles::mode::Slice;
use thiserror::Error;

/// What must be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The instances that stay.
    pub keep: Vec<Placed>,
    /// The driver's ids of those that go.
    pub destroy: Vec<u32>,
    /// Those that are made then.
    pub create: Vec<Placed>,
}

/// Why a card cannot be cut so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The card has no such profile.
    #[error("the card has no MIG profile {0}; it has {1}")]
    NoProfile(String, String),
    /// No placement of them all exists.
    #[error("the layout does not fit on the card: no places exist for all of its instances")]
    TooMuch,
}

/// A way to place everything, and how good it is: instances that stay, places that were there
/// before.
type Way = ((usize, usize), Vec<Instance>);

/// A plan for a layout. Of all placements the one that keeps the most instances; then the one
/// with the most places of `before`, so that pods find after a reboot what they had.
pub fn plan(
    geometry: &Geometry,
    layout: &[Slice],
    found: &[nvml::Instance],
    before: &[Placed],
) -> Result<Plan, PlanError> {
    let mut wanted = Vec::new();
    for slice in layout {
        let profile = geometry.find(&slice.profile);
        let profile = profile.ok_or_else(|| no_profile(geometry, &slice.profile))?;
        wanted.extend((0..slice.count).map(|_| profile));
    }
    let size = |profile: &usize| geometry.profiles()[*profile].size;
    wanted.sort_by_key(|profile| (std::cmp::Reverse(size(profile)), *profile));
    let placed = |one: &Instance| Placed {
        profile: geometry.profiles()[one.profile].name.clone(),
        start: one.start,
    };
    let whole: Vec<Placed> = found
        .iter()
        .filter(|f| f.device().is_some())
        .map(place_of)
        .collect();
    let score = |way: &[Instance]| {
        let among = |known: &[Placed]| {
            way.iter()
                .filter(|one| known.contains(&placed(one)))
                .count()
        };
        (among(&whole), among(before))
    };
    let mut best: Option<Way> = None;
    search(geometry, &wanted, &mut Vec::new(), &score, &mut best);
    let (_, way) = best.ok_or(PlanError::TooMuch)?;
    let (keep, create) = way
        .iter()
        .map(placed)
        .partition(|place| whole.contains(place));
    let goes = |one: &&nvml::Instance| {
        one.device().is_none() || !way.iter().map(placed).any(|p| p == place_of(one))
    };
    let destroy = found.iter().filter(goes).map(|one| one.id).collect();
    Ok(Plan {
        keep,
        destroy,
        create,
    })
}

/// Instances that are half made go; nothing else is done.
pub fn tidy(found: &[nvml::Instance]) -> Plan {
    let half = found.iter().filter(|one| one.devices.is_empty());
    Plan {
        destroy: half.map(|one| one.id).collect(),
        ..Plan::default()
    }
}

/// Where an instance is.
pub fn place_of(one: &nvml::Instance) -> Placed {
    Placed {
        profile: one.profile.clone(),
        start: one.start,
    }
}

fn no_profile(geometry: &Geometry, name: &str) -> PlanError {
    let known: Vec<&str> = geometry
        .profiles()
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    PlanError::NoProfile(name.to_owned(), known.join(", "))
}

/// Tries every way; those of one profile in the order of their starts, so that each is seen once.
fn search(
    geometry: &Geometry,
    wanted: &[usize],
    placed: &mut Vec<Instance>,
    score: &dyn Fn(&[Instance]) -> (usize, usize),
    best: &mut Option<Way>,
) {
    let Some((&profile, rest)) = wanted.split_first() else {
        let score = score(placed);
        if best.as_ref().is_none_or(|(known, _)| score > *known) {
            *best = Some((score, placed.clone()));
        }
        return;
    };
    let alike = placed.last().filter(|last| last.profile == profile);
    let after = alike.map(|last| last.start);
    let starts: Vec<u8> = geometry.starts(profile, placed).collect();
    for start in starts.into_iter().filter(|start| Some(*start) > after) {
        placed.push(Instance {
            profile,
            start,
            busy: true,
        });
        search(geometry, rest, placed, score, best);
        placed.pop();
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
