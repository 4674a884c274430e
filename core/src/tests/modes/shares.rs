//! Time-sliced, MPS, whole and vGPU devices.

use super::*;
use crate::decide::Memo;
use crate::policy::Policy;
use crate::tests::{answer, query};

#[test]
fn ts_8_whole_gpu_request_never_gets_a_time_sliced_gpu() {
    let one_name = || {
        vec![
            shared(0, Mode::Timeslice, 2, GPU),
            shared(1, Mode::Exclusive, 1, GPU),
        ]
    };
    let whole: &[(&str, u32)] = &[("gpu", 1), ("cores", 100)];
    check(
        one_name(),
        &[
            (app(whole), "c0 GPU-1:40000/100"),
            (
                app(whole),
                "1 GpuModeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
            (app(ONE), "c0 GPU-0:0/0"),
            (app(ONE), "c0 GPU-0:0/0"),
            (
                app(ONE),
                "1 CardTimeSlicingExhausted, 1 ExclusiveDeviceAllocateConflict",
            ),
        ],
    );
    // Written amounts are honoured, unless the pod prefers time-slicing.
    let written: &[(&str, u32)] = &[("gpu", 1), ("mem", 3000)];
    let exclusive = ("aliquot.dev/vgpu-mode", "exclusive");
    let timeslice = ("aliquot.dev/vgpu-mode", "timeslice");
    check(
        one_name(),
        &[
            (app_with(ONE, exclusive), "c0 GPU-1:40000/100"),
            (
                app(written),
                "1 GpuModeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
            (app_with(written, timeslice), "c0 GPU-0:0/0"),
            (
                app_with(ONE, exclusive),
                "1 CardTypeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
        ],
    );
    // Two resource names: each has its own device.
    let two = vec![
        shared(0, Mode::Timeslice, 10, SHARED),
        shared(1, Mode::Exclusive, 1, GPU),
    ];
    check(
        two,
        &[
            (app(&[(SHARED, 1)]), "c0 GPU-0:0/0"),
            (app(ONE), "c0 GPU-1:40000/100"),
            (
                app(ONE),
                "1 CardTypeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
        ],
    );
}

#[test]
fn ts_15_two_replicas_mean_two_gpus_or_one_and_none_if_strict() {
    let devices = |strict| {
        let device = |index| Gpu {
            strict,
            ..shared(index, Mode::Timeslice, 2, SHARED)
        };
        vec![device(0), device(1)]
    };
    let two: &[(&str, u32)] = &[(SHARED, 2)];
    let same = app_with(two, ("aliquot.dev/replicas", "same"));
    check(
        devices(false),
        &[
            (app(two), "c0 GPU-0:0/0+GPU-1:0/0"),
            (same.clone(), "2 CardTimeSlicingExhausted"),
            (app(&[(SHARED, 3)]), "1 NodeInsufficientDevice"),
        ],
    );
    check(devices(false), &[(same.clone(), "c0 GPU-0:0/0x2")]);
    check(
        devices(true),
        &[(app(two), "2 GpuStrict"), (same, "2 GpuStrict")],
    );
}

#[test]
fn two_replicas_of_an_idle_gpu_are_one_share() {
    let two: &[(&str, u32)] = &[("gpu", 2), ("mem", 1000), ("cores", 10)];
    let idle = Demand {
        gpu_policy: Some("mutex".parse().unwrap()),
        ..app_with(two, ("aliquot.dev/replicas", "same"))
    };
    check(
        vec![gpu(0, 40_000, 4)],
        &[
            (idle.clone(), "c0 GPU-0:2000/20x2"),
            (idle, "1 ExclusiveDeviceAllocateConflict"),
        ],
    );
}

#[test]
fn mps_9_doubles_amounts_on_one_gpu_and_refuses_two_gpus() {
    let two: &[(&str, u32)] = &[(SHARED, 2)];
    let devices = || vec![mps(0, false), mps(1, false)];
    check(
        devices(),
        &[
            (
                app_with(two, ("aliquot.dev/replicas", "same")),
                "c0 GPU-0:20000/50x2",
            ),
            (
                app_with(two, ("aliquot.dev/replicas", "distinct")),
                "2 GpuModeMismatch",
            ),
        ],
    );
}

#[test]
fn refuses_mps_share_beside_another_gpu_in_one_container() {
    let devices = || vec![mps(0, false), shared(1, Mode::Exclusive, 1, GPU)];
    let both: &[(&str, u32)] = &[("gpu", 1), (SHARED, 1)];
    check(
        devices(),
        &[(app(both), "1 CardTypeMismatch, 1 GpuModeMismatch")],
    );
    // In containers of their own.
    let each = pod(
        &[(Stage::App, &[("gpu", 1)]), (Stage::App, &[(SHARED, 1)])],
        &[],
    );
    check(
        devices(),
        &[(each, "c0 GPU-1:40000/100, c1 GPU-0:10000/25")],
    );
}

#[test]
fn mps_8_refuses_more_than_one_share_when_strict() {
    let two: &[(&str, u32)] = &[(SHARED, 2)];
    check(
        vec![mps(0, true)],
        &[(app(&[(SHARED, 1)]), "c0 GPU-0:10000/25")],
    );
    let devices = || vec![mps(0, true), mps(1, true)];
    check(devices(), &[(app(two), "2 GpuStrict")]);
}

#[test]
fn mps_gives_written_amounts_and_equal_parts_of_the_rest() {
    let amounts: &[(&str, u32)] = &[(SHARED, 1), ("mem", 25_000), ("cores", 30)];
    check(
        vec![mps(0, false)],
        &[
            (app(&[(SHARED, 1)]), "c0 GPU-0:10000/25"),
            (app(amounts), "c0 GPU-0:25000/30"),
            (app(&[(SHARED, 1)]), "1 CardInsufficientMemory"),
            (app(&[(SHARED, 1), ("mem", 4_000)]), "c0 GPU-0:4000/25"),
            (
                app(&[(SHARED, 1), ("mem", 1), ("cores", 21)]),
                "1 CardInsufficientCore",
            ),
        ],
    );
}

#[test]
fn prefers_shared_gpu_over_whole_gpu_for_a_share() {
    let devices = vec![shared(0, Mode::Exclusive, 1, GPU), gpu(1, 40_000, 1)];
    check(
        devices,
        &[
            (app(ONE), "c0 GPU-1:5000/0"),
            (app(ONE), "c0 GPU-0:40000/100"),
        ],
    );
}

#[test]
fn prefers_the_last_share_of_a_node_over_a_whole_gpu_of_another() {
    let mut ledger = Ledger::default();
    let whole = |index| shared(index, Mode::Exclusive, 1, GPU);
    ledger.publish(&"shared".into(), Some(published(vec![gpu(0, 40_000, 2)])));
    ledger.publish(&"whole".into(), Some(published(vec![whole(0), whole(1)])));
    let half = app(&[("gpu", 1), ("mem", 20_000), ("cores", 50)]);
    reserve(&mut ledger, "first", "shared", &half).unwrap();
    for node in [Policy::Binpack, Policy::Spread, Policy::Fragmentation] {
        let policies = Policies {
            node,
            ..Policies::default()
        };
        let query = query(ledger.cluster(), &half, &policies);
        let names = ["whole", "shared"];
        let found = answer(&query, &mut Memo::default(), &names, 2);
        assert_eq!(found, "shared whole", "{node:?}");
    }
}
