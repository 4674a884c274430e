//! How one GPU changes from one mode to another, as a state machine on values: [`transition`] is its
//! table.
//!
//! Between two modes that differ only in numbers, users may stay, and the old mode is not left. A GPU
//! that does not become free in time returns to its old mode. A step begins only after the state that
//! leads to it is stored.

use aliquot_profiles::Mode;
use aliquot_profiles::mode::Mig;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    /// The mode that it has, or is leaving; `None`: not set up yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ModeChange>,
    /// A change that was given up; it is not retried until another mode was desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<AbandonedChange>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    pub to: Mode,
    pub step: ChangeStep,
    /// When it began, in seconds since the epoch.
    pub since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeStep {
    /// The GPU is cordoned, and its users are waited for.
    Draining,
    /// The old mode is being undone.
    Leaving,
    /// The new mode is being set up.
    Entering,
}

/// A change that was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonedChange {
    pub to: Mode,
    /// When it began.
    pub since: u64,
    /// Why switching failed; `None`: the GPU was not free in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct TransitionInputs<'a> {
    /// The desired mode; `None` if it is unknown, so nothing new begins.
    pub desired: Option<&'a Mode>,
    /// The users of the GPU are known.
    pub users_known: bool,
    /// The GPU has no users, or they may stay in the new mode.
    pub free: bool,
    /// The scheduler has seen for a while that the GPU is cordoned, and pods that were bound before
    /// are among its users.
    pub cordoned: bool,
    /// The longest wait for a GPU to become free, in seconds.
    pub timeout: Option<u64>,
    /// Seconds since the epoch.
    pub now: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingAction<'a> {
    Nothing,
    /// Undo the old mode, for the new one.
    Leave(&'a Mode, &'a Mode),
    /// Set up a mode.
    Enter(&'a Mode),
}

/// Whether two modes differ only in numbers and names, so that users may stay.
pub fn is_compatible(one: &Mode, other: &Mode) -> bool {
    let bare = |mode: &Mode| {
        let mut mode = mode.clone();
        match &mut mode {
            Mode::Vgpu(vgpu) => *vgpu = aliquot_profiles::mode::Vgpu::default(),
            Mode::Exclusive(exclusive) => exclusive.rename = None,
            Mode::Timeslice(slices) => {
                *slices = aliquot_profiles::mode::Timeslice::new(2);
            }
            Mode::Mps(mps) => {
                mps.rename = None;
                mps.strict = true;
            }
            Mode::Mig(Mig { allow, .. }) => allow.clear(),
            Mode::Unmanaged => {}
        }
        mode
    };
    bare(one) == bare(other)
}

/// Where a GPU is between two modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has its mode, or none yet.
    Settled,
    /// It changes: see [`ChangeStep`].
    Changing(ChangeStep),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The agent started, or the GPU returned: its mode is set up again.
    Restored,
    /// Another mode is desired than the one that it has or changes to.
    OtherDesired,
    /// The mode that it has is desired.
    OwnDesired,
    /// It has no users, or they may stay in the new mode, and it is cordoned.
    Freed,
    /// It is still in use, and the time to wait for that is over.
    TimedOut,
    /// What its stage requires is done.
    Done,
    /// What its stage requires failed repeatedly.
    Failed,
}

/// The table of transitions: the stage after an event; `None`: the event does not change a GPU in this
/// stage. `in_place`: the old and the new mode differ only in numbers, so that the GPU may have users.
#[expect(clippy::match_same_arms, reason = "a row for each transition")]
pub fn transition(stage: Stage, event: Event, in_place: bool) -> Option<Stage> {
    use ChangeStep::{Draining, Entering, Leaving};
    use Stage::{Changing, Settled};
    Some(match (stage, event, in_place) {
        (Settled, Event::Restored, _) => Changing(Entering),
        (Settled, Event::OtherDesired, _) => Changing(Draining),
        (Settled, Event::OwnDesired, _) => Settled,
        // The mode is set up again: the agent may have been interrupted while doing so.
        (Changing(Draining), Event::OwnDesired | Event::TimedOut, _) => Changing(Entering),
        (Changing(Draining), Event::OtherDesired, _) => Changing(Draining),
        (Changing(Draining), Event::Freed, false) => Changing(Leaving),
        (Changing(Draining), Event::Freed, true) => Changing(Entering),
        (Changing(Leaving), Event::OtherDesired, _) => Changing(Leaving),
        (Changing(Leaving), Event::Done, _) => Changing(Entering),
        // The new mode may be half set up: it is undone like any other.
        (Changing(Entering), Event::OtherDesired, false) => Changing(Leaving),
        (Changing(Entering), Event::OtherDesired, true) => Changing(Draining),
        (Changing(Entering), Event::Done, _) => Settled,
        (Changing(Entering), Event::Failed, false) => Changing(Leaving),
        (Changing(Entering), Event::Failed, true) => Changing(Entering),
        _ => return None,
    })
}

impl GpuState {
    /// Its stage. There is nothing to leave on a GPU without a mode.
    pub fn stage(&self) -> Stage {
        match (&self.change, &self.mode) {
            (None, _) => Stage::Settled,
            (Some(change), None) if change.step == ChangeStep::Leaving => {
                Stage::Changing(ChangeStep::Entering)
            }
            (Some(change), _) => Stage::Changing(change.step),
        }
    }

    /// The state after an event by which the GPU changes to this mode, since this time. Its mode is
    /// unchanged.
    fn after(&self, event: Event, to: &Mode, since: u64, in_place: bool) -> Self {
        let Some(stage) = transition(self.stage(), event, in_place) else {
            return self.clone();
        };
        let change = |step| ModeChange {
            to: to.clone(),
            step,
            since,
        };
        Self {
            change: match stage {
                Stage::Settled => None,
                Stage::Changing(step) => Some(change(step)),
            },
            ..self.clone()
        }
    }

    /// Whether this mode differs from the GPU's own only in numbers.
    fn is_compatible_with(&self, mode: &Mode) -> bool {
        self.mode
            .as_ref()
            .is_some_and(|own| is_compatible(own, mode))
    }
}

/// The next state. Applied until it stays the same, it must be stored before its [`pending_action`]
/// is done.
pub fn next_state(gpu: &GpuState, inputs: &TransitionInputs<'_>) -> GpuState {
    let given_up = gpu.given_up.as_ref();
    let stage = gpu.stage();
    // A GPU that is returning does not try a given-up mode again.
    let back = !matches!(
        stage,
        Stage::Settled | Stage::Changing(ChangeStep::Draining)
    );
    let is_given_up = |mode: &Mode| {
        given_up.is_some_and(|given| given.to == *mode && (back || given.refused.is_some()))
    };
    let desired = inputs.desired.filter(|mode| !is_given_up(mode));
    match (&gpu.change, desired) {
        (None, Some(desired)) => next_from_settled(gpu, desired, inputs),
        (Some(change), Some(other)) if *other != change.to => redirect(gpu, change, other, inputs),
        (Some(change), _) if stage == Stage::Changing(ChangeStep::Draining) => {
            next_from_draining(gpu, change, inputs)
        }
        _ => gpu.clone(),
    }
}

fn next_from_settled(gpu: &GpuState, desired: &Mode, inputs: &TransitionInputs<'_>) -> GpuState {
    let tried = gpu.given_up.as_ref().filter(|given| given.to == *desired);
    let event = if gpu.mode.as_ref() == Some(desired) {
        Event::OwnDesired
    } else {
        Event::OtherDesired
    };
    // After a timeout, only when the GPU becomes free by itself.
    if event == Event::OtherDesired && tried.is_some() && !inputs.free {
        return gpu.clone();
    }
    let since = tried.map_or(inputs.now, |tried| tried.since);
    let next = gpu.after(event, desired, since, false);
    GpuState {
        given_up: tried.filter(|_| event == Event::OtherDesired).cloned(),
        ..next
    }
}

/// During a change, a mode is desired that is not the one that the GPU changes to.
fn redirect(
    gpu: &GpuState,
    change: &ModeChange,
    other: &Mode,
    inputs: &TransitionInputs<'_>,
) -> GpuState {
    match gpu.stage() {
        Stage::Changing(ChangeStep::Draining) if gpu.mode.as_ref() == Some(other) => GpuState {
            given_up: None,
            ..gpu.after(Event::OwnDesired, other, inputs.now, false)
        },
        Stage::Changing(ChangeStep::Entering) => {
            let in_place = gpu.is_compatible_with(&change.to);
            GpuState {
                mode: Some(change.to.clone()),
                ..gpu.after(Event::OtherDesired, other, inputs.now, in_place)
            }
        }
        _ => gpu.after(Event::OtherDesired, other, inputs.now, false),
    }
}

fn next_from_draining(
    gpu: &GpuState,
    change: &ModeChange,
    inputs: &TransitionInputs<'_>,
) -> GpuState {
    if inputs.free && inputs.cordoned {
        let in_place = gpu.mode.is_none() || gpu.is_compatible_with(&change.to);
        return gpu.after(Event::Freed, &change.to, inputs.now, in_place);
    }
    let passed = inputs.now.saturating_sub(change.since);
    let over = inputs.timeout.is_some_and(|timeout| passed >= timeout);
    if !over || !inputs.users_known || inputs.free {
        return gpu.clone();
    }
    let given_up = Some(AbandonedChange {
        to: change.to.clone(),
        since: change.since,
        refused: None,
    });
    let next = match &gpu.mode {
        Some(mode) => gpu.after(Event::TimedOut, mode, inputs.now, false),
        // There is no mode to return to.
        None => GpuState::default(),
    };
    GpuState { given_up, ..next }
}

/// What the stored state requires to be done.
pub fn pending_action(gpu: &GpuState) -> PendingAction<'_> {
    match (gpu.stage(), &gpu.change, &gpu.mode) {
        (Stage::Changing(ChangeStep::Entering), Some(change), _) => {
            PendingAction::Enter(&change.to)
        }
        (Stage::Changing(ChangeStep::Leaving), Some(change), Some(mode)) => {
            PendingAction::Leave(mode, &change.to)
        }
        _ => PendingAction::Nothing,
    }
}

/// The state after the pending action succeeded.
pub fn after_action(gpu: &GpuState) -> GpuState {
    let Some(change) = &gpu.change else {
        return gpu.clone();
    };
    let next = gpu.after(Event::Done, &change.to, change.since, false);
    match pending_action(gpu) {
        PendingAction::Enter(mode) => GpuState {
            mode: Some(mode.clone()),
            ..next
        },
        PendingAction::Leave(..) | PendingAction::Nothing => next,
    }
}

/// The state after the new mode failed repeatedly: back to the old one. A GPU without an old mode
/// keeps trying.
pub fn abandon(gpu: &GpuState, why: &str) -> GpuState {
    let (PendingAction::Enter(to), Some(old), Some(change)) =
        (pending_action(gpu), &gpu.mode, &gpu.change)
    else {
        return gpu.clone();
    };
    if to == old {
        return gpu.clone();
    }
    let in_place = is_compatible(to, old);
    GpuState {
        mode: Some(to.clone()),
        given_up: Some(AbandonedChange {
            to: to.clone(),
            since: change.since,
            refused: Some(why.to_owned()),
        }),
        ..gpu.after(Event::Failed, old, change.since, in_place)
    }
}

/// The state of a GPU when the agent starts: its mode is set up again, and a mode that failed is
/// retried.
pub fn at_startup(gpu: &GpuState, now: u64) -> GpuState {
    let mut next = match &gpu.mode {
        Some(mode) if gpu.change.is_none() => gpu.after(Event::Restored, mode, now, false),
        _ => gpu.clone(),
    };
    next.given_up = next.given_up.filter(|given| given.refused.is_none());
    next
}

#[cfg(test)]
#[path = "transition_tests.rs"]
pub(super) mod tests;
