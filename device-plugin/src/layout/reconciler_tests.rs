//! How the reconciler starts, when it gives up, and which pods it evicts.

use aliquot_core::Scaling;
use aliquot_nvml::Driver;
use aliquot_profiles::mode::Mps;

use super::*;
use crate::layout::transition::tests::{exclusive, on, to, vgpu};
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
        path: &dir.path().join("cards.json"),
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
    assert_eq!((state.changing_count(), state.affected().len()), (2, 2));
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

/// The state of a GPU that changes from vgpu to exclusive after these failed steps.
fn after_failures(errors: &[StepError]) -> GpuState {
    let mut failure = StepFailure::new();
    let gpu = to(vgpu(2), exclusive(), ChangeStep::Entering, 0);
    let steps = errors.iter().cloned();
    steps.fold(gpu, |gpu, error| failure.record(&gpu, error))
}

#[test]
fn never_gives_up_on_gpu_that_needs_reset() {
    let waits = || StepError::NeedsAction("reset it".to_owned());
    let failed = || StepError::Failed("no".to_owned());
    let check = |errors: &[StepError], given_up: bool| {
        let gpu = after_failures(errors);
        assert_eq!(gpu.given_up.is_some(), given_up, "{errors:?}");
    };
    check(&[failed(), failed()], false);
    check(&[failed(), failed(), failed()], true);
    check(&[waits(), waits(), waits(), waits(), waits()], false);
    check(&[failed(), waits(), failed(), waits()], false);
    check(&[failed(), waits(), failed(), failed()], true);
}

#[test]
fn evicts_only_pods_that_do_not_fit_new_mode() {
    for (mode, expected) in [(vgpu(12), 0), (exclusive(), 1)] {
        let mut layout = StoredLayout::default();
        let gpu = to(vgpu(10), mode, ChangeStep::Draining, 0);
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
