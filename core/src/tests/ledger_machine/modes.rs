//! Cards of every mode, pods that ask for them, and what a plain look says of the
//! instances that are held.

use proptest::prelude::*;

use crate::inventory::{Even, Gpu, Mode};
use crate::mig::published::{Cut, Mig, Part, Placed};
use crate::mig::{resource, table};
use crate::request::{Ask, Wrote};
use crate::tests::{ask, demand, gpu};
use crate::units::{Mib, Percent};
use crate::usage::{Use, Uses};
use crate::{Demand, GpuUuid, Stage};

const PROFILES: [&str; 2] = ["1g.5gb", "3g.20gb"];

/// A card of one of the modes.
pub(super) fn card(index: u32, memory: u64) -> Gpu {
    let plain = gpu(index, memory, 3);
    let dynamic = || {
        let geometry = table::geometry("NVIDIA A100-SXM4-40GB").expect("known");
        Some(Mig::Dynamic(Cut {
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
                seats: 0,
                mig: dynamic(),
                ..plain
            };
        }
        _ => {
            let part = Part {
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
                mig: Some(Mig::Part(part)),
                seats: 1,
                ..plain
            };
        }
    };
    let even = Even {
        memory: Mib(memory / 3),
        cores: Percent(33),
    };
    Gpu {
        mode,
        seats: if mode == Mode::Exclusive { 1 } else { 3 },
        even: (mode == Mode::Mps).then_some(even),
        strict: mode == Mode::Mps && memory.is_multiple_of(2),
        ..plain
    }
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let usual = (1u32..3, 1u64..700, 0u32..=100, any::<(bool, bool)>());
    let usual = usual.prop_map(|(count, mib, cores, (memory, compute))| Ask {
        wrote: Wrote {
            memory,
            cores: compute,
        },
        ..ask(count, mib, cores)
    });
    let instance = (1u8..3, 1u32..4).prop_map(|(resource, count)| Ask {
        resource,
        wrote: Wrote::default(),
        ..ask(count, 1, 0)
    });
    prop_oneof![
        2 => Just(vec![]),
        6 => usual.clone().prop_map(|ask| vec![ask]),
        2 => instance.clone().prop_map(|ask| vec![ask]),
        1 => (usual, instance).prop_map(|(one, other)| vec![one, other]),
    ]
}

/// Pods that ask for whatever there is.
pub(super) fn demands() -> impl Strategy<Value = Demand> {
    let stage = prop_oneof![Just(Stage::App), Just(Stage::Init), Just(Stage::Sidecar)];
    let containers = proptest::collection::vec((stage, asks()), 1..4);
    (containers, any::<bool>()).prop_map(|(containers, same)| {
        let none: Vec<_> = containers.iter().map(|(stage, _)| (*stage, None)).collect();
        let mut demand = demand(&none);
        demand
            .resources
            .extend(PROFILES.map(|name| resource(name).into()));
        for (container, (_, asks)) in demand.containers.iter_mut().zip(containers) {
            container.asks = asks;
        }
        demand.rules.same_unit = same;
        demand
    })
}

/// What is held of a card: of itself, and of its instances.
pub(super) fn of_card<'u>(uses: &'u Uses, card: &'u GpuUuid) -> impl Iterator<Item = &'u Use> {
    let on = uses.iter().filter(move |(unit, _)| {
        let instance = Placed::of(unit);
        instance.map_or(*unit == card, |(of, _)| of == card.as_str())
    });
    on.map(|(_, used)| used)
}

/// No two pods have one slice.
pub(super) fn no_slice_is_given_twice<'u>(all: impl Iterator<Item = &'u Uses>, gpu: &Gpu) {
    let Some(cut) = gpu.mig.as_ref().and_then(Mig::dynamic) else {
        return;
    };
    let mut taken = 0;
    for (card, placed) in all.flat_map(|uses| uses.keys().filter_map(Placed::of)) {
        if card == gpu.uuid.as_str() {
            let profiles = cut.geometry.profiles();
            let profile = &profiles[cut.geometry.find(&placed.profile).expect("known")];
            let slices = profile.slices(placed.start);
            assert_eq!(taken & slices, 0, "{placed:?} on {card}");
            taken |= slices;
        }
    }
}
