//! The time, and bounded waits for it or for a word of the limits page, whichever comes first.

use core::sync::atomic::AtomicU32;

/// Nanoseconds of the monotonic clock, the same in all processes of a container.
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since the epoch.
pub(crate) fn since_epoch() -> u64 {
    read(libc::CLOCK_REALTIME)
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
pub(crate) const MILLISECOND: u64 = SECOND / 1000;

/// Longest wait, in nanoseconds, of an allocation that finds no room for allocations of other
/// threads: theirs are charged twice while the driver makes them.
pub(crate) const MAX_WAIT: u64 = 10_000_000_000;

/// Waits briefly before the next check of what other threads do.
pub(crate) fn pause() {
    pause_for(SECOND / 5000);
}

/// Waits for so many nanoseconds, or less.
pub(crate) fn pause_for(nanoseconds: u64) {
    wait(&AtomicU32::new(0), 0, now() + nanoseconds);
}

/// Waits until `until`, until the word is no longer `value`, or until the host wakes the waiters.
/// May return early.
pub(crate) fn wait(word: &AtomicU32, value: u32, until: u64) {
    let part = |part: u64| libc::c_long::try_from(part).unwrap_or(libc::c_long::MAX);
    let time = libc::timespec {
        tv_sec: part(until / SECOND),
        tv_nsec: part(until % SECOND),
    };
    // Not a private futex, because another process writes the word. The time is absolute.
    // SAFETY: word and time outlive the call, which keeps neither.
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
