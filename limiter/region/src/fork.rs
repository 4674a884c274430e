//! A flag that a forked child finds lowered. Reading it costs one load.
//!
//! The kernel wipes the flag in a child, even after a raw `clone`. Where a kernel or a sandbox such as
//! gVisor refuses that, a handler of libc's `fork` lowers it; then the child of a raw `clone` takes
//! itself for its parent, and what it allocates is counted in the parent's slot.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The value to which a child's word is reset.
const LOWERED: u32 = 0;
const RAISED: u32 = 1;
/// A thread is raising it.
const RISING: u32 = 2;

/// A flag that is raised in this process only. It lives until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct ForkFlag(&'static AtomicU32);

impl ForkFlag {
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
            // SAFETY: nothing refers to the page yet.
            unsafe { libc::munmap(page, PAGE) };
            return Self::with_handler();
        }
        // SAFETY: aligned, zero, and never unmapped.
        Ok(Self(unsafe { &*page.cast::<AtomicU32>() }))
    }

    /// The flag of this process that a handler of `fork` lowers: there is one.
    pub(crate) fn with_handler() -> io::Result<Self> {
        static WORD: AtomicU32 = AtomicU32::new(LOWERED);
        static REGISTERED: OnceLock<i32> = OnceLock::new();
        extern "C" fn lower() {
            WORD.store(LOWERED, Ordering::Release);
        }
        // SAFETY: the handler only stores a word.
        let register = || unsafe { libc::pthread_atfork(None, None, Some(lower)) };
        match *REGISTERED.get_or_init(register) {
            0 => Ok(Self(&WORD)),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// True for one thread, which must then call [`Self::raise`] or [`Self::abandon`]. All other
    /// threads wait for that, a `pause` at a time, and get false, as they do once the flag is
    /// raised.
    pub fn begin(self, pause: impl Fn()) -> bool {
        while !self.is_raised() {
            let lowered =
                self.0
                    .compare_exchange(LOWERED, RISING, Ordering::SeqCst, Ordering::SeqCst);
            if lowered.is_ok() {
                return true;
            }
            // Not a yield: a thread of real-time priority would keep the other one from running.
            pause();
        }
        false
    }

    /// Lowers the flag: the attempt failed.
    pub fn abandon(self) {
        self.0.store(LOWERED, Ordering::Release);
    }

    pub fn raise(self) {
        self.0.store(RAISED, Ordering::Release);
    }

    #[inline]
    pub fn is_raised(self) -> bool {
        self.0.load(Ordering::Acquire) == RAISED
    }
}
