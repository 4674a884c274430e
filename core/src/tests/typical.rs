//! What a census derives from the pods it counts.

use crate::request::Memory;
use crate::typical::{Census, PodShape, Typical};
use crate::units::{HostResources, Mib, MilliCpu, Percent};
use crate::usage::{AllocatedUse, DeviceUse, DeviceUses};

fn shape(cpu: u64, part: u32) -> PodShape {
    PodShape {
        cpu: MilliCpu(cpu),
        count: u32::from(part > 0),
        memory: Memory::Share(Percent(part)),
        cores: Percent(0),
    }
}

fn census(shapes: &[(u32, PodShape)]) -> Census {
    let mut census = Census::default();
    for (count, shape) in shapes {
        (0..*count).for_each(|n| census.add(*shape, Mib(u64::from(n) * 2)));
    }
    census
}

/// CPU and part of a device of each typical pod, and its weight in percent.
fn check(typical: &Typical, expected: &[(u64, u32, u64)]) {
    let part = |memory| match memory {
        Memory::Share(part) => part.0,
        Memory::Mib(_) => 0,
    };
    let pods = typical.pods().iter();
    let found: Vec<_> = pods
        .map(|pod| {
            let weight = u64::from(pod.weight) * 100 / typical.weight();
            (pod.host.cpu.0, part(pod.memory), weight)
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_commonest_shapes_that_make_up_95_percent_are_typical() {
    let pods = [
        (60, shape(1, 50)),
        (36, shape(2, 0)),
        (3, shape(3, 10)),
        (1, shape(4, 20)),
    ];
    check(&census(&pods).typical(), &[(1, 50, 62), (2, 0, 37)]);
    let equal = [(50, shape(1, 50)), (50, shape(2, 50))];
    check(&census(&equal).typical(), &[(2, 50, 50), (1, 50, 50)]);
}

#[test]
fn host_memory_is_the_mean_of_the_shape() {
    let typical = census(&[(101, shape(1, 50))]).typical();
    assert_eq!(typical.pods()[0].host.memory, Mib(100));
}

#[test]
fn assumed_mix_replaces_missing_pods() {
    check(
        &Typical::default(),
        &[(0, 100, 40), (0, 50, 30), (0, 25, 20), (0, 10, 10)],
    );
    let few = census(&[(40, shape(7, 30))]).typical();
    check(
        &few,
        &[(7, 30, 80), (0, 100, 8), (0, 50, 6), (0, 25, 4), (0, 10, 2)],
    );
    check(&census(&[(50, shape(7, 30))]).typical(), &[(7, 30, 100)]);
}

#[test]
fn tracks_at_most_64_typical_pods_and_4096_shapes() {
    let pods: Vec<_> = (0..9000).map(|cpu| (1, shape(cpu, 50))).collect();
    let census = census(&pods);
    assert_eq!(census.pods(), 9000);
    assert_eq!(census.shapes(), 4096);
    let typical = census.typical();
    assert!(typical.pods().len() <= 64 && typical.pods().len() > 50);
}

#[test]
fn relearns_when_one_pod_in_twenty_changes() {
    let of = |a, b| census(&[(a, shape(1, 50)), (b, shape(2, 50))]).typical();
    assert!(!of(500, 500).differs(&of(500, 500)));
    assert!(!of(500, 500).differs(&of(540, 460)));
    assert!(of(500, 500).differs(&of(560, 440)));
    assert!(of(500, 500).differs(&Typical::default()));
}

#[test]
fn derives_pod_shape_from_its_allocation() {
    let used = |memory, cores| DeviceUse::new(Mib(memory), Percent(cores));
    let host = HostResources {
        cpu: MilliCpu(500),
        memory: Mib(64),
    };
    let of = |allocated| PodShape::new(&allocated, host);
    let two = DeviceUses::from([("a".into(), used(1000, 30)), ("b".into(), used(2000, 20))]);
    let expected = PodShape {
        cpu: MilliCpu(500),
        count: 2,
        memory: Memory::Mib(Mib(2000)),
        cores: Percent(30),
    };
    assert_eq!(of(AllocatedUse::Known(two)), Some(expected));
    let none = of(AllocatedUse::nothing()).unwrap();
    assert_eq!((none.count, none.cores), (0, Percent(0)));
    assert_eq!(of(AllocatedUse::Unreadable), None);
}
