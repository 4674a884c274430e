//! Lets a process die before each of its atomic steps, and each process that cleans up after it as
//! well; the remaining ones must be exact.

use core::sync::atomic::AtomicU64;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::interleavings::wait_for_turn;
use super::*;
use crate::shared::{self, Entry, Overlap, SharedBlock};

const LIMIT: u64 = 100;

thread_local! {
    /// Steps that the running process has left; `None`: it does not die.
    static STEPS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A word whose user dies before a step for which it has none left, or else waits for its turn.
#[derive(Default)]
pub(super) struct SteppedWord(AtomicU64);

impl SteppedWord {
    fn step(&self) -> &AtomicU64 {
        match STEPS_LEFT.get() {
            Some(0) => resume_unwind(Box::new("died")),
            Some(left) => STEPS_LEFT.set(Some(left - 1)),
            None => wait_for_turn(),
        }
        &self.0
    }
}

impl AtomicWord for SteppedWord {
    fn load(&self) -> u64 {
        AtomicWord::load(self.step())
    }
    fn add(&self, more: u64) {
        AtomicWord::add(self.step(), more);
    }
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        AtomicWord::exchange(self.step(), old, new)
    }
    fn store(&self, new: u64) {
        AtomicWord::store(self.step(), new);
    }
}

/// Two processes on one device.
#[derive(Default)]
pub(super) struct TestCounters {
    pub(super) total: SteppedWord,
    slots: [TestSlot; 2],
    suspended: SteppedWord,
    entries: [[SteppedWord; 4]; 3],
}

#[derive(Default)]
struct TestSlot {
    busy: SteppedWord,
    used: SteppedWord,
}

impl TestCounters {
    pub(super) fn entry(&self, at: usize) -> Entry<'_, SteppedWord> {
        let [key, holder, bytes, inode] = &self.entries[at];
        Entry {
            key,
            holder,
            bytes,
            inode,
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, Entry<'_, SteppedWord>)> {
        (0..self.entries.len()).map(|at| (at, self.entry(at)))
    }

    pub(super) fn account(&self, slot: usize) -> DeviceAccount<'_, SteppedWord> {
        DeviceAccount {
            total: &self.total,
            busy: &self.slots[slot].busy,
            used: &self.slots[slot].used,
            suspended: &self.suspended,
        }
    }

    fn clear(&self, slot: usize) {
        shared::clear(slot, self.entries().map(|(_, entry)| entry));
        let TestSlot { busy, used } = &self.slots[slot];
        clear(busy, std::iter::once(used));
    }

    pub(super) fn audit_with(&self, held: impl FnOnce(u64) -> u64) -> bool {
        let slots = || (0..2).map(|slot| self.account(slot));
        audit(&self.total, slots, held)
    }

    /// An audit that counts shared blocks once.
    pub(super) fn audit(&self) -> bool {
        self.audit_with(|sum| {
            let held = self.entries().filter_map(|(_, entry)| entry.read());
            Overlap::new(held).of_sum(sum)
        })
    }

    pub(super) fn sum(&self) -> u64 {
        self.slots.iter().map(|slot| slot.used.load()).sum()
    }

    pub(super) fn total(&self) -> u64 {
        bytes(&self.total)
    }
}

/// Runs `life` for `steps` steps; true if it completed.
fn survives(steps: u32, life: impl FnOnce()) -> bool {
    STEPS_LEFT.set(Some(steps));
    let ended = catch_unwind(AssertUnwindSafe(life)).is_ok();
    STEPS_LEFT.set(None);
    ended
}

fn run_operations(counters: &TestCounters) {
    let account = counters.account(0);
    assert_eq!(account.reserve(30, LIMIT), Some(70));
    assert_eq!(account.reserve(31, LIMIT), None);
    assert_eq!(account.reserve(30, LIMIT), Some(100));
    account.release(30);
    assert_eq!(account.charge(50), 120);
    account.release(50);
}

#[test]
fn restores_exact_totals_after_death_at_any_step() {
    let mut deaths = 0;
    for first in 0.. {
        let mut ended = false;
        for second in 0.. {
            let counters = TestCounters::default();
            let neighbour = counters.account(1);
            assert_eq!(neighbour.reserve(40, LIMIT), Some(40));
            let never_too_low = || assert!(counters.total() >= counters.sum(), "{first} {second}");
            ended = survives(first, || run_operations(&counters));
            never_too_low();
            // A helper cleans up and dies too; then the neighbour does it all.
            let helper_ended = survives(second, || {
                counters.clear(0);
                counters.audit();
            });
            never_too_low();
            counters.clear(0);
            assert!(counters.audit(), "{first}, {second}");
            let sums = (counters.total(), counters.sum());
            assert_eq!(sums, (40, 40), "{first}, {second}");
            assert_eq!(neighbour.reserve(60, LIMIT), Some(100));
            assert_eq!(neighbour.reserve(1, LIMIT), None);
            deaths += u32::from(!ended) + u32::from(!helper_ended);
            if helper_ended {
                break;
            }
        }
        if ended {
            break;
        }
    }
    assert!(deaths > 200, "only {deaths} deaths were tried");
}

#[test]
fn rejects_extreme_sizes_without_wrapping() {
    let counters = TestCounters::default();
    let account = counters.account(0);
    assert_eq!(account.reserve(u64::MAX, u64::MAX), None);
    assert_eq!(account.reserve(BYTES, u64::MAX), Some(BYTES));
    assert_eq!(account.reserve(1, u64::MAX), None);
    account.release(BYTES);
    // A forged release.
    account.release(5);
    assert_eq!(counters.total(), 0);
}

const fn block(key: u64, bytes: u64, imported: bool) -> SharedBlock {
    SharedBlock {
        key,
        device: 0,
        bytes,
        imported,
    }
}

/// A process that exports a block of 30 bytes, releases it, and imports one of 40 from its
/// neighbour.
fn share(counters: &TestCounters, is_closed: bool, export: impl FnOnce()) {
    let account = counters.account(0);
    let all = || counters.entries();
    assert_eq!(account.reserve(30, LIMIT), Some(70));
    let own = account.hold(0, block(7, 30, false), all()).unwrap();
    counters.entries[own][3].store(1);
    export();
    account.let_go(&counters.entry(own), 30);
    counters.audit();
    let free_orphans = || {
        let entries = all().map(|(_, entry)| entry);
        account.free_orphans(0, entries, |_, _| is_closed);
    };
    free_orphans();
    let imported = account.adopt(0, block(9, 40, true), all()).unwrap();
    counters.audit();
    account.let_go(&counters.entry(imported), 40);
}

/// After the death of a process that shares memory, the neighbour's 40 bytes and what is in a
/// descriptor are counted, each once.
fn check_sharing(is_closed: bool) {
    for steps in 0.. {
        let counters = TestCounters::default();
        let neighbour = counters.account(1);
        assert_eq!(neighbour.reserve(40, LIMIT), Some(40));
        let block = block(9, 40, false);
        neighbour.hold(1, block, counters.entries()).unwrap();
        let exported = Cell::new(false);
        let ended = survives(steps, || share(&counters, is_closed, || exported.set(true)));
        let least = if exported.get() && !is_closed { 70 } else { 40 };
        assert!(counters.total() >= least, "{steps}: {}", counters.total());
        for helper in 0.. {
            // A helper cleans up, and dies too.
            let cleans = survives(helper, || {
                counters.clear(0);
                counters.audit();
            });
            assert!(counters.total() >= least, "{steps} {helper}");
            if cleans {
                break;
            }
        }
        let entries = counters.entries().map(|(_, entry)| entry);
        neighbour.free_orphans(1, entries, |_, _| is_closed);
        assert!(counters.audit());
        assert_eq!(counters.total(), least, "{steps}");
        if ended {
            assert!(steps > 60, "only {steps} steps");
            return;
        }
    }
}

#[test]
fn shared_block_is_counted_once_after_death_at_any_step() {
    check_sharing(true);
    check_sharing(false);
}

#[test]
fn counts_block_until_its_last_holder_leaves() {
    let counters = TestCounters::default();
    let all = || counters.entries();
    let (one, other) = (counters.account(0), counters.account(1));
    one.reserve(40, LIMIT).unwrap();
    let first = one.hold(0, block(9, 40, false), all()).unwrap();
    let second = other.adopt(1, block(9, 40, true), all()).unwrap();
    let check = |sum, total| {
        assert!(counters.audit());
        assert_eq!((counters.sum(), counters.total()), (sum, total));
    };
    check(80, 40);
    // A part of its first block is also used by something else of this process.
    one.let_go(&counters.entry(first), 38);
    assert!(counters.total() >= 42);
    check(42, 42);
    other.let_go(&counters.entry(second), 40);
    check(2, 2);
    // Where all entries are taken, each holder counts for itself.
    for key in 1..=3 {
        assert!(one.hold(0, block(key, 1, false), all()).is_some());
    }
    assert_eq!(other.adopt(1, block(1, 1, true), all()), None);
    check(3, 3);
}
