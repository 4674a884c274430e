//! Resolves a valid profile to a mode for each GPU of a node. A selector that matches nothing, a GPU
//! with two rules or none, and a layout that the GPU does not support are errors.

use aliquot_core::GpuUuid;
use aliquot_core::mig::{Geometry, table};
use serde_json::{Value, json};

use crate::config::{Profile, Reservation, Rule};
use crate::error::{ProfileError, ProfileErrors, child_path};
use crate::gpu_selector::PhysicalGpu;
use crate::mode::{
    Defaults, InstanceSharing, LayoutEntry, MAX_MPS_CLIENTS_BEFORE_VOLTA, Mig, Mode, Strategy,
};
use crate::mps::max_clients;

/// The resolved mode of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlan {
    pub uuid: GpuUuid,
    /// The rule, such as `gpus[1]` or `rest`.
    pub from: String,
    pub mode: Mode,
    /// What is reserved for some namespaces.
    pub reserve: Vec<Reservation>,
}

/// Returns a plan for each GPU, in the order of `gpus`, or all errors, with paths that start at
/// `profiles.<name>`.
pub fn resolve(
    name: &str,
    profile: &Profile,
    gpus: &[PhysicalGpu],
    defaults: &Defaults,
) -> Result<Vec<GpuPlan>, ProfileErrors> {
    let top = child_path("profiles", name);
    let mut errors = Vec::new();
    for (index, rule) in profile.gpus.iter().enumerate() {
        check_selects(
            rule,
            gpus,
            &format!("{top}.gpus[{index}].select"),
            &mut errors,
        );
    }
    let mut plans = Vec::new();
    for gpu in gpus {
        let rules = profile.gpus.iter().enumerate();
        let matching: Vec<(usize, &Rule)> = rules.filter(|(_, r)| r.select.matches(gpu)).collect();
        let (from, mode, reserve) = match (&matching[..], &profile.rest) {
            ([(index, rule)], _) => (format!("gpus[{index}]"), &rule.mode, &rule.reserve[..]),
            ([], Some(rest)) => ("rest".to_owned(), rest, &[][..]),
            ([], None) => {
                let expected = "an entry of gpus that selects it, or rest";
                let what = format!("has no rule for GPU {gpu}");
                errors.push(ProfileError::without_value(&top, what, expected));
                continue;
            }
            (matching, _) => {
                let places: Vec<String> =
                    matching.iter().map(|(p, _)| format!("gpus[{p}]")).collect();
                let what = format!("assigns GPU {gpu} to {}", places.join(" and "));
                let expected = "each GPU in one entry; rest applies to all others";
                errors.push(ProfileError::without_value(&top, what, expected));
                continue;
            }
        };
        let path = format!("{top}.{from}");
        check_supported(gpu, mode, &path, &mut errors);
        check_reserved(gpu, mode, reserve, &path, &mut errors);
        plans.push(GpuPlan {
            uuid: gpu.uuid.clone(),
            from,
            mode: mode.with_defaults(defaults),
            reserve: reserve.to_vec(),
        });
    }
    check_same_layout(&plans, gpus, &top, &mut errors);
    if errors.is_empty() {
        Ok(plans)
    } else {
        Err(ProfileErrors(errors))
    }
}

/// With strategy `single`, all instances share one resource name and must be identical: reports the
/// GPUs whose layout differs from the most common one.
fn check_same_layout(
    plans: &[GpuPlan],
    gpus: &[PhysicalGpu],
    top: &str,
    errors: &mut Vec<ProfileError>,
) {
    let single = plans.iter().filter_map(|plan| match &plan.mode {
        Mode::Mig(mig) if mig.strategy == Strategy::Single => Some((plan, &mig.layout)),
        _ => None,
    });
    let single: Vec<(&GpuPlan, &Vec<LayoutEntry>)> = single.collect();
    let count_same =
        |layout: &Vec<LayoutEntry>| single.iter().filter(|(_, other)| *other == layout).count();
    // The first of the most common layouts.
    let usual = single
        .iter()
        .rev()
        .max_by_key(|(_, layout)| count_same(layout));
    let Some((_, usual)) = usual else { return };
    for (plan, layout) in single.iter().filter(|(_, layout)| layout != usual) {
        let gpu = gpus.iter().find(|gpu| gpu.uuid == plan.uuid);
        let gpu = gpu.map(PhysicalGpu::to_string).unwrap_or_default();
        let names = |layout: &[LayoutEntry]| {
            let names = layout
                .iter()
                .map(|s| format!("{} x {}", s.count, s.profile));
            names.collect::<Vec<_>>().join(", ")
        };
        let (own, most) = (names(layout), names(usual));
        let what = format!("partitions GPU {gpu} into {own}, but the others into {most}");
        let expected = "one layout for all GPUs with strategy single, or strategy mixed";
        let path = format!("{top}.{}.layout", plan.from);
        errors.push(ProfileError::without_value(path, what, expected));
    }
}

fn check_selects(rule: &Rule, gpus: &[PhysicalGpu], path: &str, errors: &mut Vec<ProfileError>) {
    if rule.optional {
        return;
    }
    let available = |key: &str| {
        let mut all: Vec<String> = gpus
            .iter()
            .filter_map(|gpu| gpu.selector_value(key))
            .collect();
        all.dedup();
        if all.is_empty() {
            "nothing on this node; set optional: true if that is intended".to_owned()
        } else {
            all.join(", ")
        }
    };
    if rule.select.all && gpus.is_empty() {
        let value = Value::Bool(true);
        let path = child_path(path, "all");
        errors.push(ProfileError::new(
            path,
            &value,
            "selects no GPU",
            available("index"),
        ));
    }
    for entry in rule.select.entries() {
        let selected = |gpu: &PhysicalGpu| (entry.matches)(gpu) && rule.select.matches(gpu);
        if gpus.iter().any(selected) {
            continue;
        }
        let path = format!("{path}.{}[{}]", entry.key, entry.index);
        let (what, expected) = if gpus.iter().any(|gpu| (entry.matches)(gpu)) {
            let expected = "keys that select a common GPU, or optional: true";
            (
                "selects no GPU that the other keys select",
                expected.to_owned(),
            )
        } else {
            ("selects no GPU", available(entry.key))
        };
        errors.push(ProfileError::new(path, &entry.written, what, expected));
    }
}

fn check_supported(gpu: &PhysicalGpu, mode: &Mode, path: &str, errors: &mut Vec<ProfileError>) {
    match mode {
        Mode::Mps(mps) => {
            let old = gpu.capability.is_some_and(|capability| capability < (7, 0));
            if old && mps.replicas > MAX_MPS_CLIENTS_BEFORE_VOLTA {
                let what = format!("is too many for GPU {gpu}");
                let expected =
                    format!("1 to {MAX_MPS_CLIENTS_BEFORE_VOLTA} before compute capability 7.0");
                let path = child_path(path, "replicas");
                errors.push(ProfileError::new(
                    path,
                    &json!(mps.replicas),
                    what,
                    expected,
                ));
            }
        }
        Mode::Mig(mig) => check_partitionable(gpu, mig, path, errors),
        Mode::Vgpu(_) | Mode::Exclusive(_) | Mode::Timeslice(_) | Mode::Unmanaged => {}
    }
}

fn check_partitionable(gpu: &PhysicalGpu, mig: &Mig, path: &str, errors: &mut Vec<ProfileError>) {
    if !gpu.mig {
        let what = format!("is not supported by GPU {gpu}");
        let expected = "vgpu, exclusive, timeslice, mps, unmanaged";
        errors.push(ProfileError::new(
            child_path(path, "mode"),
            &json!("mig"),
            what,
            expected,
        ));
        return;
    }
    let Some(geometry) = table::geometry(&gpu.product) else {
        return;
    };
    let names = || {
        let names: Vec<&str> = geometry
            .profiles()
            .iter()
            .map(|p| p.name.as_str())
            .collect();
        names.join(", ")
    };
    let mut unknown = |path: String, profile: &str| {
        let what = format!("is not a MIG profile of GPU {gpu}");
        errors.push(ProfileError::new(path, &json!(profile), what, names()));
    };
    for (index, profile) in mig.allow.iter().enumerate() {
        if geometry.find(profile).is_none() {
            unknown(format!("{path}.allow[{index}]"), profile);
        }
    }
    match check_fit(&geometry, &mig.layout) {
        Ok(()) => check_instance_clients(gpu, &geometry, &mig.layout, path, errors),
        Err(LayoutError::Unknown(index)) => {
            unknown(
                format!("{path}.layout[{index}].profile"),
                &mig.layout[index].profile,
            );
        }
        Err(LayoutError::DoesNotFit) => {
            let what = format!("does not fit on GPU {gpu}");
            let expected = "instances that fit on the GPU together";
            errors.push(ProfileError::without_value(
                child_path(path, "layout"),
                what,
                expected,
            ));
        }
    }
}

/// The MPS daemon of an instance serves its part of the clients that a GPU's serves.
fn check_instance_clients(
    gpu: &PhysicalGpu,
    geometry: &Geometry,
    layout: &[LayoutEntry],
    path: &str,
    errors: &mut Vec<ProfileError>,
) {
    for (index, entry) in layout.iter().enumerate() {
        let profile = geometry.find(&entry.profile);
        let (Some(InstanceSharing::Mps(mps)), Some(profile)) = (&entry.on, profile) else {
            continue;
        };
        let slices = geometry.profiles()[profile].compute;
        let part = (slices.into(), geometry.compute().into());
        let most = max_clients(gpu.capability, Some(part));
        if u64::from(mps.replicas) > most {
            let path = format!("{path}.layout[{index}].on.replicas");
            let what = format!("is too many for an instance of GPU {gpu}");
            let expected = format!("1 to {most}");
            let value = json!(mps.replicas);
            errors.push(ProfileError::new(path, &value, what, expected));
        }
    }
}

/// With dynamic MIG all reserved instances must fit on the GPU together.
fn check_reserved(
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
    if check_fit(&geometry, &layout).is_err() {
        let what = format!("does not fit on GPU {gpu}");
        let expected = "profiles of the GPU that fit on it together";
        errors.push(ProfileError::without_value(
            child_path(path, "reserve"),
            what,
            expected,
        ));
    }
}

enum LayoutError {
    /// The model lacks the profile of this entry of the layout.
    Unknown(usize),
    DoesNotFit,
}

fn check_fit(geometry: &Geometry, layout: &[LayoutEntry]) -> Result<(), LayoutError> {
    let mut requested = Vec::new();
    for (index, slice) in layout.iter().enumerate() {
        let profile = geometry.find(&slice.profile);
        let profile = profile.ok_or(LayoutError::Unknown(index))?;
        requested.extend((0..slice.count).map(|_| profile));
    }
    if geometry.any_placement(&requested, &mut |_| true) {
        Ok(())
    } else {
        Err(LayoutError::DoesNotFit)
    }
}
