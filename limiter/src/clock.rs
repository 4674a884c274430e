//! The time, and waiting for it or for a word of the limits page, whatever comes first.
//!
//! Fed by: the kernel. Must not: spin, or wait without an end.

use core::sync::atomic::AtomicU32;

/// Nanoseconds of the clock that never goes back; the same in all processes of a container.
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since the epoch.
pub(crate) fn since_epoch() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// As [`now`], a few milliseconds behind, at a fifth of the price.
#[inline]
pub(crate) fn coarse() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a known clock, and a place for its time.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let part = |part: libc::c_long| u64::try_from(part).unwrap_or(0);
    part(time.tv_sec) * SECOND + part(time.tv_nsec)
}

const SECOND: u64 = 1_000_000_000;

/// Nanoseconds for which a call that finds no room waits for those that other threads make: what
/// these take is reckoned twice for as long as the driver is at it.
pub(crate) const PATIENCE: u64 = 10_000_000_000;

/// Waits a little, before another look at what other threads do.
pub(crate) fn rest() {
    wait(&AtomicU32::new(0), 0, now() + SECOND / 5000);
}

/// Waits until `until`, or until the word is no longer `value`, or until the host wakes who waits
/// on it. May return early.
pub(crate) fn wait(word: &AtomicU32, value: u32, until: u64) {
    let part = |part: u64| libc::c_long::try_from(part).unwrap_or(libc::c_long::MAX);
    let time = libc::timespec {
        tv_sec: part(until / SECOND),
        tv_nsec: part(until % SECOND),
    };
    // The word is written by another process: not a private futex. Its time is absolute.
    // SAFETY: the word lives through the call, which only reads it, and so does the time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET,
            value,
            &raw const time,
            core::ptr::null::<u32>(),
            u32::MAX,
        );
    }
}
