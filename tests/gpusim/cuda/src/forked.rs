//! Detects that this process is a child made by fork: a page that the kernel clears in children. A
//! driver that was initialised in the parent is of no use in the child, as with the real one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

static MARK: OnceLock<&'static AtomicU8> = OnceLock::new();

/// Remembers this process as the one that initialised.
pub(crate) fn mark() {
    const PAGE: usize = 4096;
    MARK.get_or_init(|| {
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert!(page != libc::MAP_FAILED, "one page of memory");
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) };
        // SAFETY: the page is mapped forever, and only accessed as this atomic.
        let mark = unsafe { AtomicU8::from_ptr(page.cast()) };
        mark.store(1, Relaxed);
        mark
    });
}

/// `mark` was called in a parent of this process.
#[inline]
pub(crate) fn since_mark() -> bool {
    MARK.get().is_some_and(|mark| mark.load(Relaxed) == 0)
}
