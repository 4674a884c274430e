//! Which devices of a GPU are reserved for namespaces. The scheduler enforces it.

use aliquot_core::inventory::Gpu;
use aliquot_core::mig::published::{DynamicMig, Mig, MigPlacement, ReservedPlacement};
use aliquot_core::mig::{Instance, place};
use aliquot_profiles::Reservation;

/// Marks what is reserved of one GPU: of existing instances those with the lowest starts; under
/// dynamic MIG the placements that cost others least.
pub(crate) fn apply(devices: &mut [Gpu], reserve: &[Reservation]) {
    for reservation in reserve {
        let Some(profile) = &reservation.profile else {
            for device in &mut *devices {
                device.reserved.extend_from_slice(&reservation.namespaces);
            }
            continue;
        };
        let start = |device: &Gpu| {
            let part = device.mig.as_ref().and_then(Mig::fixed)?;
            (part.profile == *profile && device.reserved.is_empty()).then_some(part.start)
        };
        let mut free: Vec<&mut Gpu> = devices
            .iter_mut()
            .filter(|one| start(one).is_some())
            .collect();
        free.sort_by_key(|device| start(device));
        let count = usize::try_from(reservation.count()).unwrap_or(usize::MAX);
        for device in free.into_iter().take(count) {
            device.reserved.clone_from(&reservation.namespaces);
        }
    }
    for device in devices {
        if let Some(Mig::Dynamic(dynamic)) = &mut device.mig {
            dynamic.reserved = places(dynamic, reserve);
        }
    }
}

/// Deterministic: depends only on the profile and the GPU's geometry.
fn places(dynamic: &DynamicMig, reserve: &[Reservation]) -> Vec<ReservedPlacement> {
    let mut taken: Vec<Instance> = Vec::new();
    let mut places = Vec::new();
    for reservation in reserve {
        let Some((name, profile)) = reservation
            .profile
            .as_ref()
            .and_then(|name| Some((name, dynamic.geometry.find(name)?)))
        else {
            continue;
        };
        for _ in 0..reservation.count() {
            let found = place::on_gpu(&dynamic.geometry, &taken, profile, |_| true);
            let Some((_, found)) = found else { break };
            let (start, busy) = (found.start, true);
            taken.push(Instance {
                profile,
                start,
                busy,
            });
            let profile = name.clone();
            places.push(ReservedPlacement {
                placement: MigPlacement { profile, start },
                namespaces: reservation.namespaces.clone(),
            });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use aliquot_core::mig::table;
    use aliquot_nvml as nvml;
    use aliquot_profiles::config::Reservation;
    use aliquot_profiles::mode::Mig as Settings;
    use aliquot_profiles::{Mode, mode};

    use super::*;
    use crate::gpus::allocatable::{GpuLayout, allocatable_devices};
    use crate::testing::{facts, layout_entry, layout_of, reported_instance};

    /// Checks what is reserved of one GPU in this mode, as `device or placement: namespaces`.
    fn check(mode: Mode, reserve: &str, expected: &[&str]) {
        let mut facts = facts(&["GPU-a"]);
        let geometry = table::geometry("NVIDIA A100-SXM4-40GB").expect("known");
        let instance = |start| reported_instance(start, &format!("MIG-{start}"));
        let dynamic = matches!(&mode, Mode::Mig(settings) if settings.dynamic);
        facts.gpus[0].layout = nvml::MigLayout {
            geometry: Some(geometry),
            instances: if dynamic {
                Vec::new()
            } else {
                vec![instance(3), instance(1), instance(0)]
            },
        };
        let reserve: Vec<Reservation> = serde_json::from_str(reserve).expect("good");
        let gpu_layout = GpuLayout {
            reserve,
            ..GpuLayout::serving(mode)
        };
        let mut layout = layout_of(&["GPU-a"]);
        layout.gpus.insert("GPU-a".into(), gpu_layout);
        let devices = allocatable_devices(&facts, &[], &layout);
        let mut actual = Vec::new();
        let list = |all: &[aliquot_core::Namespace]| {
            let names: Vec<&str> = all.iter().map(aliquot_core::Namespace::as_str).collect();
            names.join(",")
        };
        for device in &devices {
            if !device.reserved.is_empty() {
                actual.push(format!("{}: {}", device.uuid, list(&device.reserved)));
            }
            let dynamic = device.mig.as_ref().and_then(Mig::dynamic);
            for reservation in dynamic.into_iter().flat_map(|dynamic| &dynamic.reserved) {
                let (place, whose) = (&reservation.placement, list(&reservation.namespaces));
                actual.push(format!("{}@{}: {whose}", place.profile, place.start));
            }
        }
        assert_eq!(actual, expected);
    }

    #[test]
    fn mig_15_marks_devices_reserved_for_namespaces() {
        let whole = || Mode::Exclusive(mode::Exclusive::default());
        check(whole(), "[]", &[]);
        check(whole(), r#"[{"namespaces":["a","b"]}]"#, &["GPU-a: a,b"]);
        let layout = || {
            Mode::Mig(Settings {
                layout: vec![layout_entry("1g.5gb", 3, None)],
                ..Settings::default()
            })
        };
        let two =
            r#"[{"profile":"1g.5gb","namespaces":["a"]},{"profile":"1g.5gb","namespaces":["b"]}]"#;
        check(layout(), two, &["MIG-0: a", "MIG-1: b"]);
        let all = r#"[{"namespaces":["a"]}]"#;
        check(layout(), all, &["MIG-0: a", "MIG-1: a", "MIG-3: a"]);
        let dynamic = || {
            Mode::Mig(Settings {
                dynamic: true,
                ..Settings::default()
            })
        };
        let two = r#"[{"profile":"1g.5gb","count":2,"namespaces":["a"]},{"profile":"3g.20gb","namespaces":["b"]}]"#;
        check(
            dynamic(),
            two,
            &["1g.5gb@6: a", "1g.5gb@5: a", "3g.20gb@0: b"],
        );
    }
}
