//! Every order of the atomic steps of two processes. The words are sequentially consistent, so
//! these orders are all that a machine may show.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::*;

const ACTORS: usize = 2;

/// Whose turn it is, and who has come to an end.
#[derive(Default)]
struct Stage {
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Default)]
struct Turns {
    turn: Option<usize>,
    ended: [bool; ACTORS],
}

thread_local! {
    static ACTOR: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A word each of whose steps waits for its actor's turn.
struct Staged(Arc<Stage>, core::sync::atomic::AtomicU64);

impl Staged {
    fn step<T>(&self, act: impl FnOnce(&core::sync::atomic::AtomicU64) -> T) -> T {
        let Some(actor) = ACTOR.get() else {
            return act(&self.1);
        };
        let mut turns = self.0.turns.lock();
        while turns.turn != Some(actor) {
            self.0.changed.wait(&mut turns);
        }
        let result = act(&self.1);
        turns.turn = None;
        self.0.changed.notify_all();
        result
    }
}

impl Word for Staged {
    fn load(&self) -> u64 {
        self.step(Word::load)
    }
    fn add(&self, more: u64) {
        self.step(|word| Word::add(word, more));
    }
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.step(|word| Word::exchange(word, old, new))
    }
    fn store(&self, new: u64) {
        self.step(|word| Word::store(word, new));
    }
}

struct Seat {
    total: Staged,
    slots: [(Staged, Staged); 2],
}

impl Seat {
    fn share(&self, slot: usize) -> Share<'_, Staged> {
        Share {
            total: &self.total,
            busy: &self.slots[slot].0,
            used: &self.slots[slot].1,
        }
    }
    fn audit(&self) -> Audit {
        audit(&self.total, || {
            self.slots.iter().map(|slot| (&slot.0, &slot.1))
        })
    }
}

/// One run of both actors in the order that `choices` begins and the lowest actor continues;
/// the whole order, as (chosen, how many could be chosen).
fn run(
    choices: &[usize],
    seat: &Arc<Seat>,
    stage: &Arc<Stage>,
    acts: [fn(&Seat); ACTORS],
) -> Vec<(usize, usize)> {
    let threads: Vec<_> = acts
        .into_iter()
        .enumerate()
        .map(|(actor, act)| {
            let (seat, stage) = (Arc::clone(seat), Arc::clone(stage));
            thread::spawn(move || {
                ACTOR.set(Some(actor));
                act(&seat);
                let mut turns = stage.turns.lock();
                while turns.turn != Some(actor) {
                    stage.changed.wait(&mut turns);
                }
                turns.ended[actor] = true;
                turns.turn = None;
                stage.changed.notify_all();
            })
        })
        .collect();
    let mut order = Vec::new();
    loop {
        let mut turns = stage.turns.lock();
        let able: Vec<usize> = (0..ACTORS).filter(|actor| !turns.ended[*actor]).collect();
        if able.is_empty() {
            break;
        }
        let choice = choices.get(order.len()).copied().unwrap_or(0);
        order.push((choice, able.len()));
        turns.turn = Some(able[choice]);
        stage.changed.notify_all();
        while turns.turn.is_some() {
            stage.changed.wait(&mut turns);
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    order
}

/// Runs both actors in every order, `before` first and `after` last; how many orders there were.
fn in_every_order(before: fn(&Seat), acts: [fn(&Seat); ACTORS], after: fn(&Seat)) -> usize {
    let mut choices: Vec<usize> = Vec::new();
    for orders in 1.. {
        let stage = Arc::new(Stage::default());
        let word = || Staged(Arc::clone(&stage), core::sync::atomic::AtomicU64::new(0));
        let seat = Arc::new(Seat {
            total: word(),
            slots: [(word(), word()), (word(), word())],
        });
        before(&seat);
        let order = run(&choices, &seat, &stage, acts);
        after(&seat);
        // The next order: the last choice that had an alternative takes it.
        let Some(at) = order.iter().rposition(|(chosen, able)| chosen + 1 < *able) else {
            return orders;
        };
        choices = order[..at].iter().map(|(chosen, _)| *chosen).collect();
        choices.push(order[at].0 + 1);
    }
    unreachable!()
}

#[test]
fn two_reservations_at_once_never_pass_the_limit() {
    let orders = in_every_order(
        |seat| assert_eq!(seat.share(1).reserve(40, 100), Ok(40)),
        [
            |seat| {
                let _ = seat.share(0).reserve(40, 100);
            },
            |seat| {
                let _ = seat.share(1).reserve(40, 100);
            },
        ],
        |seat| {
            let used = seat.slots.each_ref().map(|slot| Word::load(&slot.1));
            assert_eq!(
                used.iter().sum::<u64>(),
                80,
                "exactly one of the two: {used:?}"
            );
            assert_eq!(bytes(&seat.total), 80);
        },
    );
    assert!(orders > 200, "{orders}");
}

#[test]
fn an_audit_beside_a_reservation_never_loses_it() {
    let orders = in_every_order(
        // 25 bytes of a process that died between its two steps.
        |seat| {
            let _ = seat.share(1).reserve(40, 100);
            Word::add(&seat.total, 25);
        },
        [
            |seat| {
                seat.share(0).charge(20);
            },
            |seat| {
                seat.audit();
            },
        ],
        |seat| {
            let total = bytes(&seat.total);
            assert!(total == 60 || total == 85, "{total}");
            seat.audit();
            assert_eq!(bytes(&seat.total), 60);
        },
    );
    assert!(orders > 1_000, "{orders}");
}

#[test]
fn an_audit_beside_a_release_never_gives_it_back_twice() {
    in_every_order(
        |seat| {
            seat.share(0).charge(20);
            seat.share(1).charge(40);
            Word::add(&seat.total, 25);
        },
        [
            |seat| seat.share(0).release(20),
            |seat| {
                seat.audit();
            },
        ],
        |seat| {
            let total = bytes(&seat.total);
            assert!(total == 40 || total == 65, "{total}");
        },
    );
}

#[test]
fn two_audits_at_once_correct_once() {
    fn of_the_first_slot(seat: &Seat) {
        audit(&seat.total, || {
            std::iter::once((&seat.slots[0].0, &seat.slots[0].1))
        });
    }
    in_every_order(
        |seat| {
            seat.share(0).charge(20);
            Word::add(&seat.total, 25);
        },
        [of_the_first_slot, of_the_first_slot],
        |seat| {
            let corrected = Word::load(&seat.total);
            assert_eq!(corrected, AUDIT + 20, "exactly one of the two");
        },
    );
}
