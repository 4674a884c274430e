//! Plans from one layout to another: what stays, what is destroyed, what is created.

use aliquot_core::mig::table;

use super::*;

fn slices(text: &str) -> Vec<LayoutEntry> {
    let slice = |word: &str| {
        let (count, profile) = word.split_once('*').unwrap_or(("1", word));
        crate::testing::layout_entry(profile, count.parse().expect("a count"), None)
    };
    text.split_whitespace().map(slice).collect()
}

fn places(text: &str) -> Vec<MigPlacement> {
    let place = |word: &str| {
        let (profile, start) = word.split_once('@').expect("a place");
        MigPlacement {
            profile: profile.to_owned(),
            start: start.parse().expect("a start"),
        }
    };
    text.split_whitespace().map(place).collect()
}

/// `profile@start`, with `!` for an incomplete instance; the id is the position in the list.
fn found(text: &str) -> Vec<nvml::GpuInstance> {
    let instance = |(id, word): (u32, &str)| {
        let place = places(word.trim_end_matches('!')).remove(0);
        let uuid = format!("MIG-{id}");
        let mut instance = crate::testing::reported_instance(place.start, &uuid);
        (instance.profile, instance.id) = (place.profile, id);
        if word.ends_with('!') {
            instance.devices.clear();
        }
        instance
    };
    (0..).zip(text.split_whitespace()).map(instance).collect()
}

fn listed(places: &[MigPlacement]) -> String {
    let mut all: Vec<_> = places.iter().map(|p| (p.start, &p.profile)).collect();
    all.sort();
    let all = all
        .iter()
        .map(|(start, profile)| format!("{profile}@{start}"));
    all.collect::<Vec<_>>().join(" ")
}

/// Expected on an A100: kept, destroyed, created.
fn check(layout: &str, existing: &str, before: &str, expected: (&str, &[u32], &str)) {
    let geometry = table::geometry("NVIDIA A100-SXM4-40GB").expect("known");
    let (slices, existing) = (slices(layout), found(existing));
    let plan = plan_layout(&geometry, &slices, &existing, &places(before)).expect("it fits");
    let stays = |one: &&nvml::GpuInstance| !plan.destroy.contains(&one.id);
    let kept: Vec<_> = existing.iter().filter(stays).map(placement_of).collect();
    let (keep, create) = (listed(&kept), listed(&plan.create));
    let outcome = (keep.as_str(), plan.destroy.as_slice(), create.as_str());
    assert_eq!(outcome, expected, "{layout} on {existing:?}");
}

#[test]
fn places_large_instances_first_on_empty_gpu() {
    let all = "2g.10gb@0 1g.5gb@2 1g.5gb@3 3g.20gb@4";
    check("2*1g.5gb 2g.10gb 3g.20gb", "", "", ("", &[], all));
    let seven: Vec<_> = (0..7).map(|start| format!("1g.5gb@{start}")).collect();
    check("7*1g.5gb", "", "", ("", &[], &seven.join(" ")));
}

#[test]
fn keeps_matching_instances_and_destroys_only_others() {
    check("3g.20gb", "3g.20gb@4", "", ("3g.20gb@4", &[], ""));
    let more = ("3g.20gb@4", &[][..], "4g.20gb@0");
    check("3g.20gb 4g.20gb", "3g.20gb@4", "", more);
    // The existing instance stays, whichever of the two comes first.
    let both = ("2g.10gb@4", &[1][..], "3g.20gb@0");
    check("2g.10gb 3g.20gb", "2g.10gb@4 1g.5gb@0", "", both);
    let two = ("1g.5gb@2 1g.5gb@4", &[0][..], "");
    check("2*1g.5gb", "1g.5gb@6 1g.5gb@2 1g.5gb@4", "", two);
    check("1g.5gb", "1g.5gb+me@0", "", ("", &[0], "1g.5gb@0"));
}

#[test]
fn recreates_incomplete_instances() {
    check("1g.5gb", "1g.5gb@0!", "", ("", &[0], "1g.5gb@0"));
    assert_eq!(plan_cleanup(&found("1g.5gb@0! 1g.5gb@1")).destroy, [0]);
}

#[test]
fn mig_19_restores_placements_after_reboot() {
    let before = "3g.20gb@4 1g.5gb@3 2g.10gb@0";
    let all = "2g.10gb@0 1g.5gb@3 3g.20gb@4";
    check("1g.5gb 2g.10gb 3g.20gb", "", before, ("", &[], all));
    check("1g.5gb", "", "1g.5gb@5", ("", &[], "1g.5gb@5"));
}

#[test]
fn rejects_impossible_layout_with_reason() {
    let geometry = table::geometry("NVIDIA A30").expect("known");
    let refused =
        |layout: &str| plan_layout(&geometry, &slices(layout), &[], &[]).expect_err("refused");
    assert_eq!(refused("3*2g.12gb"), LayoutPlanError::TooMuch);
    let error = refused("1g.5gb").to_string();
    assert!(
        error.contains("no MIG profile 1g.5gb; expected one of 1g.6gb, "),
        "{error}"
    );
}

#[test]
fn plans_every_layout_from_every_other_layout() {
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
        let first = plan_layout(&geometry, &slices(from), &[], &[]).expect(from);
        let existing = found(&listed(&first.create));
        let again = plan_layout(&geometry, &slices(from), &existing, &[]).expect(from);
        assert_eq!((again.destroy.len(), again.create.len()), (0, 0), "{from}");
        for to in layouts {
            let plan = plan_layout(&geometry, &slices(to), &existing, &[]).expect(to);
            let left = existing.len() - plan.destroy.len();
            let count: u32 = slices(to).iter().map(|one| one.count).sum();
            let made = u32::try_from(left + plan.create.len());
            assert_eq!(made, Ok(count), "{from} to {to}");
        }
    }
}
