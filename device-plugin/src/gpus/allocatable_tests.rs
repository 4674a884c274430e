//! From facts and modes to devices and their replicas.

use aliquot_core::inventory::Mode as Shared;
use aliquot_core::{Mib, Scaling};
use aliquot_profiles::mode::Mps;

use super::*;
use crate::testing::{RESOURCE, facts, mixed_layout};

#[test]
fn mode_determines_allocatable_device() {
    let facts = facts(&["GPU-a", "GPU-b", "GPU-c", "GPU-new"]);
    let devices = allocatable_devices(&facts, &[], &mixed_layout());
    let amounts = devices
        .iter()
        .map(|gpu| (gpu.uuid.as_str(), gpu.mode, gpu.replicas, gpu.scaled.0));
    let expected = [
        ("GPU-a", Shared::Vgpu, 2, 15_000),
        ("GPU-b", Shared::Exclusive, 1, 10_000),
        ("GPU-c", Shared::Timeslice, 3, 10_000),
    ];
    assert_eq!(amounts.collect::<Vec<_>>(), expected);
    let resources = devices.iter().map(|gpu| (&*gpu.resource, gpu.strict));
    let shared = ("nvidia.com/gpu.shared", true);
    let expected = [(RESOURCE, false), (RESOURCE, false), shared];
    assert_eq!(resources.collect::<Vec<_>>(), expected);
}

#[test]
fn gpu_that_somebody_else_partitioned_is_offered_in_no_mode() {
    let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    for gpu in &mut facts.gpus {
        gpu.mig.enabled = true;
    }
    let devices = allocatable_devices(&facts, &[], &mixed_layout());
    let replicas: Vec<_> = devices.iter().flat_map(replicas_by_resource).collect();
    assert_eq!(replicas, []);
}

#[test]
fn hami_1_each_gpu_counts_as_often_as_it_is_split() {
    for (uuids, split) in [(&["GPU-a"][..], 10), (&["GPU-a", "GPU-b", "GPU-c"], 3)] {
        let facts = facts(uuids);
        let defaults = Defaults {
            split,
            memory_scaling: Scaling::ONE,
        };
        let layout = NodeLayout::built_in(&facts, RESOURCE, &defaults);
        let devices = allocatable_devices(&facts, &[], &layout);
        let replicas: Vec<u32> = devices.iter().map(|gpu| gpu.replicas).collect();
        assert_eq!(replicas, vec![split; uuids.len()]);
    }
}

/// A GPU of 10,000 MiB, of which the driver reserves 500.
#[test]
fn promises_memory_without_what_the_driver_reserves() {
    let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    for gpu in &mut facts.gpus {
        gpu.reserved = Some(Mib(500));
    }
    let mut layout = mixed_layout();
    let mps = Mode::Mps(Mps::new(2));
    layout.gpus.insert("GPU-c".into(), GpuLayout::serving(mps));
    let devices = allocatable_devices(&facts, &[], &layout);
    let memory = devices.iter().map(|gpu| (gpu.memory.0, gpu.scaled.0));
    let expected = [(9_500, 14_250), (9_500, 9_500), (9_500, 9_500)];
    assert_eq!(memory.collect::<Vec<_>>(), expected);
    let share = devices[2].even_share.expect("by MPS");
    assert_eq!(share.memory, Mib(4_750));
    // An old driver does not report it.
    facts.gpus[0].reserved = None;
    let devices = allocatable_devices(&facts, &[], &layout);
    assert_eq!(devices[0].memory, Mib(10_000));
}
