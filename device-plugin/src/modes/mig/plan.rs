//! Plans a MIG layout: which instances stay, which are destroyed, and which are created where. An
//! instance that matches is never destroyed.

use aliquot_core::mig::published::MigPlacement;
use aliquot_core::mig::{Geometry, Instance};
use aliquot_nvml as nvml;
use aliquot_profiles::mode::LayoutEntry;
use thiserror::Error;

use crate::host_device::placement_of;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutPlan {
    /// The driver's ids of the instances to destroy.
    pub destroy: Vec<u32>,
    /// The instances to create after that.
    pub create: Vec<MigPlacement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutPlanError {
    #[error("the GPU has no MIG profile {0}; expected one of {1}")]
    NoProfile(String, String),
    #[error("the layout does not fit on the GPU: its instances cannot be placed together")]
    TooMuch,
}

/// Plans a layout. Chooses the placement that keeps the most instances; among those, the one with
/// the most placements of `before`, so that pods find after a reboot what they had.
pub fn plan_layout(
    geometry: &Geometry,
    layout: &[LayoutEntry],
    found: &[nvml::GpuInstance],
    before: &[MigPlacement],
) -> Result<LayoutPlan, LayoutPlanError> {
    let mut profiles = Vec::new();
    for slice in layout {
        let profile = geometry.find(&slice.profile);
        let profile = profile.ok_or_else(|| no_profile(geometry, &slice.profile))?;
        profiles.extend((0..slice.count).map(|_| profile));
    }
    let size = |profile: &usize| geometry.profiles()[*profile].size;
    profiles.sort_by_key(|profile| (std::cmp::Reverse(size(profile)), *profile));
    let placed = |one: &Instance| MigPlacement {
        profile: geometry.profiles()[one.profile].name.clone(),
        start: one.start,
    };
    let whole: Vec<MigPlacement> = found
        .iter()
        .filter(|f| f.device().is_some())
        .map(placement_of)
        .collect();
    // Instances that stay, and earlier placements that are kept.
    let score = |placement: &[Instance]| {
        let among = |known: &[MigPlacement]| {
            placement
                .iter()
                .filter(|one| known.contains(&placed(one)))
                .count()
        };
        (among(&whole), among(before))
    };
    let mut best: Option<((usize, usize), Vec<Instance>)> = None;
    geometry.any_placement(&profiles, &mut |placement| {
        let score = score(placement);
        if best.as_ref().is_none_or(|(known, _)| score > *known) {
            best = Some((score, placement.to_vec()));
        }
        false
    });
    let (_, placement) = best.ok_or(LayoutPlanError::TooMuch)?;
    let is_new = |place: &MigPlacement| !whole.contains(place);
    let create = placement.iter().map(placed).filter(is_new).collect();
    let goes = |one: &&nvml::GpuInstance| {
        one.device().is_none() || !placement.iter().map(placed).any(|p| p == placement_of(one))
    };
    let destroy = found.iter().filter(goes).map(|one| one.id).collect();
    Ok(LayoutPlan { destroy, create })
}

/// Destroys incomplete instances and does nothing else.
pub fn plan_cleanup(found: &[nvml::GpuInstance]) -> LayoutPlan {
    let half = found.iter().filter(|one| one.devices.is_empty());
    LayoutPlan {
        destroy: half.map(|one| one.id).collect(),
        ..LayoutPlan::default()
    }
}

fn no_profile(geometry: &Geometry, name: &str) -> LayoutPlanError {
    let known: Vec<&str> = geometry
        .profiles()
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    LayoutPlanError::NoProfile(name.to_owned(), known.join(", "))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
