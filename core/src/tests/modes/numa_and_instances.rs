//! NUMA alignment, UUID rules and orphaned shares with MIG instances.

use super::*;
use crate::inventory::{OrphanedShare, TopologyScope};
use crate::top::{self, NodeTop};

/// On this NUMA node.
fn at(numa: u32, device: Gpu) -> Gpu {
    Gpu {
        numa: Some(numa),
        ..device
    }
}

fn aligned(scope: TopologyScope, gpus: Vec<Gpu>) -> Inventory {
    Inventory {
        topology_policy: "single-numa-node".to_owned(),
        topology_scope: scope,
        ..inventory(gpus)
    }
}

const SMALL: (&str, u32) = ("nvidia.com/mig-1g.5gb", 1);
const LARGE: (&str, u32) = ("nvidia.com/mig-3g.20gb", 1);

#[test]
fn aligns_all_resources_of_a_container_on_one_numa_node() {
    // The small instance alone would go to the first device.
    let devices = || {
        vec![
            at(0, fixed_instance(0, "1g.5gb", 6)),
            at(1, fixed_instance(1, "1g.5gb", 6)),
            at(1, fixed_instance(1, "3g.20gb", 0)),
        ]
    };
    let both = || app(&[SMALL, LARGE]);
    let together = "c0 MIG-1-6:19968/100+MIG-1-0:19968/100";
    let container = |devices| aligned(TopologyScope::Container, devices);
    check_on(container(devices()), &[(both(), together)]);
    let apart = vec![devices().remove(0), devices().remove(2)];
    check_on(
        container(apart.clone()),
        &[(both(), "1 MigProfileMismatch, 1 NumaNotFit")],
    );
    check(apart, &[(both(), "c0 MIG-0-6:19968/100+MIG-1-0:19968/100")]);
    let mixed = vec![
        at(0, fixed_instance(0, "1g.5gb", 6)),
        at(1, dynamic_gpu(1, &a100(), vec![])),
    ];
    let made = "c0 GPU-1/1g.5gb@6:5120/14+GPU-1/3g.20gb@0:20480/42";
    check_on(container(mixed), &[(both(), made)]);
    // The pod itself asks for it.
    let preference = ("aliquot.dev/numa-bind", "true");
    check(
        devices(),
        &[(app_with(&[SMALL, LARGE], preference), together)],
    );
}

#[test]
fn aligns_all_containers_of_a_pod_under_pod_scope() {
    let devices = || {
        vec![
            at(0, shared(0, Mode::Exclusive, 1, GPU)),
            at(1, shared(1, Mode::Exclusive, 1, GPU)),
            at(1, shared(2, Mode::Exclusive, 1, GPU)),
        ]
    };
    let two = || pod(&[(Stage::App, ONE), (Stage::App, ONE)], &[]);
    check_on(
        aligned(TopologyScope::Pod, devices()),
        &[(two(), "c0 GPU-1:40000/100, c1 GPU-2:40000/100")],
    );
    check_on(
        aligned(TopologyScope::Container, devices()),
        &[(two(), "c0 GPU-0:40000/100, c1 GPU-1:40000/100")],
    );
    let mut apart = devices();
    apart.pop();
    check_on(
        aligned(TopologyScope::Pod, apart),
        &[(two(), "1 ExclusiveDeviceAllocateConflict, 1 NumaNotFit")],
    );
}

#[test]
fn combines_existing_and_new_instances_on_one_numa_node() {
    let devices = vec![
        at(0, fixed_instance(0, "1g.5gb", 6)),
        at(1, fixed_instance(1, "1g.5gb", 6)),
        at(1, dynamic_gpu(2, &a100(), vec![])),
    ];
    let two = app(&[("nvidia.com/mig-1g.5gb", 2)]);
    check_on(
        aligned(TopologyScope::Container, devices.clone()),
        &[(two.clone(), "c0 MIG-1-6:19968/100+GPU-2/1g.5gb@6:5120/14")],
    );
    let full = [devices[..2].to_vec(), vec![at(2, devices[2].clone())]].concat();
    let big = instances(&["7g.40gb"]);
    check_on(
        aligned(TopologyScope::Container, full),
        &[
            (big, "c0 GPU-2/7g.40gb@0:40960/100"),
            (two, "1 CardInsufficientMemory, 2 NumaNotFit"),
        ],
    );
}

#[test]
fn applies_uuid_rules_to_instances_of_the_gpu() {
    let made = CreatedInstance {
        profile: "1g.5gb".to_owned(),
        start: 6,
        uuid: "MIG-x".into(),
        gi: 9,
        ci: 0,
    };
    let devices = || {
        vec![
            fixed_instance(0, "1g.5gb", 6),
            dynamic_gpu(1, &a100(), vec![made.clone()]),
        ]
    };
    let not = |uuid| app_with(&[SMALL], ("nvidia.com/nouse-gpuuuid", uuid));
    let only = |uuid| app_with(&[SMALL], ("nvidia.com/use-gpuuuid", uuid));
    check(devices(), &[(not("GPU-0"), "c0 GPU-1/1g.5gb@6:5120/14")]);
    check(devices(), &[(not("GPU-0,GPU-1"), "2 CardUuidMismatch")]);
    check(
        devices(),
        &[(not("MIG-0-6,MIG-x"), "c0 GPU-1/1g.5gb@5:5120/14")],
    );
    check(devices(), &[(only("GPU-0"), "c0 MIG-0-6:19968/100")]);
    check(
        devices(),
        &[
            (only("MIG-x"), "c0 GPU-1/1g.5gb@6:5120/14"),
            (only("MIG-x"), "1 CardUuidMismatch, 1 MigNoPlacement"),
        ],
    );
}

#[test]
fn top_counts_orphaned_instances() {
    let mut made = inventory(vec![dynamic_gpu(0, &a100(), vec![])]);
    made.orphaned.push(OrphanedShare {
        pod: "gone".into(),
        gpu: "GPU-0/2g.10gb@4".into(),
        replicas: 1,
        memory: Mib(10_240),
        cores: Percent(28),
    });
    let node = crate::NodeState::new(&publication(made), &[], crate::HostResources::default());
    let top = NodeTop::new(&"n".into(), &node, Percent(0)).expect("an inventory");
    let expected = top::DeviceAmount {
        replicas: 1,
        memory: Mib(10_240),
        cores: Percent(28),
    };
    assert_eq!(
        (top.gpus[0].orphaned, top.gpus[0].used),
        (expected, expected)
    );
}

#[test]
fn orphaned_share_retains_all_its_replicas() {
    let mut made = inventory(vec![shared(0, Mode::Timeslice, 4, SHARED)]);
    made.orphaned.push(OrphanedShare {
        pod: "gone".into(),
        gpu: "GPU-0".into(),
        replicas: 3,
        memory: Mib(0),
        cores: Percent(0),
    });
    let text = made.encode().expect("encoded");
    assert!(text.contains("\"cores\":0,\"replicas\":3"), "{text}");
    let one = || app(&[(SHARED, 1)]);
    check_on(
        made,
        &[
            (one(), "c0 GPU-0:0/0"),
            (one(), "1 CardTimeSlicingExhausted"),
        ],
    );
}
