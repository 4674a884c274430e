//! Runs two processes in every order of their atomic steps. The words are sequentially consistent,
//! so these are all orders that a machine can show.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::tests::TestCounters;
use super::*;
use crate::shared::SharedBlock;

const ACTORS: usize = 2;

/// Which actor runs, and which have ended.
#[derive(Default)]
struct Schedule {
    state: Mutex<ScheduleState>,
    changed: Condvar,
}

#[derive(Default)]
struct ScheduleState {
    running: Option<usize>,
    ended: [bool; ACTORS],
}

thread_local! {
    static ACTOR: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A word whose every step waits for its actor's turn.
struct ScheduledWord(Arc<Schedule>, core::sync::atomic::AtomicU64);

impl ScheduledWord {
    fn step<T>(&self, act: impl FnOnce(&core::sync::atomic::AtomicU64) -> T) -> T {
        let Some(actor) = ACTOR.get() else {
            return act(&self.1);
        };
        let mut state = self.0.state.lock();
        while state.running != Some(actor) {
            self.0.changed.wait(&mut state);
        }
        let result = act(&self.1);
        state.running = None;
        self.0.changed.notify_all();
        result
    }
}

impl AtomicWord for ScheduledWord {
    fn load(&self) -> u64 {
        self.step(AtomicWord::load)
    }
    fn add(&self, more: u64) {
        self.step(|word| AtomicWord::add(word, more));
    }
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.step(|word| AtomicWord::exchange(word, old, new))
    }
    fn store(&self, new: u64) {
        self.step(|word| AtomicWord::store(word, new));
    }
}

type ScheduledCounters = TestCounters<ScheduledWord>;

/// Runs both actors once, after `before` and before `after`, in the order that `choices` begins and
/// the lowest actor continues; the whole order, as (chosen, number of choices).
fn in_order(
    choices: &[usize],
    before: fn(&ScheduledCounters),
    acts: [fn(&ScheduledCounters); ACTORS],
    after: fn(&ScheduledCounters),
) -> Vec<(usize, usize)> {
    let schedule = Arc::new(Schedule::default());
    let word = || ScheduledWord(Arc::clone(&schedule), core::sync::atomic::AtomicU64::new(0));
    let counters = TestCounters {
        total: word(),
        slots: [(); 2].map(|()| (word(), word())),
        suspended: word(),
        entries: [(); 3].map(|()| [(); 4].map(|()| word())),
    };
    before(&counters);
    let mut order = Vec::new();
    thread::scope(|scope| {
        for (actor, act) in acts.into_iter().enumerate() {
            let (counters, schedule) = (&counters, &schedule);
            scope.spawn(move || {
                ACTOR.set(Some(actor));
                act(counters);
                let mut state = schedule.state.lock();
                while state.running != Some(actor) {
                    schedule.changed.wait(&mut state);
                }
                state.ended[actor] = true;
                state.running = None;
                schedule.changed.notify_all();
            });
        }
        loop {
            let mut state = schedule.state.lock();
            let runnable: Vec<usize> = (0..ACTORS).filter(|actor| !state.ended[*actor]).collect();
            if runnable.is_empty() {
                break;
            }
            let choice = choices.get(order.len()).copied().unwrap_or(0);
            let choice = choice.min(runnable.len() - 1);
            order.push((choice, runnable.len()));
            state.running = Some(runnable[choice]);
            schedule.changed.notify_all();
            while state.running.is_some() {
                schedule.changed.wait(&mut state);
            }
        }
    });
    after(&counters);
    order
}

/// The same in every order; the number of orders.
fn in_every_order(
    before: fn(&ScheduledCounters),
    acts: [fn(&ScheduledCounters); ACTORS],
    after: fn(&ScheduledCounters),
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
        |counters| assert_eq!(counters.account(1).reserve(40, 100), Ok(40)),
        [
            |counters| _ = counters.account(0).reserve(40, 100),
            |counters| _ = counters.account(1).reserve(40, 100),
        ],
        |counters| {
            assert_eq!(counters.sum(), 80, "exactly one of the two");
            assert_eq!(counters.total(), 80);
        },
    );
    assert!(orders > 200, "{orders}");
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
    fn of_the_first_slot(counters: &ScheduledCounters) {
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
    let before = |counters: &ScheduledCounters| {
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
