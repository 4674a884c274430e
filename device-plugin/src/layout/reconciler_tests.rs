//! How the reconciler starts, when it tries again, and which pods it evicts.

use aliquot_core::Scaling;
use aliquot_nvml::Driver;
use aliquot_profiles::mode::Mps;

use super::*;
use crate::layout::transition::tests::{exclusive, late, on, to, vgpu};
use crate::testing::{IdleDriver, facts, pod};

/// The state that starts from these stored GPUs when the driver reports only `GPU-a`.
fn started(gpus: &[(&str, GpuState)]) -> ReconcilerState {
    let dir = tempfile::tempdir().expect("tempdir");
    let driver: Arc<dyn Driver> = Arc::new(IdleDriver);
    let defaults = Defaults {
        split: 2,
        memory_scaling: Scaling::ONE,
    };
    let mut layout = StoredLayout::default();
    for (uuid, gpu) in gpus {
        layout.gpus.insert((*uuid).into(), gpu.clone());
    }
    let inputs = StartInputs {
        configured: true,
        facts: &facts(&["GPU-a"]),
        defaults: &defaults,
        modes: &SharingModes::new(&driver, dir.path()),
        accepted: &[],
        path: &dir.path().join("layout.json"),
    };
    ReconcilerState::start(Some(layout), &inputs).expect("started")
}

#[test]
fn ignores_stored_gpu_that_is_missing_from_driver() {
    let half = to(exclusive(), Mode::Unmanaged, ChangeStep::Leaving, 7);
    let stored = [
        ("GPU-a", on(exclusive())),
        ("GPU-b", half),
        ("GPU-c", on(exclusive())),
    ];
    let mut state = started(&stored);
    assert_eq!((state.changing_count(), state.affected().len()), (0, 0));
    // When it returns, its mode is entered again as at startup, and its change continues.
    state.update_present(&facts(&["GPU-a", "GPU-b", "GPU-c"]));
    assert_eq!((state.changing_count(), state.affected().len()), (2, 1));
    assert_eq!(state.layout.gpus["GPU-b"], stored[1].1);
    state.update_present(&facts(&["GPU-a", "GPU-b", "GPU-c"]));
    assert_eq!(state.changing_count(), 2);
}

#[test]
fn starts_without_waiting_for_mps_daemons() {
    let start = std::time::Instant::now();
    let state = started(&[("GPU-a", on(Mode::Mps(Mps::new(4))))]);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    // The reconciler enters its mode later; until then it accepts no new allocation.
    assert_eq!(state.changing_count(), 1);
    let gpu_layout = &state.node_layout("nvidia.com/gpu").gpus["GPU-a"];
    assert!(gpu_layout.cordon.is_some() && !gpu_layout.switching);
}

#[test]
fn pauses_longer_after_each_failure() {
    let mut pause = None;
    for expected in [1, 2, 4, 8, 16, 30, 30] {
        let failure = StepFailure::after(pause, StepError::Failed("no".to_owned()));
        assert_eq!(failure.pause, Duration::from_secs(expected));
        pause = Some(failure.pause);
    }
}

#[test]
fn evicts_pods_only_where_they_are_waited_for() {
    let drains = to(vgpu(10), exclusive(), ChangeStep::Draining, 0);
    let foreign = GpuState {
        mode: None,
        ..to(vgpu(10), vgpu(12), ChangeStep::Draining, 0)
    };
    let late = late(vgpu(10), exclusive(), 0);
    for (gpu, expected) in [(drains, 1), (foreign, 0), (late, 0), (on(vgpu(10)), 0)] {
        let mut layout = StoredLayout::default();
        layout.gpus.insert("GPU-a".into(), gpu);
        layout.transition.policy = TransitionPolicy::Evict;
        let users = DeviceUsers {
            pods: vec![Arc::new(pod("u1"))],
            ..DeviceUsers::default()
        };
        let users = BTreeMap::from([("GPU-a".into(), users)]);
        assert_eq!(evictions(&layout, &users).len(), expected);
    }
}
