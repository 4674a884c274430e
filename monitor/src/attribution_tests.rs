//! Processes of every kind and whose they are.

use super::*;
use crate::devices::InstanceSample;
use crate::pods::Pod;
use crate::testing::{container, pod, process, process_sample};

fn check(
    what: &str,
    one: &ProcessSample,
    containers: &[ManagedContainer],
    context: &NodeContext,
    expected: Owner,
) {
    let containers = ManagedContainers {
        all: containers.to_vec(),
        ..ManagedContainers::default()
    };
    assert_eq!(owner(one, &containers, context), expected, "{what}");
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

/// Process 7 of a pod's container, or of the host, on GPU-a.
fn of(pod: Option<&str>, id: &str) -> ProcessSample {
    process_sample("GPU-a", process(7, pod, id), 1)
}

const HOST: Owner = Owner::Unmanaged(UnmanagedReason::Host);
const NO_SHARE: Owner = Owner::Unmanaged(UnmanagedReason::NoShare);
const FOREIGN: Owner = Owner::Unmanaged(UnmanagedReason::Foreign);
const OTHER_GPU: Owner = Owner::Unmanaged(UnmanagedReason::OtherGpu);
const OTHER_CONTAINER: Owner = Owner::Unmanaged(UnmanagedReason::OtherContainer);

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
    let on_b = |pod, id| ProcessSample {
        gpu: "GPU-b".to_owned(),
        ..of(Some(pod), id)
    };
    for (what, one, expected) in [
        ("the only container", on_b("u1", "c"), Owner::Share(0, 1)),
        ("one of two", on_b("u2", "r"), Owner::Share(2, 0)),
        ("another GPU", on_b("u2", "l"), OTHER_GPU),
        ("a side-car", of(Some("u2"), "x"), OTHER_CONTAINER),
        ("a pod without a share", of(Some("u3"), "c"), NO_SHARE),
        ("the host", of(None, ""), HOST),
    ] {
        check(what, &one, &containers, &two, expected);
    }
}

#[test]
fn distinguishes_mps_servers_and_foreign_pods() {
    let foreign = Pod {
        gpu: GpuSource::OtherPlugin,
        ..pod("u9", &[])
    };
    let pods = [foreign, pod("u8", &[])].map(|pod| (pod.reference.uid.as_str().into(), pod.into()));
    let context = NodeContext {
        servers: [7].into(),
        pods: pods.into(),
        ..named(&[("u1", "c", "main")])
    };
    // Its supervisor has not reported it yet.
    let new = NodeContext {
        mps_pods: ["supervisor".into()].into(),
        ..NodeContext::default()
    };
    let supervisor = of(Some("supervisor"), "c");
    let own = [container("s", "u1", "main", &["GPU-a"])];
    let other = |pod| process_sample("GPU-a", process(8, Some(pod), "c"), 1);
    let server = Owner::MpsServer;
    check("a server", &of(None, "c"), &[], &context, server);
    check("in its pod", &supervisor, &[], &context, server);
    check("a new one", &supervisor, &[], &new, server);
    check("of another", &of(Some("other"), "c"), &[], &new, NO_SHARE);
    let in_share = of(Some("u1"), "c");
    let share = Owner::Share(0, 0);
    check("its id in a share", &in_share, &own, &context, share);
    check("foreign", &other("u9"), &[], &context, FOREIGN);
    check("no share", &other("u8"), &[], &context, NO_SHARE);
}

#[test]
fn waits_for_container_name_before_attribution() {
    let containers = [container("s0", "u1", "main", &["GPU-a"])];
    let side = of(Some("u1"), "side");
    let (unknown, known) = (NodeContext::default(), named(&[("u1", "side", "side")]));
    let waits = Owner::UnknownContainer;
    check("not reported", &side, &containers, &unknown, waits);
    check("reported", &side, &containers, &known, OTHER_CONTAINER);
}

#[test]
fn attributes_nothing_when_share_is_unreadable() {
    let (one, host) = (of(Some("u1"), "c"), of(None, ""));
    check("no share", &one, &[], &NodeContext::default(), NO_SHARE);
    let damaged = ManagedContainers {
        accepted: ["u1".into()].into(),
        ..ManagedContainers::default()
    };
    let owner_in = |one: &ProcessSample, containers: &ManagedContainers| {
        owner(one, containers, &NodeContext::default())
    };
    assert_eq!(owner_in(&one, &damaged), Owner::Unknown);
    let unlisted = ManagedContainers {
        unlisted: true,
        ..ManagedContainers::default()
    };
    assert_eq!(owner_in(&one, &unlisted), Owner::Unknown);
    assert_eq!(owner_in(&host, &unlisted), HOST);
}

/// A GPU with these MIG instances, each with its number, uuid and profile, and the container of pod
/// u1, whose devices have these uuids now.
fn partitioned(instances: &[(u32, &str, &str)], current: &[&str]) -> NodeContext {
    let mut context = named(&[("u1", "c", "main")]);
    for (number, uuid, profile) in instances {
        let instance = InstanceSample {
            profile: (*profile).to_owned(),
            uuid: (*uuid).to_owned(),
            ..InstanceSample::default()
        };
        let key = ("GPU-a".to_owned(), (*number, 0));
        context.instances.insert(key, instance);
    }
    let current = current.iter().map(|uuid| (*uuid).to_owned());
    context.current_uuids = vec![current.collect()];
    context
}

fn on_instance(number: u32) -> ProcessSample {
    ProcessSample {
        instance: Some((number, 0)),
        ..of(Some("u1"), "c")
    }
}

/// A container with an instance of each of these profiles, made for it.
fn made(profiles: [&str; 2]) -> ManagedContainer {
    let mut made = container("s", "u1", "main", &["GPU-a", "GPU-a"]);
    for (device, profile) in made.devices.iter_mut().zip(profiles) {
        device.profile = Some(profile.to_owned());
    }
    made
}

#[test]
fn mig_11_attributes_process_on_instance_to_its_container() {
    let both = ["MIG-1", "MIG-3"];
    let instances = [(1, "MIG-3", "3g.20gb"), (7, "MIG-1", "1g.5gb")];
    let fixed = |devices: &[&str]| container("s", "u1", "main", devices);
    let by_profile = made(["1g.5gb", "3g.20gb"]);
    let second = Owner::Share(0, 1);
    let whole = of(Some("u1"), "c");
    let check_on = |what: &str, one: ProcessSample, owner, current: &[&str], expected| {
        let context = partitioned(&instances, current);
        check(what, &one, &[owner], &context, expected);
    };
    check_on("by uuid", on_instance(1), fixed(&both), &[], second);
    check_on("made for it", on_instance(1), by_profile, &[], second);
    check_on(
        "on a GPU",
        on_instance(7),
        fixed(&["GPU-a"]),
        &[],
        OTHER_GPU,
    );
    check_on("on no instance", whole, fixed(&both), &both, OTHER_GPU);
    // Two of one profile.
    let two = [(7, "MIG-7", "1g.5gb"), (8, "MIG-8", "1g.5gb")];
    let context = partitioned(&two, &["MIG-7", "MIG-8"]);
    for (number, device) in [(7, 0), (8, 1)] {
        let owner = [made(["1g.5gb"; 2])];
        let expected = Owner::Share(0, device);
        check("its own", &on_instance(number), &owner, &context, expected);
    }
}

#[test]
fn attributes_renamed_instances_by_current_uuids() {
    let instances = [(1, "MIG-new3", "3g.20gb"), (7, "MIG-new1", "1g.5gb")];
    let allocated = [container("s", "u1", "main", &["MIG-old1", "MIG-old3"])];
    let both = [Owner::Share(0, 0), Owner::Share(0, 1)];
    for (current, expected) in [
        (&["MIG-new1", "MIG-new3"][..], both),
        (&["MIG-new3", "MIG-new1"], [both[1], both[0]]),
        (&["MIG-new1", "MIG-x"], [both[0], OTHER_GPU]),
        // The page cannot be read.
        (&[], [Owner::Unknown; 2]),
    ] {
        let context = partitioned(&instances, current);
        for (number, expected) in [7, 1].into_iter().zip(expected) {
            let one = on_instance(number);
            check("renamed", &one, &allocated, &context, expected);
        }
    }
}

#[test]
fn reports_lost_share_without_state_directory() {
    let allocated = Pod {
        gpu: GpuSource::Allocation,
        ..pod("u1", &[])
    };
    let context = NodeContext {
        pods: [("u1".into(), allocated.into())].into(),
        ..named(&[("u1", "c", "main")])
    };
    let lost = Owner::Unmanaged(UnmanagedReason::LostShare);
    let one = of(Some("u1"), "c");
    check("no accepted shares at all", &one, &[], &context, lost);
}
