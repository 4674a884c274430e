//! How one GPU changes from one mode to another, as a state machine on values.
//!
//! `Settled → Draining → Leaving → Entering → Settled`; between two modes that differ only in
//! numbers, `Leaving` is skipped. A GPU that does not become free in time returns to `Settled` in
//! its old mode. A step begins only after the state that leads to it is stored.

use aliquot_profiles::Mode;
use aliquot_profiles::mode::Mig;
use serde::{Deserialize, Serialize};

/// The state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuState {
    /// The mode that it has, or is leaving; `None`: not set up yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The change in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<ModeChange>,
    /// A change that was given up; it is not retried until another mode was desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<AbandonedChange>,
}

/// A change of a GPU's mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    /// The new mode.
    pub to: Mode,
    /// The current step.
    pub step: ChangeStep,
    /// When it began, in seconds since the epoch.
    pub since: u64,
}

/// The step of a change.
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
    /// The mode that was desired.
    pub to: Mode,
    /// When it began.
    pub since: u64,
    /// Why switching failed; `None`: the GPU was not free in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What a decision depends on.
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

/// What must be done on a GPU now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingAction<'a> {
    /// Nothing.
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
                let bare = aliquot_profiles::mode::Timeslice::new(2);
                *slices = bare;
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

/// The next state. Applied until it stays the same, it must be stored before its [`pending_action`]
/// is done.
pub fn next_state(gpu: &GpuState, inputs: &TransitionInputs<'_>) -> GpuState {
    let given_up = gpu.given_up.as_ref();
    let refused = |mode: &Mode| given_up.is_some_and(|g| g.to == *mode && g.refused.is_some());
    // A GPU that is returning does not try a given-up mode again.
    let back = gpu
        .change
        .as_ref()
        .is_some_and(|change| change.step != ChangeStep::Draining);
    let late = |mode: &Mode| back && given_up.is_some_and(|given| given.to == *mode);
    let desired = inputs.desired.filter(|mode| !refused(mode) && !late(mode));
    let Some(change) = &gpu.change else {
        return next_from_settled(gpu, desired, inputs);
    };
    let toward = |to: &Mode, step| {
        Some(ModeChange {
            to: to.clone(),
            step,
            since: inputs.now,
        })
    };
    let mut next = gpu.clone();
    match (change.step, desired.filter(|mode| **mode != change.to)) {
        // The mode is set up again: the agent may have been interrupted while doing so.
        (ChangeStep::Draining, Some(other)) if gpu.mode.as_ref() == Some(other) => {
            next.change = toward(other, ChangeStep::Entering);
            next.given_up = None;
        }
        (ChangeStep::Draining, Some(other)) => next.change = toward(other, ChangeStep::Draining),
        (ChangeStep::Draining, None) => {
            let passed = inputs.now.saturating_sub(change.since);
            let over = inputs.timeout.is_some_and(|timeout| passed >= timeout);
            if inputs.free && inputs.cordoned {
                let skip = gpu
                    .mode
                    .as_ref()
                    .is_none_or(|m| is_compatible(m, &change.to));
                let step = if skip {
                    ChangeStep::Entering
                } else {
                    ChangeStep::Leaving
                };
                next.change = toward(&change.to, step);
            } else if over && inputs.users_known && !inputs.free {
                let stays = gpu.mode.as_ref();
                next.change = stays.and_then(|mode| toward(mode, ChangeStep::Entering));
                next.given_up = Some(AbandonedChange {
                    to: change.to.clone(),
                    since: change.since,
                    refused: None,
                });
            }
        }
        (ChangeStep::Leaving, Some(other)) => next.change = toward(other, ChangeStep::Leaving),
        // The new mode may be half set up: it is undone like any other. A GPU whose mode was
        // compatible may have users.
        (ChangeStep::Entering, Some(other)) => {
            let before = gpu.mode.as_ref();
            let same = before.is_some_and(|mode| is_compatible(mode, &change.to));
            next.mode = Some(change.to.clone());
            next.change = toward(
                other,
                if same {
                    ChangeStep::Draining
                } else {
                    ChangeStep::Leaving
                },
            );
        }
        (ChangeStep::Leaving | ChangeStep::Entering, None) => {}
    }
    next
}

fn next_from_settled(
    gpu: &GpuState,
    desired: Option<&Mode>,
    inputs: &TransitionInputs<'_>,
) -> GpuState {
    let mut next = gpu.clone();
    let Some(desired) = desired else {
        return next;
    };
    if gpu.mode.as_ref() == Some(desired) {
        next.given_up = None;
        return next;
    }
    let tried = gpu.given_up.as_ref().filter(|given| given.to == *desired);
    // After a timeout, only when the GPU becomes free by itself.
    if tried.is_some() && !inputs.free {
        return next;
    }
    if tried.is_none() {
        next.given_up = None;
    }
    next.change = Some(ModeChange {
        to: desired.clone(),
        step: ChangeStep::Draining,
        since: tried.map_or(inputs.now, |tried| tried.since),
    });
    next
}

/// What the stored state requires to be done.
pub fn pending_action(gpu: &GpuState) -> PendingAction<'_> {
    match (&gpu.change, &gpu.mode) {
        (Some(change), _) if change.step == ChangeStep::Entering => {
            PendingAction::Enter(&change.to)
        }
        (Some(change), Some(mode)) if change.step == ChangeStep::Leaving => {
            PendingAction::Leave(mode, &change.to)
        }
        // There was no mode, so there is nothing to undo.
        (Some(change), None) if change.step == ChangeStep::Leaving => {
            PendingAction::Enter(&change.to)
        }
        _ => PendingAction::Nothing,
    }
}

/// The state after the pending action succeeded.
pub fn after_action(gpu: &GpuState) -> GpuState {
    let mut next = gpu.clone();
    match (pending_action(gpu), &gpu.change) {
        (PendingAction::Leave(..), Some(change)) => {
            next.change = Some(ModeChange {
                step: ChangeStep::Entering,
                ..change.clone()
            });
        }
        (PendingAction::Enter(mode), _) => {
            next.mode = Some(mode.clone());
            next.change = None;
        }
        _ => {}
    }
    next
}

/// The state after the new mode failed repeatedly: back to the old one. A GPU without an old mode
/// keeps trying.
pub fn abandon(gpu: &GpuState, why: &str) -> GpuState {
    let mut next = gpu.clone();
    if let (PendingAction::Enter(to), Some(old), Some(change)) =
        (pending_action(gpu), &gpu.mode, &gpu.change)
        && *to != *old
    {
        next.given_up = Some(AbandonedChange {
            to: to.clone(),
            since: change.since,
            refused: Some(why.to_owned()),
        });
        next.mode = Some(to.clone());
        // A GPU of which only numbers change may have users.
        let same = is_compatible(to, old);
        next.change = Some(ModeChange {
            to: old.clone(),
            step: if same {
                ChangeStep::Entering
            } else {
                ChangeStep::Leaving
            },
            since: change.since,
        });
    }
    next
}

/// The state of a GPU when the agent starts: its mode is set up again, and a mode that failed is
/// retried.
pub fn at_startup(gpu: &GpuState, now: u64) -> GpuState {
    let mut next = gpu.clone();
    next.given_up = next.given_up.filter(|given| given.refused.is_none());
    if let (None, Some(mode)) = (&next.change, &next.mode) {
        next.change = Some(ModeChange {
            to: mode.clone(),
            step: ChangeStep::Entering,
            since: now,
        });
    }
    next
}

#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
