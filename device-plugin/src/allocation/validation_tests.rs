//! A table of first starts: accepted, refused, and what the user reads.

use aliquot_core::inventory::{Mode, OrphanedShare};
use aliquot_core::{Mib, Percent};

use super::*;
use crate::testing::{RESOURCE, accepted, allocation, grant, inventory, layout_of, pod};

const RULES: NodeRules = NodeRules::new(true);

fn entry(container: &str, replicas: usize) -> CheckpointEntry {
    CheckpointEntry {
        pod: "u1".into(),
        container: container.to_owned(),
        resource: RESOURCE.to_owned(),
        ids: (0..replicas).map(|n| format!("GPU-a::{n}")).collect(),
        name: None,
    }
}

struct Case {
    inventory: Inventory,
    layout: NodeLayout,
    pod: Option<Pod>,
    holders: Vec<CheckpointEntry>,
    others: Vec<Arc<AcceptedAllocation>>,
    damaged: Vec<(PodUid, AllocatedUse)>,
}

/// A pod with one share of GPU-a, on a node with GPU-a and GPU-b.
fn case() -> Case {
    Case {
        inventory: inventory(&["GPU-a", "GPU-b"]),
        layout: layout_of(&["GPU-a", "GPU-b"]),
        pod: Some(pod("u1").with(&allocation(&[("main", &[grant("GPU-a", 3000, 30)])]))),
        holders: vec![entry("main", 1)],
        others: Vec::new(),
        damaged: Vec::new(),
    }
}

fn validated(case: &Case, rules: NodeRules) -> Result<AcceptedAllocation, Refusal> {
    let validator = Validator {
        node: "n1".into(),
        rules,
        namespace_rights: None,
    };
    validator.validate(ValidationInput {
        inventory: &case.inventory,
        layout: &case.layout,
        uid: &"u1".into(),
        pod: case.pod.as_ref(),
        holders: &case.holders,
        others: &case.others,
        damaged: &case.damaged,
    })
}

/// `expected` empty: accepted. Else: refused with a text that has all parts.
fn check(change: impl FnOnce(&mut Case), expected: &[&str]) {
    let mut case = case();
    change(&mut case);
    match validated(&case, RULES) {
        Ok(_) => assert!(expected.is_empty(), "accepted, expected {expected:?}"),
        Err(refusal) => {
            let text = refusal.to_string();
            assert!(!expected.is_empty(), "refused: {text}");
            for part in expected {
                assert!(text.contains(part), "{part:?} not in {text:?}");
            }
        }
    }
}

fn given(grants: &[Grant]) -> Pod {
    pod("u1").with(&allocation(&[("main", grants)]))
}

#[test]
fn lowers_priority_in_namespaces_without_the_right() {
    let mut case = case();
    let mut high = allocation(&[("main", &[grant("GPU-a", 3000, 30)])]);
    high.priority = 0;
    case.pod = Some(pod("u1").with(&high));
    for (set_priority, expected) in [(true, 0), (false, 1)] {
        let mut rules = RULES;
        rules.rights.set_priority = set_priority;
        let accepted = validated(&case, rules).expect("accepted");
        assert_eq!(accepted.allocation.priority, expected);
    }
}

#[test]
fn explains_how_to_use_the_scheduler() {
    let how = "schedulerName: aliquot-scheduler";
    let mut elsewhere = allocation(&[("main", &[grant("GPU-a", 1, 1)])]);
    elsewhere.node = "n2".into();
    let mut mirror = given(&[grant("GPU-a", 1, 1)]);
    mirror.mirror = true;
    let invalid = Pod {
        allocation: Some("{".to_owned()),
        ..pod("u1")
    };
    for (pod, parts) in [
        (None, &["u1", "static pod"][..]),
        (Some(mirror), &["default/u1", "static pod"]),
        (Some(pod("u1")), &["default/u1", "spec.nodeName"]),
        (Some(invalid), &["is invalid"]),
        (Some(pod("u1").with(&elsewhere)), &["node n2"]),
    ] {
        check(|case| case.pod = pod, &[parts, &[how]].concat());
    }
}

#[test]
fn requires_share_for_every_container_with_device_ids() {
    check(|c| c.holders = vec![entry("init", 1)], &["container init"]);
    check(|c| c.holders.push(entry("init", 1)), &["container init"]);
    let two = &["1 device(s)", "2 replica(s)"];
    check(|c| c.holders = vec![entry("main", 2)], two);
    let mut share = grant("GPU-a", 1, 1);
    share.resource = "example.com/gpu".to_owned();
    check(|c| c.pod = Some(given(&[share])), &["container main"]);
}

#[test]
fn requires_present_and_healthy_devices() {
    let gone = &["GPU-z", "no longer on this node"];
    check(|c| c.pod = Some(given(&[grant("GPU-z", 1, 1)])), gone);
    let sick = || Health::Unhealthy("xid 79".to_owned());
    let mine = &["GPU-a", "xid 79"];
    check(|c| c.inventory.gpus[0].health = sick(), mine);
    check(|c| c.inventory.gpus[1].health = sick(), &[]);
    let foreign = aliquot_core::inventory::ForeignAllocation {
        gpu: "GPU-a".into(),
        pod: "kube-system/old".to_owned(),
    };
    let held = &["GpuHeldByForeignPod"];
    check(|c| c.inventory.foreign.push(foreign), held);
}

#[test]
fn starts_bound_pods_on_cordoned_but_not_changing_gpu() {
    let mark = |case: &mut Case, switching| {
        let how = "changes from vgpu to exclusive".to_owned();
        case.inventory.gpus[0].cordon = Some(how.clone());
        let gpu_layout = case.layout.gpus.get_mut(&GpuUuid::from("GPU-a"));
        let gpu_layout = gpu_layout.expect("there");
        gpu_layout.cordon = Some(how);
        gpu_layout.switching = switching;
    };
    check(|c| mark(c, false), &[]);
    check(
        |c| mark(c, true),
        &["GPU-a", "changes from vgpu to exclusive"],
    );
}

#[test]
fn rejects_allocations_over_device_capacity() {
    let others = |grant| {
        let other = accepted("u2", allocation(&[("main", &[grant])]));
        vec![Arc::new(other)]
    };
    check(|c| c.others = others(grant("GPU-a", 7000, 70)), &[]);
    check(
        |c| c.others = others(grant("GPU-a", 7001, 0)),
        &[
            "CardInsufficientMemory",
            "3000 MiB",
            "7001 MiB of 10000 MiB",
        ],
    );
    for cores in [71, 100] {
        let full = &["CardInsufficientCore"];
        check(|c| c.others = others(grant("GPU-a", 1, cores)), full);
    }
    check(|c| c.others = others(grant("GPU-b", 10_000, 100)), &[]);
    check(
        |c| {
            c.inventory.gpus[0].replicas = 1;
            c.others = others(grant("GPU-a", 1, 1));
        },
        &["CardTimeSlicingExhausted", "1 of 1 replicas"],
    );
}

#[test]
fn says_when_only_processes_of_deleted_pods_are_in_the_way() {
    let orphaned = |memory| OrphanedShare {
        pod: "gone".into(),
        gpu: "GPU-a".into(),
        memory: Mib(memory),
        cores: Percent(0),
        replicas: 1,
    };
    check(
        |c| c.inventory.orphaned.push(orphaned(7001)),
        &["GPU-a", "CardInsufficientMemory", "when they have ended"],
    );
    let full = allocation(&[("main", &[grant("GPU-a", 7001, 0)])]);
    check(
        |c| {
            c.inventory.orphaned.push(orphaned(1));
            c.others = vec![Arc::new(accepted("u2", full))];
        },
        &["too little capacity", "create it again"],
    );
}

#[test]
fn counts_pods_with_damaged_share() {
    let known = |memory: u64| {
        let used = DeviceUse::new(Mib(memory), Percent(0));
        AllocatedUse::Known([("GPU-a".into(), used)].into())
    };
    let full = ["GPU-a", "CardInsufficientMemory"];
    let unread = ["uid other", "delete that pod"];
    for (used, expected) in [
        (known(7000), &[][..]),
        (known(7001), &full),
        (AllocatedUse::Unreadable, &unread),
    ] {
        check(|case| case.damaged = vec![("other".into(), used)], expected);
    }
}

#[test]
fn finds_mps_device_beside_others_in_any_order() {
    let words = ["container main", "GPU-a, which is shared by MPS"];
    for (gpus, expected) in [
        (&["GPU-a", "GPU-b"][..], &words[..]),
        (&["GPU-b", "GPU-a"], &words),
        (&["GPU-a", "GPU-a"], &words),
        (&["GPU-a"], &[]),
    ] {
        let with = |case: &mut Case| {
            let grants = gpus.iter().map(|gpu| grant(gpu, 1000, 10));
            case.inventory.gpus[0].mode = Mode::Mps;
            case.pod = Some(given(&grants.collect::<Vec<_>>()));
            case.holders = vec![entry("main", gpus.len())];
        };
        check(with, expected);
    }
}

#[test]
fn rejects_volume_in_the_place_of_the_mps_daemons_memory() {
    let words = ["container main", "/dev/shm", "remove the mount"];
    for (mode, expected) in [(Mode::Mps, &words[..]), (Mode::Exclusive, &[])] {
        let mounting = |case: &mut Case| {
            case.inventory.gpus[0].mode = mode;
            let pod = case.pod.as_mut().expect("there is one");
            pod.containers[0].mounts_shm = true;
        };
        check(mounting, expected);
    }
}

#[test]
fn rejects_amounts_on_gpu_that_became_timeslice() {
    let refused = ["GPU-a", "timeslice", "3000 MiB", "30 % compute"];
    // A grant without amounts would be unlimited in these modes.
    let amounts = ["allocation of GPU-a has no amounts", "now requires amounts"];
    for (mode, memory, cores, expected) in [
        (Mode::Timeslice, 3000, 30, &refused[..]),
        (Mode::Timeslice, 0, 30, &refused[..2]),
        (Mode::Timeslice, 3000, 0, &refused[..2]),
        (Mode::Timeslice, 0, 0, &[]),
        (Mode::Exclusive, 3000, 30, &[]),
        (Mode::Mps, 3000, 30, &[]),
        (Mode::Vgpu, 0, 0, &amounts),
        (Mode::Mps, 0, 0, &amounts),
    ] {
        let became = |case: &mut Case| {
            case.inventory.gpus[0].mode = mode;
            case.pod = Some(given(&[grant("GPU-a", memory, cores)]));
        };
        check(became, expected);
    }
}
