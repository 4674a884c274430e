//! A flag that a forked child finds lowered, even after a raw `clone`. Reading it costs one load.

use core::sync::atomic::{AtomicU32, Ordering};
use std::io;

/// The value to which the kernel resets the word in a child.
const LOWERED: u32 = 0;
const RAISED: u32 = 1;
/// A thread is raising it.
const RISING: u32 = 2;

/// A flag that is raised in this process only. It lives until the process ends.
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

    /// True for one thread, which must then call [`Self::raise`] or [`Self::abandon`]. All other
    /// threads wait for that and get false, as they do once the flag is raised.
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

    /// Lowers the flag: the attempt failed.
    pub fn abandon(self) {
        self.0.store(LOWERED, Ordering::Release);
    }

    /// Raises the flag in this process and its threads.
    pub fn raise(self) {
        self.0.store(RAISED, Ordering::Release);
    }

    /// Whether this process raised the flag.
    #[inline]
    pub fn is_raised(self) -> bool {
        self.0.load(Ordering::Acquire) == RAISED
    }
}
