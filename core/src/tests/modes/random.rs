//! Random pods that come and go on devices of every sharing mode.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{a100, dynamic_gpu, fixed_instance};
use crate::inventory::{EvenShare, Gpu, Mode};
use crate::ledger::{Ledger, NotReserved};
use crate::mig::published::{Mig, MigPlacement};
use crate::node::{self, NodePublication};
use crate::request::{GpuRequest, WrittenAmounts};
use crate::tests::{demand, gpu, published, request, reserve};
use crate::units::{Mib, Percent};
use crate::usage::{self, DeviceUse, DeviceUses};
use crate::{Allocation, Demand, GpuUuid, Replicas, Stage};

const RESOURCES: [&str; 3] = [
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.5gb",
    "nvidia.com/mig-3g.20gb",
];

fn device(index: u32, memory: u64) -> Gpu {
    let plain = gpu(index, memory, 3);
    match (memory + u64::from(index)) % 8 {
        0..3 => plain,
        3 => Gpu {
            mode: Mode::Exclusive,
            replicas: 1,
            ..plain
        },
        4 => Gpu {
            mode: Mode::Timeslice,
            ..plain
        },
        5 => Gpu {
            mode: Mode::Mps,
            even_share: Some(EvenShare {
                memory: Mib(memory / 3),
                cores: Percent(33),
            }),
            strict: memory.is_multiple_of(2),
            ..plain
        },
        6 => dynamic_gpu(index, &a100(), vec![]),
        _ => fixed_instance(index, "1g.5gb", 0),
    }
}

fn requests() -> impl Strategy<Value = Vec<GpuRequest>> {
    let usual = (1u32..3, 1u64..700, 0u32..=100, any::<(bool, bool)>());
    let usual = usual.prop_map(|(count, mib, cores, (memory, compute))| GpuRequest {
        written: WrittenAmounts {
            memory,
            cores: compute,
        },
        ..request(count, mib, cores)
    });
    let instance = (1u8..3, 1u32..4).prop_map(|(resource, count)| GpuRequest {
        resource,
        written: WrittenAmounts::default(),
        ..request(count, 1, 0)
    });
    prop_oneof![
        2 => Just(vec![]),
        6 => usual.clone().prop_map(|request| vec![request]),
        2 => instance.clone().prop_map(|request| vec![request]),
        1 => (usual, instance).prop_map(|(one, other)| vec![one, other]),
    ]
}

/// Pods that ask for any kind of device.
fn demands() -> impl Strategy<Value = Demand> {
    let stage = prop_oneof![Just(Stage::App), Just(Stage::Init), Just(Stage::Sidecar)];
    let containers = proptest::collection::vec((stage, requests()), 1..4);
    (containers, any::<bool>()).prop_map(|(containers, same)| {
        let none: Vec<_> = containers.iter().map(|(stage, _)| (*stage, None)).collect();
        let mut demand = demand(&none);
        demand.resources = RESOURCES.map(Arc::<str>::from).to_vec();
        for (container, (_, requests)) in demand.containers.iter_mut().zip(containers) {
            container.requests = requests;
        }
        demand.rules.same_device = same;
        demand
    })
}

/// The allocations on a device: of itself, and of its instances.
fn of_device<'u>(uses: &'u DeviceUses, device: &'u GpuUuid) -> impl Iterator<Item = &'u DeviceUse> {
    let on = uses.iter().filter(move |(key, _)| {
        let instance = MigPlacement::parse_device_key(key);
        instance.map_or(*key == device, |(of, _)| of == device.as_str())
    });
    on.map(|(_, used)| used)
}

/// No two pods have one slice.
fn no_slice_is_given_twice<'u>(all: impl Iterator<Item = &'u DeviceUses>, gpu: &Gpu) {
    let Some(dynamic) = gpu.mig.as_ref().and_then(Mig::dynamic) else {
        return;
    };
    let mut taken = 0;
    for (device, placed) in
        all.flat_map(|uses| uses.keys().filter_map(MigPlacement::parse_device_key))
    {
        if device == gpu.uuid.as_str() {
            let profiles = dynamic.geometry.profiles();
            let profile = &profiles[dynamic.geometry.find(&placed.profile).expect("known")];
            let slices = profile.slices(placed.start);
            assert_eq!(taken & slices, 0, "{placed:?} on {device}");
            taken |= slices;
        }
    }
}

/// Every container gets what it asked for.
fn check_grants(given: &Allocation, demand: &Demand) {
    let same = demand.rules.same_device;
    let count = |request: &GpuRequest| if same { 1 } else { request.count as usize };
    for container in &demand.containers {
        let granted = given.grants(&container.name).map_or(0, <[_]>::len);
        let asked: usize = container.requests.iter().map(count).sum();
        assert_eq!(granted, asked, "{container:?}");
    }
}

/// The ledger is what these pods use, and no device and no kubelet gives more than it has.
fn check(ledger: &Ledger, pods: &BTreeMap<u8, DeviceUses>) {
    let state = ledger.cluster().node("n").expect("published");
    let inventory = state.inventory.as_ref().expect("published");
    for (gpu, device) in inventory.gpus.iter().zip(&state.devices) {
        let uses = pods.values().flat_map(|uses| of_device(uses, &gpu.uuid));
        let (memory, count) = uses.fold((0, 0), |(memory, count), used| {
            (memory + used.memory.0, count + 1)
        });
        let allocated = &device.allocated;
        let found = (allocated.used.memory.0, allocated.pods);
        assert_eq!(found, (memory, count), "{gpu:?}");
        assert!(node::within_capacity(device), "{device:?}");
        no_slice_is_given_twice(pods.values(), gpu);
    }
    let replicas = &state.replicas;
    for resource in RESOURCES {
        let offered = replicas.offered.as_ref();
        let requested = replicas.requested.under(resource);
        let enough = offered.is_none_or(|offered| requested <= offered.under(resource));
        assert!(enough, "{resource}: {replicas:?}");
    }
    assert!(*ledger == ledger.recompute());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each step, a pod without a share asks for one, or one with a share ends.
    #[test]
    fn no_mode_gives_more_than_a_device_has(
        memory in 500u64..1500, offered in proptest::option::of(0u32..9),
        steps in proptest::collection::vec((0u8..8, demands()), 1..60),
    ) {
        let replicas = offered.map(|count| Replicas::from_iter(RESOURCES.map(|name| (name.into(), count))));
        let gpus = (0..4).map(|index| device(index, memory)).collect();
        let mut ledger = Ledger::default();
        ledger.publish(&"n".into(), Some(NodePublication { replicas, ..published(gpus) }));
        let mut pods = BTreeMap::new();
        for (pod, demand) in steps {
            let uid = format!("p{pod}");
            if pods.remove(&pod).is_some() {
                ledger.release(&uid.as_str().into());
            } else {
                let before = ledger.clone();
                match reserve(&mut ledger, &uid, "n", &demand) {
                    Ok(given) => {
                        check_grants(&given, &demand);
                        pods.insert(pod, usage::effective(&given, demand.stages()));
                    }
                    Err(NotReserved::Refused(_)) => prop_assert!(before == ledger, "a refusal wrote"),
                    Err(NotReserved::AlreadyAllocated(node)) => unreachable!("allocated on {node}"),
                }
            }
            check(&ledger, &pods);
        }
    }
}
