//! What a container gets of a unit, by the way in which the unit is shared.
//!
//! Rule: no mode silently gives less than what was written.
//! Fed by: [`crate::placing`], one ask and one unit at a time.
//! Must not: know what others hold; that is [`crate::node::Card::refuse`].

use crate::inventory::{Even, Mode};
use crate::node::{Card, NodeState};
use crate::reason::Reason;
use crate::request::{Ask, Memory};
use crate::rules::Rules;
use crate::units::{Mib, Percent};
use crate::usage::Use;

/// The ask's use of this unit, and why its mode cannot serve the ask. `alone`: the container gets
/// no other unit.
pub(crate) fn of(
    node: &NodeState,
    place: usize,
    ask: &Ask,
    rules: &Rules,
    alone: bool,
) -> (Use, Option<Reason>) {
    let card = &node.cards[place];
    let (memory, cores, wrong) = match card.mode {
        Mode::Vgpu => vgpu(node, place, ask),
        Mode::Exclusive => exclusive(card, ask),
        Mode::Timeslice => timeslice(ask, rules),
        Mode::Mps => mps(node, place, ask, alone),
        // Whole: instances of such a card are placed by `crate::cut`.
        Mode::Mig | Mode::Unknown => (card.scaled, card.cores, Some(Reason::CardModeMismatch)),
    };
    let strict = card.strict && ask.count > 1;
    let wrong = if strict {
        Some(Reason::CardStrict)
    } else {
        wrong
    };
    if !rules.same_unit || ask.count == 1 {
        return (Use::of(memory, cores), wrong);
    }
    let all = |one: u64| one.saturating_mul(ask.count.into());
    let cores = u32::try_from(all(cores.0.into())).unwrap_or(u32::MAX);
    let used = Use {
        seats: ask.count,
        ..Use::of(Mib(all(memory.0)), Percent(cores))
    };
    (used, wrong)
}

/// Memory, compute, and why not.
type Part = (Mib, Percent, Option<Reason>);

fn memory(ask: &Ask, card: &Card) -> Mib {
    match ask.memory {
        Memory::Mib(memory) => memory,
        Memory::Share(part) => card.scaled.share(part),
    }
}

/// What was asked; under a resource without defaults an equal part, where the unit
/// has one, for what was not.
fn vgpu(node: &NodeState, place: usize, ask: &Ask) -> Part {
    let card = &node.cards[place];
    let asked = (memory(ask, card), ask.cores, None);
    if ask.resource == 0 || (ask.wrote.memory && ask.wrote.cores) {
        return asked;
    }
    match even(node, place) {
        Some(even) => (
            if ask.wrote.memory {
                asked.0
            } else {
                even.memory
            },
            if ask.wrote.cores { asked.1 } else { even.cores },
            None,
        ),
        None => asked,
    }
}

/// All of it, if that is as much as was written.
fn exclusive(card: &Card, ask: &Ask) -> Part {
    let more = ask.wrote.memory && memory(ask, card) > card.scaled;
    let wrong = more.then_some(Reason::CardInsufficientMemory);
    (card.scaled, card.cores, wrong)
}

/// A turn: no amount is kept for anybody, so who wrote one does not go there
/// unless it wishes to share so.
fn timeslice(ask: &Ask, rules: &Rules) -> Part {
    let written = ask.wrote.memory || ask.wrote.cores || ask.cores >= Percent::WHOLE;
    let wished = rules.modes.contains(&Mode::Timeslice);
    let wrong = (written && !wished).then_some(Reason::CardModeMismatch);
    (Mib(0), Percent(0), wrong)
}

/// What was written, an equal part of what was not. Compute of 0 is no figure that
/// MPS knows; the equal part is more. A client sees its daemon's unit and no other.
fn mps(node: &NodeState, place: usize, ask: &Ask, alone: bool) -> Part {
    let card = &node.cards[place];
    let whole = Even {
        memory: card.scaled,
        cores: card.cores,
    };
    let even = even(node, place).unwrap_or(whole);
    let memory = if ask.wrote.memory {
        memory(ask, card)
    } else {
        even.memory
    };
    let cores = if ask.wrote.cores && ask.cores > Percent(0) {
        ask.cores
    } else {
        even.cores
    };
    (memory, cores, (!alone).then_some(Reason::CardModeMismatch))
}

fn even(node: &NodeState, place: usize) -> Option<Even> {
    let inventory = node.inventory.as_ref()?;
    inventory.gpus.get(place)?.even
}
