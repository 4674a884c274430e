//! Accounting between processes without locks, over any kind of atomic word, so that tests can stop
//! a process before each step.
//!
//! Each device has one *total*, and each process's slot has one word with what it *used*. A
//! reservation adds to the total first and to the slot second; a release goes the other way round.
//! So at any moment the total is at least the sum of the slots: a process that dies between the two
//! steps leaves the total too high, never too low, and the limit is kept. [`audit`] corrects it.
//!
//! Nothing here loops without bound or allocates.

/// The bits of a total that count bytes; the bits above them hold the number of the last audit,
/// which distinguishes a total that was corrected and grew again from one that never changed.
const BYTES: u64 = (1 << 48) - 1;
const AUDIT: u64 = 1 << 48;
/// The bits of a slot's busy word that count operations under way; the bits above count completed
/// operations.
const UNDER_WAY: u64 = (1 << 16) - 1;
/// One more completed operation and one fewer under way.
const ENDED: u64 = UNDER_WAY;
/// The word of a slot whose process is suspended.
pub(crate) const SUSPENDED: u64 = 1;
/// The highest limit: 256 TiB.
pub const MAX_BYTES: u64 = BYTES;

/// An atomic 64-bit word; every operation is sequentially consistent.
pub trait AtomicWord {
    fn load(&self) -> u64;
    fn add(&self, more: u64);
    /// Stores `new` if the value is `old`; else returns the value.
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64>;
    fn store(&self, new: u64);
}

impl AtomicWord for core::sync::atomic::AtomicU64 {
    fn load(&self) -> u64 {
        self.load(core::sync::atomic::Ordering::SeqCst)
    }
    fn add(&self, more: u64) {
        self.fetch_add(more, core::sync::atomic::Ordering::SeqCst);
    }
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        use core::sync::atomic::Ordering::SeqCst;
        self.compare_exchange(old, new, SeqCst, SeqCst).map(|_| ())
    }
    fn store(&self, new: u64) {
        self.store(new, core::sync::atomic::Ordering::SeqCst);
    }
}

/// The words that one process changes for one device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAccount<'a, W> {
    pub total: &'a W,
    /// The slot's operations under way and completed.
    pub busy: &'a W,
    pub used: &'a W,
    /// 1: the slot's process is suspended, and its bytes are not on the device.
    pub suspended: &'a W,
}

pub fn bytes(total: &impl AtomicWord) -> u64 {
    total.load() & BYTES
}

impl<W: AtomicWord> DeviceAccount<'_, W> {
    /// Reserves `size` bytes if at most `limit` are in use then; the bytes in use then.
    #[must_use]
    pub fn reserve(&self, size: u64, limit: u64) -> Option<u64> {
        self.operate(|| {
            let taken = self.try_add(size, limit.min(BYTES));
            if taken.is_some() {
                self.used.add(size);
            }
            taken
        })
    }

    /// Runs one operation, during which no audit changes the total.
    pub(crate) fn operate<T>(&self, operation: impl FnOnce() -> T) -> T {
        self.busy.add(1);
        let result = operation();
        self.busy.add(ENDED);
        result
    }

    /// Adds to the total only, up to what it can hold.
    pub(crate) fn raise(&self, size: u64) {
        // It cannot hold more: it is far above every limit then.
        let _ = self.try_add(size, BYTES);
    }

    /// Adds `size` bytes that the driver has allocated already, up to what a total can hold.
    pub fn charge(&self, size: u64) -> u64 {
        self.reserve(size, BYTES).unwrap_or(BYTES)
    }

    /// The slot's bytes that count.
    fn counted(&self) -> u64 {
        if self.is_suspended() {
            0
        } else {
            self.used.load()
        }
    }

    fn is_suspended(&self) -> bool {
        self.suspended.load() == SUSPENDED
    }

    pub fn release(&self, size: u64) {
        self.operate(|| {
            // Asked before the bytes leave the slot, because whoever resumes the process adds those
            // in it to the total.
            let is_suspended = self.is_suspended();
            self.used.add(size.wrapping_neg());
            if is_suspended {
                return;
            }
            let mut total = self.total.load();
            loop {
                let left = (total & BYTES).saturating_sub(size);
                match self.total.exchange(total, (total & !BYTES) | left) {
                    Ok(()) => break,
                    Err(now) => total = now,
                }
            }
        });
    }

    /// Adds to the total only, if it is at most `limit` then.
    pub(crate) fn try_add(&self, size: u64, limit: u64) -> Option<u64> {
        let mut total = self.total.load();
        loop {
            let sum = (total & BYTES).checked_add(size);
            let after = sum.filter(|sum| *sum <= limit)?;
            match self.total.exchange(total, (total & !BYTES) | after) {
                Ok(()) => return Some(after),
                Err(now) => total = now,
            }
        }
    }
}

/// Clears the slot of a dead process; the caller has its lock. The totals stay too high until the
/// next [`audit`]. Dying on the way does no harm: the next caller repeats it.
pub fn clear<'a, W: AtomicWord + 'a>(busy: &W, used: impl Iterator<Item = &'a W>) {
    for word in used {
        word.store(0);
    }
    // Never back to an earlier value: an audit may be running.
    busy.store((busy.load() | UNDER_WAY).wrapping_add(1));
}

/// Sets a device's total to what its slots hold, if at one moment no operation was under way in
/// any of them; else it changes nothing and returns false. `slots` must yield the same slots at each
/// call; `held` says what exists where the slots are charged for a sum: some of it may be in several.
pub fn audit<'a, W: AtomicWord + 'a, I>(
    total: &W,
    slots: impl Fn() -> I,
    held: impl FnOnce(u64) -> u64,
) -> bool
where
    I: Iterator<Item = DeviceAccount<'a, W>>,
{
    let mut before: u64 = 0;
    for slot in slots() {
        let word = slot.busy.load();
        if word & UNDER_WAY != 0 {
            return false;
        }
        before = before.wrapping_add(word);
    }
    let found = total.load();
    let sum = slots().fold(0_u64, |sum, slot| sum.wrapping_add(slot.counted()));
    let held = held(sum);
    // Busy words only grow, so equal sums mean that each word is equal.
    let after = slots().fold(0_u64, |sum, slot| sum.wrapping_add(slot.busy.load()));
    if before != after {
        return false;
    }
    if found & BYTES == held & BYTES {
        return true;
    }
    let corrected = (found & !BYTES).wrapping_add(AUDIT) | (held & BYTES);
    total.exchange(found, corrected).is_ok()
}

#[cfg(test)]
#[path = "interleave_tests.rs"]
mod interleavings;
#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
