//! A table of single transitions, and a model: whatever is desired, whoever uses the GPU and
//! whenever the agent is killed, a GPU in use is never switched, and it ends in the desired mode.

use aliquot_profiles::mode::{Exclusive, Timeslice, Vgpu};

use super::*;

pub(in crate::layout) fn vgpu(split: u32) -> Mode {
    Mode::Vgpu(Vgpu {
        split: Some(split),
        ..Vgpu::default()
    })
}

fn timeslice(replicas: u32) -> Mode {
    Mode::Timeslice(Timeslice::new(replicas))
}

pub(in crate::layout) fn exclusive() -> Mode {
    Mode::Exclusive(Exclusive::default())
}

pub(in crate::layout) fn on(mode: Mode) -> GpuState {
    GpuState {
        mode: Some(mode),
        ..GpuState::default()
    }
}

pub(in crate::layout) fn to(from: Mode, to: Mode, step: ChangeStep, since: u64) -> GpuState {
    let change = Some(ModeChange {
        to,
        step,
        since,
        late: false,
    });
    GpuState { change, ..on(from) }
}

pub(in crate::layout) fn late(from: Mode, to_mode: Mode, since: u64) -> GpuState {
    let mut gpu = to(from, to_mode, ChangeStep::Draining, since);
    gpu.change.as_mut().expect("it changes").late = true;
    gpu
}

/// One transition at second 100 with a timeout of 60.
#[expect(clippy::needless_pass_by_value, reason = "reads better at each call")]
fn check(gpu: &GpuState, desired: Option<Mode>, free: bool, cordoned: bool, expected: &GpuState) {
    let inputs = TransitionInputs {
        desired: desired.as_ref(),
        users_known: true,
        free,
        cordoned,
        timeout: Some(60),
        now: 100,
    };
    let found = next_state(gpu, &inputs);
    assert_eq!(found, *expected, "{gpu:?} wanted {desired:?} free {free}");
    assert_eq!(
        next_state(&found, &inputs).mode,
        found.mode,
        "the mode stays at the second transition"
    );
}

use ChangeStep::{Draining, Entering, Leaving};

#[test]
fn never_gives_up_while_users_are_unknown() {
    // The agent was down for longer than the timeout, and the pods are not known yet.
    let waits = to(vgpu(10), exclusive(), Draining, 10);
    let desired = exclusive();
    let mut inputs = TransitionInputs {
        desired: Some(&desired),
        users_known: false,
        free: false,
        cordoned: false,
        timeout: Some(60),
        now: 100,
    };
    assert_eq!(next_state(&waits, &inputs), waits);
    inputs.users_known = true;
    assert!(next_state(&waits, &inputs).is_late());
}

#[test]
fn drains_and_cordons_before_leaving_mode() {
    let idle = on(vgpu(10));
    check(&idle, None, true, true, &idle);
    check(&idle, Some(vgpu(10)), true, true, &idle);
    let begun = to(vgpu(10), exclusive(), Draining, 100);
    check(&idle, Some(exclusive()), false, false, &begun);
    let waits = to(vgpu(10), exclusive(), Draining, 90);
    check(&waits, Some(exclusive()), false, true, &waits);
    check(&waits, Some(exclusive()), true, false, &waits);
    check(&waits, None, false, true, &waits);
    let goes = to(vgpu(10), exclusive(), Leaving, 100);
    check(&waits, Some(exclusive()), true, true, &goes);
    assert_eq!(
        pending_action(&goes),
        PendingAction::Leave(&vgpu(10), &exclusive())
    );
    let enters = to(vgpu(10), exclusive(), Entering, 100);
    assert_eq!(after_action(&goes), enters);
    assert_eq!(pending_action(&enters), PendingAction::Enter(&exclusive()));
    assert_eq!(after_action(&enters), on(exclusive()));
    // A GPU without a mode has nothing to leave.
    let new = |step, since| GpuState {
        mode: None,
        ..to(vgpu(10), exclusive(), step, since)
    };
    let enters = new(Entering, 100);
    check(&new(Draining, 90), Some(exclusive()), true, true, &enters);
    assert_eq!(after_action(&enters), on(exclusive()));
}

#[test]
fn takes_numbers_of_the_same_setup_at_once() {
    for free in [false, true] {
        check(&on(vgpu(10)), Some(vgpu(4)), free, false, &on(vgpu(4)));
        let waits = to(vgpu(10), exclusive(), Draining, 90);
        check(&waits, Some(vgpu(10)), free, true, &on(vgpu(10)));
        check(&waits, Some(vgpu(4)), free, true, &on(vgpu(4)));
    }
    assert!(is_same_setup(&timeslice(2), &timeslice(9)));
    assert!(!is_same_setup(&timeslice(2), &vgpu(2)));
}

#[test]
fn keeps_mode_after_timeout_until_gpu_is_free() {
    let waits = to(vgpu(10), exclusive(), Draining, 40);
    let stays = late(vgpu(10), exclusive(), 40);
    check(&waits, Some(exclusive()), false, true, &stays);
    check(&stays, Some(exclusive()), false, true, &stays);
    assert_eq!(pending_action(&stays), PendingAction::Nothing);
    // It is cordoned again before it is left.
    check(&stays, Some(exclusive()), true, true, &waits);
    let goes = to(vgpu(10), exclusive(), Leaving, 100);
    check(&waits, Some(exclusive()), true, true, &goes);
    check(&stays, Some(vgpu(10)), false, true, &on(vgpu(10)));
    let other = to(vgpu(10), timeslice(3), Draining, 100);
    check(&stays, Some(timeslice(3)), false, true, &other);
}

#[test]
fn repeats_leaving_and_entering_until_they_succeed() {
    for step in [Leaving, Entering] {
        let fails = to(vgpu(10), exclusive(), step, 0);
        for (free, cordoned) in [(false, false), (false, true), (true, true)] {
            check(&fails, Some(exclusive()), free, cordoned, &fails);
            check(&fails, None, free, cordoned, &fails);
        }
    }
}

#[test]
fn replaces_target_of_a_change() {
    for step in [Draining, Leaving] {
        let changes = to(vgpu(10), exclusive(), step, 90);
        let other = to(vgpu(10), timeslice(3), step, 100);
        check(&changes, Some(timeslice(3)), false, false, &other);
    }
    // What may be half set up is left like any other mode, also for the old one.
    let enters = to(vgpu(10), exclusive(), Entering, 90);
    for other in [timeslice(3), vgpu(10)] {
        let back = to(exclusive(), other.clone(), Leaving, 100);
        check(&enters, Some(other), true, true, &back);
    }
    let numbers = to(timeslice(3), timeslice(4), Leaving, 100);
    let enters = to(vgpu(10), timeslice(3), Entering, 90);
    check(&enters, Some(timeslice(4)), true, true, &numbers);
}

/// What happens to a GPU in the model.
#[derive(Clone, Copy, Debug)]
enum ModelEvent {
    Want(usize),
    Forget,
    Come,
    Go,
    Close,
    Later,
    Work,
    Half,
    Restart,
}

struct Model {
    gpu: GpuState,
    stored: GpuState,
    desired: Option<Mode>,
    /// The mode of the hardware; `None` in the middle of a switch.
    real: Option<Mode>,
    pods: u32,
    cordoned: bool,
    now: u64,
}

impl Model {
    fn is_advertised(&self) -> bool {
        self.gpu.mode.is_some() && (self.gpu.change.is_none() || self.gpu.is_late())
    }

    fn reconcile(&mut self) {
        let inputs = TransitionInputs {
            desired: self.desired.as_ref(),
            users_known: true,
            free: self.pods == 0,
            cordoned: self.cordoned,
            timeout: Some(5),
            now: self.now,
        };
        self.gpu = next_state(&self.gpu, &inputs);
        self.stored = self.gpu.clone();
        if self.is_advertised() {
            self.cordoned = false;
        }
    }

    /// A step of the switch, complete or interrupted.
    fn work(&mut self, whole: bool) {
        let real = match pending_action(&self.gpu) {
            PendingAction::Nothing => return,
            PendingAction::Leave(..) => None,
            PendingAction::Enter(mode) => Some(mode.clone()).filter(|_| whole),
        };
        assert_eq!(self.pods, 0, "switched while in use: {:?}", self.gpu);
        self.real = real;
        if whole {
            self.gpu = after_action(&self.gpu);
            self.stored = self.gpu.clone();
        }
    }

    fn apply(&mut self, event: ModelEvent) {
        let modes = [vgpu(10), vgpu(2), exclusive(), timeslice(3)];
        match event {
            ModelEvent::Want(which) => self.desired = Some(modes[which % modes.len()].clone()),
            ModelEvent::Forget => self.desired = None,
            ModelEvent::Come if self.is_advertised() => self.pods += 1,
            ModelEvent::Go => self.pods = self.pods.saturating_sub(1),
            ModelEvent::Close if !self.is_advertised() => self.cordoned = true,
            ModelEvent::Later => self.now += 1,
            ModelEvent::Work => self.work(true),
            ModelEvent::Half => self.work(false),
            ModelEvent::Restart => self.gpu = self.stored.clone(),
            ModelEvent::Come | ModelEvent::Close => {}
        }
        self.reconcile();
        if self.is_advertised() {
            let mode = self.gpu.mode.as_ref();
            let real = self.real.as_ref();
            let agree = mode
                .zip(real)
                .is_some_and(|(mode, real)| is_same_setup(mode, real));
            assert!(agree, "offered as {mode:?} and is {real:?}");
        }
    }
}

#[test]
fn never_switches_gpu_in_use_across_restarts() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Model {
            gpu: on(vgpu(10)),
            stored: on(vgpu(10)),
            desired: None,
            real: Some(vgpu(10)),
            pods: 0,
            cordoned: false,
            now: 0,
        };
        for _ in 0..200 {
            let events = [
                ModelEvent::Want(random.usize(..4)),
                ModelEvent::Forget,
                ModelEvent::Come,
                ModelEvent::Go,
                ModelEvent::Close,
                ModelEvent::Later,
                ModelEvent::Work,
                ModelEvent::Half,
                ModelEvent::Restart,
            ];
            model.apply(events[random.usize(..events.len())]);
        }
        // Left alone, it reaches the desired mode.
        model.pods = 0;
        let choice = random.usize(..4);
        for event in [ModelEvent::Restart, ModelEvent::Want(choice)] {
            model.apply(event);
        }
        for _ in 0..10 {
            for event in [ModelEvent::Close, ModelEvent::Work, ModelEvent::Later] {
                model.apply(event);
            }
        }
        assert_eq!(model.gpu.mode, model.desired, "seed {seed}");
        assert_eq!(model.gpu.change, None, "seed {seed}");
        assert!(model.real.is_some(), "seed {seed}");
    }
}
