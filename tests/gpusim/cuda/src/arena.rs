//! Addresses: one range of the process's address space from which all pointers come, so that no two
//! allocations ever share one. A page exists only once it is written. Ranges are powers of two long
//! and aligned to their length.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::ffi::as_pointer;

/// Tried in this order; less where the system gives no more, as under valgrind.
const LENGTHS: [usize; 4] = [1 << 44, 1 << 41, 1 << 38, 1 << 35];
const SMALLEST: u64 = 512;

pub(crate) struct Arena {
    space: Mutex<Space>,
}

struct Space {
    next: u64,
    end: u64,
    /// Free ranges by length.
    free: BTreeMap<u64, Vec<u64>>,
}

impl Arena {
    pub(crate) fn new() -> Option<Self> {
        let (base, length) = LENGTHS.into_iter().find_map(|length| {
            // SAFETY: a new mapping at an address of the kernel's choice; no page of it exists
            // before it is written.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            let base = NonNull::new(base).filter(|_| base != libc::MAP_FAILED)?;
            for advice in [
                libc::MADV_NOHUGEPAGE,
                libc::MADV_DONTDUMP,
                libc::MADV_DONTFORK,
            ] {
                // SAFETY: the range is the mapping just made; advice that is refused is not
                // needed for anything to be right.
                unsafe { libc::madvise(base.as_ptr(), length, advice) };
            }
            Some((base.as_ptr().expose_provenance() as u64, length as u64))
        })?;
        Some(Self {
            space: Mutex::new(Space {
                next: base,
                end: base + length,
                free: BTreeMap::new(),
            }),
        })
    }

    /// The length that a range for `bytes` has.
    pub(crate) fn length(bytes: u64) -> Option<u64> {
        bytes.max(SMALLEST).checked_next_power_of_two()
    }

    /// A range for `bytes`, at a multiple of its own length.
    pub(crate) fn take(&self, bytes: u64) -> Option<u64> {
        let length = Self::length(bytes)?;
        let mut space = self.space.lock();
        if let Some(range) = space.free.get_mut(&length).and_then(Vec::pop) {
            return Some(range);
        }
        let start = space.next.checked_next_multiple_of(length)?;
        let end = start.checked_add(length).filter(|end| *end <= space.end)?;
        space.next = end;
        Some(start)
    }

    /// Releases a range; `touched`: its pages may exist.
    pub(crate) fn give(&self, start: u64, bytes: u64, touched: bool) {
        let Some(length) = Self::length(bytes) else {
            return;
        };
        if touched {
            empty(start, length);
        }
        self.space
            .lock()
            .free
            .entry(length)
            .or_default()
            .push(start);
    }
}

/// Drops the pages of a range; it reads as zeroes afterwards.
pub(crate) fn empty(start: u64, length: u64) {
    let first = start.next_multiple_of(4096);
    let last = (start + length) & !4095;
    if let Some(bytes) = last.checked_sub(first).filter(|bytes| *bytes > 0) {
        let bytes = usize::try_from(bytes).expect("a 64-bit machine");
        // SAFETY: whole pages of the arena, whose owner gives them up.
        unsafe { libc::madvise(as_pointer(first), bytes, libc::MADV_DONTNEED) };
    }
}
