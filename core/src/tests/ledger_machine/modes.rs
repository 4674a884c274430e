//! Devices of every sharing mode, pods that ask for them, and a plain check of the
//! allocated instances.

use proptest::prelude::*;

use crate::inventory::{EvenShare, Gpu, Mode};
use crate::mig::published::{DynamicMig, FixedInstance, Mig, MigPlacement};
use crate::mig::{resource, table};
use crate::request::{GpuRequest, WrittenAmounts};
use crate::tests::{demand, gpu, request};
use crate::units::{Mib, Percent};
use crate::usage::{DeviceUse, DeviceUses};
use crate::{Demand, GpuUuid, Stage};

const PROFILES: [&str; 2] = ["1g.5gb", "3g.20gb"];

/// A device of one of the modes.
pub(super) fn device(index: u32, memory: u64) -> Gpu {
    let plain = gpu(index, memory, 3);
    let dynamic = || {
        let geometry = table::geometry("NVIDIA A100-SXM4-40GB").expect("known");
        Some(Mig::Dynamic(DynamicMig {
            geometry,
            instances: vec![],
            reserved: Vec::new(),
        }))
    };
    let mode = match (memory + u64::from(index)) % 8 {
        0..3 => return plain,
        3 => Mode::Exclusive,
        4 => Mode::Timeslice,
        5 => Mode::Mps,
        6 => {
            return Gpu {
                mode: Mode::Mig,
                replicas: 0,
                mig: dynamic(),
                ..plain
            };
        }
        _ => {
            let part = FixedInstance {
                parent: format!("GPU-{index}").into(),
                profile: PROFILES[0].to_owned(),
                start: 0,
                gi: 0,
                ci: 0,
            };
            return Gpu {
                uuid: format!("MIG-{index}").into(),
                mode: Mode::Exclusive,
                resource: resource(PROFILES[0]),
                mig: Some(Mig::Fixed(part)),
                replicas: 1,
                ..plain
            };
        }
    };
    let even = EvenShare {
        memory: Mib(memory / 3),
        cores: Percent(33),
    };
    Gpu {
        mode,
        replicas: if mode == Mode::Exclusive { 1 } else { 3 },
        even_share: (mode == Mode::Mps).then_some(even),
        strict: mode == Mode::Mps && memory.is_multiple_of(2),
        ..plain
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
pub(super) fn demands() -> impl Strategy<Value = Demand> {
    let stage = prop_oneof![Just(Stage::App), Just(Stage::Init), Just(Stage::Sidecar)];
    let containers = proptest::collection::vec((stage, requests()), 1..4);
    (containers, any::<bool>()).prop_map(|(containers, same)| {
        let none: Vec<_> = containers.iter().map(|(stage, _)| (*stage, None)).collect();
        let mut demand = demand(&none);
        demand
            .resources
            .extend(PROFILES.map(|name| resource(name).into()));
        for (container, (_, requests)) in demand.containers.iter_mut().zip(containers) {
            container.requests = requests;
        }
        demand.rules.same_device = same;
        demand
    })
}

/// The allocations on a device: of itself, and of its instances.
pub(super) fn of_device<'u>(
    uses: &'u DeviceUses,
    device: &'u GpuUuid,
) -> impl Iterator<Item = &'u DeviceUse> {
    let on = uses.iter().filter(move |(key, _)| {
        let instance = MigPlacement::parse_device_key(key);
        instance.map_or(*key == device, |(of, _)| of == device.as_str())
    });
    on.map(|(_, used)| used)
}

/// No two pods have one slice.
pub(super) fn no_slice_is_given_twice<'u>(all: impl Iterator<Item = &'u DeviceUses>, gpu: &Gpu) {
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
