//! The time, and bounded waits for it or for a word of the limits page, whichever comes first.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;

use crate::early::CLOCK_GETTIME;

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// Nanoseconds of the monotonic clock, the same in all processes of a container.
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

pub(crate) fn since_epoch() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let libc = CLOCK_GETTIME.find();
    if libc.is_null() {
        let place = (&raw mut time).expose_provenance();
        let clock = usize::try_from(clock).unwrap_or(0);
        // SAFETY: a known clock, and a place for its time.
        unsafe { kernel(libc::SYS_clock_gettime, [clock, place, 0, 0]) };
    } else {
        // It does not enter the kernel.
        // SAFETY: libc's function of this type; as above.
        unsafe { core::mem::transmute::<*mut c_void, ClockGettime>(libc)(clock, &raw mut time) };
    }
    let part = |part: libc::c_long| u64::try_from(part).unwrap_or(0);
    part(time.tv_sec) * SECOND + part(time.tv_nsec)
}

/// Calls the kernel itself: what libc's names find is others' in a program with a faked clock.
///
/// # Safety
/// As for the kernel's call of that number.
unsafe fn kernel(number: libc::c_long, arguments: [usize; 4]) {
    let [a, b, c, d] = arguments;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the caller; the kernel changes these three registers and nothing of the stack.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number => _, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: by the caller; the kernel changes the first register and nothing of the stack.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a => _, in("x1") b, in("x2") c,
            in("x3") d, options(nostack));
    }
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

pub(crate) fn pause_for(nanoseconds: u64) {
    wait(&AtomicU32::new(0), 0, now() + nanoseconds);
}

/// The longest wait, in nanoseconds, before the caller looks again.
const MAX_SLEEP: u64 = 20 * MILLISECOND;

/// Waits until `until`, until the word is no longer `value`, or until the host wakes the waiters.
/// May return early, and always does after [`MAX_SLEEP`].
pub(crate) fn wait(word: &AtomicU32, value: u32, until: u64) {
    let left = until.saturating_sub(now()).min(MAX_SLEEP);
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::c_long::try_from(left).unwrap_or(0),
    };
    let place = (&raw const time).expose_provenance();
    let word = word.as_ptr().expose_provenance();
    let value = usize::try_from(value).unwrap_or(0);
    // Not a private futex, because another process writes the word. The time is relative.
    // SAFETY: word and time outlive the call, which keeps neither.
    unsafe { kernel(libc::SYS_futex, [word, FUTEX_WAIT, value, place]) };
}

/// The operation of `futex` that waits for a relative time of the monotonic clock.
const FUTEX_WAIT: usize = 0;
