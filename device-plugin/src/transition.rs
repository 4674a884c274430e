//! How one card gets from one mode to another: as values, step by step.
//!
//! `Settled → Draining → Leaving → Entering → Settled`; between two modes that differ in numbers
//! only, `Leaving` is left out. A card that is not free in time goes back to `Settled` as it was.
//! Fed by: the wanted mode, who is on the card, the clock, all as values; how a step ended.
//! Must not: touch a card or a file; begin a step before the one that leads to it is stored.

use aliquot_profiles::Mode;
use aliquot_profiles::mode::Mig;
use serde::{Deserialize, Serialize};

/// A card on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The mode that it has, or comes from; `None`: none of ours yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Where it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// What was tried and given up: it is not tried again until another mode was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUp>,
}

/// A change of a card's mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The new mode.
    pub to: Mode,
    /// How far it is.
    pub step: Step,
    /// Since when, in seconds since the epoch.
    pub since: u64,
}

/// How far a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The card takes nothing new, and is waited for.
    Draining,
    /// The old mode is taken back.
    Leaving,
    /// The new mode is made.
    Entering,
}

/// A change that did not come about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// The mode that was wanted.
    pub to: Mode,
    /// Since when it was tried.
    pub since: u64,
    /// Why, where the card refused; `None`: it was not free in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What a decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The mode that the card should have; `None`: nobody knows, so nothing new begins.
    pub wanted: Option<&'a Mode>,
    /// It is known who is on the card.
    pub known: bool,
    /// Those who are on the card now may stay in the new mode, or there are none.
    pub free: bool,
    /// The scheduler has known for a while that the card takes nothing new, and whoever was
    /// bound before is among those on the card.
    pub closed: bool,
    /// Longest wait for a card to get free, in seconds.
    pub timeout: Option<u64>,
    /// Seconds since the epoch.
    pub now: u64,
}

/// What a card needs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo<'a> {
    /// Nothing but time.
    Nothing,
    /// The old mode taken back, for the new one.
    Leave(&'a Mode, &'a Mode),
    /// A mode made.
    Enter(&'a Mode),
}

/// Two modes that differ in numbers and names only: who is on the card may stay.
pub fn alike(one: &Mode, other: &Mode) -> bool {
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

/// The card after one look. Asked again until it stays the same, it is what to store before
/// [`todo`] is done.
pub fn next(card: &Card, see: &Situation<'_>) -> Card {
    let given_up = card.given_up.as_ref();
    let refused = |mode: &Mode| given_up.is_some_and(|g| g.to == *mode && g.refused.is_some());
    // A mode that was given up is no wish for a card that goes back.
    let back = card
        .change
        .as_ref()
        .is_some_and(|change| change.step != Step::Draining);
    let late = |mode: &Mode| back && given_up.is_some_and(|given| given.to == *mode);
    let wanted = see.wanted.filter(|mode| !refused(mode) && !late(mode));
    let Some(change) = &card.change else {
        return settled(card, wanted, see);
    };
    let toward = |to: &Mode, step| {
        Some(Change {
            to: to.clone(),
            step,
            since: see.now,
        })
    };
    let mut next = card.clone();
    match (change.step, wanted.filter(|mode| **mode != change.to)) {
        // What is there is made sure of: the agent may have come before it was whole.
        (Step::Draining, Some(other)) if card.mode.as_ref() == Some(other) => {
            next.change = toward(other, Step::Entering);
            next.given_up = None;
        }
        (Step::Draining, Some(other)) => next.change = toward(other, Step::Draining),
        (Step::Draining, None) => {
            let passed = see.now.saturating_sub(change.since);
            let over = see.timeout.is_some_and(|timeout| passed >= timeout);
            if see.free && see.closed {
                let skip = card.mode.as_ref().is_none_or(|m| alike(m, &change.to));
                let step = if skip { Step::Entering } else { Step::Leaving };
                next.change = toward(&change.to, step);
            } else if over && see.known && !see.free {
                let stays = card.mode.as_ref();
                next.change = stays.and_then(|mode| toward(mode, Step::Entering));
                next.given_up = Some(GivenUp {
                    to: change.to.clone(),
                    since: change.since,
                    refused: None,
                });
            }
        }
        (Step::Leaving, Some(other)) => next.change = toward(other, Step::Leaving),
        // Half of the new mode may be there: it is taken back like any other. Somebody may be on
        // a card whose mode was the same before.
        (Step::Entering, Some(other)) => {
            let before = card.mode.as_ref();
            let same = before.is_some_and(|mode| alike(mode, &change.to));
            next.mode = Some(change.to.clone());
            next.change = toward(other, if same { Step::Draining } else { Step::Leaving });
        }
        (Step::Leaving | Step::Entering, None) => {}
    }
    next
}

fn settled(card: &Card, wanted: Option<&Mode>, see: &Situation<'_>) -> Card {
    let mut next = card.clone();
    let Some(wanted) = wanted else {
        return next;
    };
    if card.mode.as_ref() == Some(wanted) {
        next.given_up = None;
        return next;
    }
    let tried = card.given_up.as_ref().filter(|given| given.to == *wanted);
    // Time was over once: from now on only when the card is free by itself.
    if tried.is_some() && !see.free {
        return next;
    }
    if tried.is_none() {
        next.given_up = None;
    }
    next.change = Some(Change {
        to: wanted.clone(),
        step: Step::Draining,
        since: tried.map_or(see.now, |tried| tried.since),
    });
    next
}

/// What the stored card needs.
pub fn todo(card: &Card) -> Todo<'_> {
    match (&card.change, &card.mode) {
        (Some(change), _) if change.step == Step::Entering => Todo::Enter(&change.to),
        (Some(change), Some(mode)) if change.step == Step::Leaving => Todo::Leave(mode, &change.to),
        // Nothing was there: nothing is to be taken back.
        (Some(change), None) if change.step == Step::Leaving => Todo::Enter(&change.to),
        _ => Todo::Nothing,
    }
}

/// The card after what it needed was done.
pub fn done(card: &Card) -> Card {
    let mut next = card.clone();
    match (todo(card), &card.change) {
        (Todo::Leave(..), Some(change)) => {
            next.change = Some(Change {
                step: Step::Entering,
                ..change.clone()
            });
        }
        (Todo::Enter(mode), _) => {
            next.mode = Some(mode.clone());
            next.change = None;
        }
        _ => {}
    }
    next
}

/// The card after its new mode could not be made, again and again: back to the old one. One
/// that has no old mode is tried on.
pub fn give_up(card: &Card, why: &str) -> Card {
    let mut next = card.clone();
    if let (Todo::Enter(to), Some(old), Some(change)) = (todo(card), &card.mode, &card.change)
        && *to != *old
    {
        next.given_up = Some(GivenUp {
            to: to.clone(),
            since: change.since,
            refused: Some(why.to_owned()),
        });
        next.mode = Some(to.clone());
        // Somebody may be on a card of which only numbers were to change.
        let same = alike(to, old);
        next.change = Some(Change {
            to: old.clone(),
            step: if same { Step::Entering } else { Step::Leaving },
            since: change.since,
        });
    }
    next
}

/// A card as the agent finds it at its start: what was there is made sure of, and what was
/// refused is tried again.
pub fn found(card: &Card, now: u64) -> Card {
    let mut next = card.clone();
    next.given_up = next.given_up.filter(|given| given.refused.is_none());
    if let (None, Some(mode)) = (&next.change, &next.mode) {
        next.change = Some(Change {
            to: mode.clone(),
            step: Step::Entering,
            since: now,
        });
    }
    next
}

#[cfg(test)]
#[path = "transition_tests.rs"]
mod tests;
