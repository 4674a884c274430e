//! From facts and modes to units and their seats.

use aliquot_core::Scaling;
use aliquot_core::inventory::Mode as Shared;
use aliquot_profiles::mode::{Exclusive, Timeslice, Vgpu};

use super::*;
use crate::inventory::{Course, Published};
use crate::sick::Sickness;
use crate::testing::{RESOURCE, arrangement, facts};

fn health(uuid: &str, health: nvml::Health) -> nvml::CardHealth {
    nvml::CardHealth {
        uuid: uuid.to_owned(),
        health,
    }
}

fn shown(node: &Node, resource: &str) -> Vec<String> {
    let seats = seats(node, resource).into_iter();
    let mark = |health: &str| if health == HEALTHY { "" } else { "!" };
    seats
        .map(|seat| format!("{}{}", mark(&seat.health), seat.id))
        .collect()
}

/// Three cards: vgpu of two seats, a whole one, and three turns under a name of their own.
fn three() -> Arrangement {
    let shared = Timeslice {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        strict: true,
        ..Timeslice::new(3)
    };
    let modes = [
        Mode::Vgpu(Vgpu {
            split: Some(2),
            memory_scaling: Some(Scaling::parse("1.5").expect("good")),
            ..Vgpu::default()
        }),
        Mode::Exclusive(Exclusive::default()),
        Mode::Timeslice(shared),
    ];
    let names = ["GPU-a", "GPU-b", "GPU-c"];
    Arrangement {
        usual: RESOURCE.to_owned(),
        cards: names
            .map(GpuUuid::from)
            .into_iter()
            .zip(modes.map(Stand::open))
            .collect(),
    }
}

#[test]
fn each_card_is_the_unit_that_its_mode_makes_of_it() {
    let facts = facts(&["GPU-a", "GPU-b", "GPU-c", "GPU-new"]);
    let units = units(&facts, &[], &three());
    let said: Vec<_> = units
        .iter()
        .map(|u| {
            (
                u.uuid.as_str(),
                u.mode,
                u.seats,
                u.scaled.0,
                u.resource.as_str(),
                u.strict,
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            ("GPU-a", Shared::Vgpu, 2, 15_000, RESOURCE, false),
            ("GPU-b", Shared::Exclusive, 1, 10_000, RESOURCE, false),
            (
                "GPU-c",
                Shared::Timeslice,
                3,
                10_000,
                "nvidia.com/gpu.shared",
                true
            ),
        ]
    );
}

#[test]
fn a_card_whose_mode_changes_takes_nothing_new_and_keeps_its_seats() {
    let mut changing = three();
    let why = "changes from exclusive to vgpu".to_owned();
    let card = changing
        .cards
        .get_mut(&GpuUuid::from("GPU-b"))
        .expect("there");
    card.cordon = Some(why.clone());
    let published = Published::new(facts(&["GPU-a", "GPU-b"]), Vec::new(), changing);
    let node = published.get();
    assert_eq!(node.inventory.gpus[1].cordon, Some(why));
    assert_eq!(shown(&node, RESOURCE), ["GPU-a::0", "GPU-a::1", "GPU-b::0"]);
}

#[test]
fn a_resource_has_the_seats_of_its_units_and_those_that_pods_still_hold() {
    let facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    let published = Published::new(facts, Vec::new(), three());
    let names = ["nvidia.com/gpu", "nvidia.com/gpu.shared"].map(str::to_owned);
    assert_eq!(resources(&published.get()), names.clone().into());
    let held = |ids: &[&str]| -> Held {
        let ids = ids.iter().map(|&id| id.to_owned()).collect();
        [(names[1].clone(), ids)].into()
    };
    let check = |ids: &[&str], expected: &[&str], beyond: bool| {
        published.arrange(Course {
            arrangement: arrangement(&["GPU-a", "GPU-b"]),
            held: Some(held(ids)),
            evict: Vec::new(),
            profile: None,
            vanished: BTreeSet::new(),
        });
        let node = published.get();
        assert_eq!(shown(&node, &names[1]), expected, "{ids:?}");
        assert_eq!(resources(&node).contains(&names[1]), beyond, "{ids:?}");
        assert_eq!(node.has_kept_seats(), beyond, "{ids:?}");
    };
    check(&["GPU-c::1"], &["GPU-c::1"], true);
    check(&[], &[], false);
}

#[test]
fn seats_follow_the_health_of_their_card() {
    let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    facts.cards[2].mig.enabled = true;
    let sick = vec![
        health("GPU-a", nvml::Health::Xid(79)),
        health("GPU-b", nvml::Health::Ok),
    ];
    let arrangement = arrangement(&["GPU-a", "GPU-b", "GPU-c"]);
    let published = Published::new(facts, sick, arrangement);
    let node = published.get();
    assert_eq!(
        node.inventory.gpus[0].health,
        Health::Sick("xid 79".to_owned())
    );
    assert_eq!(
        shown(&node, RESOURCE),
        ["!GPU-a::0", "!GPU-a::1", "GPU-b::0", "GPU-b::1"]
    );
}

#[test]
fn a_seat_that_is_held_stays_healthy_on_a_sick_card() {
    let facts = facts(&["GPU-a", "GPU-b"]);
    let published = Published::new(facts.clone(), Vec::new(), arrangement(&["GPU-a", "GPU-b"]));
    let sick = [health("GPU-a", nvml::Health::Xid(79))];
    let check = |held: &[&str], expected: &[&str]| {
        let ids = held.iter().map(|&id| id.to_owned()).collect();
        let held = [(RESOURCE.to_owned(), ids)].into();
        published.cards(&facts, &sick, Sickness::default(), held);
        let all = shown(&published.get(), RESOURCE).into_iter();
        let healthy: Vec<String> = all.filter(|id| !id.starts_with('!')).collect();
        assert_eq!(healthy, expected);
    };
    check(&[], &["GPU-b::0", "GPU-b::1"]);
    check(&["GPU-a::1"], &["GPU-a::1", "GPU-b::0", "GPU-b::1"]);
    check(&["GPU-b::1"], &["GPU-b::0", "GPU-b::1"]);
}

#[test]
fn a_renamed_resource_offered_seats_that_were_still_held_under_the_old_name() {
    let mut renamed = arrangement(&["GPU-a"]);
    let slices = Timeslice {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        ..Timeslice::new(3)
    };
    renamed
        .cards
        .insert("GPU-a".into(), Stand::open(Mode::Timeslice(slices)));
    let published = Published::new(facts(&["GPU-a"]), Vec::new(), renamed);
    let held = |ids: &[&str]| {
        let ids: Ids = ids.iter().map(|&id| id.to_owned()).collect();
        let held = Held::from([(RESOURCE.to_owned(), ids)]);
        published.cards(&facts(&["GPU-a"]), &[], Sickness::default(), held);
        let node = published.get();
        [RESOURCE, "nvidia.com/gpu.shared"].map(|resource| shown(&node, resource))
    };
    assert_eq!(
        held(&["GPU-a::0", "GPU-a::1"]),
        [vec!["GPU-a::0", "GPU-a::1"], vec!["GPU-a::2"]]
    );
    assert_eq!(
        held(&[]),
        [vec![], vec!["GPU-a::0", "GPU-a::1", "GPU-a::2"]]
    );
}
