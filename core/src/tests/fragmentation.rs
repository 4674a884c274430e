//! The gradient against a naive implementation of its definition, and its effect on the
//! choice of nodes and devices.

use std::sync::Arc;

use proptest::prelude::*;

use crate::Policy;
use crate::fit::fit;
use crate::fragmentation::{THRESHOLDS, View, score};
use crate::node::{Host, NodePublication, NodeState};
use crate::request::Memory;
use crate::score::Policies;
use crate::tests::{app, gpu, published};
use crate::typical::{Census, PodShape, Typical, TypicalPod};
use crate::units::{HostResources, Mib, MilliCpu, Percent};
use crate::usage::DeviceUse;

/// A node of devices of 1000 MiB and 4 replicas with one pod on each that has a use,
/// and this much CPU left.
fn node(devices: &[Option<(u64, u32)>], cpu: u64) -> NodeState {
    let gpus = (0..).zip(devices).map(|(i, _)| gpu(i, 1000, 4)).collect();
    let published = NodePublication {
        allocatable: host(cpu),
        ..published(gpus)
    };
    let mut state = NodeState::new(&published, &[], HostResources::default());
    for (device, used) in state.devices.iter_mut().zip(devices) {
        if let Some((memory, cores)) = used {
            device
                .allocated
                .add(DeviceUse::new(Mib(*memory), Percent(*cores)));
        }
    }
    state
}

fn host(cpu: u64) -> HostResources {
    HostResources {
        cpu: MilliCpu(cpu),
        memory: Mib(0),
    }
}

fn shape(cpu: u64, count: u32, part: u32, cores: u32) -> PodShape {
    PodShape {
        cpu: MilliCpu(cpu),
        count,
        memory: Memory::Share(Percent(part)),
        cores: Percent(cores),
    }
}

fn typical(shapes: &[(u32, PodShape)]) -> Typical {
    let mut census = Census::default();
    for (count, shape) in shapes {
        (0..*count).for_each(|_| census.add(*shape, Mib(0)));
    }
    census.typical()
}

/// F by its definition: for each typical pod, the idle capacity that it cannot use.
fn fragmentation(typical: &Typical, node: &NodeState, sides: (f64, f64)) -> f64 {
    let left = |all: u64, used: u64| all.saturating_sub(used);
    let size = |device: &crate::node::DeviceState| {
        let memory = left(device.scaled.0, device.allocated.used.memory.0);
        let cores = left(device.cores.0.into(), device.allocated.used.cores.0.into());
        let (memory, cores) = (float(memory) / float(device.scaled.0), float(cores) / 100.0);
        1000.0 * (memory * sides.0 + cores * sides.1) / (sides.0 + sides.1)
    };
    let serves = |device: &crate::node::DeviceState, pod: &TypicalPod| {
        device
            .refuse(&DeviceUse::new(pod.memory_of(device.scaled), pod.cores))
            .is_none()
    };
    let lost = |pod: &TypicalPod| {
        let serving = node
            .devices
            .iter()
            .filter(|device| serves(device, pod))
            .count();
        let enough = u32::try_from(serving).unwrap() >= pod.count;
        let fits = pod.count > 0 && enough && node.host.free().covers(pod.host);
        let idle = node
            .devices
            .iter()
            .filter(|device| !fits || !serves(device, pod));
        idle.map(size).sum::<f64>()
    };
    let pods = typical.pods().iter();
    pods.map(|pod| f64::from(pod.weight) * lost(pod)).sum()
}

fn float(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap())
}

fn sides(typical: &Typical) -> (f64, f64) {
    let sum = |of: fn(&TypicalPod) -> u64| {
        let each = |pod: &TypicalPod| u64::from(pod.weight) * u64::from(pod.count) * of(pod);
        float(typical.pods().iter().map(each).sum())
    };
    let memory = sum(|pod| pod.memory_of(Mib(1000)).0);
    let cores = sum(|pod| u64::from(pod.cores.0) * 10);
    if memory + cores == 0.0 {
        (1.0, 0.0)
    } else {
        (memory, cores)
    }
}

prop_compose! {
    fn shapes()(
        shapes in prop::collection::vec((1..40_u32, 0..4_u64, 0..4_u32, 0..=100_u32, 0..=10_u32), 1..12),
    ) -> Vec<(u32, PodShape)> {
        let shape = |(count, cpu, gpus, part, cores)| (count, shape(cpu, gpus, part, cores * 10));
        shapes.into_iter().map(shape).collect()
    }
}

#[test]
fn hosts_pods_whose_cpu_and_memory_are_both_free() {
    let mut census = Census::default();
    for (cpu, memory, gpus) in [(1, 3, 1), (3, 1, 1), (3, 3, 2), (1, 1, 0)] {
        census.add(shape(cpu, gpus, 50, 0), Mib(memory));
    }
    let typical = census.typical();
    for (cpu, memory) in (0..5).flat_map(|cpu| (0..5).map(move |memory| (cpu, memory))) {
        let free = HostResources {
            cpu: MilliCpu(cpu),
            memory: Mib(memory),
        };
        let pods = typical.pods().iter().enumerate();
        let expected = pods.fold(0, |bits, (at, pod)| {
            bits | u64::from(pod.count > 0 && free.covers(pod.host)) << at
        });
        assert_eq!(typical.hosted(free), expected, "{free:?}");
    }
}

proptest! {
    #[test]
    fn gradient_matches_the_definition_of_fragmentation(
        shapes in shapes(),
        devices in prop::collection::vec(prop::option::of((0..=1000_u64, 0..=100_u32)), 1..9),
        cpu in (0..5_u64, 0..5_u64),
        used in (0..=1000_u64, 0..=100_u32),
        at in 0..8_usize,
    ) {
        let typical = typical(&shapes);
        let node = node(&devices, cpu.0);
        let at = at % devices.len();
        let used = DeviceUse::new(Mib(used.0), Percent(used.1));
        prop_assume!(node.devices[at].refuse(&used).is_none());
        let mut after = node.with(&[(at, used)], &[], &crate::Replicas::default());
        after.host = Host { requested: host(cpu.1), ..node.host };
        let sides = sides(&typical);
        let expected = fragmentation(&typical, &node, sides) - fragmentation(&typical, &after, sides);
        let view = View::new(&typical, &node, host(cpu.1));
        let found = view.gradient(&[(at, used)]);
        let found = f64::from(i32::try_from(found).unwrap());
        let weight = float(typical.weight());
        // Sizes are whole thousandths: each device's is off by less than 1.
        let allowed = weight * 2.0 * float(u64::try_from(devices.len()).unwrap()) + 1.0;
        prop_assert!((found - expected).abs() <= allowed, "{found} {expected}");
    }

    #[test]
    fn score_is_the_sigmoid_of_the_gradient_rounded_down(gradient in -9_000_000..9_000_000_i32, weight in 1..2000_u32) {
        let devices = f64::from(gradient) / (1000.0 * f64::from(weight));
        let exact = 100.0 / (1.0 + (-devices).exp());
        let found = score(gradient.into(), weight.into());
        let near = (exact - exact.round()).abs() < 1e-4;
        let off = (f64::from(found) - exact.floor().min(99.0)).abs();
        prop_assert!(off < 0.5 || near, "{found} {exact}");
    }
}

#[test]
fn thresholds_invert_the_sigmoid() {
    for (score, step) in (51..).zip(THRESHOLDS) {
        let score = f64::from(score);
        let exact = 1e6 * (score / (100.0 - score)).ln();
        assert!((f64::from(i32::try_from(step).unwrap()) - exact.ceil()).abs() < 0.5);
    }
}

fn policies(shapes: &[(u32, PodShape)]) -> Policies {
    Policies {
        node: Policy::Fragmentation,
        gpu: Policy::Fragmentation.into(),
        typical: Arc::new(typical(shapes)),
    }
}

/// The score of a node for a pod, and the device it would get.
fn choice(node: &NodeState, policies: &Policies, memory: u64, cores: u32) -> (u64, usize) {
    let found = fit(node, &app(1, memory, cores), policies).unwrap();
    (found.score, found.uses[0].0)
}

#[test]
fn places_share_where_typical_pods_can_use_the_rest() {
    // Typical: 60 % and 40 %. On the second device 400 more leave nothing, on the
    // first they leave 600 for another.
    let both = policies(&[(50, shape(0, 1, 60, 0)), (50, shape(0, 1, 40, 0))]);
    let devices = [None, Some((600, 0)), Some((300, 0))];
    assert_eq!(choice(&node(&devices, 0), &both, 400, 0).1, 1);
    // 300 on the first device would leave 300 that halves cannot use.
    let halves = policies(&[(60, shape(0, 1, 50, 0))]);
    let devices = [Some((400, 0)), None];
    assert_eq!(choice(&node(&devices, 0), &halves, 300, 0).1, 1);
}

#[test]
fn weighs_both_memory_and_compute() {
    // Every typical pod wants compute as well: memory without it is lost already.
    let wanted = policies(&[(60, shape(0, 1, 50, 50))]);
    let memory_only = policies(&[(60, shape(0, 1, 50, 0))]);
    let devices = [None, Some((0, 60))];
    assert_eq!(choice(&node(&devices, 0), &wanted, 500, 10).1, 1);
    assert_eq!(choice(&node(&devices, 0), &memory_only, 500, 10).1, 0);
}

#[test]
fn prefers_node_without_cpu_for_typical_pods() {
    let wanted = policies(&[(60, shape(1000, 1, 50, 0))]);
    let (poor, rich) = (node(&[None], 500), node(&[None], 5000));
    let poor = choice(&poor, &wanted, 200, 0).0;
    assert!(poor > choice(&rich, &wanted, 200, 0).0);
}

#[test]
fn prefers_fuller_node_at_equal_gradient() {
    let wanted = policies(&[(60, shape(0, 1, 50, 0))]);
    let one = choice(&node(&[None, Some((500, 0))], 0), &wanted, 500, 0);
    let two = choice(&node(&[None, Some((1000, 0))], 0), &wanted, 500, 0);
    assert!(two.0 > one.0 || one.1 == 1, "{one:?} {two:?}");
    let empty = choice(&node(&[None, None, None], 0), &wanted, 500, 0);
    let fuller = choice(&node(&[None, None, Some((1000, 0))], 0), &wanted, 500, 0);
    assert_eq!(empty.0 >> 32, fuller.0 >> 32);
    assert!(fuller.0 > empty.0);
}
