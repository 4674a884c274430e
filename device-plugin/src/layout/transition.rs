//! How one GPU changes from one mode to another, as a state machine on values: [`next_state`] is
//! its table.
//!
//! A GPU changes only while nobody uses it. A mode with the same setup as the GPU's own changes
//! nothing on the GPU: it is in effect at once, and users stay. A GPU that does not become free in
//! time is offered in its old mode until it is. A step begins only after the state that leads to it
//! is stored, and is repeated until it succeeds.

use std::mem::discriminant;

use aliquot_profiles::Mode;
use serde::{Deserialize, Serialize};

use crate::modes;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    /// The mode that it has, or is leaving; `None`: not set up yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ModeChange>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    pub to: Mode,
    pub step: ChangeStep,
    /// When it began, in seconds since the epoch.
    pub since: u64,
    /// While draining: the time to wait is over, and the GPU is offered again until it is free.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
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

#[derive(Clone, Copy, Debug)]
pub struct TransitionInputs<'a> {
    /// The desired mode; `None` if it is unknown, so nothing new begins.
    pub desired: Option<&'a Mode>,
    /// The users of the GPU are known.
    pub users_known: bool,
    /// The GPU has no users that the change must wait for.
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
    Enter(&'a Mode),
}

impl GpuState {
    pub fn step(&self) -> Option<ChangeStep> {
        self.change.as_ref().map(|change| change.step)
    }

    /// Whether the GPU is offered in its old mode because it did not become free in time.
    pub fn is_late(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.late)
    }

    pub(super) fn changing(&self, to: &Mode, step: ChangeStep, since: u64) -> Self {
        let change = ModeChange {
            to: to.clone(),
            step,
            since,
            late: false,
        };
        Self {
            mode: self.mode.clone(),
            change: Some(change),
        }
    }
}

/// Whether both modes set up a GPU the same way, so that they differ only in numbers and names.
pub fn is_same_setup(one: &Mode, other: &Mode) -> bool {
    discriminant(one) == discriminant(other) && modes::of(one).setup() == modes::of(other).setup()
}

/// The next state, by what is desired and who uses the GPU. Applied until it stays the same, it
/// must be stored before its [`pending_action`] is done.
pub fn next_state(gpu: &GpuState, inputs: &TransitionInputs<'_>) -> GpuState {
    use ChangeStep::{Draining, Entering, Leaving};
    let own = gpu.mode.as_ref();
    let has_setup_of = |desired: &Mode| own.is_some_and(|own| is_same_setup(own, desired));
    match (&gpu.change, inputs.desired) {
        (None, Some(desired)) if has_setup_of(desired) => in_mode(desired),
        (None, Some(desired)) => gpu.changing(desired, Draining, inputs.now),
        (Some(change), Some(desired)) if change.step == Draining && has_setup_of(desired) => {
            in_mode(desired)
        }
        (Some(change), Some(desired)) if change.to != *desired => match change.step {
            step @ (Draining | Leaving) => gpu.changing(desired, step, inputs.now),
            // The new mode may be half set up: it is undone like any other.
            Entering => in_mode(&change.to).changing(desired, Leaving, inputs.now),
        },
        (Some(change), _) if change.step == Draining => next_from_draining(gpu, change, inputs),
        _ => gpu.clone(),
    }
}

/// The state of a GPU that has this mode.
fn in_mode(mode: &Mode) -> GpuState {
    GpuState {
        mode: Some(mode.clone()),
        change: None,
    }
}

fn next_from_draining(
    gpu: &GpuState,
    change: &ModeChange,
    inputs: &TransitionInputs<'_>,
) -> GpuState {
    let passed = inputs.now.saturating_sub(change.since);
    let over = inputs.timeout.is_some_and(|timeout| passed >= timeout);
    let late = |late| GpuState {
        mode: gpu.mode.clone(),
        change: Some(ModeChange {
            late,
            ..change.clone()
        }),
    };
    if inputs.free && change.late {
        late(false)
    } else if inputs.free && inputs.cordoned {
        // There is nothing to leave on a GPU without a mode.
        let step = if gpu.mode.is_none() {
            ChangeStep::Entering
        } else {
            ChangeStep::Leaving
        };
        gpu.changing(&change.to, step, inputs.now)
    } else if over && inputs.users_known && !inputs.free {
        late(true)
    } else {
        gpu.clone()
    }
}

/// What the stored state requires to be done.
pub fn pending_action(gpu: &GpuState) -> PendingAction<'_> {
    let Some(change) = &gpu.change else {
        return PendingAction::Nothing;
    };
    match (change.step, &gpu.mode) {
        (ChangeStep::Draining, _) => PendingAction::Nothing,
        (ChangeStep::Leaving, Some(mode)) => PendingAction::Leave(mode, &change.to),
        (ChangeStep::Leaving, None) | (ChangeStep::Entering, _) => PendingAction::Enter(&change.to),
    }
}

/// The state after the pending action succeeded.
pub fn after_action(gpu: &GpuState) -> GpuState {
    match pending_action(gpu) {
        PendingAction::Nothing => gpu.clone(),
        PendingAction::Leave(..) => GpuState {
            mode: gpu.mode.clone(),
            change: gpu.change.clone().map(|change| ModeChange {
                step: ChangeStep::Entering,
                ..change
            }),
        },
        PendingAction::Enter(mode) => in_mode(mode),
    }
}

#[cfg(test)]
#[path = "transition_tests.rs"]
pub(super) mod tests;
