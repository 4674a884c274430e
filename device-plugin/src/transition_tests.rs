//! A table of single looks, and a model: whatever is wanted, whoever comes and whenever the agent
//! dies, a card with somebody on it is never switched under him, and it ends where it should.

use aliquot_profiles::mode::{Exclusive, Timeslice, Vgpu};

use super::*;

fn vgpu(split: u32) -> Mode {
    Mode::Vgpu(Vgpu {
        split: Some(split),
        ..Vgpu::default()
    })
}

fn turns(replicas: u32) -> Mode {
    Mode::Timeslice(Timeslice::new(replicas))
}

fn alone() -> Mode {
    Mode::Exclusive(Exclusive::default())
}

fn on(mode: Mode) -> Card {
    Card {
        mode: Some(mode),
        ..Card::default()
    }
}

fn to(from: Mode, to: Mode, step: Step, since: u64) -> Card {
    let change = Some(Change { to, step, since });
    Card { change, ..on(from) }
}

fn given_up(mut card: Card, to: Mode, refused: Option<&str>) -> Card {
    card.given_up = Some(GivenUp {
        to,
        since: 0,
        refused: refused.map(str::to_owned),
    });
    card
}

/// One look at second 100 with a timeout of 60.
#[expect(clippy::needless_pass_by_value, reason = "reads better at each call")]
fn check(card: &Card, wanted: Option<Mode>, free: bool, closed: bool, expected: &Card) {
    let see = Situation {
        wanted: wanted.as_ref(),
        known: true,
        free,
        closed,
        timeout: Some(60),
        now: 100,
    };
    let found = next(card, &see);
    assert_eq!(found, *expected, "{card:?} wanted {wanted:?} free {free}");
    assert_eq!(
        next(&found, &see).mode,
        found.mode,
        "mode stays at a second look"
    );
}

use Step::{Draining, Entering, Leaving};

#[test]
fn a_change_was_given_up_while_nobody_knew_yet_who_is_on_the_card() {
    // The agent was away for longer than the timeout, and the pods are not known yet.
    let waits = to(vgpu(10), alone(), Draining, 10);
    let wanted = alone();
    let mut see = Situation {
        wanted: Some(&wanted),
        known: false,
        free: false,
        closed: false,
        timeout: Some(60),
        now: 100,
    };
    assert_eq!(next(&waits, &see), waits);
    see.known = true;
    assert!(next(&waits, &see).given_up.is_some());
}

#[test]
fn a_card_drains_and_is_closed_before_it_leaves_its_mode() {
    let here = on(vgpu(10));
    check(&here, None, true, true, &here);
    check(&here, Some(vgpu(10)), true, true, &here);
    let begun = to(vgpu(10), alone(), Draining, 100);
    check(&here, Some(alone()), false, false, &begun);
    let waits = to(vgpu(10), alone(), Draining, 90);
    check(&waits, Some(alone()), false, true, &waits);
    check(&waits, Some(alone()), true, false, &waits);
    check(&waits, None, false, true, &waits);
    let goes = to(vgpu(10), alone(), Leaving, 100);
    check(&waits, Some(alone()), true, true, &goes);
    assert_eq!(todo(&goes), Todo::Leave(&vgpu(10), &alone()));
    let enters = to(vgpu(10), alone(), Entering, 100);
    assert_eq!(done(&goes), enters);
    assert_eq!(todo(&enters), Todo::Enter(&alone()));
    assert_eq!(done(&enters), on(alone()));
}

#[test]
fn numbers_change_without_leaving_the_mode() {
    let waits = to(vgpu(10), vgpu(4), Draining, 90);
    let enters = to(vgpu(10), vgpu(4), Entering, 100);
    check(&waits, Some(vgpu(4)), true, true, &enters);
    assert!(alike(&turns(2), &turns(9)));
    assert!(!alike(&turns(2), &vgpu(2)));
}

#[test]
fn another_wish_on_the_way_is_followed_from_where_the_card_is() {
    let drains = to(vgpu(10), alone(), Draining, 90);
    let stays = to(vgpu(10), vgpu(10), Entering, 100);
    check(&drains, Some(vgpu(10)), false, true, &stays);
    assert_eq!(done(&stays), on(vgpu(10)));
    let anew = to(vgpu(10), turns(3), Draining, 100);
    check(&drains, Some(turns(3)), false, true, &anew);
    let leaves = to(vgpu(10), alone(), Leaving, 90);
    let back = to(vgpu(10), vgpu(10), Leaving, 100);
    check(&leaves, Some(vgpu(10)), true, true, &back);
    let enters = to(vgpu(10), alone(), Entering, 90);
    let takes_back = to(alone(), vgpu(10), Leaving, 100);
    check(&enters, Some(vgpu(10)), true, true, &takes_back);
    check(&enters, None, true, true, &enters);
    // Found so at the agent's start, with pods on it.
    let sure = to(vgpu(10), vgpu(10), Entering, 90);
    let drains = to(vgpu(10), alone(), Draining, 100);
    check(&sure, Some(alone()), false, true, &drains);
}

#[test]
fn a_card_that_is_not_free_in_time_keeps_its_mode_until_it_is_free_by_itself() {
    let late = to(vgpu(10), alone(), Draining, 40);
    let kept = given_up(on(vgpu(10)), alone(), None);
    let stays = given_up(to(vgpu(10), vgpu(10), Entering, 100), alone(), None);
    assert_eq!(done(&stays), kept);
    check(&stays, Some(alone()), false, true, &stays);
    let mut expected = stays.clone();
    expected.given_up.as_mut().expect("given up").since = 40;
    check(&late, Some(alone()), false, true, &expected);
    check(&kept, Some(alone()), false, false, &kept);
    let again = given_up(to(vgpu(10), alone(), Draining, 0), alone(), None);
    check(&kept, Some(alone()), true, false, &again);
    check(&again, Some(alone()), false, true, &stays);
    check(&kept, Some(vgpu(10)), true, true, &on(vgpu(10)));
    let other = to(vgpu(10), turns(3), Draining, 100);
    check(&kept, Some(turns(3)), false, true, &other);
}

#[test]
fn a_mode_that_the_card_refuses_is_given_up_until_another_is_wanted_or_the_agent_starts() {
    let enters = to(vgpu(10), alone(), Entering, 90);
    let back = given_up(to(alone(), vgpu(10), Leaving, 90), alone(), Some("no"));
    let mut expected = back.clone();
    expected.given_up.as_mut().expect("given up").since = 90;
    assert_eq!(give_up(&enters, "no"), expected);
    check(&back, Some(alone()), true, true, &back);
    let home = given_up(on(vgpu(10)), alone(), Some("no"));
    check(&home, Some(alone()), true, true, &home);
    assert_eq!(found(&home, 7), to(vgpu(10), vgpu(10), Entering, 7));
    let fewer = to(vgpu(10), vgpu(2), Entering, 90);
    let numbers = give_up(&fewer, "no").change.expect("goes back");
    assert_eq!((numbers.to, numbers.step), (vgpu(10), Entering));
    // Where there is nothing to go back to it is tried on.
    let first = Card {
        mode: None,
        ..enters
    };
    assert_eq!(give_up(&first, "no"), first);
}

/// What happens to a card in the model.
#[derive(Clone, Copy, Debug)]
enum Event {
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

/// The world that the machine must not break.
struct Model {
    card: Card,
    stored: Card,
    wanted: Option<Mode>,
    /// The mode that the hardware has; `None` in the middle of a switch.
    real: Option<Mode>,
    pods: u32,
    closed: bool,
    now: u64,
}

impl Model {
    fn offered(&self) -> bool {
        self.card.change.is_none() && self.card.mode.is_some()
    }

    fn look(&mut self) {
        let see = Situation {
            wanted: self.wanted.as_ref(),
            known: true,
            free: self.pods == 0,
            closed: self.closed,
            timeout: Some(5),
            now: self.now,
        };
        self.card = next(&self.card, &see);
        self.stored = self.card.clone();
        if self.card.change.is_none() {
            self.closed = false;
        }
    }

    /// A step of the switch, whole or half of it.
    fn work(&mut self, whole: bool) {
        match todo(&self.card) {
            Todo::Nothing => return,
            Todo::Leave(..) => {
                assert_eq!(self.pods, 0, "switched under somebody: {:?}", self.card);
                self.real = None;
            }
            Todo::Enter(mode) => {
                let same = self.real.as_ref().is_some_and(|real| alike(real, mode));
                assert!(same || self.pods == 0, "{:?}", self.card);
                if !same {
                    self.real = None;
                }
                if whole {
                    self.real = Some(mode.clone());
                }
            }
        }
        if whole {
            self.card = done(&self.card);
            self.stored = self.card.clone();
        }
    }

    fn apply(&mut self, event: Event) {
        let modes = [vgpu(10), vgpu(2), alone(), turns(3)];
        match event {
            Event::Want(which) => self.wanted = Some(modes[which % modes.len()].clone()),
            Event::Forget => self.wanted = None,
            Event::Come if self.offered() => self.pods += 1,
            Event::Go => self.pods = self.pods.saturating_sub(1),
            Event::Close if self.card.change.is_some() => self.closed = true,
            Event::Later => self.now += 1,
            Event::Work => self.work(true),
            Event::Half => self.work(false),
            Event::Refuse => {
                self.card = give_up(&self.card, "no");
                self.stored = self.card.clone();
            }
            Event::Restart => self.card = found(&self.stored, self.now),
            Event::Come | Event::Close => {}
        }
        self.look();
        if self.offered() {
            let mode = self.card.mode.as_ref();
            let real = self.real.as_ref();
            let agree = mode.zip(real).is_some_and(|(mode, real)| alike(mode, real));
            assert!(agree, "offered as {mode:?} and is {real:?}");
        }
    }
}

#[test]
fn whatever_is_wanted_and_whenever_the_agent_dies_no_card_is_switched_under_somebody() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Model {
            card: on(vgpu(10)),
            stored: on(vgpu(10)),
            wanted: None,
            real: Some(vgpu(10)),
            pods: 0,
            closed: false,
            now: 0,
        };
        for _ in 0..200 {
            let events = [
                Event::Want(random.usize(..4)),
                Event::Forget,
                Event::Come,
                Event::Go,
                Event::Close,
                Event::Later,
                Event::Work,
                Event::Half,
                Event::Refuse,
                Event::Restart,
            ];
            model.apply(events[random.usize(..events.len())]);
        }
        // Left in peace it gets where it should.
        model.pods = 0;
        let wish = random.usize(..4);
        for event in [Event::Restart, Event::Want(wish)] {
            model.apply(event);
        }
        for _ in 0..10 {
            for event in [Event::Close, Event::Work, Event::Later] {
                model.apply(event);
            }
        }
        assert_eq!(model.card.mode, model.wanted, "seed {seed}");
        assert_eq!(model.card.change, None, "seed {seed}");
        assert!(model.real.is_some(), "seed {seed}");
    }
}

#[test]
fn a_card_is_read_back_as_it_was_stored() {
    let card = given_up(to(vgpu(10), turns(3), Leaving, 9), alone(), Some("no"));
    let text = serde_json::to_string(&card).expect("json");
    assert_eq!(serde_json::from_str::<Card>(&text).expect("json"), card);
}
