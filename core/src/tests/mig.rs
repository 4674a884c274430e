//! Partitioning: the published tables, and how many requests are refused.

use std::collections::BTreeSet;

use super::arrivals::{self, Chooser};
use crate::mig::place::{self, place};
use crate::mig::resource;
use crate::mig::table::{geometry, names};
use crate::mig::{Geometry, GeometryError, Instance, MigProfile};
use crate::units::Mib;

fn a100() -> Geometry {
    geometry("NVIDIA A100-SXM4-40GB").unwrap()
}

/// Every set of instances that can be on one device, of these profiles.
fn layouts(geometry: &Geometry, wanted: &[&str]) -> BTreeSet<Vec<(usize, u8)>> {
    let wanted: Vec<usize> = wanted
        .iter()
        .map(|name| geometry.find(name).unwrap())
        .collect();
    let mut found = BTreeSet::from([vec![]]);
    let mut new = found.clone();
    while let Some(layout) = new.pop_first() {
        let there: Vec<_> = layout
            .iter()
            .map(|&(at, start)| Instance::busy(at, start))
            .collect();
        for &at in &wanted {
            for start in geometry.starts(at, &there) {
                let mut more = layout.clone();
                more.push((at, start));
                more.sort_unstable();
                if found.insert(more.clone()) {
                    new.insert(more);
                }
            }
        }
    }
    found
}

/// How many mixes, full mixes and full layouts these profiles make.
fn check_layouts(product: &str, wanted: &[&str], mixes: usize, full: usize, layouts_: usize) {
    let geometry = geometry(product).unwrap();
    let all = layouts(&geometry, wanted);
    let mix = |layout: &Vec<(usize, u8)>| {
        let mut kinds: Vec<usize> = layout.iter().map(|(at, _)| *at).collect();
        kinds.sort_unstable();
        kinds
    };
    let is_full = |layout: &&Vec<(usize, u8)>| {
        let there: Vec<_> = layout
            .iter()
            .map(|&(at, start)| Instance::busy(at, start))
            .collect();
        let mut wanted = wanted.iter().map(|name| geometry.find(name).unwrap());
        wanted.all(|at| geometry.starts(at, &there).next().is_none())
    };
    let every: BTreeSet<_> = all.iter().map(mix).collect();
    let maximal: BTreeSet<_> = all.iter().filter(is_full).map(mix).collect();
    let found = (
        every.len(),
        maximal.len(),
        all.iter().filter(is_full).count(),
    );
    assert_eq!(found, (mixes, full, layouts_), "{product}");
}

#[test]
fn a100_layouts_match_nvidias_guide() {
    let plain = ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"];
    check_layouts("NVIDIA A100-SXM4-40GB", &plain, 38, 14, 19);
}

#[test]
fn mig_profile_names_match_the_driver() {
    for (product, names) in [
        (
            "NVIDIA A100 80GB PCIe",
            "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
        ),
        (
            "NVIDIA H100 80GB HBM3",
            "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
        ),
        (
            "NVIDIA H100 NVL",
            "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
        ),
        (
            "NVIDIA H20",
            "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
        ),
        (
            "NVIDIA H20-3e",
            "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
        ),
        (
            "NVIDIA GH200 480GB",
            "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
        ),
        ("NVIDIA A30", "1g.6gb 1g.6gb+me 2g.12gb 4g.24gb 2g.12gb+me"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "1g.24gb 1g.24gb+me 2g.48gb 4g.96gb 1g.24gb+gfx 2g.48gb+gfx 4g.96gb+gfx 1g.24gb-me 2g.48gb-me 1g.24gb+me.all 2g.48gb+me.all",
        ),
    ] {
        let geometry = geometry(product).unwrap();
        let found: Vec<_> = geometry.profiles().iter().map(|one| &*one.name).collect();
        assert_eq!(found.join(" "), names, "{product}");
    }
    // Only the driver knows them: the first has 94 GB, the second two slices.
    for unknown in [
        "NVIDIA H100",
        "NVIDIA RTX PRO 5000 Blackwell",
        "NVIDIA RTX A3000",
        "Tesla T4",
    ] {
        assert_eq!(geometry(unknown), None, "{unknown}");
    }
}

#[test]
fn lists_resources_of_graphics_and_media_profiles() {
    let resources: Vec<String> = names().iter().map(|name| resource(name)).collect();
    for name in ["1g.24gb.gfx", "2g.48gb-me", "1g.24gb.me.all", "4g.96gb.gfx"] {
        assert!(
            resources.contains(&format!("nvidia.com/mig-{name}")),
            "{name}"
        );
    }
}

#[test]
fn rejects_impossible_geometry() {
    let profile = |name: &str, size, starts: &[u8]| MigProfile {
        name: name.to_owned(),
        compute: 1,
        size,
        memory: Mib(1),
        starts: starts.to_vec(),
        most: 1,
    };
    let beyond = |start, size| GeometryError::Beyond {
        name: "1g".to_owned(),
        start,
        size,
    };
    let new = |profiles| Geometry::new(7, profiles).map(|_| ());
    assert_eq!(new(vec![profile("1g", 0, &[0])]), Err(beyond(0, 0)));
    assert_eq!(new(vec![profile("1g", 8, &[0, 9])]), Err(beyond(9, 8)));
    assert_eq!(new(vec![profile("1g", 1, &[255])]), Err(beyond(255, 1)));
    let twice = vec![profile("1g", 1, &[0]), profile("1g", 2, &[0])];
    assert_eq!(
        new(twice),
        Err(GeometryError::DuplicateProfile("1g".to_owned()))
    );
    let wire = r#"{"compute":7,"profiles":[{"name":"1g","compute":1,"size":17,"memory":1,"starts":[0],"most":1}]}"#;
    let refused = serde_json::from_str::<Geometry>(wire).unwrap_err();
    assert!(refused.to_string().contains("profile 1g"), "{refused}");
}

/// Asks for these in turn on empty GPUs; expects the placements as `gpu@start`.
fn check_places(gpus: usize, wanted: &[&str], expected: &str) {
    let geometry = a100();
    let mut there: Vec<Vec<Instance>> = vec![vec![]; gpus];
    let mut found = vec![];
    for name in wanted {
        let offered: Vec<_> = there.iter().map(|all| (&geometry, &**all)).collect();
        match place(&offered, name) {
            Some(placed) => {
                found.push(format!("{}@{}", placed.gpu, placed.start));
                there[placed.gpu].push(Instance::busy(placed.profile, placed.start));
            }
            None => found.push("-".to_owned()),
        }
    }
    assert_eq!(found.join(" "), expected, "{wanted:?}");
}

#[test]
fn places_instance_where_fewest_other_placements_are_lost() {
    // The last slice suits only the smallest profile.
    check_places(2, &["1g.5gb", "1g.5gb"], "0@6 0@5");
    check_places(1, &["1g.5gb", "3g.20gb", "3g.20gb"], "0@6 0@0 -");
    check_places(1, &["3g.20gb", "4g.20gb"], "0@4 0@0");
    // The driver's own choice fails for the last one in this order.
    check_places(
        1,
        &["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"],
        "0@6 0@5 0@2 -",
    );
    check_places(
        1,
        &["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"],
        "0@4 0@2 0@1 0@0",
    );
    check_places(
        2,
        &["7g.40gb", "7g.40gb", "1g.5gb", "8g.1gb"],
        "0@0 1@0 - -",
    );
    check_places(1, &["1g.5gb+me", "1g.5gb+me"], "0@6 -");
}

#[test]
fn reuses_or_destroys_idle_instances() {
    let geometry = a100();
    let (one, two) = (
        geometry.find("1g.5gb").unwrap(),
        geometry.find("2g.10gb").unwrap(),
    );
    let idle = |profile, start| Instance {
        busy: false,
        ..Instance::busy(profile, start)
    };
    let check = |there: &[Instance], name: &str, expected: (u8, bool, &[u8])| {
        let placed = place(&[(&geometry, there)], name).unwrap();
        let found = (placed.start, placed.ready, &*placed.destroys);
        assert_eq!(found, expected, "{name} beside {there:?}");
    };
    check(&[idle(one, 6)], "1g.5gb", (6, true, &[]));
    check(&[idle(two, 4)], "2g.10gb", (4, true, &[]));
    check(
        &[idle(two, 0), idle(one, 6)],
        "7g.40gb",
        (0, false, &[0, 6]),
    );
    check(&[idle(two, 4)], "3g.20gb", (4, false, &[4]));
    // Idle instances use all compute slices: the last one is destroyed.
    let full: Vec<_> = (0..7).map(|start| idle(one, start)).collect();
    check(&full, "1g.5gb+me", (6, false, &[6]));
    check(
        &[Instance::busy(one, 6), idle(one, 5)],
        "3g.20gb",
        (0, false, &[]),
    );
    let at = |there: &[Instance], name: &str, start| {
        let profile = geometry.find(name)?;
        let placed = place::on_gpu(&geometry, there, profile, |one| one == start);
        placed.map(|(_, placed)| (placed.ready, placed.destroys))
    };
    let there = [Instance::busy(one, 6), idle(two, 4), idle(one, 0)];
    assert_eq!(at(&there, "2g.10gb", 4), Some((true, vec![])));
    assert_eq!(at(&there, "1g.5gb", 5), Some((false, vec![4])));
    assert_eq!(at(&there, "3g.20gb", 0), Some((false, vec![0])));
    // Allocated; no start of the profile; no profile of the GPU.
    for (name, start) in [("3g.20gb", 4), ("3g.20gb", 2), ("8g.1gb", 0)] {
        assert_eq!(at(&there, name, start), None, "{name} at {start}");
    }
}

#[test]
fn refuses_no_more_than_the_best_known_placement() {
    // Published for these arrivals: 5.4, 17.6 and 30.3 % of the requested slices.
    for (load, printed) in [(0.6, 0.054), (0.85, 0.176), (1.1, 0.303)] {
        let refused = |chooser| arrivals::refused(&a100(), load, chooser);
        let (ours, best, plain) = (
            refused(Chooser::Ours),
            refused(Chooser::BestKnown),
            refused(Chooser::LowestStart),
        );
        let found = format!("{load}: {ours}, best known {best}, plain {plain}");
        assert!(ours <= best && ours <= printed && best < plain, "{found}");
        assert!((best - printed).abs() < 0.01, "{found}, in print {printed}");
    }
}

#[test]
fn ledger_refuses_no_more_instances_than_placement_alone() {
    for load in [0.6, 0.85, 1.1] {
        let (by_ledger, alone) = arrivals::refused_by_ledger(&a100(), load);
        assert!(
            (by_ledger - alone).abs() < 1e-9,
            "{load}: {by_ledger}, alone {alone}"
        );
    }
}
