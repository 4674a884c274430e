//! How following begins: cards that are gone, modes that wait for somebody.

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::Scaling;
use aliquot_nvml::Driver;
use aliquot_profiles::mode::{Exclusive, Mps};

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
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    // It is made sure of by whoever follows, and takes nothing new before.
    assert_eq!(state.changing(), 1);
    let stand = &state.arrangement("nvidia.com/gpu").cards["GPU-a"];
    assert!(stand.cordon.is_some() && !stand.switching, "{stand:?}");
}
