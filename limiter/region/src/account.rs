//! Accounting between processes without a lock, over any kind of atomic word, so that tests can
//! stop a process before each of its steps.
//!
//! For each device there is one *total*, and in each process's slot one word of what it *used*.
//! A reservation adds to the total first and to the slot second; a release goes the other way.
//! So at any moment total >= sum of the slots: a process that dies between its two steps leaves
//! the total too high, never too low, and the limit holds. [`audit`] brings it back.
//!
//! Fed by: [`crate::counters`]. Must not: loop without bound, or allocate.

/// Bits of a total that are bytes; above them stands the number of the last audit, so that a total
/// that was corrected and grew back is told from one that never changed.
const BYTES: u64 = (1 << 48) - 1;
/// One audit.
const AUDIT: u64 = 1 << 48;
/// Bits of a slot's busy word that count operations under way; above them: operations ended.
const UNDER_WAY: u64 = (1 << 16) - 1;
/// One operation ended, and one fewer under way.
const ENDED: u64 = UNDER_WAY;
/// The most that can be limited: 256 TiB.
pub const MOST: u64 = BYTES;

/// An atomic 64-bit word; every operation is sequentially consistent.
pub trait Word {
    /// Its value.
    fn load(&self) -> u64;
    /// Adds, wrapping.
    fn add(&self, more: u64);
    /// Puts `new` if it is `old`; else what it is.
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64>;
    /// Puts `new`.
    fn store(&self, new: u64);
}

impl Word for core::sync::atomic::AtomicU64 {
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
pub struct Share<'a, W> {
    /// Of the device.
    pub total: &'a W,
    /// Of the process's slot: operations under way and ended.
    pub busy: &'a W,
    /// Of the process's slot: bytes on this device.
    pub used: &'a W,
}

/// What a device's total says, in bytes.
pub fn bytes(total: &impl Word) -> u64 {
    total.load() & BYTES
}

/// A reservation would pass the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Bytes in use by all processes.
    pub used: u64,
}

impl<W: Word> Share<'_, W> {
    /// Takes `size` bytes if no more than `limit` are then in use; how many are in use then.
    pub fn reserve(&self, size: u64, limit: u64) -> Result<u64, Refused> {
        self.busy.add(1);
        let taken = self.take(size, limit.min(BYTES));
        if taken.is_ok() {
            self.used.add(size);
        }
        self.busy.add(ENDED);
        taken
    }

    /// Takes `size` bytes that the driver has given already; only what does not fit into a
    /// total is left out.
    pub fn charge(&self, size: u64) -> u64 {
        self.reserve(size, BYTES).unwrap_or(BYTES)
    }

    /// Gives `size` bytes back.
    pub fn release(&self, size: u64) {
        self.busy.add(1);
        self.used.add(size.wrapping_neg());
        let mut total = self.total.load();
        loop {
            let left = (total & BYTES).saturating_sub(size);
            match self.total.exchange(total, (total & !BYTES) | left) {
                Ok(()) => break,
                Err(now) => total = now,
            }
        }
        self.busy.add(ENDED);
    }

    fn take(&self, size: u64, limit: u64) -> Result<u64, Refused> {
        let mut total = self.total.load();
        loop {
            let used = total & BYTES;
            let after = used.checked_add(size).filter(|after| *after <= limit);
            let after = after.ok_or(Refused { used })?;
            match self.total.exchange(total, (total & !BYTES) | after) {
                Ok(()) => return Ok(after),
                Err(now) => total = now,
            }
        }
    }
}

/// Empties the slot of a dead process; its lock is held meanwhile. The totals stay too high until
/// the next [`audit`]. Dying on the way does no harm: it is done again.
pub fn reap<'a, W: Word + 'a>(busy: &W, used: impl Iterator<Item = &'a W>) {
    for word in used {
        word.store(0);
    }
    // Never back to an earlier value: an audit may be looking.
    busy.store((busy.load() | UNDER_WAY).wrapping_add(1));
}

/// What an audit of one device found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Total and slots agree.
    Exact,
    /// The total was corrected.
    Corrected,
    /// Somebody was at work meanwhile; nothing was changed.
    Busy,
}

/// Sets a device's total to the sum of its slots, if at one moment no operation was under way in
/// any of them. `slots` gives each slot's busy word and its used word for this device, the same
/// ones at each call.
pub fn audit<'a, W: Word + 'a, I>(total: &W, slots: impl Fn() -> I) -> Audit
where
    I: Iterator<Item = (&'a W, &'a W)>,
{
    let mut before: u64 = 0;
    for (busy, _) in slots() {
        let word = busy.load();
        if word & UNDER_WAY != 0 {
            return Audit::Busy;
        }
        before = before.wrapping_add(word);
    }
    let found = total.load();
    let sum = slots().fold(0_u64, |sum, (_, used)| sum.wrapping_add(used.load()));
    // Busy words only grow, so their sum is the same exactly if each of them is.
    let after = slots().fold(0_u64, |sum, (busy, _)| sum.wrapping_add(busy.load()));
    if before != after {
        return Audit::Busy;
    }
    if found & BYTES == sum & BYTES {
        return Audit::Exact;
    }
    let corrected = (found & !BYTES).wrapping_add(AUDIT) | (sum & BYTES);
    match total.exchange(found, corrected) {
        Ok(()) => Audit::Corrected,
        Err(_) => Audit::Busy,
    }
}

#[cfg(test)]
#[path = "interleave_tests.rs"]
mod interleavings;
#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
