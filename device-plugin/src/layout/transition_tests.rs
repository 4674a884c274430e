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
    let change = Some(ModeChange { to, step, since });
    GpuState { change, ..on(from) }
}

pub(in crate::layout) fn given_up(mut gpu: GpuState, to: Mode, refused: Option<&str>) -> GpuState {
    gpu.given_up = Some(AbandonedChange {
        to,
        since: 0,
        refused: refused.map(str::to_owned),
    });
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
    assert!(next_state(&waits, &inputs).given_up.is_some());
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
    // Where only numbers differ, the mode is not left.
    let waits = to(vgpu(10), vgpu(4), Draining, 90);
    let enters = to(vgpu(10), vgpu(4), Entering, 100);
    check(&waits, Some(vgpu(4)), true, true, &enters);
    assert!(is_compatible(&timeslice(2), &timeslice(9)));
    assert!(!is_compatible(&timeslice(2), &vgpu(2)));
}

#[test]
fn keeps_mode_after_timeout_until_gpu_is_free() {
    let late = to(vgpu(10), exclusive(), Draining, 40);
    let abandoned = given_up(on(vgpu(10)), exclusive(), None);
    let stays = given_up(to(vgpu(10), vgpu(10), Entering, 100), exclusive(), None);
    assert_eq!(after_action(&stays), abandoned);
    check(&stays, Some(exclusive()), false, true, &stays);
    let mut expected = stays.clone();
    expected.given_up.as_mut().expect("given up").since = 40;
    check(&late, Some(exclusive()), false, true, &expected);
    check(&abandoned, Some(exclusive()), false, false, &abandoned);
    let again = given_up(to(vgpu(10), exclusive(), Draining, 0), exclusive(), None);
    check(&abandoned, Some(exclusive()), true, false, &again);
    check(&again, Some(exclusive()), false, true, &stays);
    check(&abandoned, Some(vgpu(10)), true, true, &on(vgpu(10)));
    let other = to(vgpu(10), timeslice(3), Draining, 100);
    check(&abandoned, Some(timeslice(3)), false, true, &other);
}

#[test]
fn gives_up_refused_mode_until_new_profile_or_restart() {
    let enters = to(vgpu(10), exclusive(), Entering, 90);
    let leaves = to(exclusive(), vgpu(10), Leaving, 90);
    let back = given_up(leaves, exclusive(), Some("no"));
    let mut expected = back.clone();
    expected.given_up.as_mut().expect("given up").since = 90;
    assert_eq!(abandon(&enters, "no"), expected);
    check(&back, Some(exclusive()), true, true, &back);
    let home = given_up(on(vgpu(10)), exclusive(), Some("no"));
    check(&home, Some(exclusive()), true, true, &home);
    assert_eq!(at_startup(&home, 7), to(vgpu(10), vgpu(10), Entering, 7));
    let fewer = to(vgpu(10), vgpu(2), Entering, 90);
    let numbers = abandon(&fewer, "no").change.expect("a change back");
    assert_eq!((numbers.to, numbers.step), (vgpu(10), Entering));
    // Without an old mode it keeps trying.
    let first = GpuState {
        mode: None,
        ..enters
    };
    assert_eq!(abandon(&first, "no"), first);
}

const DRAINING: Stage = Stage::Changing(Draining);
const LEAVING: Stage = Stage::Changing(Leaving);
const ENTERING: Stage = Stage::Changing(Entering);

/// The whole table: in each stage the next one after each event, as its first letter; two letters:
/// otherwise, and where only numbers differ; `-`: the event changes nothing.
const TABLE: [(Stage, [&str; 7]); 4] = [
    (Stage::Settled, ["E", "D", "S", "-", "-", "-", "-"]),
    (DRAINING, ["-", "D", "E", "LE", "E", "-", "-"]),
    (LEAVING, ["-", "L", "-", "-", "-", "E", "-"]),
    (ENTERING, ["-", "LD", "-", "-", "-", "S", "LE"]),
];
const EVENTS: [Event; 7] = [
    Event::Restored,
    Event::OtherDesired,
    Event::OwnDesired,
    Event::Freed,
    Event::TimedOut,
    Event::Done,
    Event::Failed,
];

#[test]
fn allows_only_transitions_of_the_table() {
    let letter = |stage: Option<Stage>| match stage {
        None => '-',
        Some(Stage::Settled) => 'S',
        Some(Stage::Changing(Draining)) => 'D',
        Some(Stage::Changing(Leaving)) => 'L',
        Some(Stage::Changing(Entering)) => 'E',
    };
    for (stage, row) in TABLE {
        for (event, expected) in EVENTS.into_iter().zip(row) {
            for in_place in [false, true] {
                let expected = expected.chars().take(1 + usize::from(in_place)).last();
                let found = transition(stage, event, in_place);
                assert_eq!(
                    Some(letter(found)),
                    expected,
                    "{stage:?} {event:?} {in_place}"
                );
                // A GPU in this stage goes there, and nowhere else.
                let gpu = match stage {
                    Stage::Settled => on(vgpu(10)),
                    Stage::Changing(step) => to(vgpu(10), exclusive(), step, 90),
                };
                assert_eq!(gpu.stage(), stage);
                let next = gpu.after(event, &exclusive(), 100, in_place);
                assert_eq!(next.stage(), found.unwrap_or(stage), "{event:?}");
                assert!(found.is_some() || next == gpu, "{stage:?} {event:?}");
            }
        }
    }
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
    Refuse,
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
        self.gpu.change.is_none() && self.gpu.mode.is_some()
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
        if self.gpu.change.is_none() {
            self.cordoned = false;
        }
    }

    /// A step of the switch, complete or interrupted.
    fn work(&mut self, whole: bool) {
        match pending_action(&self.gpu) {
            PendingAction::Nothing => return,
            PendingAction::Leave(..) => {
                assert_eq!(self.pods, 0, "switched while in use: {:?}", self.gpu);
                self.real = None;
            }
            PendingAction::Enter(mode) => {
                let same = self
                    .real
                    .as_ref()
                    .is_some_and(|real| is_compatible(real, mode));
                assert!(same || self.pods == 0, "{:?}", self.gpu);
                if !same {
                    self.real = None;
                }
                if whole {
                    self.real = Some(mode.clone());
                }
            }
        }
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
            ModelEvent::Close if self.gpu.change.is_some() => self.cordoned = true,
            ModelEvent::Later => self.now += 1,
            ModelEvent::Work => self.work(true),
            ModelEvent::Half => self.work(false),
            ModelEvent::Refuse => {
                self.gpu = abandon(&self.gpu, "no");
                self.stored = self.gpu.clone();
            }
            ModelEvent::Restart => self.gpu = at_startup(&self.stored, self.now),
            ModelEvent::Come | ModelEvent::Close => {}
        }
        self.reconcile();
        if self.is_advertised() {
            let mode = self.gpu.mode.as_ref();
            let real = self.real.as_ref();
            let agree = mode
                .zip(real)
                .is_some_and(|(mode, real)| is_compatible(mode, real));
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
                ModelEvent::Refuse,
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
