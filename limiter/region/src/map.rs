//! Files mapped into memory. The mapping hands out atomics only, because other processes change the
//! same bytes.

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Opens a regular file without following a link at the end of the path; closed at exec.
pub(crate) fn open(path: &Path, flags: i32) -> io::Result<File> {
    File::options()
        .read(true)
        .write(flags & libc::O_ACCMODE == libc::O_RDWR)
        .custom_flags(flags | libc::O_NOFOLLOW)
        .open(path)
}

/// The system's error, if a call returned one.
pub(crate) fn checked(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A number for the file system and the inode of an open file, which no copy of it has; not 0.
pub fn identity(file: impl AsFd) -> io::Result<u64> {
    // SAFETY: zero is a value of every field of `stat`.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `found` is a `stat` to write to.
    checked(unsafe { libc::fstat(file.as_fd().as_raw_fd(), &raw mut found) })?;
    Ok((found.st_dev.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ found.st_ino) | 1 << 63)
}

/// A shared mapping of the first bytes of a file. It lives until the process ends or `drop`.
#[derive(Debug)]
pub(crate) struct Map {
    base: *mut libc::c_void,
    length: usize,
    is_static: bool,
}

// SAFETY: the mapping is only reached through atomics, and belongs to this value.
unsafe impl Send for Map {}
// SAFETY: the same.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `length` bytes; the file must be at least as long.
    pub(crate) fn new(file: &File, length: usize, protection: i32) -> io::Result<Self> {
        let found = file.metadata()?;
        let size = found.len();
        if !found.is_file() || size < length as u64 {
            let what = format!("expected a file of at least {length} bytes, found {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base,
            length,
            is_static: false,
        })
    }

    /// Words that are in no file.
    pub(crate) fn of_static(words: &'static [AtomicU64]) -> Self {
        Self {
            base: words.as_ptr().cast_mut().cast(),
            length: size_of_val(words),
            is_static: true,
        }
    }

    /// Excludes the mapping, and the locks that live with it, from forked children. Where a sandbox
    /// refuses that, the locks live until the children end, too.
    pub(crate) fn exclude_from_fork(&self) {
        // SAFETY: the range is exactly this mapping.
        unsafe { libc::madvise(self.base, self.length, libc::MADV_DONTFORK) };
    }

    /// The word at a multiple of 8.
    #[inline]
    pub(crate) fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.length);
        // SAFETY: inside the mapping, which starts on a page and is therefore aligned; it lives as
        // long as `self`; every user accesses it by atomics.
        unsafe { &*self.base.byte_add(at).cast::<AtomicU64>() }
    }

    /// The word at a multiple of 4.
    #[inline]
    pub(crate) fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.length);
        // SAFETY: as for `u64`.
        unsafe { &*self.base.byte_add(at).cast::<AtomicU32>() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if !self.is_static {
            // SAFETY: this value's own mapping; no reference into it outlives `self`.
            unsafe { libc::munmap(self.base, self.length) };
        }
    }
}
