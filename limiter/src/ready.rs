//! The functions of which nothing remains to be charged.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::ffi::{Handle, long};

/// Functions and kernels whose launch leaves nothing to be charged in any context. Not part of the
/// process's state, because every launch checks it.
pub(crate) static READY: ReadyFunctions = ReadyFunctions::new();

/// Several times as many as the kernels of a large program, so that few share an entry.
const SIZE: usize = 8192;

/// Functions and kernels that were found ready. Launches check it without a lock or a driver call.
/// Each entry has one of them, mixed with the generation in which it was found ready.
#[derive(Debug)]
pub(crate) struct ReadyFunctions {
    generation: AtomicU64,
    entries: [AtomicU64; SIZE],
}

/// Handles are below 2^47, so different ones stay different within a generation.
#[inline]
fn word(kernel: Handle, generation: u64) -> u64 {
    long(kernel) ^ generation.rotate_left(48)
}

impl ReadyFunctions {
    /// All zero, so that the library's file does not contain it.
    #[allow(clippy::large_stack_arrays, reason = "it is in a static")]
    const fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            entries: [const { AtomicU64::new(0) }; SIZE],
        }
    }

    #[inline]
    fn entry(&self, kernel: Handle) -> &AtomicU64 {
        let mixed = long(kernel).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        &self.entries[usize::try_from(mixed).unwrap_or(0) % SIZE]
    }

    /// Whether nothing remains to be charged for a kernel.
    #[inline]
    pub(crate) fn contains(&self, kernel: Handle) -> bool {
        self.entry(kernel).load(Relaxed) == word(kernel, self.generation())
    }

    /// Must be read before the facts for [`Self::add`] are determined.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Adds a kernel that was found ready in a generation.
    pub(crate) fn add(&self, kernel: Handle, generation: u64) {
        self.entry(kernel).store(word(kernel, generation), Relaxed);
    }

    /// Removes a handle that now means another kernel.
    pub(crate) fn remove(&self, kernel: Handle) {
        self.entry(kernel).store(0, Relaxed);
    }

    /// Something changed that may have to be charged: call this after the change.
    pub(crate) fn invalidate(&self) {
        self.generation.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_ready_kernels_until_invalidated() {
        let ready = ReadyFunctions::new();
        let (one, other) = (0x7f12_3456_7890, 0x7f12_3456_78a0);
        assert!(!ready.contains(one), "it was not checked yet");
        ready.add(one, ready.generation());
        assert!(ready.contains(one) && !ready.contains(other));
        let generation = ready.generation();
        ready.invalidate();
        assert!(!ready.contains(one), "there may be another context");
        ready.add(one, generation);
        assert!(!ready.contains(one), "that was found before");
        ready.add(one, ready.generation());
        assert!(ready.contains(one));
        ready.remove(one);
        assert!(!ready.contains(one), "the handle means another kernel");
    }

    #[test]
    fn distinguishes_kernels_that_share_a_table_entry() {
        let ready = ReadyFunctions::new();
        for kernel in 1..5000 {
            ready.add(kernel * 16, ready.generation());
            assert!(ready.contains(kernel * 16));
        }
        let left = (1..5000)
            .filter(|kernel| ready.contains(kernel * 16))
            .count();
        assert!((100..=SIZE).contains(&left), "{left}");
        assert!((5000..9000).all(|kernel| !ready.contains(kernel * 16)));
    }
}
