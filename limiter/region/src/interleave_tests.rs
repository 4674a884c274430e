//! Runs two processes in every order of their atomic steps. The words are sequentially consistent,
//! so these are all orders that a machine can show.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::tests::TestCounters;
use super::*;
use crate::shared::SharedBlock;

/// An actor's side of its turns: it asks for one before each step, and waits until it is given.
struct Turns {
    ask: Sender<()>,
    given: Receiver<()>,
}

thread_local! {
    /// `None`: the thread is no actor, and need not wait.
    static TURNS: RefCell<Option<Turns>> = const { RefCell::new(None) };
}

pub(super) fn wait_for_turn() {
    TURNS.with_borrow(|turns| {
        if let Some(turns) = turns {
            turns.ask.send(()).unwrap();
            turns.given.recv().unwrap();
        }
    });
}

/// Runs both actors once, after `before` and before `after`, in the order that `choices` begins and
/// the lowest actor continues; the whole order, as (chosen, number of choices).
fn in_order(
    choices: &[usize],
    before: fn(&TestCounters),
    acts: [fn(&TestCounters); 2],
    after: fn(&TestCounters),
) -> Vec<(usize, usize)> {
    let counters = TestCounters::default();
    before(&counters);
    let mut order = Vec::new();
    thread::scope(|scope| {
        let counters = &counters;
        let start = |act: fn(&TestCounters)| {
            let ((ask, asked), (give, given)) = (channel(), channel());
            scope.spawn(move || {
                TURNS.set(Some(Turns { ask, given }));
                act(counters);
                TURNS.set(None);
            });
            (asked, give)
        };
        let mut actors: Vec<(Receiver<()>, Sender<()>)> = acts.into_iter().map(start).collect();
        // One that has ended asks no more.
        actors.retain(|(asked, _)| asked.recv().is_ok());
        while !actors.is_empty() {
            let choice = choices.get(order.len()).copied().unwrap_or(0);
            let choice = choice.min(actors.len() - 1);
            order.push((choice, actors.len()));
            let (asked, give) = &actors[choice];
            give.send(()).unwrap();
            if asked.recv().is_err() {
                actors.remove(choice);
            }
        }
    });
    after(&counters);
    order
}

/// The same in every order; the number of orders.
fn in_every_order(
    before: fn(&TestCounters),
    acts: [fn(&TestCounters); 2],
    after: fn(&TestCounters),
) -> usize {
    let mut choices: Vec<usize> = Vec::new();
    for orders in 1.. {
        let order = in_order(&choices, before, acts, after);
        // The next order: the last choice that had an alternative takes it.
        let Some(at) = order
            .iter()
            .rposition(|(chosen, runnable)| chosen + 1 < *runnable)
        else {
            return orders;
        };
        choices = order[..at].iter().map(|(chosen, _)| *chosen).collect();
        choices.push(order[at].0 + 1);
    }
    unreachable!()
}

#[test]
fn keeps_two_concurrent_reservations_within_limit() {
    let orders = in_every_order(
        |counters| assert_eq!(counters.account(1).reserve(40, 100), Some(40)),
        [
            |counters| _ = counters.account(0).reserve(40, 100),
            |counters| _ = counters.account(1).reserve(40, 100),
        ],
        |counters| {
            assert_eq!(counters.sum(), 80, "exactly one of the two");
            assert_eq!(counters.total(), 80);
        },
    );
    assert!(orders > 100, "{orders}");
}

#[test]
fn keeps_reservation_during_concurrent_audit() {
    let orders = in_every_order(
        // 25 bytes of a process that died between its two steps.
        |counters| {
            let _ = counters.account(1).reserve(40, 100);
            AtomicWord::add(&counters.total, 25);
        },
        [
            |counters| _ = counters.account(0).charge(20),
            |counters| _ = counters.audit_with(|sum| sum),
        ],
        |counters| {
            let total = counters.total();
            assert!(total == 60 || total == 85, "{total}");
            counters.audit_with(|sum| sum);
            assert_eq!(counters.total(), 60);
        },
    );
    assert!(orders > 1_000, "{orders}");
}

#[test]
fn releases_once_during_concurrent_audit() {
    in_every_order(
        |counters| {
            counters.account(0).charge(20);
            counters.account(1).charge(40);
            AtomicWord::add(&counters.total, 25);
        },
        [
            |counters| counters.account(0).release(20),
            |counters| _ = counters.audit_with(|sum| sum),
        ],
        |counters| {
            let total = counters.total();
            assert!(total == 40 || total == 65, "{total}");
        },
    );
}

#[test]
fn corrects_total_once_with_two_concurrent_audits() {
    fn of_the_first_slot(counters: &TestCounters) {
        let first = || std::iter::once(counters.account(0));
        audit(&counters.total, first, |sum| sum);
    }
    in_every_order(
        |counters| {
            counters.account(0).charge(20);
            AtomicWord::add(&counters.total, 25);
        },
        [of_the_first_slot, of_the_first_slot],
        |counters| {
            let corrected = AtomicWord::load(&counters.total);
            assert_eq!(corrected, AUDIT + 20, "exactly one of the two");
        },
    );
}

#[test]
fn counts_shared_block_while_its_holders_change() {
    const BLOCK: SharedBlock = SharedBlock {
        key: 9,
        device: 0,
        bytes: 40,
        imported: false,
    };
    let before = |counters: &TestCounters| {
        counters.account(0).charge(40);
        counters.account(0).hold(0, BLOCK, counters.entries());
    };
    // All orders are too many.
    let mut dice: u64 = 1;
    for _ in 0..1_000 {
        let choices: Vec<usize> = (0..100)
            .map(|_| {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                usize::from(dice & 1 != 0)
            })
            .collect();
        in_order(
            &choices,
            before,
            [
                |counters| {
                    counters.account(0).let_go(&counters.entry(0), 40);
                    counters.audit();
                },
                |counters| {
                    counters.account(1).adopt(1, BLOCK, counters.entries());
                    counters.audit();
                },
            ],
            |counters| {
                let total = counters.total();
                assert!(total == 40 || total == 80, "{total}");
                counters.audit();
                assert_eq!(counters.total(), 40);
            },
        );
    }
}
