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
            Owner::Unknown,
        ),
        (
            "not told yet, of a pod with one share",
            of(Some("u1"), "side", "GPU-a"),
            Owner::Unknown,
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
    let beside = Beside {
        servers: [7].into(),
        pods: [("u9".into(), true), ("u8".into(), false)].into(),
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
    check("untold", &side, &seats, &Beside::default(), Owner::Unknown);
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
    let renamed = seat("s", "u1", "main", &["MIG-old"]);
    check(
        "named before a reboot",
        &on((7, 0)),
        &[renamed],
        &beside,
        Owner::Share(0, 0),
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
        &beside,
        other,
    );
}
