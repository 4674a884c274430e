//! Kernels for whose launch nothing is left to be charged, in whatever context: asked at each launch
//! without a lock or a call of the driver.
//!
//! Fed by: [`super`]. Must not: say so of a kernel beyond the round in which that was found.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::ffi::{Handle, long};

const PLACES: usize = 1024;

/// One kernel in each place, mixed with the round in which it was found ready.
#[derive(Debug)]
pub(super) struct Ready {
    round: AtomicU64,
    places: [AtomicU64; PLACES],
}

impl Default for Ready {
    fn default() -> Self {
        Self {
            round: AtomicU64::new(1),
            places: [const { AtomicU64::new(0) }; PLACES],
        }
    }
}

/// Handles are below 2^47, so different ones stay different within a round.
#[inline]
fn word(kernel: Handle, round: u64) -> u64 {
    long(kernel) ^ round.rotate_left(48)
}

impl Ready {
    #[inline]
    fn place(&self, kernel: Handle) -> &AtomicU64 {
        let mixed = long(kernel).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        &self.places[usize::try_from(mixed).unwrap_or(0) % PLACES]
    }

    /// Nothing is left to be done for it.
    #[inline]
    pub(super) fn has(&self, kernel: Handle) -> bool {
        self.place(kernel).load(Relaxed) == word(kernel, self.round())
    }

    /// To be read before anything is found out for [`Self::add`].
    #[inline]
    pub(super) fn round(&self) -> u64 {
        self.round.load(Acquire)
    }

    /// That is so of a kernel, as it was found in a round.
    pub(super) fn add(&self, kernel: Handle, round: u64) {
        self.place(kernel).store(word(kernel, round), Relaxed);
    }

    /// Something changed that may leave something to be done: called after it did.
    pub(super) fn forget(&self) {
        self.round.fetch_add(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_launch_of_a_librarys_kernel_took_three_locks() {
        let ready = Ready::default();
        let (one, other) = (0x7f12_3456_7890, 0x7f12_3456_78a0);
        assert!(!ready.has(one), "nobody has looked yet");
        ready.add(one, ready.round());
        assert!(ready.has(one) && !ready.has(other));
        let round = ready.round();
        ready.forget();
        assert!(!ready.has(one), "there may be another context");
        ready.add(one, round);
        assert!(!ready.has(one), "that was found before");
        ready.add(one, ready.round());
        assert!(ready.has(one));
    }

    #[test]
    fn kernels_that_meet_in_a_place_are_told_apart() {
        let ready = Ready::default();
        for kernel in 1..5000 {
            ready.add(kernel * 16, ready.round());
            assert!(ready.has(kernel * 16));
        }
        let left = (1..5000).filter(|kernel| ready.has(kernel * 16)).count();
        assert!((100..=PLACES).contains(&left), "{left}");
        assert!((5000..9000).all(|kernel| !ready.has(kernel * 16)));
    }
}
