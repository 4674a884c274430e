//! Processes of every kind and whose they are.

use super::*;
use crate::node_sample::MigInstance;
use crate::testing::{container, process, process_sample};

fn check(
    what: &str,
    one: &ProcessSample,
    containers: &[ManagedContainer],
    context: &NodeContext,
    expected: Owner,
) {
    assert_eq!(owner(one, containers, context), expected, "{what}");
}

fn named(rows: &[(&str, &str, &str)]) -> NodeContext {
    let rows = rows.iter();
    let containers =
        rows.map(|(pod, id, name)| (((*pod).into(), (*id).to_owned()), (*name).to_owned()));
    NodeContext {
        container_names: containers.collect(),
        ..NodeContext::default()
    }
}

#[test]
fn attributes_process_by_cgroup_and_gpu() {
    let containers = [
        container("s0", "u1", "main", &["GPU-a", "GPU-b"]),
        container("s1", "u2", "left", &["GPU-a"]),
        container("s2", "u2", "right", &["GPU-b"]),
    ];
    let two = named(&[
        ("u1", "c", "main"),
        ("u2", "l", "left"),
        ("u2", "r", "right"),
        ("u2", "x", "side"),
    ]);
    let of = |pod: Option<&str>, id: &str, gpu: &str| process_sample(gpu, process(7, pod, id), 1);
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
            "another GPU",
            of(Some("u2"), "l", "GPU-b"),
            Owner::Unmanaged(UnmanagedReason::OtherGpu),
        ),
        (
            "a side-car",
            of(Some("u2"), "x", "GPU-a"),
            Owner::Unmanaged(UnmanagedReason::OtherContainer),
        ),
        (
            "not reported yet",
            of(Some("u2"), "new", "GPU-a"),
            Owner::UnknownContainer,
        ),
        (
            "not reported yet, of a pod with one share",
            of(Some("u1"), "side", "GPU-a"),
            Owner::UnknownContainer,
        ),
        (
            "a pod without a share",
            of(Some("u3"), "c", "GPU-a"),
            Owner::Unmanaged(UnmanagedReason::NoShare),
        ),
        (
            "the host",
            of(None, "", "GPU-a"),
            Owner::Unmanaged(UnmanagedReason::Host),
        ),
    ];
    for (what, one, expected) in rows {
        check(what, &one, &containers, &two, expected);
    }
}

#[test]
fn distinguishes_mps_servers_and_foreign_pods() {
    let foreign = PodInfo {
        foreign: true,
        ..PodInfo::default()
    };
    let context = NodeContext {
        servers: [7].into(),
        pods: [("u9".into(), foreign), ("u8".into(), PodInfo::default())].into(),
        ..named(&[("u1", "c", "main")])
    };
    let server = |pod| process_sample("GPU-a", process(7, pod, "c"), 1);
    check("a server", &server(None), &[], &context, Owner::MpsServer);
    check(
        "in its supervisor's pod",
        &server(Some("supervisor")),
        &[],
        &context,
        Owner::MpsServer,
    );
    let new = NodeContext {
        mps_pods: ["supervisor".into()].into(),
        ..NodeContext::default()
    };
    for (what, pod, expected) in [
        (
            "that its supervisor has not reported yet",
            "supervisor",
            Owner::MpsServer,
        ),
        (
            "of another",
            "other",
            Owner::Unmanaged(UnmanagedReason::NoShare),
        ),
    ] {
        check(what, &server(Some(pod)), &[], &new, expected);
    }
    let own = [container("s", "u1", "main", &["GPU-a"])];
    check(
        "its id in a share",
        &server(Some("u1")),
        &own,
        &context,
        Owner::Share(0, 0),
    );
    let other = |pod| process_sample("GPU-a", process(8, Some(pod), "c"), 1);
    check(
        "foreign",
        &other("u9"),
        &[],
        &context,
        Owner::Unmanaged(UnmanagedReason::Foreign),
    );
    check(
        "no share",
        &other("u8"),
        &[],
        &context,
        Owner::Unmanaged(UnmanagedReason::NoShare),
    );
}

#[test]
fn waits_for_container_name_before_attribution() {
    let containers = [container("s0", "u1", "main", &["GPU-a"])];
    let side = process_sample("GPU-a", process(7, Some("u1"), "side"), 1);
    check(
        "not reported",
        &side,
        &containers,
        &NodeContext::default(),
        Owner::UnknownContainer,
    );
    let named_side = named(&[("u1", "side", "side")]);
    let other = Owner::Unmanaged(UnmanagedReason::OtherContainer);
    check("reported", &side, &containers, &named_side, other);
}

#[test]
fn attributes_nothing_when_share_is_unreadable() {
    let one = process_sample("GPU-a", process(7, Some("u1"), "c"), 1);
    let none = Owner::Unmanaged(UnmanagedReason::NoShare);
    check("no share", &one, &[], &NodeContext::default(), none);
    let damaged = NodeContext {
        accepted: ["u1".into()].into(),
        ..NodeContext::default()
    };
    check("damaged", &one, &[], &damaged, Owner::Unknown);
    let unlisted = NodeContext {
        unlisted: true,
        ..NodeContext::default()
    };
    check("no list", &one, &[], &unlisted, Owner::Unknown);
    let host = process_sample("GPU-a", process(7, None, ""), 1);
    let of_host = Owner::Unmanaged(UnmanagedReason::Host);
    check("the host's", &host, &[], &unlisted, of_host);
}

#[test]
fn mig_11_attributes_process_on_instance_to_its_container() {
    let mut context = named(&[("u1", "c", "main")]);
    for (numbers, profile, uuid) in [((1, 0), "3g.20gb", "MIG-3"), ((7, 0), "1g.5gb", "MIG-1")] {
        let instance = MigInstance {
            profile: profile.to_owned(),
            uuid: uuid.to_owned(),
        };
        context
            .instances
            .insert(("GPU-a".to_owned(), numbers), instance);
    }
    let on = |numbers| ProcessSample {
        instance: Some(numbers),
        ..process_sample("GPU-a", process(7, Some("u1"), "c"), 1)
    };
    let both = container("s", "u1", "main", &["MIG-1", "MIG-3"]);
    check(
        "of two, by uuid",
        &on((1, 0)),
        std::slice::from_ref(&both),
        &context,
        Owner::Share(0, 1),
    );
    let mut made = container("s", "u1", "main", &["GPU-a", "GPU-a"]);
    made.devices[0].profile = Some("1g.5gb".to_owned());
    made.devices[1].profile = Some("3g.20gb".to_owned());
    check(
        "made for it",
        &on((1, 0)),
        &[made],
        &context,
        Owner::Share(0, 1),
    );
    let whole = container("s", "u1", "main", &["GPU-a"]);
    let other = Owner::Unmanaged(UnmanagedReason::OtherGpu);
    check(
        "the whole GPU",
        &on((7, 0)),
        std::slice::from_ref(&whole),
        &context,
        other,
    );
    check(
        "on no instance",
        &process_sample("GPU-a", process(7, Some("u1"), "c"), 1),
        &[both],
        &NodeContext {
            current_uuids: vec![vec!["MIG-1".to_owned(), "MIG-3".to_owned()]],
            ..context
        },
        other,
    );
}

/// A GPU with these MIG instances, each with its uuid and profile, and the container of pod u1.
fn partitioned(instances: &[(u32, &str, &str)]) -> NodeContext {
    let mut context = named(&[("u1", "c", "main")]);
    for (number, uuid, profile) in instances {
        let instance = MigInstance {
            profile: (*profile).to_owned(),
            uuid: (*uuid).to_owned(),
        };
        let key = ("GPU-a".to_owned(), (*number, 0));
        context.instances.insert(key, instance);
    }
    context
}

#[test]
fn attributes_renamed_instances_by_current_uuids() {
    let context = partitioned(&[(1, "MIG-new3", "3g.20gb"), (7, "MIG-new1", "1g.5gb")]);
    let allocated = [container("s", "u1", "main", &["MIG-old1", "MIG-old3"])];
    let check = |current_uuids: &[&str], expected: [Owner; 2]| {
        let current_uuids = current_uuids
            .iter()
            .map(|uuid| (*uuid).to_owned())
            .collect();
        let context = NodeContext {
            current_uuids: vec![current_uuids],
            ..context.clone()
        };
        for (number, expected) in [7, 1].into_iter().zip(expected) {
            let one = ProcessSample {
                instance: Some((number, 0)),
                ..process_sample("GPU-a", process(7, Some("u1"), "c"), 1)
            };
            super::tests::check("renamed", &one, &allocated, &context, expected);
        }
    };
    let both = [Owner::Share(0, 0), Owner::Share(0, 1)];
    check(&["MIG-new1", "MIG-new3"], both);
    check(&["MIG-new3", "MIG-new1"], [both[1], both[0]]);
    let other = Owner::Unmanaged(UnmanagedReason::OtherGpu);
    check(&["MIG-new1", "MIG-x"], [both[0], other]);
    // The page cannot be read.
    check(&[], [Owner::Unknown; 2]);
}

#[test]
fn distinguishes_two_instances_of_one_profile() {
    let mut context = partitioned(&[(7, "MIG-7", "1g.5gb"), (8, "MIG-8", "1g.5gb")]);
    context.current_uuids = vec![vec!["MIG-7".to_owned(), "MIG-8".to_owned()]];
    let mut made = [container("s", "u1", "main", &["GPU-a", "GPU-a"])];
    for device in &mut made[0].devices {
        device.profile = Some("1g.5gb".to_owned());
    }
    for (number, device) in [(7, 0), (8, 1)] {
        let one = ProcessSample {
            instance: Some((number, 0)),
            ..process_sample("GPU-a", process(7, Some("u1"), "c"), 1)
        };
        check("its own", &one, &made, &context, Owner::Share(0, device));
    }
}

#[test]
fn reports_lost_share_without_state_directory() {
    let one = process_sample("GPU-a", process(7, Some("u1"), "c"), 1);
    let allocated = PodInfo {
        allocated: true,
        ..PodInfo::default()
    };
    let context = NodeContext {
        pods: [("u1".into(), allocated)].into(),
        ..named(&[("u1", "c", "main")])
    };
    let lost = Owner::Unmanaged(UnmanagedReason::LostShare);
    check("no accepted shares at all", &one, &[], &context, lost);
    let ended: Vec<UnmanagedReason> = UnmanagedReason::ALL
        .into_iter()
        .filter(|one| one.may_be_killed())
        .collect();
    let expected = [
        UnmanagedReason::NoShare,
        UnmanagedReason::OtherContainer,
        UnmanagedReason::OtherGpu,
        UnmanagedReason::NoLimiter,
    ];
    assert_eq!(ended, expected);
}
