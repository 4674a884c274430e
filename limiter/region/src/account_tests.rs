//! A process dies before each of its atomic steps, and so does each of those that clean up after
//! it; then the rest must be exact.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;

const LIMIT: u64 = 100;

thread_local! {
    /// Steps that are left to the process that runs; `None`: it does not die.
    static FUSE: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A word whose user dies before the step at which the fuse ends.
#[derive(Default)]
struct Mortal(Cell<u64>);

fn step() {
    match FUSE.get() {
        Some(0) => resume_unwind(Box::new("died")),
        Some(left) => FUSE.set(Some(left - 1)),
        None => {}
    }
}

impl Word for Mortal {
    fn load(&self) -> u64 {
        step();
        self.0.get()
    }
    fn add(&self, more: u64) {
        step();
        self.0.set(self.0.get().wrapping_add(more));
    }
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        step();
        if self.0.get() != old {
            return Err(self.0.get());
        }
        self.0.set(new);
        Ok(())
    }
    fn store(&self, new: u64) {
        step();
        self.0.set(new);
    }
}

#[derive(Default)]
struct Seat {
    total: Mortal,
    slots: [(Mortal, Mortal); 2],
}

impl Seat {
    fn share(&self, slot: usize) -> Share<'_, Mortal> {
        Share {
            total: &self.total,
            busy: &self.slots[slot].0,
            used: &self.slots[slot].1,
        }
    }

    fn reap(&self, slot: usize) {
        reap(&self.slots[slot].0, std::iter::once(&self.slots[slot].1));
    }

    fn audit(&self) -> Audit {
        audit(&self.total, || {
            self.slots.iter().map(|slot| (&slot.0, &slot.1))
        })
    }

    /// What the slots say, seen from outside.
    fn sum(&self) -> u64 {
        self.slots.iter().map(|slot| slot.1.0.get()).sum()
    }

    fn total(&self) -> u64 {
        self.total.0.get() & BYTES
    }
}

/// Runs `life` for `steps` steps; true if it came to its end.
fn lives(steps: u32, life: impl FnOnce()) -> bool {
    FUSE.set(Some(steps));
    let ended = catch_unwind(AssertUnwindSafe(life)).is_ok();
    FUSE.set(None);
    ended
}

fn a_busy_life(seat: &Seat) {
    let share = seat.share(0);
    assert_eq!(share.reserve(30, LIMIT), Ok(70));
    assert_eq!(share.reserve(31, LIMIT), Err(Refused { used: 70 }));
    assert_eq!(share.reserve(30, LIMIT), Ok(100));
    share.release(30);
    assert_eq!(share.charge(50), 120);
    share.release(50);
}

#[test]
fn whoever_dies_at_whichever_step_the_rest_is_exact_again() {
    let mut deaths = 0;
    for first in 0.. {
        let mut helper_ended = false;
        for second in 0.. {
            let seat = Seat::default();
            assert_eq!(seat.share(1).reserve(40, LIMIT), Ok(40), "the neighbour");
            let ended = lives(first, || a_busy_life(&seat));
            assert!(seat.total() >= seat.sum(), "never too low, died at {first}");
            // Somebody cleans up and dies too; then the neighbour does it all.
            helper_ended = lives(second, || {
                seat.reap(0);
                seat.audit();
            });
            assert!(
                seat.total() >= seat.sum(),
                "never too low, died at {first}, {second}"
            );
            seat.reap(0);
            assert_ne!(seat.audit(), Audit::Busy, "{first}, {second}");
            assert_eq!((seat.total(), seat.sum()), (40, 40), "{first}, {second}");
            assert_eq!(seat.share(1).reserve(60, LIMIT), Ok(100));
            assert_eq!(seat.share(1).reserve(1, LIMIT), Err(Refused { used: 100 }));
            deaths += u32::from(!ended) + u32::from(!helper_ended);
            if helper_ended {
                break;
            }
        }
        assert!(helper_ended);
        if lives(first, a_busy_life_after_neighbour) {
            break;
        }
    }
    assert!(deaths > 200, "only {deaths} deaths were tried");
}

/// The same life once more, to see whether that many steps are enough for it.
fn a_busy_life_after_neighbour() {
    let fuse = FUSE.take();
    let seat = Seat::default();
    seat.share(1).reserve(40, LIMIT).unwrap();
    FUSE.set(fuse);
    a_busy_life(&seat);
}

#[test]
fn an_audit_changes_nothing_while_an_operation_is_under_way() {
    let seat = Seat::default();
    // Dies after its total was raised and before its slot was.
    assert!(!lives(3, || assert!(
        seat.share(0).reserve(30, LIMIT).is_ok()
    )));
    assert_eq!((seat.total(), seat.sum()), (30, 0));
    assert_eq!(seat.audit(), Audit::Busy);
    seat.reap(0);
    assert_eq!(seat.audit(), Audit::Corrected);
    assert_eq!(seat.audit(), Audit::Exact);
    assert_eq!(seat.total(), 0);
}

#[test]
fn a_total_that_was_corrected_and_grew_back_is_not_corrected_by_an_older_audit() {
    let seat = Seat::default();
    seat.total.store(30);
    let seen_by_the_older = seat.total.load();
    assert_eq!(seat.audit(), Audit::Corrected);
    assert_eq!(seat.share(0).reserve(30, LIMIT), Ok(30));
    assert!(seat.total.exchange(seen_by_the_older, 0).is_err());
}

#[test]
fn odd_sizes_neither_wrap_nor_pass() {
    let seat = Seat::default();
    let share = seat.share(0);
    assert_eq!(share.reserve(u64::MAX, u64::MAX), Err(Refused { used: 0 }));
    assert_eq!(share.reserve(BYTES, u64::MAX), Ok(BYTES));
    assert_eq!(share.reserve(1, u64::MAX), Err(Refused { used: BYTES }));
    share.release(BYTES);
    share.release(5);
    assert_eq!(seat.total(), 0, "a forged release does not wrap the total");
}
