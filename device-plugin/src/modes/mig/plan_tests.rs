//! Layouts on cards that are cut otherwise: what stays, what goes, what is made.

use aliquot_core::mig::table;

use super::*;

fn slices(text: &str) -> Vec<Slice> {
    let slice = |word: &str| {
        let (count, profile) = word.split_once('*').unwrap_or(("1", word));
        Slice {
            profile: profile.to_owned(),
            count: count.parse().expect("a count"),
            on: None,
        }
    };
    text.split_whitespace().map(slice).collect()
}

fn places(text: &str) -> Vec<Placed> {
    let place = |word: &str| {
        let (profile, start) = word.split_once('@').expect("a place");
        Placed {
            profile: profile.to_owned(),
            start: start.parse().expect("a start"),
        }
    };
    text.split_whitespace().map(place).collect()
}

/// `profile@start`, with `!` where it is half made; the id is the place in the list.
fn found(text: &str) -> Vec<nvml::Instance> {
    let instance = |(id, word): (u32, &str)| {
        let place = places(word.trim_end_matches('!')).remove(0);
        let device = nvml::Device {
            uuid: format!("MIG-{id}"),
            current: format!("MIG-{id}"),
            id: 0,
            whole: true,
        };
        nvml::Instance {
            profile: place.profile,
            start: place.start,
            size: 1,
            memory: aliquot_core::Mib(1),
            id,
            devices: if word.ends_with('!') {
                vec![]
            } else {
                vec![device]
            },
        }
    };
    (0..).zip(text.split_whitespace()).map(instance).collect()
}

fn said(places: &[Placed]) -> String {
    let mut all: Vec<_> = places.iter().map(|p| (p.start, &p.profile)).collect();
    all.sort();
    let all = all
        .iter()
        .map(|(start, profile)| format!("{profile}@{start}"));
    all.collect::<Vec<_>>().join(" ")
}

/// Of an A100: kept, destroyed, created.
fn check(layout: &str, there: &str, before: &str, expected: (&str, &[u32], &str)) {
    let geometry = table::geometry("NVIDIA A100-SXM4-40GB").expect("known");
    let plan = plan(&geometry, &slices(layout), &found(there), &places(before));
    let plan = plan.expect("it fits");
    let outcome = (said(&plan.keep), plan.destroy, said(&plan.create));
    let expected = (
        expected.0.to_owned(),
        expected.1.to_vec(),
        expected.2.to_owned(),
    );
    assert_eq!(outcome, expected, "{layout} on {there}");
}

#[test]
fn an_empty_card_is_cut_in_an_order_in_which_the_driver_alone_would_fail() {
    let all = "2g.10gb@0 1g.5gb@2 1g.5gb@3 3g.20gb@4";
    check("2*1g.5gb 2g.10gb 3g.20gb", "", "", ("", &[], all));
    let seven: Vec<_> = (0..7).map(|start| format!("1g.5gb@{start}")).collect();
    check("7*1g.5gb", "", "", ("", &[], &seven.join(" ")));
}

#[test]
fn what_is_right_stays_and_only_what_is_in_the_way_goes() {
    check("3g.20gb", "3g.20gb@4", "", ("3g.20gb@4", &[], ""));
    check(
        "3g.20gb 4g.20gb",
        "3g.20gb@4",
        "",
        ("3g.20gb@4", &[], "4g.20gb@0"),
    );
    // Both orders of two unlike ones keep the one that is there.
    let both = ("2g.10gb@4", &[1][..], "3g.20gb@0");
    check("2g.10gb 3g.20gb", "2g.10gb@4 1g.5gb@0", "", both);
    check(
        "2*1g.5gb",
        "1g.5gb@6 1g.5gb@2 1g.5gb@4",
        "",
        ("1g.5gb@2 1g.5gb@4", &[0], ""),
    );
    check("1g.5gb", "1g.5gb+me@0", "", ("", &[0], "1g.5gb@0"));
}

#[test]
fn what_is_half_made_is_made_anew() {
    check("1g.5gb", "1g.5gb@0!", "", ("", &[0], "1g.5gb@0"));
    assert_eq!(tidy(&found("1g.5gb@0! 1g.5gb@1")).destroy, [0]);
}

#[test]
fn mig_19_after_a_reboot_instances_are_where_they_were() {
    let before = "3g.20gb@4 1g.5gb@3 2g.10gb@0";
    let all = "2g.10gb@0 1g.5gb@3 3g.20gb@4";
    check("1g.5gb 2g.10gb 3g.20gb", "", before, ("", &[], all));
    check("1g.5gb", "", "1g.5gb@5", ("", &[], "1g.5gb@5"));
}

#[test]
fn a_layout_that_cannot_be_is_refused_with_the_reason() {
    let geometry = table::geometry("NVIDIA A30").expect("known");
    let refused = |layout: &str| plan(&geometry, &slices(layout), &[], &[]).expect_err("refused");
    assert_eq!(refused("3*2g.12gb"), PlanError::TooMuch);
    let error = refused("1g.5gb").to_string();
    assert!(
        error.contains("no MIG profile 1g.5gb; it has 1g.6gb, "),
        "{error}"
    );
}

#[test]
fn every_layout_that_fits_an_empty_card_is_planned_from_every_other_without_touching_it_twice() {
    let geometry = table::geometry("NVIDIA A100-SXM4-40GB").expect("known");
    let layouts = [
        "7*1g.5gb",
        "2g.10gb 5*1g.5gb",
        "2*2g.10gb 3*1g.5gb",
        "3*2g.10gb 1g.5gb",
        "3g.20gb 4*1g.5gb",
        "3g.20gb 2g.10gb 2*1g.5gb",
        "2*3g.20gb",
        "4g.20gb 3g.20gb",
        "4g.20gb 2g.10gb 1g.5gb",
        "4*1g.10gb",
        "7g.40gb",
    ];
    for from in layouts {
        let first = plan(&geometry, &slices(from), &[], &[]).expect(from);
        let there = found(&said(&first.create));
        let again = plan(&geometry, &slices(from), &there, &[]).expect(from);
        assert_eq!((again.destroy.len(), again.create.len()), (0, 0), "{from}");
        for to in layouts {
            let plan = plan(&geometry, &slices(to), &there, &[]).expect(to);
            let left = there.len() - plan.destroy.len();
            assert_eq!(left, plan.keep.len(), "{from} to {to}");
        }
    }
}
