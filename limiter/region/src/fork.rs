//! A flag that a forked child finds lowered, also after a raw `clone`, at the price of one load.
//!
//! Fed by: the limiter, which raises it when a process has its seat.
//! Must not: call anything when it is read.

use core::sync::atomic::{AtomicU32, Ordering};
use std::io;

/// What the kernel makes of the word in a child.
const LOWERED: u32 = 0;
const RAISED: u32 = 1;
/// A thread is about to raise it.
const RISING: u32 = 2;

/// Raised in this process only. Lives until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct ForkFlag(&'static AtomicU32);

impl ForkFlag {
    /// A lowered flag.
    pub fn new() -> io::Result<Self> {
        const PAGE: usize = 4096;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the page that was mapped just now.
        if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: aligned, zero, and never unmapped.
        Ok(Self(unsafe { &*page.cast::<AtomicU32>() }))
    }

    /// True for one thread, which then calls [`Self::raise`] or [`Self::abandon`]. The others wait
    /// for that and get false, as they do when it is raised.
    pub fn begin(self) -> bool {
        while !self.is_raised() {
            let lowered =
                self.0
                    .compare_exchange(LOWERED, RISING, Ordering::SeqCst, Ordering::SeqCst);
            if lowered.is_ok() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Not now.
    pub fn abandon(self) {
        self.0.store(LOWERED, Ordering::Release);
    }

    /// From now on raised, in this process and its threads.
    pub fn raise(self) {
        self.0.store(RAISED, Ordering::Release);
    }

    /// Whether this is the process that raised it.
    #[inline]
    pub fn is_raised(self) -> bool {
        self.0.load(Ordering::Acquire) == RAISED
    }
}
