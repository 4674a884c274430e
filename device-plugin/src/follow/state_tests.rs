//! How following begins: cards that are gone, modes that wait for somebody.

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::Scaling;
use aliquot_nvml::Driver;
use aliquot_profiles::mode::{Exclusive, Mps, Vgpu};

use super::*;
use crate::testing::{Still, facts};
use crate::transition::{Change, Step};

/// What begins of these stored cards where the driver tells `GPU-a` alone.
fn begun(cards: &[(&str, Card)]) -> State {
    let room = tempfile::tempdir().expect("tempdir");
    let driver: Arc<dyn Driver> = Arc::new(Still);
    let defaults = Defaults {
        split: 2,
        memory_scaling: Scaling::ONE,
    };
    let mut standing = Standing::default();
    for (uuid, card) in cards {
        standing.cards.insert((*uuid).into(), card.clone());
    }
    let beginning = Beginning {
        configured: true,
        facts: &facts(&["GPU-a"]),
        defaults: &defaults,
        modes: &Modes::new(&driver, room.path()),
        shares: &[],
        path: &room.path().join("cards.json"),
    };
    State::begin(Some(standing), &beginning).expect("begun")
}

fn on(mode: Mode) -> Card {
    Card {
        mode: Some(mode),
        ..Card::default()
    }
}

#[test]
fn a_stored_card_that_the_driver_no_longer_has_was_changing_for_ever() {
    let alone = || Mode::Exclusive(Exclusive::default());
    let mut half = on(alone());
    half.change = Some(Change {
        to: Mode::Unmanaged,
        step: Step::Leaving,
        since: 7,
    });
    let stored = [
        ("GPU-a", on(alone())),
        ("GPU-b", half),
        ("GPU-c", on(alone())),
    ];
    let mut state = begun(&stored);
    assert_eq!((state.changing(), state.concerned().len()), (0, 0));
    // It comes back: it is made sure of like at a start, and goes on where it was.
    state.meet(&facts(&["GPU-a", "GPU-b", "GPU-c"]));
    assert_eq!((state.changing(), state.concerned().len()), (2, 2));
    assert_eq!(state.standing.cards["GPU-b"], stored[1].1);
    state.meet(&facts(&["GPU-a", "GPU-b", "GPU-c"]));
    assert_eq!(state.changing(), 2);
}

#[test]
fn cards_whose_daemons_did_not_answer_kept_the_kubelet_unserved_for_twenty_seconds_each() {
    let start = std::time::Instant::now();
    let state = begun(&[("GPU-a", on(Mode::Mps(Mps::new(4))))]);
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "{:?}",
        start.elapsed()
    );
    // It is made sure of by whoever follows, and takes nothing new before.
    assert_eq!(state.changing(), 1);
    let stand = &state.arrangement("nvidia.com/gpu").cards["GPU-a"];
    assert!(stand.cordon.is_some() && !stand.switching, "{stand:?}");
}

/// How a card that goes from vgpu to exclusive is after steps that were not done.
fn after(whys: &[Hindrance]) -> Card {
    let mut failure = Failure::none();
    let card = Card {
        mode: Some(Mode::Vgpu(Vgpu::default())),
        change: Some(Change {
            to: Mode::Exclusive(Exclusive::default()),
            step: Step::Entering,
            since: 0,
        }),
        ..Card::default()
    };
    let steps = whys.iter().cloned();
    steps.fold(card, |card, why| failure.once_more(&card, why))
}

#[test]
fn a_card_that_waits_for_a_reset_was_given_up_after_three_tries() {
    let waits = || Hindrance::Waits("reset it".to_owned());
    let failed = || Hindrance::Failed("no".to_owned());
    let check = |whys: &[Hindrance], given_up: bool| {
        let card = after(whys);
        assert_eq!(card.given_up.is_some(), given_up, "{whys:?}");
    };
    check(&[failed(), failed()], false);
    check(&[failed(), failed(), failed()], true);
    check(&[waits(), waits(), waits(), waits(), waits()], false);
    check(&[failed(), waits(), failed(), waits()], false);
    check(&[failed(), waits(), failed(), failed()], true);
}
