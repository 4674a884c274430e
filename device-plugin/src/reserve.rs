//! Which units of a card are kept for some namespaces.
//!
//! Fed by: the card's units, and what its profile keeps. Must not: give or take anything;
//! the scheduler keeps to it.

use aliquot_core::inventory::Gpu;
use aliquot_core::mig::published::{Cut, Mig, Placed, Reserved};
use aliquot_core::mig::{Instance, place};
use aliquot_profiles::Reserve;

/// Marks what is kept of one card. Of instances that are there for good those that start
/// lowest; of a card that is cut as pods come the places that cost the others least.
pub(crate) fn keep(units: &mut [Gpu], reserve: &[Reserve]) {
    for kept in reserve {
        let Some(profile) = &kept.profile else {
            for unit in &mut *units {
                unit.reserved.extend_from_slice(&kept.namespaces);
            }
            continue;
        };
        let start = |unit: &Gpu| {
            let part = unit.mig.as_ref().and_then(Mig::part)?;
            (part.profile == *profile && unit.reserved.is_empty()).then_some(part.start)
        };
        let mut free: Vec<&mut Gpu> = units
            .iter_mut()
            .filter(|one| start(one).is_some())
            .collect();
        free.sort_by_key(|unit| start(unit));
        let count = usize::try_from(kept.count()).unwrap_or(usize::MAX);
        for unit in free.into_iter().take(count) {
            unit.reserved.clone_from(&kept.namespaces);
        }
    }
    for unit in units {
        if let Some(Mig::Dynamic(cut)) = &mut unit.mig {
            cut.reserved = places(cut, reserve);
        }
    }
}

/// The same on every look: it rests on nothing but the profile and the card's geometry.
fn places(cut: &Cut, reserve: &[Reserve]) -> Vec<Reserved> {
    let mut taken: Vec<Instance> = Vec::new();
    let mut places = Vec::new();
    for kept in reserve {
        let Some((name, profile)) = kept
            .profile
            .as_ref()
            .and_then(|name| Some((name, cut.geometry.find(name)?)))
        else {
            continue;
        };
        for _ in 0..kept.count() {
            let found = place::on_card(&cut.geometry, &taken, profile, |_| true);
            let Some((_, found)) = found else { break };
            let (start, busy) = (found.start, true);
            taken.push(Instance {
                profile,
                start,
                busy,
            });
            let profile = name.clone();
            places.push(Reserved {
                place: Placed { profile, start },
                namespaces: kept.namespaces.clone(),
            });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use aliquot_core::mig::table;
    use aliquot_nvml as nvml;
    use aliquot_profiles::config::Reserve;
    use aliquot_profiles::mode::{Mig as Settings, Slice};
    use aliquot_profiles::{Mode, mode};

    use super::*;
    use crate::testing::{RESOURCE, facts};
    use crate::units::{Arrangement, Stand, units};

    /// What is kept of one card in this mode, as `unit or place: namespaces`.
    fn check(mode: Mode, reserve: &str, expected: &[&str]) {
        let mut facts = facts(&["GPU-a"]);
        let geometry = table::geometry("NVIDIA A100-SXM4-40GB").expect("known");
        let instance = |start: u8| nvml::Instance {
            profile: "1g.5gb".to_owned(),
            start,
            size: 1,
            memory: aliquot_core::Mib(4_864),
            id: 7 + u32::from(start),
            devices: vec![nvml::Device {
                uuid: format!("MIG-{start}"),
                current: format!("MIG-{start}"),
                id: 0,
                whole: true,
            }],
        };
        let dynamic = matches!(&mode, Mode::Mig(settings) if settings.dynamic);
        facts.cards[0].cut = nvml::Cut {
            geometry: Some(geometry),
            instances: if dynamic {
                Vec::new()
            } else {
                vec![instance(3), instance(1), instance(0)]
            },
        };
        let reserve: Vec<Reserve> = serde_json::from_str(reserve).expect("good");
        let stand = Stand {
            reserve,
            ..Stand::open(mode)
        };
        let arrangement = Arrangement {
            usual: RESOURCE.to_owned(),
            cards: [("GPU-a".into(), stand)].into(),
        };
        let units = units(&facts, &[], &arrangement);
        let mut said = Vec::new();
        for unit in &units {
            let list = |all: &[aliquot_core::Namespace]| {
                let names: Vec<&str> = all.iter().map(aliquot_core::Namespace::as_str).collect();
                names.join(",")
            };
            if !unit.reserved.is_empty() {
                said.push(format!("{}: {}", unit.uuid, list(&unit.reserved)));
            }
            let cut = unit.mig.as_ref().and_then(Mig::dynamic);
            said.extend(cut.into_iter().flat_map(|cut| &cut.reserved).map(|kept| {
                let (place, whose) = (&kept.place, list(&kept.namespaces));
                format!("{}@{}: {whose}", place.profile, place.start)
            }));
        }
        assert_eq!(said, expected);
    }

    #[test]
    fn mig_15_the_agent_says_of_its_units_for_whom_they_are_kept() {
        let whole = || Mode::Exclusive(mode::Exclusive::default());
        check(whole(), "[]", &[]);
        check(whole(), r#"[{"namespaces":["a","b"]}]"#, &["GPU-a: a,b"]);
        let layout = || {
            Mode::Mig(Settings {
                layout: vec![Slice {
                    profile: "1g.5gb".to_owned(),
                    count: 3,
                    on: None,
                }],
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
