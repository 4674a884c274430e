//! Processes of every kind and whose they are.

use super::*;
use crate::testing::{on_card, process, seat};

fn check(what: &str, one: &OnCard, seats: &[Seat], beside: &Beside, expected: Owner) {
    assert_eq!(owner(one, seats, beside), expected, "{what}");
}

fn named(rows: &[(&str, &str, &str)]) -> Beside {
    let rows = rows.iter();
    let containers =
        rows.map(|(pod, id, name)| (((*pod).into(), (*id).to_owned()), (*name).to_owned()));
    Beside {
        containers: containers.collect(),
        ..Beside::default()
    }
}

#[test]
fn a_process_belongs_to_its_container_by_cgroup_and_card() {
    let seats = [
        seat("s0", "u1", "main", &["GPU-a", "GPU-b"]),
        seat("s1", "u2", "left", &["GPU-a"]),
        seat("s2", "u2", "right", &["GPU-b"]),
    ];
    let two = named(&[
        ("u1", "c", "main"),
        ("u2", "l", "left"),
        ("u2", "r", "right"),
        ("u2", "x", "side"),
    ]);
    let of = |pod: Option<&str>, id: &str, card: &str| on_card(card, process(7, pod, id), 1);
    let rows = [
        (
            "the only container",
            of(Some("u1"), "c", "GPU-b"),
            Owner::Share(0, 1),
        ),
        (
            "one of two",
            of(Some("u2"), "r", "GPU-b"),
            Owner::Share(2, 0),
        ),
        (
            "another card",
            of(Some("u2"), "l", "GPU-b"),
            Owner::Nobody(Reason::OtherCard),
        ),
        (
            "a side-car",
            of(Some("u2"), "x", "GPU-a"),
            Owner::Nobody(Reason::OtherContainer),
        ),
        (
            "not told yet",
            of(Some("u2"), "new", "GPU-a"),
            Owner::Untold,
        ),
        (
            "not told yet, of a pod with one share",
            of(Some("u1"), "side", "GPU-a"),
            Owner::Untold,
        ),
        (
            "a pod without a share",
            of(Some("u3"), "c", "GPU-a"),
            Owner::Nobody(Reason::NoShare),
        ),
        (
            "the host",
            of(None, "", "GPU-a"),
            Owner::Nobody(Reason::Host),
        ),
    ];
    for (what, one, expected) in rows {
        check(what, &one, &seats, &two, expected);
    }
}

#[test]
fn servers_of_mps_and_pods_of_other_plugins_are_told_apart() {
    let foreign = Said {
        foreign: true,
        ..Said::default()
    };
    let beside = Beside {
        servers: [7].into(),
        pods: [("u9".into(), foreign), ("u8".into(), Said::default())].into(),
        ..named(&[("u1", "c", "main")])
    };
    let server = |pod| on_card("GPU-a", process(7, pod, "c"), 1);
    check("a server", &server(None), &[], &beside, Owner::Server);
    check(
        "in the agent's pod",
        &server(Some("agent")),
        &[],
        &beside,
        Owner::Server,
    );
    let new = Beside {
        own: Some("agent".into()),
        ..Beside::default()
    };
    for (what, pod, expected) in [
        ("that its keeper did not tell yet", "agent", Owner::Server),
        ("of another", "other", Owner::Nobody(Reason::NoShare)),
    ] {
        check(what, &server(Some(pod)), &[], &new, expected);
    }
    let own = [seat("s", "u1", "main", &["GPU-a"])];
    check(
        "its id in a share",
        &server(Some("u1")),
        &own,
        &beside,
        Owner::Share(0, 0),
    );
    let other = |pod| on_card("GPU-a", process(8, Some(pod), "c"), 1);
    check(
        "foreign",
        &other("u9"),
        &[],
        &beside,
        Owner::Nobody(Reason::Foreign),
    );
    check(
        "no share",
        &other("u8"),
        &[],
        &beside,
        Owner::Nobody(Reason::NoShare),
    );
}

#[test]
fn a_container_without_a_share_was_charged_to_its_pods_only_share_until_its_name_was_told() {
    let seats = [seat("s0", "u1", "main", &["GPU-a"])];
    let side = on_card("GPU-a", process(7, Some("u1"), "side"), 1);
    check("untold", &side, &seats, &Beside::default(), Owner::Untold);
    let told = named(&[("u1", "side", "side")]);
    let other = Owner::Nobody(Reason::OtherContainer);
    check("told", &side, &seats, &told, other);
}

#[test]
fn processes_of_a_pod_whose_share_could_not_be_read_were_nobodys_and_ended() {
    let one = on_card("GPU-a", process(7, Some("u1"), "c"), 1);
    let none = Owner::Nobody(Reason::NoShare);
    check("no share", &one, &[], &Beside::default(), none);
    let damaged = Beside {
        accepted: ["u1".into()].into(),
        ..Beside::default()
    };
    check("damaged", &one, &[], &damaged, Owner::Unknown);
    let unlisted = Beside {
        unlisted: true,
        ..Beside::default()
    };
    check("no list", &one, &[], &unlisted, Owner::Unknown);
    let host = on_card("GPU-a", process(7, None, ""), 1);
    let of_host = Owner::Nobody(Reason::Host);
    check("the host's", &host, &[], &unlisted, of_host);
}

#[test]
fn mig_11_a_process_on_an_instance_belongs_to_the_container_that_has_it() {
    let mut beside = named(&[("u1", "c", "main")]);
    for (numbers, profile, uuid) in [((1, 0), "3g.20gb", "MIG-3"), ((7, 0), "1g.5gb", "MIG-1")] {
        let instance = Instance {
            profile: profile.to_owned(),
            uuid: uuid.to_owned(),
        };
        beside
            .instances
            .insert(("GPU-a".to_owned(), numbers), instance);
    }
    let on = |numbers| OnCard {
        instance: Some(numbers),
        ..on_card("GPU-a", process(7, Some("u1"), "c"), 1)
    };
    let both = seat("s", "u1", "main", &["MIG-1", "MIG-3"]);
    check(
        "of two, by uuid",
        &on((1, 0)),
        std::slice::from_ref(&both),
        &beside,
        Owner::Share(0, 1),
    );
    let mut made = seat("s", "u1", "main", &["GPU-a", "GPU-a"]);
    made.devices[0].profile = Some("1g.5gb".to_owned());
    made.devices[1].profile = Some("3g.20gb".to_owned());
    check(
        "made for it",
        &on((1, 0)),
        &[made],
        &beside,
        Owner::Share(0, 1),
    );
    let whole = seat("s", "u1", "main", &["GPU-a"]);
    let other = Owner::Nobody(Reason::OtherCard);
    check(
        "the whole card",
        &on((7, 0)),
        std::slice::from_ref(&whole),
        &beside,
        other,
    );
    check(
        "on no instance",
        &on_card("GPU-a", process(7, Some("u1"), "c"), 1),
        &[both],
        &Beside {
            called: vec![vec!["MIG-1".to_owned(), "MIG-3".to_owned()]],
            ..beside
        },
        other,
    );
}

/// A card with these instances, each with its uuid and profile, and the container of pod u1.
fn cut(instances: &[(u32, &str, &str)]) -> Beside {
    let mut beside = named(&[("u1", "c", "main")]);
    for (number, uuid, profile) in instances {
        let instance = Instance {
            profile: (*profile).to_owned(),
            uuid: (*uuid).to_owned(),
        };
        let key = ("GPU-a".to_owned(), (*number, 0));
        beside.instances.insert(key, instance);
    }
    beside
}

#[test]
fn after_a_reboot_a_container_with_two_instances_was_on_cards_of_others_and_ended() {
    let beside = cut(&[(1, "MIG-new3", "3g.20gb"), (7, "MIG-new1", "1g.5gb")]);
    let booked = [seat("s", "u1", "main", &["MIG-old1", "MIG-old3"])];
    let check = |called: &[&str], expected: [Owner; 2]| {
        let called = called.iter().map(|uuid| (*uuid).to_owned()).collect();
        let beside = Beside {
            called: vec![called],
            ..beside.clone()
        };
        for (number, expected) in [7, 1].into_iter().zip(expected) {
            let one = OnCard {
                instance: Some((number, 0)),
                ..on_card("GPU-a", process(7, Some("u1"), "c"), 1)
            };
            super::tests::check("renamed", &one, &booked, &beside, expected);
        }
    };
    let both = [Owner::Share(0, 0), Owner::Share(0, 1)];
    check(&["MIG-new1", "MIG-new3"], both);
    check(&["MIG-new3", "MIG-new1"], [both[1], both[0]]);
    let other = Owner::Nobody(Reason::OtherCard);
    check(&["MIG-new1", "MIG-x"], [both[0], other]);
    // The page cannot be read.
    check(&[], [Owner::Unknown; 2]);
}

#[test]
fn two_instances_of_one_profile_that_were_made_for_one_container_were_one() {
    let mut beside = cut(&[(7, "MIG-7", "1g.5gb"), (8, "MIG-8", "1g.5gb")]);
    beside.called = vec![vec!["MIG-7".to_owned(), "MIG-8".to_owned()]];
    let mut made = [seat("s", "u1", "main", &["GPU-a", "GPU-a"])];
    for device in &mut made[0].devices {
        device.profile = Some("1g.5gb".to_owned());
    }
    for (number, device) in [(7, 0), (8, 1)] {
        let one = OnCard {
            instance: Some((number, 0)),
            ..on_card("GPU-a", process(7, Some("u1"), "c"), 1)
        };
        check("its own", &one, &made, &beside, Owner::Share(0, device));
    }
}

#[test]
fn where_the_state_directory_was_lost_every_honest_pod_had_no_share_and_was_ended() {
    let one = on_card("GPU-a", process(7, Some("u1"), "c"), 1);
    let allocated = Said {
        allocated: true,
        ..Said::default()
    };
    let beside = Beside {
        pods: [("u1".into(), allocated)].into(),
        ..named(&[("u1", "c", "main")])
    };
    let lost = Owner::Nobody(Reason::LostShare);
    check("no accepted shares at all", &one, &[], &beside, lost);
    let ended: Vec<Reason> = Reason::ALL
        .into_iter()
        .filter(|one| one.is_ended())
        .collect();
    let expected = [
        Reason::NoShare,
        Reason::OtherContainer,
        Reason::OtherCard,
        Reason::NoLibrary,
    ];
    assert_eq!(ended, expected);
}
