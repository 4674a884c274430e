//! Validates what a rule reserves for some namespaces. The node agent chooses the instances.

use aliquot_core::mig::table;
use serde_json::json;

use crate::config::{Reservation, Rule};
use crate::error::{ProfileError, child_path};
use crate::mig_layout;
use crate::mode::{LayoutEntry, Mig, Mode};
use crate::resolve::{PhysicalGpu, describe_gpu};

/// Errors of a rule's reservations that do not depend on the GPU.
pub(crate) fn check(rule: &Rule, path: &str, errors: &mut Vec<ProfileError>) {
    let path = child_path(path, "reserve");
    let all = &rule.reserve;
    let is_whole_gpu = |reservation: &Reservation| reservation.profile.is_none();
    for (index, reservation) in all.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Some(profile) = &reservation.profile else {
            if let Some(count) = reservation.count {
                let expected =
                    "count together with profile; without a profile the whole GPU is reserved";
                let path = child_path(&path, "count");
                errors.push(ProfileError::new(
                    path,
                    &json!(count),
                    "requires a profile",
                    expected,
                ));
            }
            if all.len() > 1 && all.iter().position(is_whole_gpu) == Some(index) {
                let what = "reserves the whole GPU, but another entry reserves part of it";
                errors.push(ProfileError::without_value(&path, what, "one of the two"));
            }
            continue;
        };
        let value = json!(profile);
        let path = child_path(&path, "profile");
        let Mode::Mig(mig) = &rule.mode else {
            let expected = "no profile: without MIG the whole GPU is reserved";
            errors.push(ProfileError::new(
                path,
                &value,
                "requires mode mig",
                expected,
            ));
            continue;
        };
        // Reported once for each profile, at the first entry that names it.
        if all
            .iter()
            .position(|other| other.profile == reservation.profile)
            != Some(index)
        {
            continue;
        }
        let of = all
            .iter()
            .filter(|other| other.profile == reservation.profile);
        let requested: u32 = of.map(Reservation::count).sum();
        let available = instance_count(mig, profile);
        if requested > available {
            let what = format!("is reserved {requested} times, but the GPU has {available}");
            let expected = "at most as many as the layout has, or dynamic allows";
            errors.push(ProfileError::new(path, &value, what, expected));
        }
    }
}

/// How many instances of this profile such a GPU has or could have.
fn instance_count(mig: &Mig, profile: &str) -> u32 {
    if mig.dynamic {
        let allowed = mig.allow.is_empty() || mig.allow.iter().any(|one| one == profile);
        return if allowed { 7 } else { 0 };
    }
    let same = mig.layout.iter().filter(|slice| slice.profile == profile);
    same.map(|slice| slice.count).sum()
}

/// With dynamic MIG all reserved instances must fit on the GPU together.
pub(crate) fn check_capacity(
    gpu: &PhysicalGpu,
    mode: &Mode,
    reserve: &[Reservation],
    path: &str,
    errors: &mut Vec<ProfileError>,
) {
    let dynamic = matches!(mode, Mode::Mig(mig) if mig.dynamic);
    let Some(geometry) = table::geometry(&gpu.product).filter(|_| dynamic) else {
        return;
    };
    let slice = |reservation: &Reservation| {
        Some(LayoutEntry {
            profile: reservation.profile.clone()?,
            count: reservation.count(),
            on: None,
        })
    };
    let layout: Vec<LayoutEntry> = reserve.iter().filter_map(slice).collect();
    if mig_layout::check_fit(&geometry, &layout).is_err() {
        let what = format!("does not fit on GPU {}", describe_gpu(gpu));
        let expected = "profiles of the GPU that fit on it together";
        errors.push(ProfileError::without_value(
            child_path(path, "reserve"),
            what,
            expected,
        ));
    }
}
